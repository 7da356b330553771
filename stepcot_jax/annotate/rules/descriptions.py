"""The words that describe a lesion: density, distribution, pattern, location and margins, as answers of the chain.

Zones of a frontal radiograph: apex and upper lobe are the upper zone; middle lobe and lingula the middle zone; base,
lower lobe and the retrocardiac lung the lower zone. In each table earlier answers take precedence.
"""

import re

from stepcot_jax.annotate.rules.spelling import match_slips
from stepcot_jax.chain import DEFAULT_CHAIN

NO_ABNORMALITY, INCREASED, DECREASED, MIXED = DEFAULT_CHAIN.steps[0].options
FOCAL, MULTIFOCAL, DIFFUSE, _ = DEFAULT_CHAIN.steps[1].options
CONSOLIDATION, RETICULAR, NODULAR, LINEAR, CAVITY, _ = DEFAULT_CHAIN.steps[2].options
UPPER, MIDDLE, LOWER, HILAR, PLEURA, CARDIAC, _ = DEFAULT_CHAIN.steps[3].options
SHARP, ILL_DEFINED, SPICULATED, CALCIFIED, _ = DEFAULT_CHAIN.steps[4].options

_LUNG = r"(?:lung |lobe |pulmonary |hemi-?thorax |chest )?"
_ZONE = r"(?:lobes?|lungs?|zones?|chest|hemi-?thora\w+|thorax|fields?|XXXX|poles?|portions?)"

DETECTION_WORDS: dict[str, str] = {
    MIXED: r"mixed (?:increased|opacit\w+|densit\w+|lucen\w+)",
    DECREASED: r"(?:decreased|reduced) (?:opacity|density)|(?:hyper)?lucen(?:t|cy|cies)",
    INCREASED: r"opaci\w+|densit\w+|consolidat\w+",
}
DISTRIBUTION_WORDS: dict[str, str] = {
    DIFFUSE: r"diffuse\w*|widespread|generali[sz]ed|throughout (?:the |both )?lungs?",
    MULTIFOCAL: (
        r"(?:scattered|multiple|several|few)\b[^.;]{0,80}\bthroughout|multi-?(?:focal|lobar|ple)|scattered|bilateral\w*|both|bi-?bas\w+"
        r"|bi-?apical\w*|several|numerous|few|two|three|couple|bases|apices|lobes|zones"
        r"|[2-9](?= (?:[\w-]+ ){0,4}?(?:nodules|masses|granulomas|opacities|densities)\b)"
        r"|(?:right|left) (?:greater|larger) than (?:right|left)"
    ),
    FOCAL: (
        r"focal|focus|solitary|single|locali[sz]ed|right|left|unilateral|RUL|LUL|RML|RLL|LLL|lingul\w+|middle lobe"
        r"|right-sided|left-sided"
    ),
}
PLURAL_WORDS: dict[str, str] = {
    MULTIFOCAL: r"nodules|effusions|granulomas|granulomata|masses|opacities|densities|infiltrates|areas|foci|scars"
}
"""Plurals that mean several lesions unless one place is named; several lesions in one lobe are one focus."""
PATTERN_WORDS: dict[str, str] = {
    CAVITY: r"cavit(?:y|ies|ary|ation|ations|ating)|air[- ]fluid level",
    RETICULAR: r"reticul\w+|interstitial|honeycomb\w*",
    LINEAR: r"linear|streak\w*|plate-?like|discoid|band-?like|bands?|sub-?segmental|strand\w*",
    NODULAR: r"(?:fibro|micro)?nodular|nodules?|mass(?:es)?|mass-?like|rounded|round",
    CONSOLIDATION: r"consolidat\w+|air-?\s?space|alveolar|lobar",
}
LOCATION_WORDS: dict[str, str] = {
    LOWER: (
        r"retro-?cardiac|(?:posterior to|behind) (?:the )?(?:left |right )?heart|superior segment of the \w+ lower lobe"
        rf"|(?:bi-?)?(?:bas(?:al|ally|ilar|e|es))|lower {_LUNG}{_ZONE}|RLL|LLL"
    ),
    UPPER: rf"(?:bi-?)?(?:apex|apices|apical|apically)|upper {_LUNG}{_ZONE}|RUL|LUL|suprahilar|azygos lobe",
    MIDDLE: rf"(?:middle|mid)[ -]?{_LUNG}{_ZONE}|lingul\w+|RML",
    CARDIAC: r"over the cardiac silhouette|about the heart",
    HILAR: (
        r"(?:peri|infra|para|juxta)?-?hil(?:ar|um|a|i)|(?:para-?)?mediastin(?:um|al)|para-?tracheal|subcarinal"
        r"|aorto-?pulmonary|AP window"
    ),
    PLEURA: (
        r"along the (?:right |left |bilateral )?(?:pleura|chest wall)|pleural[- ]based|(?:right |left )chest wall"
        r"|costophrenic|breast|fissur\w+|pleural (?:plaques?|calcif\w+)"
    ),
}
MORPHOLOGY_WORDS: dict[str, str] = {
    CALCIFIED: r"(?<!non)(?<!non-)(?<!no )calci\w+|hyperdense|" + match_slips("calcified"),
    SPICULATED: r"spiculat\w+|stellate",
    ILL_DEFINED: (
        r"(?:ill|poorly)[- ]?(?:defined|marginated|circumscribed|delineated)|indistinct|patchy|hazy|irregular|vague"
        r"|fluffy|blurred"
    ),
    SHARP: (
        r"well[- ]?(?:circumscribed|defined|marginated|delineated)|sharply \w+|circumscribed|smooth\w*"
        r"|(?:sharp|distinct) (?:margin|border|edge|contour)s?"
    ),
}

# "Right middle and lower lobe", "left hilar and lower lobe" name two places, hence two lesions.
_STEMS: dict[str, str] = {
    "upper": r"upper|apex|apical",
    "middle": r"mid(?:dle|-?lungs?)?|lingul\w+",
    "lower": r"lower|bas(?:al|ilar|e)",
    "hilar": r"(?:peri)?hil(?:ar|um)",
}
_STEM = "|".join(_STEMS.values())
_TWO_ZONES = re.compile(
    rf"\b(?P<one>{_STEM})(?: {_ZONE})?(?:,? (?:and|as well as) |, | ?/ ?)"
    rf"(?:in |at |within )?(?:the )?(?:left |right )?(?P<two>{_STEM})\b",
    re.IGNORECASE,
)


def names_two_zones(text: str, first: int, last: int, *, about: tuple[int, int]) -> bool:
    """Whether `first` to `last` join two zones by "and", a comma or a slash, at least one of them within `about`."""
    for match in _TWO_ZONES.finditer(text, first, last):
        is_near = match.start() < about[1] and about[0] < match.end()
        if is_near and _zone_of(match["one"]) != _zone_of(match["two"]):
            return True
    return False


def _zone_of(word: str) -> str:
    return next(zone for zone, stem in _STEMS.items() if re.fullmatch(stem, word, re.IGNORECASE))


class Describer:
    """Finds the answer of one table that the words near a finding name."""

    def __init__(self, words: dict[str, str]) -> None:
        self._answers = tuple(words)
        groups = "|".join(rf"(?P<a{number}>{pattern})" for number, pattern in enumerate(words.values()))
        self._pattern = re.compile(rf"\b(?:{groups})\b", re.IGNORECASE)

    def nearest(self, text: str, first: int, last: int, *, about: tuple[int, int]) -> str | None:
        """Return the answer whose words, within `first` to `last`, are nearest to the range `about`."""
        best, least = None, len(text) + 1
        for match in self._pattern.finditer(text, first, last):
            distance = max(match.start() - about[1], about[0] - match.end(), 0)
            if distance < least:
                best, least = self._named(match), distance
        return best

    def strongest(self, text: str, first: int, last: int) -> str | None:
        """Return the first answer of the table that characters `first` to `last` name."""
        named = {self._named(match) for match in self._pattern.finditer(text, first, last)}
        return next((answer for answer in self._answers if answer in named), None)

    def _named(self, match: re.Match[str]) -> str:
        return self._answers[int(match.lastgroup[1:])]  # type: ignore[index]


DETECTION = Describer(DETECTION_WORDS)
DISTRIBUTION = Describer(DISTRIBUTION_WORDS)
PLURAL = Describer(PLURAL_WORDS)
PATTERN = Describer(PATTERN_WORDS)
LOCATION = Describer(LOCATION_WORDS)
MORPHOLOGY = Describer(MORPHOLOGY_WORDS)
