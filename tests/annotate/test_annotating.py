"""Annotation from Python: several sources and annotators, folders kept or not, and what is refused."""

import json

import pytest
from annotate.misbehaving_server import MisbehavingServer
from annotate.phantom_records import write_folder
from refusals import refuse

import stepcot_jax as sc
from stepcot_jax.data.splits.split_resolver import read_splits

EFFUSION = "IMPRESSION: Small right pleural effusion."


@pytest.fixture
def tables(tmp_path):
    paths = [tmp_path / name / "reports.csv" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text(f"id,report,image\nr1,{EFFUSION},1.png\nr2,,2.png\n")
        (path.parent / "1.png").write_bytes(b"x")
    return paths


@pytest.mark.parametrize("is_kept", [True, False])
def test_reports_of_several_sources_share_one_folder_of_images(tables, tmp_path, is_kept):
    made = sc.annotate_reports(tables, out=tmp_path / "out" if is_kept else None)
    assert [sc.Chain.published().steps[-1].options[record.answers[-1]] for record in made.records] == ["Effusion"] * 2
    assert [aside.id for aside in made.set_aside] == ["r2", "r2"]
    assert (made.agreement, made.funnel.count("no report")) == ((), 2)
    assert all((made.records.root / record.image).is_file() for record in made.records)
    assert (tmp_path / "out" / "source_1" / "data.json").is_file() is is_kept
    if is_kept:
        refuse("overwrite", sc.annotate_reports, tables, out=tmp_path / "out")


def test_an_official_split_is_kept(tmp_path):
    """From a table, JSON lines or data.json through annotating, and as the splits of a run."""
    table = tmp_path / "reports.csv"
    rows = [(f"r{place}", f"{place}.png", split) for place, split in enumerate(("Train", "validate", "test", ""))]
    table.write_text("id,report,image,Split\n" + "".join(f"{a},{EFFUSION},{b},{c}\n" for a, b, c in rows if c))
    lines = [{"id": a, "report": EFFUSION, "image": b, **({"split": c} if c else {})} for a, b, c in rows]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for _, image, _ in rows:
        (tmp_path / image).write_bytes(b"x")
    made = sc.annotate_reports(table, out=tmp_path / "a")
    assert [record.split for record in made.records] == ["train", "val", "test"]
    assert [each.split for each in sc.annotate_reports(tmp_path / "r.jsonl").records] == ["train", "val", "test", ""]
    again = sc.annotate_reports(tmp_path / "a", out=tmp_path / "b")
    assert [record.split for record in again.records] == ["train", "val", "test"]
    assert read_splits(tmp_path / "b", again.records).by_name() == {"train": (0,), "val": (1,), "test": (2,)}
    table.write_text(table.read_text().replace("validate", "fold 2"))
    refuse(r"reports\.csv, row 3, field split: 'fold 2' is not one of train, val", sc.annotate_reports, table)


def test_a_second_annotator_is_compared_with_the_first(tables):
    tables[0].write_text("id,report,image\nr1,FINDINGS: The lungs are clear. IMPRESSION: Normal chest.,1.png\n")
    with MisbehavingServer() as server:
        model = sc.LLMAnnotator(model="m", base_url=server.base_url, num_attempts=1)
        made = sc.annotate_reports(tables[0], annotator=[sc.RulesAnnotator(), model], on_failure="set-aside")
    assert [record.provenance["annotator"] for record in made.records] == ["rules"]
    assert [step.num_cases for step in made.agreement][-1] == 1
    assert all(step.pairs[0].names == ("annotator_0", "annotator_1") for step in made.agreement)


def test_records_are_made_beside_their_source_and_what_cannot_be_made_is_named(tmp_path, tables):
    source = write_folder(tmp_path / "phantoms", range(3))
    made = sc.make_records(source, recipe="rmcot")
    assert made.root == tmp_path / "phantoms_rmcot"
    assert all(record.thinking and (made.root / record.image).is_file() for record in made)
    assert len((made.root / "records.jsonl").read_text().splitlines()) == len(made)
    for call, words in (
        (lambda: sc.annotate_reports(tables, speed=2), "'speed' is not an option"),
        (lambda: sc.make_records(tmp_path, recipe="cot"), "recipe must be one of rmcot, lvkc, medclm; got 'cot'"),
    ):
        refuse(words, call)


def test_replies_are_scored_from_texts_as_from_a_file(tmp_path):
    records = sc.load_records(write_folder(tmp_path, range(4)))
    texts = {record.id: sc.write_reply(record, "gemex") for record in records}
    texts[records[0].id] = "I cannot say."
    (tmp_path / "replies.jsonl").write_text("\n".join(json.dumps({"id": k, "reply": v}) for k, v in texts.items()))
    how = {"split": "all", "num_resamples": 20}
    scores = [sc.score_replies(records, replies, **how) for replies in (texts, tmp_path / "replies.jsonl")]
    assert (scores[0].figures, scores[0].dialect) == (scores[1].figures, "gemex")
    assert scores[0].figures["replies"]["format"]["all"]["value"] == pytest.approx(1 - 1 / len(records))
    assert sc.score_replies(records, dict.fromkeys(texts, "The answer is yes."), **how).dialect == "free"
    for replies, changes, words in (
        *(({"x": ""}, {}, "'x' is not the id of a record"), (texts, {"split": "val"}, "no record of split 'val'")),
        (texts, {"open_score": "relative"}, "needs a judge"),
        (texts, {"dialect": "latin"}, "dialect must be one of"),
    ):
        refuse(words, sc.score_replies, records, replies, **{**how, **changes})
