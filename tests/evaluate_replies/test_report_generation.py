"""`evaluate_replies reports`: reports from a sheet of a chain's answers, and from replies, beside the constant one."""

import json

import msgspec
import numpy as np
import pytest
from refusals import refuse

from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.data.questions.written_reports import NORMAL_REPORT
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.evaluation.report_scores import BLEU, ROUGE, score_reports
from stepcot_jax.record import Record
from stepcot_jax.tools.data.command import main as data_main
from stepcot_jax.tools.evaluate_replies.command import main


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "phantoms"
    data_main(["phantom", str(folder), "--num-cases=24", "--size=32"])
    return folder


def write_sheet(path, data, cases, *, prefix=""):
    header = ["image", *(step.name for step in data.chain.steps)]
    rows = [header]
    for case in cases:
        answers = (step.options[label] for step, label in zip(data.chain.steps, case.answers, strict=True))
        rows.append([f"{prefix}{case.image}", *answers])
    path.write_text("\n".join(map(",".join, rows)) + "\n")
    return path


def score(folder, *arguments):
    main(["reports", *map(str, arguments), f"--out={folder}", "--num-resamples=50"])
    lines = [json.loads(line) for line in (folder / "reports.jsonl").read_text().splitlines()]
    return json.loads((folder / "reports.json").read_text()), lines


def test_a_sheet_of_answers(phantoms, tmp_path, capsys):
    """True answers are nearer to the phantom's reports than the constant, and the constant takes no notice of them."""
    data = read_source(phantoms)
    figures, lines = score(tmp_path / "true", phantoms, write_sheet(tmp_path / "a.csv", data, data.cases, prefix="/x/"))
    assert "constant normal report" in capsys.readouterr().out
    assert {line["image"]: line["reference"] for line in lines} == {case.image: case.report for case in data.cases}
    for name in ("BLEU-4", "ROUGE-L"):
        written, constant = figures["written"][name], figures["constant normal report"][name]
        assert 1 > written["value"] > constant["value"] > 0
        assert written["low"] <= written["value"] <= written["high"]
    normal = ("No abnormality", *["N/A"] * 5, "Normal")
    labels = tuple(step.options.index(option) for step, option in zip(data.chain.steps, normal, strict=True))
    healthy = [msgspec.structs.replace(case, answers=labels) for case in data.cases]
    figures, lines = score(tmp_path / "normal", phantoms, write_sheet(tmp_path / "b.csv", data, healthy))
    assert {line["report"] for line in lines} == {str(NORMAL_REPORT)}
    assert figures["written"] == figures["constant normal report"]


def test_replies_and_images_without_a_report(tmp_path):
    asked = Record(
        id="a", image="1.png", image_size=(10, 10), patient="p", kind="open", question="What?", answer="mass",
        topic="main abnormality", split="test", report="A mass is seen.",
    )  # fmt: skip
    records = [asked, msgspec.structs.replace(asked, id="b", image="2.png", patient="q", report="")]
    write_vqa_records(tmp_path / "records.jsonl", records)
    replies = [{"id": name, "reply": "Reasoning: A mass is seen. Boxes: none.\n\nAnswer: Mass"} for name in "ab"]
    (tmp_path / "replies.jsonl").write_text("\n".join(map(json.dumps, replies)))
    figures, lines = score(tmp_path / "out", tmp_path, tmp_path / "replies.jsonl", "--dialect=medclm")
    report = "FINDINGS: A mass is seen. IMPRESSION: Mass."
    assert lines == [{"image": "1.png", "report": report, "reference": "A mass is seen."}]
    assert figures["written"]["ROUGE-L"]["value"] == pytest.approx(2 * 4 / (5 + 4))
    write_vqa_records(tmp_path / "records.jsonl", records[1:])
    (tmp_path / "replies.jsonl").write_text(json.dumps(replies[1]))
    refuse("none of 1 images has a report", score, tmp_path / "none", tmp_path, tmp_path / "replies.jsonl")


def test_rows_that_fit_no_case_are_named(phantoms, tmp_path):
    data = read_source(phantoms)
    sheet = write_sheet(tmp_path / "a.csv", data, data.cases[:2])
    sheet.write_text(sheet.read_text().replace("phantom_000001", "phantom_999999"))
    refuse("row 3: image: .* is no image of", score, tmp_path / "out", phantoms, sheet)
    sheet.write_text(sheet.read_text().replace("Diagnosis", "Verdict"))
    refuse("lacks Diagnosis", score, tmp_path / "out", phantoms, sheet)


SAME = "FINDINGS: The lungs are clear and expanded. IMPRESSION: No active disease."
OTHER = "Large heart, no edema."


def test_heads_do_not_count_and_scores_are_of_the_corpus():
    bare = "the lungs are clear and expanded no active disease"
    scores = score_reports([SAME], [bare], ["p"])
    assert (scores[BLEU].value, scores[ROUGE].value) == (1, 1)
    both = score_reports([SAME, OTHER], [bare, "Small heart."], ["p", "q"], num_resamples=20)
    # of 13 words 10 match, of 11 pairs 8, of 9 triples 7, of 7 quadruples 6, and the references have 11 words
    assert both[BLEU].value == pytest.approx((10 / 13 * 8 / 11 * 7 / 9 * 6 / 7) ** 0.25)
    assert both[ROUGE].value == pytest.approx((1 + 2 * 1 / 6) / 2)


def test_intervals_are_by_patient():
    """Two patients: a resample has both, or one of them twice, in whose figures the interval ends."""
    texts, references = [SAME, SAME, OTHER], [SAME, SAME, "Small heart."]
    scores = score_reports(texts, references, ["p", "p", "q"], num_resamples=400, seed=1)
    assert (scores[ROUGE].low, scores[ROUGE].high) == (pytest.approx(1 / 3), 1)
    assert (scores[BLEU].low, scores[BLEU].high) == (0, pytest.approx(1))
    assert np.isnan(score_reports([SAME], [SAME], ["p"])[BLEU].low)
    nothing = score_reports(["", "edema"], ["clear", "clear"], ["p", "q"])
    assert (nothing[BLEU].value, nothing[ROUGE].value) == (0, 0)
