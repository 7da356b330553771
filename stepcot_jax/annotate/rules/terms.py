"""The words by which a report names a finding: one table in order of precedence."""

from stepcot_jax.chain import DIAGNOSIS_OPTIONS

# Misspellings of the names of findings: one letter omitted, doubled, or swapped with the next ("efusion").
#
# Only for words of six letters or more, whose misspellings are not other words.


_NUM_KEPT = 2
"""Leading letters that stay intact: errors there are rare and lead to other words ("infusion")."""


def find_slips(word: str) -> frozenset[str]:
    """Return every form of a word with one misspelling."""
    slips = set()
    for index in range(_NUM_KEPT, len(word)):
        before, letter, after = word[:index], word[index], word[index + 1 :]
        slips |= {before + letter + letter + after, before + after[:1] + letter + after[1:]}
        if after:  # without its last letter a word may be another inflection
            slips.add(before + after)
    return frozenset(slips - {word})


def match_slips(*words: str) -> str:
    """Return a regular expression for the misspellings of words, factored by common prefixes."""
    return _factor(sorted(set().union(*map(find_slips, words)) - set(words)))


def _factor(words: list[str]) -> str:
    first = sorted({word[0] for word in words if word})
    branches = [letter + _factor([word[1:] for word in words if word[:1] == letter]) for letter in first]
    if "" not in words:
        return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{'|'.join(branches)})?" if branches else ""


NORMAL, NODULE, ATELECTASIS, INFILTRATION, EFFUSION, PNEUMONIA, CARDIOMEGALY, MASS, PNEUMOTHORAX = DIAGNOSIS_OPTIONS

LESIONS = ("Opacity", "Lucency", "Lesion", "Granuloma", "Scar", "Calcification", "Calcified node")

OPACITY, LUCENCY, LESION, GRANULOMA, SCAR, CALCIFICATION, CALCIFIED_NODE = LESIONS

EMPHYSEMA, VOLUME_LOSS, SHIFT, NODES = "Emphysema", "Volume loss", "Mediastinal shift", "Lymphadenopathy"
AGE_CHANGE, DEVICE, VESSEL = "Age change of bone", "Device", "Vessel"
LOW_VOLUME, RAISED_DIAPHRAGM, EVENTRATION = "Low volume", "Raised diaphragm", "Eventration"
EDEMA, CONGESTION, FREE_AIR = "Edema", "Congestion", "Free air"
NO_FINDING = ""

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
# Air outside of the lungs: "lucency that appears to be beneath the right hemidiaphragm".
_LUCENT = r"(?:hyper)?lucen(?:t|cy|cies)"
_BELOW = (
    r"(?= (?:(?!and\b|with\b|lung)[\w-]+ ){0,6}?(?:(?:hemi-?|sub-?)?diaphragm\w*|sub-?phrenic|(?:intra-?)?peritone\w+"
    r"|abdom\w+|bowel|colon\w*|mediastin\w+|ribs?|clavicles?|humer\w+|vertebra\w*|scapula\w*)\b)"
)

TERMS: tuple[tuple[str, ...], ...] = (
    # Words that look like a finding but are not one, or that the sentence explains by another finding.
    (NO_FINDING, rf"nodular (?:[\w-]+ ){{0,4}}?(?:opacit|densit)\w+{_EXPLAINED}"),
    (NO_FINDING, r"mass(?:-like)? effect", r"nodularity of the diaphragm", r"nipple (?:shadow|marker)s?"),
    (NO_FINDING, r"(?:low|soft tissue|breast|bone|bony|tissue) attenuation", r"bone densit(?:y|ies)"),
    (NO_FINDING, r"opacit(?:y|ies) (?:to|that) suggest", r"(?:joint|knee|elbow|ankle) effusions?"),
    (NO_FINDING, r"prior (?:chest )?(?:radiographs?|exam\w*|stud(?:y|ies)|x-?\w+|ct|films?)"),
    (DEVICE, r"(?:metallic|metal|radio-?(?:opaque|dense)|surgical) (?:\w+ )?(?:densit|opacit|object|bod|lesion)\w+"),
    (AGE_CHANGE, r"(?:vertebra\w*|body|endplate) collapse|collapse of (?:the )?(?:\w+ ){0,2}vertebra\w*"),
    # Diagnoses.
    ("Pericardial effusion", r"pericardial (?:effusions?|fluid)"),
    (PNEUMOTHORAX, r"(?:hydro|hemo|haemo)?-?p(?:neu|nue|neum|nuem|enu)mo?-?thora(?:x|ces|xes|cies|xis)"),
    (PNEUMOTHORAX, r"pleural air(?: collections?)?|ptx"),
    (EFFUSION, r"(?:pleural |para-?pneumonic |sub-?pulmonic )*eff?us{1,2}(?:ions?|sions?|ons?)"),
    (EFFUSION, r"(?:pleural|sub-?pulmonic|para-?pneumonic) (?:fluids?|collections?)"),
    (EFFUSION, r"(?:hydro|hemo|haemo|chylo|pyo)thora\w+"),
    (EFFUSION, r"fluid (?:\w+ ){0,3}?(?:fissures?|costophrenic|pleural (?:space|cavit\w+))"),
    (
        EFFUSION,
        r"(?:layering|loculated|small|minimal|tiny|trace|residual|fissural) (?:(?:amounts?|volume|of|left|right"
        r"|bilateral|basal|free|loculated|layering) ){0,4}fluid(?! (?:overload|level))",
    ),
    (EFFUSION, r"(?:thickening|scarring|blunting) (?:or|versus|and/or) (?:\w+ )?fluid"),
    (INFILTRATION, r"(?:nodular )?infil\w?t?rat(?:e|es|ion|ions|ive|s)"),
    (PNEUMONIA, r"(?:broncho-?)?p(?:neu|nue|ne)moni(?:as?|ae)", r"pneumonic", r"pneumonitis"),
    (ATELECTASIS, r"at\w{1,3}lect\w+|atel\w{0,3}tasis", r"(?:discoid|plate-?like) (?:opacit|densit)\w+"),
    (ATELECTASIS, rf"{_LOBE} collapse|collapsed (?:\w+ ){{0,3}}{_LOBE}"),
    (ATELECTASIS, rf"collapse of (?:the )?(?:\w+ ){{0,3}}{_LOBE}"),
    (CARDIOMEGALY, r"card\w{1,3}mega\w*", r"(?:cardiac|biventricular|global heart) enlargement"),
    (CARDIOMEGALY, rf"enlargement of (?:the )?(?:\w+ )?{_HEART}"),
    (CARDIOMEGALY, rf"(?:enlarged|enlarging) (?:the )?{_HEART}(?: size| silhouette| shadow| contours?)?"),
    (CARDIOMEGALY, r"borderline (?:enlarged )?(?:heart|cardiac) (?:size|silhouette|enlargement)"),
    (
        CARDIOMEGALY,
        r"(?:heart|cardiac) (?:size |silhouette )?(?:is |remains |appears )?borderline(?: in)?(?: size)?(?! normal)",
    ),
    (CARDIOMEGALY, rf"{_HEART}:? {_SIZED}{_BETWEEN}{_ENLARGED}(?! (?:left|right) (?:atri|ventric))"),
    (CARDIOMEGALY, rf"{_HEART} {_SIZED}(?:is |at )*(?:the )?upper limits? (?:of )?normal (?:to|or) (?:\w+ )?enlarged"),
    (
        CARDIOMEGALY,
        r"(?:heart|cardiac) (?:size |silhouette )?(?:is|appears|remains) (?:\w+ )?(?:large|increased"
        r"|dilated)(?! since)",
    ),
    (
        CARDIOMEGALY,
        r"(?:heart|cardiac)(?: size)? and mediastin\w+ (?:silhouettes? |contours? )?(?:is |are )?(?:\w+ )?enlarged",
    ),
    (CARDIOMEGALY, r"increas(?:e in|ed) (?:the )?(?:heart|cardiac) size"),
    (
        CARDIOMEGALY,
        rf"{_HEART} {_SIZED}(?:(?:is|appears|remains|slightly) )*(?:above|larger than|greater than|beyond) normal",
    ),
    (NODES, r"(?:lymph)?-?adenopath(?:y|ies)", r"enlarged (?:\w+ ){0,2}(?:lymph )?nodes?"),
    (GRANULOMA, r"(?:calcified )?granulomas?", r"granulomat(?:a|ous)(?: \w+)?", r"histoplasm\w+"),
    (NODULE, r"(?:micro-?)?nodules?", r"coin lesions?"),
    (NODULE, r"nodular (?:[\w-]+ ){0,4}?(?:opacit\w+|densit\w+|prominence|lesions?|foc\w+|areas?|shadows?)"),
    (NODULE, r"nodularity|nodular(?! (?:pattern|change))"),
    (PNEUMOTHORAX, match_slips("pneumothorax", "pneumothoraces")),
    (EFFUSION, r"(?:pleural )*" + match_slips("effusion", "effusions")),
    (INFILTRATION, match_slips("infiltrate", "infiltrates", "infiltration")),
    (PNEUMONIA, match_slips("pneumonia", "pneumonias")),
    (ATELECTASIS, match_slips("atelectasis", "atelectatic")),
    (CARDIOMEGALY, match_slips("cardiomegaly")),
    (NODULE, match_slips("nodule", "nodules")),
    (GRANULOMA, match_slips("granuloma", "granulomas")),
    (OPACITY, match_slips("opacity", "opacities", "consolidation")),
    (MASS, r"mass(?:es)?", r"mass-?like (?:opacit|densit|lesion)\w+"),
    # Lesions outside the diagnoses.
    (OPACITY, r"opacit(?:y|ies)", r"opacifications?", r"opacified", r"densit(?:y|ies)", r"consolidat\w+"),
    (OPACITY, r"air-?\s?space (?:diseases?|process\w*|abnormalit\w+)", r"alveolar (?:disease|process)"),
    (FREE_AIR, rf"{_LUCENT}{_BELOW}", rf"(?:sub-?(?:diaphragmatic|phrenic)|intra-?peritoneal) (?:\w+ )?{_LUCENT}"),
    (FREE_AIR, r"pneumo-?(?:peritoneum|mediastinum)", r"free (?:(?:intra|sub)-?\w+ )?(?:air|gas)"),
    (LUCENCY, _LUCENT, r"cavit(?:y|ies|ary|ations?)", r"bullae?|bullous|blebs?"),
    (SCAR, r"scar(?:s|ring|red)?", r"cicatri\w+", r"fibro(?:sis|tic)(?: \w+)?"),
    (LESION, r"lesions?", r"neoplas\w+", r"metasta\w+", r"malignan\w+", r"carcinoma", r"tumou?rs?"),
    # Other abnormalities.
    (VOLUME_LOSS, r"volume loss|loss of (?:lung )?volume|collapsed?"),
    (RAISED_DIAPHRAGM, rf"(?:elevat\w+|rais\w+) (?:of )?(?:the )?(?:\w+ )?{_DIAPHRAGM}"),
    (RAISED_DIAPHRAGM, rf"{_DIAPHRAGM} (?:is |are |remains? )?(?:\w+ )?(?:elevated|elevation|raised)"),
    (EVENTRATION, r"eventrat\w+"),
    (SHIFT, r"mediastin(?:al|um)(?: is| structures are)? shift(?:ed)?", r"shift of the (?:trachea|mediastin\w+)"),
    (SHIFT, r"tracheal (?:shift|deviation)"),
    (EDEMA, r"o?edema"),
    (CONGESTION, r"congest\w+", r"heart failure", r"chf", r"(?:volume|fluid) overload", r"kerley"),
    (EMPHYSEMA, r"emphysem\w+"),
    ("Hyperinflation", r"copd", r"hyper-?(?:inflat|expan|aerat|disten)\w+", r"obstructive \w+ disease"),
    ("Hyperinflation", rf"flattened {_DIAPHRAGM}", rf"flattening of (?:the )?(?:\w+ )?{_DIAPHRAGM}"),
    (LOW_VOLUME, r"(?:low|decreas\w+|diminish\w+|small|shallow|reduced) (?:lung )?(?:volumes?|inspirat\w+)"),
    (LOW_VOLUME, r"hypo-?(?:inflat|ventilat|aerat|expan)\w+", r"(?:broncho)?vascular crowding"),
    ("Thickening", r"thickening", r"thickened", r"blunt(?:ed|ing)", r"pleural plaques?"),
    (
        "Markings",
        r"(?:prominen|increas|coarsen|accentuat)\w+ (?:(?!opaci|densit|with\b|and\b)\w+ ){0,3}(?:markings|vascularity)",
    ),
    ("Markings", r"interstitial (?:lung )?(?:disease|changes?|pattern|prominence)"),
    ("Markings", r"interstitial (?:lung )?markings(?! (?:are|appear) (?:normal|within))", r"bronchiecta\w+"),
    (AGE_CHANGE, r"(?:costochondral|costal|cartilag\w+|ligament\w*|tracheobronchial|disc|rib) calcif\w+"),
    (
        AGE_CHANGE,
        r"calcif\w+ (?:of |in )?(?:the )?(?:costochondral|costal|cartilag\w+|ligament\w*|tracheobronchial|disc)",
    ),
    (VESSEL, rf"(?:{_AORTA}|vascular|atherosclero\w+|coronary|valv\w+|annul\w+|arter\w+) (?:is |are )?calcif\w+"),
    (VESSEL, rf"calcif\w+ (?:{_NOT_LUNG}\w+ ){{0,5}}?(?:{_AORTA}|valv\w+|annul\w+|coronary)"),
    (CALCIFIED_NODE, r"calcif\w+ (?:(?!granul|nod|densit|opacit)[\w-]+,? ){0,6}?lymph"),
    (CALCIFIED_NODE, r"lymph \w+ (?:is |are )?calcif\w+"),
    (CALCIFICATION, r"calcif\w+", match_slips("calcified", "calcification")),
    (VESSEL, r"tortuo\w+|ecta(?:tic|sia)|athero\w+|arterio-?sclero\w+|unfold(?:ed|ing)|uncoil\w+"),
    ("Heart or great vessel", r"aneurysm\w*|(?:atrial|ventricular|aortic) (?:enlargement|dilat\w+)"),
    ("Heart or great vessel", r"pulmonary hypertension"),
    ("Hernia", r"hernias?"),
    (AGE_CHANGE, r"(?:levo|dextro)?scolio\w+|kypho\w+|osteophyt\w+|spondyl\w+|spurring|dish"),
    (AGE_CHANGE, r"degenerat\w+|arthri\w+|arthro\w+|osteopen\w+|osteoporo\w+|sclero\w+"),
    (AGE_CHANGE, r"(?:old|remote|healed|healing|chronic|prior|previous) (?:[\w-]+,? ){0,3}fractures?"),
    (AGE_CHANGE, r"fractures?,? (?:\w+,? ){0,5}(?:old|remote|healed|chronic)|fracture deformit\w+"),
    (AGE_CHANGE, r"deformit\w+|wedging|(?:old|spinal|vertebral|cervical|prior|anterior) fusion"),
    ("Bone", r"fractures?"),
    ("Surgery", r"(?:lob|pneumon)ectomy"),
    (DEVICE, r"catheters?|pacemakers?|a?icd|defibrillators?|generator|closure device|stimulators?|port-?a-?\w+|picc"),
    (DEVICE, r"sternotomy|cabg|clips?|tubes?|tubing|wires?|leads?|stents?|sutures?|prosthe\w+|implant\w*|hardware"),
    (DEVICE, r"foreign bod(?:y|ies)|mastectomy"),
    ("Hilum", r"prominent (?:cardiac|heart) \w+"),
    ("Hilum", r"prominen\w+ (?:of the )?(?:left |right |bilateral |pulmonary )?hil\w+"),
    ("Hilum", r"hil\w+ (?:enlarge|prominen)\w+"),
)
"""A finding and regular expressions for the words that name it; `NO_FINDING` for words that name none."""
