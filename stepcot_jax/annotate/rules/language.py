"""Reports in another language than English: the rules would read half of them and call the rest normal.

Only foreign words decide, never the lack of English ones: "Lungs clear." has none either.
"""

import re
import unicodedata

_FOREIGN = (
    "aanwijzingen achados addensamenti addensamento afwijkingen agudas agudos akciger alteraciones alteracoes "
    "anomalie atelectasias aucun aucune aumento avec beidseits bez bovenkwab cardiaque cardiomegalia coeur "
    "consolidacao consolidacion coracao corazon cuore derecha derecho derrame derrames destra destro direita direito "
    "droit droite efuzyon epanchement erguss ergusse esquerda esquerdo evidencia evidencian evidenza foyer gauche "
    "geen hallazgos herz herzgrosse herzschatten infiltraat infiltrados infiltrat izlenmedi izquierda izquierdo kein "
    "keine keinen keiner khong lesioni lewego lobulo longen masa nachweis nao neumonia neumotorax nicht noduli nodulo "
    "nodulos normais normaldir normalidad oberlappen observa observan ohne ombra onderkwab opacidade opacidades "
    "opacite oplucnej oraz phoi pleuraerguss pleuraergusse pleurale pleurales pleuravocht pleurico plevral pluca "
    "plucne pneumonie pneumopathie pneumotorace pneumotorax polmone polmoni poumon poumons prawego pulmao pulmoes "
    "pulmonaire pulmonaires pulmonar pulmonares pulmones radiografia rechts regelrecht rundherd sem senza serce "
    "significativas silueta sin sinistra sinistro stauung torace unauffallig unauffallige und unterlappen versamento "
    "verschattung yok zijn zmian"
)
"""Words of Spanish, Portuguese, French, Italian, German, Dutch, Polish and Turkish reports that no English one has, in
lower case and without accents."""

_FUNCTION_WORDS = (
    "avec che com con das dei del della den der des du een ein eine el est et het ist las les links los lunge met mit "
    "ne ni pas sans si um uma una van von zu"
)
"""Words that an English report may have as a name or as Latin: one alone decides nothing."""

_IS_FOREIGN, _IS_FUNCTION_WORD = frozenset(_FOREIGN.split()), frozenset(_FUNCTION_WORDS.split())
_WORD = re.compile(r"[^\W\d_]+")
_OTHER_SCRIPT = re.compile(
    r"[\u0370-\u03ff\u0400-\u04ff\u0590-\u06ff\u0900-\u097f\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
)


def find_foreign_words(text: str) -> list[str]:
    """Return words that show another language than English, in their order; none for a report in English.

    >>> find_foreign_words("Derrame pleural izquierdo. No se observa neumotorax.")
    ['derrame', 'izquierdo', 'observa', 'neumotorax']
    >>> find_foreign_words("Lungs clear.")
    []
    """
    letters = _OTHER_SCRIPT.findall(text)
    if len(letters) > 1:
        return ["".join(letters[:8])]
    plain = "".join(mark for mark in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(mark))
    words = list(dict.fromkeys(_WORD.findall(plain)))
    foreign = [word for word in words if word in _IS_FOREIGN]
    others = [word for word in words if word in _IS_FUNCTION_WORD]
    return [*foreign, *others] if foreign or len(others) > 1 else []
