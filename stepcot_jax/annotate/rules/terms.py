"""The words by which a report names a finding: one table in order of precedence.

A finding is a diagnosis of the chain, another lesion (opacity, granuloma, scar), or any other abnormality.
"""

import dataclasses
from typing import Literal

from stepcot_jax.annotate.rules.spelling import match_slips
from stepcot_jax.chain import DIAGNOSIS_OPTIONS

Sort = Literal["diagnosis", "lesion", "other", "none"]


@dataclasses.dataclass(frozen=True)
class Term:
    """Words for a finding.

    Attributes:
      finding: its name.
      sort: a diagnosis of the chain, another lesion, another abnormality, or "none" for words that name no finding.
      words: regular expression, matched at word boundaries.
    """

    finding: str
    sort: Sort
    words: str


NORMAL, NODULE, ATELECTASIS, INFILTRATION, EFFUSION, PNEUMONIA, CARDIOMEGALY, MASS, PNEUMOTHORAX = DIAGNOSIS_OPTIONS

OPACITY = "Opacity"
LUCENCY = "Lucency"
LESION = "Lesion"
GRANULOMA = "Granuloma"
SCAR = "Scar"
CALCIFICATION = "Calcification"
EMPHYSEMA = "Emphysema"
VOLUME_LOSS = "Volume loss"
SHIFT = "Mediastinal shift"
NODES = "Lymphadenopathy"
AGE_CHANGE = "Age change of bone"
DEVICE = "Device"
VESSEL = "Vessel"
LOW_VOLUME = "Low volume"
RAISED_DIAPHRAGM = "Raised diaphragm"
EVENTRATION = "Eventration"

# Words between heart and size, as in "heart size is again noted to be mildly enlarged".
_HEART = r"(?:heart|cardiac|cardiopericardial|cardiomediastinal|cardio-?mediastinal)"
_NOT_HEART = r"(?!normal|with|without|and|aorta|mediastin|hil|pulmonary|unremarkable)"
_BETWEEN = rf"(?:(?:normal (?:to|or)|{_NOT_HEART}[\w-]+) ){{0,6}}?"
_SIZED = r"(?:(?:size|silhouette|shadow|contours?) )*"
_NOT_LUNG = (
    r"(?!granul|lymph|nod|hil|mediast|lung|left|right|lob|lingul|bas|apic|apex|densit|opacit|foc|upper|lower|pleur)"
)
_ENLARGED = rf"(?:enlarged|enlargement|{match_slips('enlarged')})"
_AORTA = r"aort(?!(?:ic)?o-?pulm)\w+"
_DIAPHRAGM = r"(?:hemi-?)?diaphragms?"
_LOBE = r"(?:lung|lobes?|lobar|segment\w*|RUL|RML|RLL|LUL|LLL)"
# A definite explanation of a shadow: "nodular density represents a healing rib fracture".
_EXPLAINED = (
    r"(?=(?:(?!\b(?:may|might|could|possib\w+|versus|or)\b)[^.;]){0,120}?"
    r"\b(?:represents?|representing|to represent|reflects?|reflecting|consistent with|compatible with|from|due to)"
    r"(?: [\w-]+){0,4}? (?:granulom\w+|histoplasm\w+|fractures?|artifacts?|nipples?|vessels?|vascular|shadows?"
    r"|callus|bone islands?|overlap\w*|overlying|superimpos\w+|confluence|summation|osteophytes?|costochondral)\b)"
)


def _term(finding: str, sort: Sort, *words: str) -> Term:
    return Term(finding, sort, "|".join(words))


TERMS: tuple[Term, ...] = (
    # Words that look like a finding but are not one, or that the sentence explains by another finding.
    _term("none", "none", rf"nodular (?:[\w-]+ ){{0,4}}?(?:opacit|densit)\w+{_EXPLAINED}"),
    _term("none", "none", r"mass(?:-like)? effect", r"nodularity of the diaphragm", r"nipple (?:shadow|marker)s?"),
    _term("none", "none", r"(?:low|soft tissue|breast|bone|bony|tissue) attenuation", r"bone densit(?:y|ies)"),
    _term("none", "none", r"opacit(?:y|ies) (?:to|that) suggest", r"(?:joint|knee|elbow|ankle) effusions?"),
    _term("none", "none", r"prior (?:chest )?(?:radiographs?|exam\w*|stud(?:y|ies)|x-?\w+|ct|films?)"),
    _term(
        DEVICE,
        "other",
        r"(?:metallic|metal|radio-?(?:opaque|dense)|surgical) (?:\w+ )?(?:densit|opacit|object|bod|lesion)\w+",
    ),
    _term(AGE_CHANGE, "other", r"(?:vertebra\w*|body|endplate) collapse|collapse of (?:the )?(?:\w+ ){0,2}vertebra\w*"),
    # Diagnoses.
    _term("Pericardial effusion", "other", r"pericardial (?:effusions?|fluid)"),
    _term(
        PNEUMOTHORAX,
        "diagnosis",
        r"(?:hydro|hemo|haemo)?-?p(?:neu|nue|neum|nuem|enu)mo?-?thora(?:x|ces|xes|cies|xis)",
        r"pleural air(?: collections?)?|ptx",
    ),
    _term(
        EFFUSION,
        "diagnosis",
        r"(?:pleural |para-?pneumonic |sub-?pulmonic )*eff?us{1,2}(?:ions?|sions?|ons?)",
        r"(?:pleural|sub-?pulmonic|para-?pneumonic) (?:fluids?|collections?)",
        r"(?:hydro|hemo|haemo|chylo|pyo)thora\w+",
        r"fluid (?:\w+ ){0,3}?(?:fissures?|costophrenic|pleural (?:space|cavit\w+))",
        r"(?:layering|loculated|small|minimal|tiny|trace|residual|fissural) "
        r"(?:(?:amounts?|volume|of|left|right|bilateral|basal|free|loculated"
        r"|layering) ){0,4}fluid(?! (?:overload|level))",
        r"(?:thickening|scarring|blunting) (?:or|versus|and/or) (?:\w+ )?fluid",
    ),
    _term(INFILTRATION, "diagnosis", r"(?:nodular )?infil\w?t?rat(?:e|es|ion|ions|ive|s)"),
    _term(PNEUMONIA, "diagnosis", r"(?:broncho-?)?p(?:neu|nue|ne)moni(?:as?|ae)", r"pneumonic", r"pneumonitis"),
    _term(
        ATELECTASIS,
        "diagnosis",
        r"at\w{1,3}lect\w+|atel\w{0,3}tasis",
        r"(?:discoid|plate-?like) (?:opacit|densit)\w+",
        rf"{_LOBE} collapse|collapsed (?:\w+ ){{0,3}}{_LOBE}",
        rf"collapse of (?:the )?(?:\w+ ){{0,3}}{_LOBE}",
    ),
    _term(
        CARDIOMEGALY,
        "diagnosis",
        r"card\w{1,3}mega\w*",
        r"(?:cardiac|biventricular|global heart) enlargement",
        rf"enlargement of (?:the )?(?:\w+ )?{_HEART}",
        rf"(?:enlarged|enlarging) (?:the )?{_HEART}(?: size| silhouette| shadow| contours?)?",
        r"borderline (?:enlarged )?(?:heart|cardiac) (?:size|silhouette|enlargement)",
        r"(?:heart|cardiac) (?:size |silhouette )?(?:is |remains |appears )?borderline(?: in)?(?: size)?(?! normal)",
        rf"{_HEART}:? {_SIZED}{_BETWEEN}{_ENLARGED}(?! (?:left|right) (?:atri|ventric))",
        rf"{_HEART} {_SIZED}(?:is |at )*(?:the )?upper limits? (?:of )?normal (?:to|or) (?:\w+ )?enlarged",
        r"(?:heart|cardiac) (?:size |silhouette )?(?:is|appears|remains) (?:\w+ )?(?:large|increased"
        r"|dilated)(?! since)",
        r"(?:heart|cardiac)(?: size)? and mediastin\w+ (?:silhouettes? |contours? )?(?:is |are )?(?:\w+ )?enlarged",
        r"increas(?:e in|ed) (?:the )?(?:heart|cardiac) size",
        rf"{_HEART} {_SIZED}(?:(?:is|appears|remains|slightly) )*(?:above|larger than|greater than|beyond) normal",
    ),
    _term(NODES, "other", r"(?:lymph)?-?adenopath(?:y|ies)", r"enlarged (?:\w+ ){0,2}(?:lymph )?nodes?"),
    _term(GRANULOMA, "lesion", r"(?:calcified )?granulomas?", r"granulomat(?:a|ous)(?: \w+)?", r"histoplasm\w+"),
    _term(
        NODULE,
        "diagnosis",
        r"(?:micro-?)?nodules?",
        r"coin lesions?",
        r"nodular (?:[\w-]+ ){0,4}?(?:opacit\w+|densit\w+|prominence|lesions?|foc\w+|areas?|shadows?)",
        r"nodularity|nodular(?! (?:pattern|change))",
    ),
    _term(PNEUMOTHORAX, "diagnosis", match_slips("pneumothorax", "pneumothoraces")),
    _term(EFFUSION, "diagnosis", r"(?:pleural )*" + match_slips("effusion", "effusions")),
    _term(INFILTRATION, "diagnosis", match_slips("infiltrate", "infiltrates", "infiltration")),
    _term(PNEUMONIA, "diagnosis", match_slips("pneumonia", "pneumonias")),
    _term(ATELECTASIS, "diagnosis", match_slips("atelectasis", "atelectatic")),
    _term(CARDIOMEGALY, "diagnosis", match_slips("cardiomegaly")),
    _term(NODULE, "diagnosis", match_slips("nodule", "nodules")),
    _term(GRANULOMA, "lesion", match_slips("granuloma", "granulomas")),
    _term(OPACITY, "lesion", match_slips("opacity", "opacities", "consolidation")),
    _term(MASS, "diagnosis", r"mass(?:es)?", r"mass-?like (?:opacit|densit|lesion)\w+"),
    # Lesions outside the diagnoses.
    _term(
        OPACITY, "lesion", r"opacit(?:y|ies)", r"opacifications?", r"opacified", r"densit(?:y|ies)", r"consolidat\w+"
    ),
    _term(OPACITY, "lesion", r"air-?\s?space (?:diseases?|process\w*|abnormalit\w+)", r"alveolar (?:disease|process)"),
    _term(LUCENCY, "lesion", r"(?:hyper)?lucen(?:t|cy|cies)", r"cavit(?:y|ies|ary|ations?)", r"bullae?|bullous|blebs?"),
    _term(SCAR, "lesion", r"scar(?:s|ring|red)?", r"cicatri\w+", r"fibro(?:sis|tic)(?: \w+)?"),
    _term(LESION, "lesion", r"lesions?", r"neoplas\w+", r"metasta\w+", r"malignan\w+", r"carcinoma", r"tumou?rs?"),
    # Other abnormalities.
    _term(VOLUME_LOSS, "other", r"volume loss|loss of (?:lung )?volume|collapsed?"),
    _term(
        RAISED_DIAPHRAGM,
        "other",
        rf"(?:elevat\w+|rais\w+) (?:of )?(?:the )?(?:\w+ )?{_DIAPHRAGM}",
        rf"{_DIAPHRAGM} (?:is |are |remains? )?(?:\w+ )?(?:elevated|elevation|raised)",
    ),
    _term(EVENTRATION, "other", r"eventrat\w+"),
    _term(
        SHIFT,
        "other",
        r"mediastin(?:al|um)(?: is| structures are)? shift(?:ed)?",
        r"shift of the (?:trachea|mediastin\w+)",
        r"tracheal (?:shift|deviation)",
    ),
    _term(
        "Edema", "other", r"o?edema", r"congest\w+", r"heart failure", r"chf", r"(?:volume|fluid) overload", r"kerley"
    ),
    _term(EMPHYSEMA, "other", r"emphysem\w+"),
    _term("Hyperinflation", "other", r"copd", r"hyper-?(?:inflat|expan|aerat|disten)\w+", r"obstructive \w+ disease"),
    _term("Hyperinflation", "other", rf"flattened {_DIAPHRAGM}", rf"flattening of (?:the )?(?:\w+ )?{_DIAPHRAGM}"),
    _term(
        LOW_VOLUME,
        "other",
        r"(?:low|decreas\w+|diminish\w+|small|shallow|reduced) (?:lung )?(?:volumes?|inspirat\w+)",
        r"hypo-?(?:inflat|ventilat|aerat|expan)\w+",
        r"(?:broncho)?vascular crowding",
    ),
    _term("Thickening", "other", r"thickening", r"thickened", r"blunt(?:ed|ing)", r"pleural plaques?"),
    _term(
        "Markings",
        "other",
        r"(?:prominen|increas|coarsen|accentuat)\w+ (?:(?!opaci|densit|with\b|and\b)\w+ ){0,3}(?:markings|vascularity)",
        r"interstitial (?:lung )?(?:disease|changes?|pattern|prominence)",
        r"interstitial (?:lung )?markings(?! (?:are|appear) (?:normal|within))",
        r"bronchiecta\w+",
    ),
    _term(
        AGE_CHANGE,
        "other",
        r"(?:costochondral|costal|cartilag\w+|ligament\w*|tracheobronchial|disc|rib) calcif\w+",
        r"calcif\w+ (?:of |in )?(?:the )?(?:costochondral|costal|cartilag\w+|ligament\w*|tracheobronchial|disc)",
    ),
    _term(
        VESSEL,
        "other",
        rf"(?:{_AORTA}|vascular|atherosclero\w+|coronary|valv\w+|annul\w+|arter\w+) (?:is |are )?calcif\w+",
        rf"calcif\w+ (?:{_NOT_LUNG}\w+ ){{0,5}}?(?:{_AORTA}|valv\w+|annul\w+|coronary)",
    ),
    _term("Calcified node", "lesion", r"calcif\w+ (?:(?!granul|nod|densit|opacit)[\w-]+,? ){0,6}?lymph"),
    _term("Calcified node", "lesion", r"lymph \w+ (?:is |are )?calcif\w+"),
    _term(CALCIFICATION, "lesion", r"calcif\w+", match_slips("calcified", "calcification")),
    _term(VESSEL, "other", r"tortuo\w+|ecta(?:tic|sia)|athero\w+|arterio-?sclero\w+|unfold(?:ed|ing)|uncoil\w+"),
    _term(
        "Heart or great vessel",
        "other",
        r"aneurysm\w*|(?:atrial|ventricular|aortic) (?:enlargement|dilat\w+)|pulmonary hypertension",
    ),
    _term("Hernia", "other", r"hernias?|pneumoperitoneum|pneumomediastinum|free (?:intraperitoneal )?air"),
    _term(
        AGE_CHANGE,
        "other",
        r"(?:levo|dextro)?scolio\w+|kypho\w+|osteophyt\w+|spondyl\w+|spurring|dish",
        r"degenerat\w+|arthri\w+|arthro\w+|osteopen\w+|osteoporo\w+|sclero\w+",
        r"(?:old|remote|healed|healing|chronic|prior|previous) (?:[\w-]+,? ){0,3}fractures?",
        r"fractures?,? (?:\w+,? ){0,5}(?:old|remote|healed|chronic)|fracture deformit\w+",
        r"deformit\w+|wedging|(?:old|spinal|vertebral|cervical|prior|anterior) fusion",
    ),
    _term("Bone", "other", r"fractures?"),
    _term("Surgery", "other", r"(?:lob|pneumon)ectomy"),
    _term(
        DEVICE,
        "other",
        r"catheters?|pacemakers?|a?icd|defibrillators?|generator|closure device|stimulators?|port-?a-?\w+|picc",
        r"sternotomy|cabg|clips?|tubes?|tubing|wires?|leads?|stents?|sutures?|prosthe\w+|implant\w*|hardware",
        r"foreign bod(?:y|ies)|mastectomy",
    ),
    _term(
        "Hilum",
        "other",
        r"prominent (?:cardiac|heart) \w+",
        r"prominen\w+ (?:of the )?(?:left |right |bilateral |pulmonary )?hil\w+",
        r"hil\w+ (?:enlarge|prominen)\w+",
    ),
)
