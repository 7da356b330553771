"""Published figures: those of facts.md and no others, beside ours and marked."""

import re

import pytest

from stepcot_jax.chain import PUBLISHED_STEPS
from stepcot_jax.evaluation import published as published_figures
from stepcot_jax.tools.tables import cost_table

DETECTION, DISTRIBUTION, _, LOCATION, _, SECONDARY_EFFECTS, DIAGNOSIS = (name for name, _ in PUBLISHED_STEPS)
METRICS = ("accuracy", "auc", "sensitivity", "specificity")


@pytest.fixture(scope="module")
def facts(shared):
    return (shared / "design" / "facts.md").read_text(encoding="utf-8")


def line(facts, begins):
    (found,) = [text for text in facts.splitlines() if text.startswith(f"- {begins}")]
    return found


def shares(text):
    return tuple(round(float(number) / 100, 4) for number in re.findall(r"\d+\.\d+", text))


def after(text, name):
    return shares(text[text.index(name) + len(name) :].split(";")[0])


def test_diagnosis_components_and_readers_are_as_in_the_facts(facts):
    text = line(facts, "Published diagnosis-step results")
    figures = {model: tuple(found.values()) for model, found in published_figures.DIAGNOSIS_FIGURES.items()}
    assert {tuple(found) for found in published_figures.DIAGNOSIS_FIGURES.values()} == {METRICS}
    cell = text.split("BiomedCLIP without steps")[1].split(";")[0]
    without, gains, with_steps = map(shares, re.split(", with steps|, that is", cell))
    assert figures.pop("BiomedCLIP, without steps") == without
    assert figures.pop("BiomedCLIP, with steps") == with_steps[:4]
    assert with_steps[:4] == tuple(round(a + b, 4) for a, b in zip(without, gains, strict=True))
    assert len(figures) == text.count(";")
    for model, found in figures.items():
        assert found == after(text, f"{model} ")
    text = line(facts, "Published ablation").split(": ", 1)[1]
    assert len(published_figures.COMPONENT_ACCURACY) == text.count(";") + 1
    for model, found in published_figures.COMPONENT_ACCURACY.items():
        assert tuple(found) == (DETECTION, DISTRIBUTION, LOCATION, DIAGNOSIS)
        assert tuple(found.values()) == after(text, f"{model} ")
    text = line(facts, "Readers, N = 200").split(": ", 1)[1]
    detection, *others = [shares(part.replace(" - ", " 0.0 ")) for part in text.split(";")]
    of_step = {DETECTION: detection} | dict(zip((DISTRIBUTION, LOCATION, SECONDARY_EFFECTS), others, strict=True))
    for place, model in enumerate(("clinician", "teacher", "student")):
        expected = {step: found[place] for step, found in of_step.items() if found[place]}
        assert published_figures.READER_ACCURACY[model] == expected


def test_f1_and_sensitivity_of_readers_are_as_in_the_papers_text(shared):
    text = (shared / "papers" / "step_cot.txt").read_text(encoding="utf-8")
    [f1] = re.findall(r"Detection F1 ([\d.]+)% vs\. Clinician ([\d.]+)% and Student ([\d.]+)%", text)
    [sensitivity] = re.findall(r"Detection sensitivity: Teacher ([\d.]+)% vs\. Clinician ([\d.]+)%\)", text)
    models = ("teacher", "clinician", "student")  # the student's sensitivity is not in the text
    for found, numbers in ((published_figures.READER_F1, f1), (published_figures.READER_SENSITIVITY, sensitivity)):
        known = zip(models, numbers, strict=False)
        expected = {model: {DETECTION: round(float(number) / 100, 4)} for model, number in known}
        assert {model: figures for model, figures in found.items() if figures} == expected


def test_samples_and_costs_are_as_in_the_facts(facts):
    num_cases, num_classes = published_figures.TRANSFER_SAMPLES["NIH ChestX-ray8"]
    text = line(facts, "Cross-dataset")
    assert f"ChestX-ray8, {num_cases} single-label samples" in text
    assert (num_classes, "eight classes" in text) == (8, True)
    text = line(facts, "Cost") + line(facts, "Counted as published")
    for model, (num_parameters, num_trained, milliseconds, of_four) in published_figures.COST.items():
        assert f"{model} {milliseconds:.2f} ms" in text
        assert f"{of_four:.2f} ms" in text
        assert f"{model} {num_parameters:,}" in text
        assert f"{num_trained:,}" in text
    assert f"{published_figures.COST_MEGABYTES:,.2f} MB" in text
    for model in ("teacher", "student"):  # two tables agree where both speak
        diagnosis = published_figures.DIAGNOSIS_FIGURES[model]["accuracy"]
        assert published_figures.COMPONENT_ACCURACY[model][DIAGNOSIS] == diagnosis


def test_encoders_cost_what_the_papers_text_says(shared):
    text = (shared / "papers" / "step_cot.txt").read_text(encoding="utf-8")
    section = text[text.index("### C.4 Computational Efficiency Analysis") : text.index("## Appendix D")]
    for name, (num_parameters, milliseconds) in published_figures.COST_OF_ENCODERS.items():
        [found] = re.findall(rf"\b{name} [^(.]*\(([\d.]+)M[ )]", section)
        assert num_parameters == round(float(found) * 1e6)
        assert milliseconds is None or f"({found}M parameters, {milliseconds}ms inference)" in section
    assert "parameter footprints (7.03-23.67M)" in section
    assert "(0.20-1.30ms per sample)" in section
    assert "7.03 to 23.67 million and take 0.20 to 1.30 ms" in " ".join(cost_table._PUBLISHED_ENCODERS)


def test_figures_of_a_step():
    diagnosis = dict(zip(METRICS, (0.731, 0.76, 0.217, 0.935), strict=True))
    assert published_figures.step_figures("biomedclip, with steps", DIAGNOSIS) == diagnosis
    assert published_figures.step_figures("teacher without memory", LOCATION) == {"accuracy": 0.632}
    for model, step in (("student without text", DIAGNOSIS), ("biomedclip, with steps", DETECTION)):
        assert published_figures.step_figures(model, step) == {}
