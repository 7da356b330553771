"""The rules annotator: seven answers from reports, with the sentences they rest on; reports in other languages."""

import contextlib
import csv
import dataclasses

import pytest
from annotate.rules.tables import read_table
from answers import name_answers
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse
from timing import least_seconds

from stepcot_jax.annotate.annotation import CannotAnnotate, Reason, Report
from stepcot_jax.annotate.rules.annotator import annotate_report, describe_report
from stepcot_jax.annotate.rules.language import find_foreign_words
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.tools.annotate.coding import read_coded_reports


def report(text):
    return Report("1", "1", text, ("a.png",), "test")


def answers(text):
    return name_answers(annotate_report(report(text)).labels)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FINDINGS: The lungs are clear. No effusion. IMPRESSION: Normal chest.",
         "No abnormality|N/A|N/A|N/A|N/A|N/A|Normal"),
        ("FINDINGS: There is a spiculated nodule in the right upper lobe. No effusion.",
         "Increased opacity|Focal|Nodular|Upper lung zone|Spiculated|N/A|Nodule"),
        ("IMPRESSION: Scattered calcified nodules in both lungs.",
         "Increased opacity|Multifocal|Nodular|N/A|Calcified|N/A|Nodule"),
        ("FINDINGS: Patchy opacity in the lingula. IMPRESSION: Pneumonia. Small effusion on the left.",
         "Increased opacity|Focal|Consolidation|Middle lung zone|Ill-defined|Pleural effusion|Pneumonia"),
        ("IMPRESSION: Bibasilar subsegmental atelectasis with elevation of the left hemidiaphragm.",
         "Increased opacity|Multifocal|Linear|Lower lung zone|N/A|Volume loss|Atelectasis"),
        ("IMPRESSION: Cardiomegaly. Scar in the right apex.",
         "Increased opacity|N/A|N/A|Cardiac|N/A|N/A|Cardiomegaly"),
        ("FINDINGS: The lungs are clear. IMPRESSION: Moderate cardiomegaly.",
         "|N/A|N/A|Cardiac|N/A|N/A|Cardiomegaly"),
        ("IMPRESSION: Large left effusion. Small right effusion.",
         "Increased opacity|Multifocal|N/A|Pleura/Chest wall|N/A|N/A|Effusion"),
        ("IMPRESSION: Left apical pneumothorax with mediastinal shift.",
         "Decreased opacity|Focal|N/A|Upper lung zone|N/A|Mediastinal shift|Pneumothorax"),
        ("IMPRESSION: Right hilar mass with cavitation.",
         "Mixed|Focal|Cavity|Hilar/Mediastinal|N/A|N/A|Mass"),
        ("IMPRESSION: Diffuse interstitial infiltrates. Hilar adenopathy.",
         "Increased opacity|Diffuse|Reticular|N/A|N/A|Lymphadenopathy|Infiltration"),
    ],
)  # fmt: skip
def test_seven_answers(text, expected):
    assert [answer or "" for answer in answers(text)] == expected.split("|")


def test_answers_cite_their_sentences_and_a_reason_names_findings_alone():
    text = "FINDINGS: Opacity in the left base. The heart is large. IMPRESSION: Left pneumonia."
    found = annotate_report(report(text)).reasoning
    assert (found[3], found[5], found[6]) == ("Opacity in the left base.", "The heart is large.", "Left pneumonia.")
    assert refusal("FINDINGS: Mr Smith has a calcified granuloma and emphysema.")[1] == "emphysema, granuloma"


DENSITY_AND_PATTERN = """
1 None: Lungs are clear. The heart is markedly enlarged. | Cardiomegaly. Calcified hilar lymph nodes.
1 None: Cardiomegaly. Density over the left lung is a nipple shadow.
1 Increased opacity: Cardiomegaly with interstitial edema. | Cardiomegaly. Hazy opacity of the right base.
1 Increased opacity: Basal atelectasis. Lucency under the left hemidiaphragm, free air.
1 Increased opacity: Left basal pneumonia. Subdiaphragmatic lucency.
1 Increased opacity: Small effusion. Lucent lesion of the left seventh rib.
1 Decreased opacity: Cardiomegaly. The upper lobes are emphysematous.
1 Decreased opacity: Left apical pneumothorax. Nipple shadows mimic nodular densities.
1 Mixed: Right basilar atelectasis. Lucent upper lobes.
1 Mixed: Pneumonia with a lucency in the right lung above the diaphragm.
3 None: Hazy opacities in the right base may be atelectasis. | Ill-defined atelectasis in the left base.
3 None: Complete left lower lobe collapse.
3 Consolidation: Patchy airspace opacities in the left base, possibly atelectasis. | Patchy infiltrate in the left base.
3 Linear: Patchy linear opacities in the left base, possibly atelectasis.
3 Linear: Atelectasis in the left base. Patchy vascular calcifications. | Minimal left basilar atelectasis.
"""


@pytest.mark.parametrize(("name", "findings"), read_table(DENSITY_AND_PATTERN))
def test_the_density_of_the_lungs_and_the_pattern_that_a_diagnosis_implies(name, findings):
    step, _, expected = name.partition(" ")
    assert str(answers(f"FINDINGS: {findings}")[int(step) - 1]) == expected


def refusal(text):
    with pytest.raises(CannotAnnotate) as caught:
        annotate_report(report(text))
    return caught.value.reason, caught.value.detail


def test_a_borderline_heart_beside_a_shadow_is_the_uncertain_diagnosis():
    """As the coders of IU X-Ray have it."""
    hearts = ("Borderline cardiomegaly", "The heart is borderline in size", "Top normal heart size to mildly enlarged")
    shadows = (
        "Airspace disease in the lingula", "Right lower lobe consolidation", "Ring-like lucency in the left apex",
    )  # fmt: skip
    for heart in hearts:
        for shadow in shadows:
            for text in (f"FINDINGS: {shadow}. {heart}.", f"FINDINGS: {shadow}. IMPRESSION: {heart}."):
                annotation = annotate_report(text)
                assert DEFAULT_CHAIN.steps[-1].options[annotation.labels[-1]] == "Cardiomegaly"
                assert annotation.uncertain[-1]


SET_ASIDE = """
NO_REPORT: INDICATION: pneumonia. | FINDINGS: . IMPRESSION:
OUTSIDE_TAXONOMY: FINDINGS: Calcified granuloma in the left apex. Lungs otherwise clear.
OUTSIDE_TAXONOMY: FINDINGS: Clear lungs. Calcified granuloma in the left lung, cholecystectomy.
OUTSIDE_TAXONOMY: FINDINGS: Clear lungs. Changes of a left lobectomy.
OUTSIDE_TAXONOMY: FINDINGS: Clear lungs. Free air beneath the diaphragm. | FINDINGS: Hyperexpanded clear lungs.
OUTSIDE_TAXONOMY: FINDINGS: Acute fracture of the clavicle. Clear lungs. | FINDINGS: Comparison XXXX.
CONFLICTING_FINDINGS: FINDINGS: There is an effusion. No effusion.
CONFLICTING_FINDINGS: FINDINGS: Small left effusion. IMPRESSION: No effusion.
"""


@pytest.mark.parametrize(("name", "text"), [*read_table(SET_ASIDE), ("NO_REPORT", "")])
def test_what_is_set_aside_and_why(name, text):
    assert refusal(text)[0] == Reason[name]


def test_answers_follow_the_order_of_the_chains_options_and_another_chain_is_refused():
    first, *rest = DEFAULT_CHAIN.steps
    turned = Chain((dataclasses.replace(first, options=first.options[::-1]), *rest))
    text = report("IMPRESSION: Small effusion.")
    assert (annotate_report(text).labels[0], annotate_report(text, chain=turned).labels[0]) == (1, 2)
    other = Chain((dataclasses.replace(first, options=("Yes", "No")), *rest))
    refuse(r"'Detection'.*'No abnormality'", lambda: annotate_report(report("IMPRESSION: Mass."), chain=other))
    refuse("7", lambda: annotate_report(report("IMPRESSION: Mass."), chain=Chain((first,))))


WORDS = (
    *("no", "mass", "effusion", "is", "not", "seen", "right", "upper lobe", "heart", "enlarged", "but", "possible"),
    *(".", ",", ";", "\n", "FINDINGS:", "IMPRESSION:", "INDICATION:", "1."),
    *("calcified", "opacity", "consistent with", "These", "clear"),
)


@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_any_text_gives_an_annotation_that_quotes_it_or_a_reason(words):
    text = " ".join(words)
    try:
        annotation = annotate_report(report(text))
    except CannotAnnotate:
        return
    assert annotation == annotate_report(report(text))
    for step, label, reasoning in zip(DEFAULT_CHAIN.steps, annotation.labels, annotation.reasoning, strict=True):
        assert label in (*range(step.num_answers), NOT_ANNOTATED)
        assert (label == NOT_ANNOTATED) == (reasoning == "")
    assert annotation.labels[-1] != NOT_ANNOTATED
    if annotation.labels[0] != 3:  # what makes a density mixed may stand in two sentences
        assert all(reasoning in text for reasoning in annotation.reasoning)


@pytest.mark.parametrize(
    "unit",
    [
        *("no mass, mass ", "heart a a a ", "nodular a a ", "prior a ", "a", "1. ", "-", "no mass or a, "),
        *("is a and a ", "mass which is ", "upper and "),
    ],
)
def test_hostile_lengths_take_linear_time(unit):
    """Twenty times the length in 8 times its share of time at most; quadratic rules take 20 times that share."""

    def read(length):
        with contextlib.suppress(CannotAnnotate):
            annotate_report(report(unit * (length // len(unit))))

    read(1_000)
    bound = 8 * 20 * max(least_seconds(lambda: read(2_000), 0.005), 0.005)
    assert least_seconds(lambda: read(40_000), bound) < bound


def test_phantom_reports_give_their_answers_back():
    cases = [draw_case(index, seed=3, size=16, prevalence="flat").case for index in range(150)]
    given = [annotate_report(report(case.report)).labels for case in cases]
    for step in range(DEFAULT_CHAIN.num_steps):
        agreeing = sum(labels[step] == case.answers[step] for labels, case in zip(given, cases, strict=True))
        assert agreeing >= 0.98 * len(cases), DEFAULT_CHAIN.steps[step].name


def doubts(text):
    """The answers that are uncertain, by the number of the step."""
    marks = annotate_report(report(text)).uncertain or (False,) * DEFAULT_CHAIN.num_steps
    pairs = enumerate(zip(answers(text), marks, strict=True), start=1)
    return {number: answer for number, (answer, mark) in pairs if mark}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("FINDINGS: Right lower lobe pneumonia.", {}), ("FINDINGS: Probable right lower lobe pneumonia.", {})),
        (
            "FINDINGS: Possible right lower lobe pneumonia.",
            {1: "Increased opacity", 2: "Focal", 3: "Consolidation", 4: "Lower lung zone", 7: "Pneumonia"},
        ),
        ("FINDINGS: Right lower lobe opacity, which may represent pneumonia.", {3: "Consolidation", 7: "Pneumonia"}),
        (
            "FINDINGS: A small left pneumothorax cannot be excluded.",
            {1: "Decreased opacity", 2: "Focal", 4: "Pleura/Chest wall", 7: "Pneumothorax"},
        ),
        ("FINDINGS: Right lower lobe pneumonia. Possible small pleural effusion.", {6: "N/A"}),
        ("FINDINGS: Right lower lobe pneumonia. Small pleural effusion. Possible cardiomegaly.", {}),
    ],
)
def test_what_a_report_calls_possible_is_uncertain(text, expected):
    assert doubts(text) == expected


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("FINDINGS: Right lower lobe opacity. IMPRESSION: Possible spiculated left upper lobe mass.", {4, 5}),
        ("FINDINGS: Possible left lower lobe atelectasis. There is a small left opacity at the apex.", {4}),
    ],
)
def test_a_shadow_at_another_place_supports_no_possible_finding(text, steps):
    assert steps <= doubts(text).keys()


def diagnose(report):
    try:
        return DEFAULT_CHAIN.steps[-1].options[annotate_report(report).labels[-1]]
    except CannotAnnotate:
        return "aside"


# A denial that ends early, reaches in doubt, or is a sign: never a certain Normal.
BULLETS = "| \t \u2192 \u25a0 # \u00b7 ~ || _ \u25cb \u2023 \u00bb *** > = + - -> --- (b) 2- \\n <hr> </dd><dd>"


@pytest.mark.parametrize("bullet", BULLETS.split(" "))
def test_a_denial_ends_at_the_next_item_of_a_list(bullet):
    assert diagnose(f"FINDINGS: No effusion {bullet} Nodule in left upper lobe") == "Nodule"


EXPECTED = """
Normal: INDICATION: pneumonia. FINDINGS: Clear lungs. No effusion. | FINDINGS: No edema.
Normal: Clear lungs. Degenerative changes of the spine. | Clear lungs. The right hemidiaphragm is elevated.
Normal: Clear lungs. Left pacemaker. Tortuous aorta. Low lung volumes. | Clear lungs. Clips in the right upper quadrant.
Normal: Clear lungs. Fracture of the left clavicle, old. | Clear lungs. Metallic density over the left shoulder.
Normal: FINDINGS: Clear lungs. Nodular density overlying the 4th rib represents a healing fracture.
Normal: FINDINGS: No focal consolidation. Pleural effusions or pneumothorax. Clear lungs.
Effusion: FINDINGS: Possible mass. Small effusion. | IMPRESSION: Cardiomegaly. Small effusion.
Effusion: FINDINGS: No effusion. IMPRESSION: Small effusion. | FINDINGS: No large effusion. Small left effusion.
Effusion: FINDINGS: No right effusion. Small left effusion. | FINDINGS: Trace right pleural fluid.
Effusion: FINDINGS: Small left effusion. No effusion or edema.
Mass: FINDINGS: Possible mass.
Cardiomegaly: FINDINGS: Small effusion. IMPRESSION: Cardiomegaly. | FINDINGS: The heart is borderline in size.
Cardiomegaly: FINDINGS: Borderline cardiac enlargement. Possible right basal atelectasis.
Cardiomegaly: FINDINGS: The heart is borderline in size. Old granuloma in the left apex.
Cardiomegaly: FINDINGS: The heart is borderline in size. Opacity at the left base is the nipple.
Cardiomegaly: FINDINGS: Cardiomegaly. Extensive consolidation of the right lung.
Atelectasis: IMPRESSION: Atelectasis or infiltrate. | FINDINGS: Right upper lobe collapse.
Atelectasis: FINDINGS: Large atelectesis and no pneumthorax.
Atelectasis: FINDINGS: Heart size upper limits of normal to enlarged. Left basal atelectasis.
Atelectasis: FINDINGS: Borderline cardiac enlargement. Probable right basal atelectasis.
Infiltration: IMPRESSION: Infiltrate. Associated pneumothorax.
Nodule: FINDINGS: Nodular density in the left base which may represent a nipple shadow.
Nodule: FINDINGS: 5 mm nodule in the left base. No nodule is seen in the right lung.
Nodule: No effusion * nodule in left upper lobe. | No effusion \u2013 nodule in left upper lobe.
Nodule: No effusion \u2022 nodule in left upper lobe. | No effusion / nodule in left upper lobe.
Nodule: <p>No effusion</p><p>Nodule in left upper lobe</p> | 1) No effusion 2) Nodule in left lung
Nodule: Pneumothorax (-), effusion (-), nodule (+).
Mass: No effusion on the left, large mass on the right.
Pneumothorax: No pneumothorax on the left but a small one on the right.
Effusion: No effusion on the right, moderate on the left.
Effusion: [ ] Pneumothorax [x] Effusion | Pneumothorax [ ] Effusion [x]
Normal: No pleural effusion / pneumothorax. | Mass and effusion (-). Lungs clear.
Normal: Suspected pneumonia was not confirmed. Lungs clear. | Ruled-out pneumothorax. Lungs clear.
Cardiomegaly: Cardiomegaly. Effusion not assessed.
aside: Lungs are clear. Effusion could not be assessed.
Effusion: No right effusion; moderate left. | No right pleural effusion, but there is on the left.
Effusion: No pleural effusion on the left. Small on the right. | No right effusion. Left-sided is small.
Effusion: No effusion, except a small one on the left. | Effusion is absent on the right but present on the left.
Effusion: Pneumothorax: (-). Effusion: (+). | Pneumothorax -, effusion ++ | (+) effusion, (-) pneumothorax
Effusion: + effusion, - pneumothorax | Pneumothorax: N. Effusion: Y. | Pneumothorax = 0, effusion = 1
Effusion: \u2610 Pneumothorax \u2612 Effusion | Effusion \u2713 Pneumothorax \u2717 | (x) Effusion ( ) Pneumothorax
Effusion: Pneumothorax? No. Effusion? Yes. | Effusion: 1. Pneumothorax: 0. | Effusion - small left. Pneumothorax - none.
Effusion: No reduction in effusion. | Not without effusion. | Effusion is not unlikely.
Normal: Pneumonia was suspected but not found. | Pneumonia not proven. | Ruled-out: pneumonia. Lungs are clear.
Normal: Pneumonia rule-out. Lungs clear. | Nil effusion. Lungs clear. | Pneumonia: excluded. Lungs clear.
Normal: No effusion on the right or left. | No mass lesion. | No left effusion. The right lung is clear.
aside: Effusion not evaluable. | Pneumothorax: not assessed. | Evaluation for pneumothorax is limited. Lungs clear.
aside: No effusion, nodule in left upper lobe. | No effusion, left upper lobe nodule. | No effusion.nodule in left lung
aside: No right effusion, yet a left one is seen. | No effusion right, yes left. | No effusion except on the left.
aside: No right pleural effusion. There is one on the left. | No effusion, only on the left a small amount.
Cardiomegaly: Pleural effusion: grade 0/4. Cardiomegaly: 2/4. | Effusion score 0. Cardiomegaly score 2.
Cardiomegaly: Grade 0 effusion, cardiomegaly. | Effusion (0/3), heart enlarged. | Effusion - 0/4. Cardiomegaly - 2/4.
Cardiomegaly: Effusion: grade: none. Cardiomegaly: mild. | Effusion is graded 0 of 4. Cardiomegaly is graded 1 of 4.
Cardiomegaly: There are 0 nodules. Cardiomegaly. | Effusion means fluid. Cardiomegaly.
Effusion: Effusion 2/4, pneumothorax 0/4. | Large effusion, pneumothorax: 0/4. | Effusion mimicking a mass.
Nodule: Nodule of 0.5 cm. | Effusion: 0/4, nodule: 1/4. | Right nodule. The left nipple simulates another nodule.
Normal: Pleural effusion: grade 0/4. | Effusion: 0 ml. | Nodule severity score of 0.
aside: Effusion: grade 0-1. | Effusion: 0/4 on the right, 2/4 on the left. | By nodule we mean a round opacity.
aside: Effusion means fluid. Lungs clear. | A mass is a lesion above 3 cm. Lungs clear. | The term mass refers to 3 cm.
aside: Pneumothorax is defined as pleural air. Lungs clear. | Nodule = opacity below 3 cm.
aside: Nipple shadow simulating a nodule. Lungs clear. | Pseudo-nodule of the nipple. | Density resembling a nodule.
aside: Artefact that could be mistaken for a nodule. | Nodule simulated by a rib. | Skin fold mimics pneumothorax.
"""


TABLE_ROW = ("Effusion", "Pneumothorax | none | Effusion | small left")


@pytest.mark.parametrize(("expected", "report"), [*read_table(EXPECTED), TABLE_ROW])
def test_what_a_report_states_denies_or_leaves_in_doubt(expected, report):
    assert diagnose(report) == expected


def described(text, describe=describe_report):
    return name_answers(describe(report(text)).labels)


def test_a_lesion_outside_the_taxonomy_can_be_described_and_nothing_else_changes():
    found = described("FINDINGS: Calcified granuloma, right apex.")
    assert found == ["Increased opacity", "Focal", "Nodular", "Upper lung zone", "Calcified", "N/A", None]
    with pytest.raises(CannotAnnotate):
        describe_report(report("FINDINGS: Emphysema."))
    same = "FINDINGS: Calcified granuloma in the right upper lobe. IMPRESSION: Right upper lobe nodule."
    other = "FINDINGS: Calcified granuloma in the left base. IMPRESSION: Right upper lobe nodule."
    assert [described(text, annotate_report)[4] for text in (same, other)] == ["Calcified", "N/A"]
    for text in ("FINDINGS: Clear lungs.", "FINDINGS: Cardiomegaly."):
        assert describe_report(report(text)) == annotate_report(report(text))


DESCRIBED = """
2 Diffuse: Diffuse bilateral opacities. IMPRESSION: Bilateral opacities.
2 Focal: Calcified granulomas in the right upper lobe. | Opacity in the left base and lower lobe.
2 Multifocal: Calcified granulomas in the right lung. | Scattered granulomas throughout both lungs.
2 Multifocal: Opacities in the right middle lobe and the lingula. | Right middle and lower lobe opacities.
2 Multifocal: Left hilar and left lower lobe calcifications.
3 Consolidation: Left base airspace disease.
3 Nodular: Nodular infiltrate in the lingula.
4 Hilar/Mediastinal: Calcified aortopulmonary window node.
4 Pleura/Chest wall: Calcified pleural plaques.
4 Upper lung zone: Granuloma in the left base. Opacity in the right apex.
5 Calcified: Calcified granuloma in the left base. Possible pneumonia. | Nodule in the left base which is calcified.
5 Calcified: Nodule in the left base. The calcification suggests a granuloma. | Calciifed nodule in the left base.
5 Calcified: Opacity in the left base. Calcified granuloma in the left base. | Calcified granulomas in lung and spleen.
5 Calcified: Nodule in the left base. Likely calcified.
5 Ill-defined: The heart is enlarged. Patchy opacity in the right base.
5 Ill-defined: Calcified hilar lymph nodes. Patchy opacity in the right base.
5 Ill-defined: Poorly marginated mass in the right apex.
5 N/A: Nodule in the left base which is new and calcified aorta.
5 N/A: Linear opacity in the left base. Calcified granuloma in the right apex.
5 N/A: Nodule in the left base. The aorta is calcified.
5 Well-circumscribed: Nodule in the left base with sharp margins.
"""  # step and answer: findings


@pytest.mark.parametrize(("name", "findings"), read_table(DESCRIBED))
def test_how_a_lesion_is_described(name, findings):
    step, _, expected = name.partition(" ")
    assert described(f"FINDINGS: {findings}")[int(step) - 1] == expected


@pytest.mark.parametrize(
    "text",
    [
        *("Derrame pleural izquierdo. No se observa neumotorax.", "Sin hallazgos.", "Silueta cardíaca normal."),
        *("Pleuraerguss links, kein Pneumothorax. Infiltrat rechts.", "Herz normal groß.", "Poumons clairs."),
        *("Épanchement pleural gauche. Pas de pneumothorax.", "Sem derrame pleural.", "Geen pleuravocht."),
        *("Versamento pleurico sinistro.", "\u53cc\u80ba\u7eb9\u7406\u589e\u591a\uff0c\u672a\u89c1\u5b9e\u53d8\u3002"),
        *("Hjertet normalt. Ingen effusion.", "F\u0103r\u0103 leziuni. Cord normal.", "Tidak tampak pneumothorax."),
        *("Silhouette cardiom\u00e9diastinale normal.", "Normal heart. Pas de pneumothorax.", "Befund: normal."),
        "\u041b\u0451\u0433\u043a\u0438\u0435 \u0431\u0435\u0437 \u0442\u0435\u043d\u0435\u0439.",
    ],
)  # fmt: skip
def test_a_report_in_another_language_is_set_aside(text):
    with pytest.raises(CannotAnnotate) as caught:
        annotate_report(text)
    assert caught.value.reason == Reason.NOT_ENGLISH


def test_no_report_of_a_collection_in_english_is(shared):
    names = "Status post CABG, Dr. del Rosario. No effusion. Nodule in situ, per se unchanged. Sj\u00f6gren's."
    assert not find_foreign_words(names)
    archive = shared / "data" / "iu_xray" / "NLMCXR_reports_sample.tgz"
    assert [report.id for report, _ in read_coded_reports(archive) if find_foreign_words(report.text)] == []


def test_reports_of_first_contact(shared):
    with (shared / "data" / "first_contact" / "reports_hand_out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        expected = row["expected"].partition(" (")[0]
        annotation = None
        with contextlib.suppress(CannotAnnotate):
            annotation = annotate_report(row["report"])
        if annotation is None:
            assert "aside" in expected, row
            continue
        named = DEFAULT_CHAIN.steps[-1].options[annotation.labels[-1]]
        doubtful = bool(annotation.uncertain) and annotation.uncertain[-1]
        assert expected.split()[0] == named, row
        assert ("uncertain" in expected) == doubtful, row
