"""Whether a report is in another language than English, by its words."""

import json
import re
import unicodedata
from pathlib import Path

_WORDS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_IS_FOREIGN = frozenset(_WORDS["foreign"].split())  # in Latin script, without accents; in no English report
_IS_FUNCTION_WORD = frozenset(_WORDS["function"].split())  # names or Latin too: one alone decides nothing
_WORD = re.compile(r"[^\W\d_]+")
_ACCENTED = re.compile(r"\b[a-z]+[\u00df-\u00f6\u00f8-\u024f\u1e00-\u1eff][^\W\d_]*")  # lower case: names are not
_SPELLED = str.maketrans({"\u00f8": "o", "\u00e6": "ae", "\u0153": "oe", "\u0142": "l", "\u0131": "i", "\u0111": "d"})
_BORROWED = frozenset(("naive", "facade", "resume", "risque", "peau", "cafe", "role", "cliche"))
_NEGATED = re.compile(r"\b(?:pas d[e']|no hay\b|no se\b|non si\b|il n'|n'est\b|ne pas\b)")
_OTHER_SCRIPT = re.compile(
    r"[\u0370-\u03ff\u0400-\u04ff\u0590-\u06ff\u0900-\u097f\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
)


def find_foreign_words(text: str) -> list[str]:
    """Return words that show another language than English, in their order; none for a report in English.

    >>> find_foreign_words("Derrame pleural izquierdo. No se observa neumotorax.")
    ['derrame', 'izquierdo', 'observa', 'neumotorax', 'no se']
    >>> find_foreign_words("Lungs clear.")
    []
    """
    letters = _OTHER_SCRIPT.findall(text)
    if len(letters) > 1:
        return ["".join(letters[:8])]
    plain = _without_accents(text).replace("\u2019", "'")
    words = list(dict.fromkeys(_WORD.findall(plain)))
    accented = {_without_accents(word) for word in _ACCENTED.findall(unicodedata.normalize("NFC", text))} - _BORROWED
    foreign = [word for word in words if word in _IS_FOREIGN or word in accented] + _NEGATED.findall(plain)
    others = [word for word in words if word in _IS_FUNCTION_WORD]
    return [*foreign, *others] if foreign or len(others) > 1 else []


def _without_accents(text: str) -> str:
    folded = unicodedata.normalize("NFKD", text.casefold()).translate(_SPELLED)
    return "".join(mark for mark in folded if not unicodedata.combining(mark))
