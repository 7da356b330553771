import csv
import json
import os
import pathlib

import msgspec
import pytest
from evaluate_replies.asked import ask, write_folder, write_replies
from refusals import refuse

from stepcot_jax.evaluation.audits import spread
from stepcot_jax.evaluation.replies import reference_kind
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.tools.evaluate_replies.command import main

ROOT = pathlib.Path(__file__).parents[2]
RECORDS, PICTURES = ask(16, num_train=8)
TEST = [record for record in RECORDS if record.split == "test"]


def run(*arguments):
    main([str(argument) for argument in arguments])


def read(folder):
    return json.loads((folder / "metrics.json").read_text())


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path, RECORDS, PICTURES)


def test_a_full_file_of_replies_to_records_with_bad_lines(folder, capsys):
    path = folder / "records.jsonl"
    lines = path.read_text().splitlines()
    named, unnamed = (next(n for n, line in enumerate(lines) if TEST[place].id in line) for place in (0, 1))
    lines[named] = lines[named].replace('"closed"', '"open-ended"').replace('"open"', '"open-ended"')
    lines[unnamed] = lines[unnamed][:-20]
    path.write_text("\n".join(lines) + "\n")
    replies = write_replies(folder / "mine.jsonl", RECORDS)
    refuse("on_bad_record=skip sets bad lines aside", run, folder, replies, "--out", folder / "out")
    run(folder, replies, "--out", folder / "out", "--num-resamples", 20, "--on-bad-record=skip")
    assert "2 bad lines set aside" in capsys.readouterr().out
    found = read(folder / "out")
    note = "mine: 1 replies are to records that were set aside and were not used; 1 replies have the id of no record"
    assert note in " ".join(found["notes"])
    assert (found["models"]["mine"]["num_set_aside"], found["models"]["mine"]["num_unknown"]) == (1, 1)
    assert found["models"]["mine"]["counts"]["all"]["questions"] == 30


def test_perfect_replies_beside_the_baseline(folder, capsys):
    run(folder, write_replies(folder / "mine.jsonl", RECORDS), "--out", folder / "out", "--num-resamples", 50)
    found = read(folder / "out")
    mine, baseline = found["models"]["mine"], found["models"]["majority answer + constant box"]
    assert set(mine["figures"]) == {"a_score", "v_score", "grounding", "format"}
    for figure in mine["figures"]:
        assert all(each["value"] == 1 for each in mine["figures"][figure].values())
    assert mine["counts"]["all"] == {
        "questions": 32, "missing": 0, "ill_formed": 0, "unread_answers": 0, "unread_boxes": 0, "unscored": 0
    }  # fmt: skip
    assert baseline["figures"]["v_score"]["findings"]["value"] < 0.5
    nothing = {"value": None, "low": None, "high": None, "undefined": 1.0}
    formats, mean = baseline["figures"]["format"], baseline["figures"]["a_score"]["mean"]["value"]
    assert formats == dict.fromkeys({"open", "closed", *formats}, nothing)
    assert baseline["less_first"]["a_score"]["mean"]["value"] == pytest.approx(mean - 1)
    shown = [reference_kind(record) for record in TEST]
    neither = sum(each not in ("findings", "regions") for each in shown)
    assert 0 < neither < 32
    assert f"{neither} of 32 records have boxes of both, or none, and are in neither." in " ".join(found["notes"])
    assert found["records"]["split"] == "test"
    assert len(found["records"]["sha256"]) == len(mine["file"]["sha256"]) == 64
    assert "100.0 [100.0, 100.0]" in capsys.readouterr().out
    names = ("metrics.json", "scores.jsonl", "index.html", "table.csv", "table.md", "table.tex")
    assert all((folder / "out" / name).is_file() for name in names)
    rows = list(csv.DictReader((folder / "out" / "table.csv").open()))
    assert [row["replies"] for row in rows] == ["majority answer + constant box", "mine"]
    assert float(rows[1]["mean A"]) == 1
    scores = [json.loads(line) for line in (folder / "out" / "scores.jsonl").open()]
    assert [score["id"] for score in scores] == [record.id for record in TEST]
    assert scores[0]["boxes"][0]["box"] == list(TEST[0].references[0].corners)


def test_several_files_are_compared_with_the_first(folder):
    first = write_replies(folder / "first.jsonl", RECORDS, change=lambda text, place: text if place % 2 else "?")
    second = write_replies(folder / "second.jsonl", RECORDS)
    third = write_replies(folder / "third.jsonl", RECORDS, keep=lambda place: place % 4)
    run(folder, first, second, third, "--out", folder / "out", "--num-resamples", 50)
    models = read(folder / "out")["models"]
    assert list(models) == ["majority answer + constant box", "first", "second", "third"]
    assert "less_first" not in models["first"]
    share = models["first"]["figures"]["format"]["all"]["value"]
    assert models["second"]["less_first"]["format"]["all"]["value"] == pytest.approx(1 - share)
    assert models["second"]["mcnemar"]["all"] == {
        "num_cases": 32, "only_first": 16, "only_second": 0, "exact_p": pytest.approx(2**-15),
        "chi2": pytest.approx(15**2 / 16), "chi2_p": pytest.approx(0.000177, rel=0.01),
    }  # fmt: skip
    assert models["third"]["counts"]["all"]["missing"] == 8
    assert "+50.0" in (folder / "out" / "differences.md").read_text()


def test_missing_replies_are_wrong_skipped_or_refused(folder, capsys):
    path = write_replies(folder / "mine.jsonl", RECORDS, keep=lambda place: place % 2)
    shares = {}
    for missing in ("wrong", "skip"):
        run(folder, path, "--out", folder / "out", "--missing", missing, "--num-resamples", 20)
        shares[missing] = read(folder / "out")["models"]["mine"]["figures"]["v_score"]["all"]["value"]
        assert "mine: 16 of 32 records have no reply" in capsys.readouterr().out
    assert shares == {"wrong": 0.5, "skip": 1.0}
    refuse("no reply to 16 of 32 records", run, folder, path, "--out", folder / "out", "--missing", "stop")


def test_without_training_records_there_is_no_baseline_and_the_table_says_so(tmp_path):
    folder = write_folder(tmp_path, TEST, PICTURES)
    run(folder, write_replies(folder / "mine.jsonl", TEST), "--out", folder / "out", "--num-resamples", 20)
    found = read(folder / "out")
    assert list(found["models"]) == ["mine"]
    assert "no record of split train" in " ".join(found["notes"])
    assert "no record of split train" in (folder / "out" / "table.md").read_text()


def test_stages_count_missing_replies_and_tables_of_an_earlier_evaluation_do_not_stay(folder, capsys):
    how = ["--out", folder / "out", "--num-resamples", 20]
    run(folder, write_replies(folder / "whole.jsonl", RECORDS, dialect="lvkc"), "--dialect", "lvkc", *how)
    stages = read(folder / "out")["models"]["whole"]["stages"]
    assert stages["step_quality"]["together"]["value"] == stages["stage"]["conclusion"]["value"] == 1
    scored = [record.id for record in TEST if "asked" not in record.facts]
    path = write_replies(folder / "mine.jsonl", [r for r in TEST if r.id == scored[0]], dialect="lvkc")
    run(folder, path, "--dialect", "lvkc", *how)
    found = read(folder / "out")["models"]["mine"]
    assert found["stages"]["stage"]["visual"]["value"] == pytest.approx(1 / len(scored))
    assert found["num_stages"]["visual"] == found["num_stages"]["conclusion"] == len(scored) > 10
    assert "mine: scored" in capsys.readouterr().out
    assert f"{len(scored)} of visual" in (folder / "out" / "stages.md").read_text()
    (folder / "out" / "rated_stages.csv").write_text("old")
    (folder / "out" / "own.md").write_text("the user's")
    run(folder, write_replies(folder / "mine.jsonl", RECORDS), *how)
    assert {path.stem for path in (folder / "out").glob("*.[cmt][sde][vx]*")} == {"table", "differences"}
    assert {path.name for path in (folder / "out").glob("*.md")} == {"table.md", "differences.md", "own.md"}


def test_perturbed_questions_and_the_replies_to_them(folder):
    run("perturb", folder, "--out", folder / "p", "--seed", 3)
    perturbed = [[json.loads(line) for line in (folder / "p" / f"records_{k}.jsonl").open()] for k in (1, 2, 3)]
    prompts = [json.loads(line) for line in (folder / "p" / "prompts_1.jsonl").open()]
    assert [len(each) for each in perturbed] == [16, 16, 16]
    assert {each["kind"] for each in perturbed[0]} == {"closed", "single"}
    assert [each["id"] for each in prompts] == [each["id"] for each in perturbed[0]]
    assert pathlib.Path(prompts[0]["image"]).is_file()
    assert perturbed[0][0]["question"] in prompts[0]["prompt"]
    originals = {record.id: record for record in TEST}
    assert [each["question"] for each in perturbed[0]] != [originals[each["id"]].question for each in perturbed[0]]
    # A model that answers every perturbed question as if it were the original one.
    asked = [[originals[each["id"]] for each in records] for records in perturbed]
    files = [write_replies(folder / f"r{number}.jsonl", own) for number, own in enumerate(asked, start=1)]
    mine = write_replies(folder / "mine.jsonl", RECORDS)
    flags = ["--perturbed-records", folder / "p", "--num-resamples", 20]
    run(folder, mine, "--out", folder / "out", "--perturbed", *files, *flags)
    found = read(folder / "out")["perturbed"]
    shares = []
    for records in perturbed:
        closed = [each for each in records if each["kind"] == "closed"]
        shares.append(sum(each["answer"] == originals[each["id"]].answer for each in closed) / len(closed))
    assert [each["value"] for each in found["figures"]["closed"]["rounds"]] == pytest.approx(shares)
    assert found["figures"]["closed"]["original"]["value"] == 1
    assert found["figures"]["closed"]["std"] == pytest.approx(spread(shares, original=1))
    assert len({json.dumps(records) for records in perturbed}) == 3
    # The same ids with other questions are other records.
    changed = [msgspec.structs.replace(record, question=f"{record.question} ") for record in RECORDS]
    write_folder(folder, changed)
    words = r"p: not made of .*records\.jsonl as it is now; run `perturb` again"
    refuse(words, run, folder, mine, "--out", folder / "out", "--perturbed", *files, *flags)
    (folder / "p" / "source.json").unlink()
    words = r"source\.json: cannot be read .*; expected a folder that `perturb` wrote"
    refuse(words, run, folder, mine, "--out", folder / "out", "--perturbed", *files, *flags)


def test_prompts(folder):
    run("prompts", folder, "--out", folder / "prompts.jsonl", "--dialect", "lvkc")
    lines = [json.loads(line) for line in (folder / "prompts.jsonl").open()]
    assert [line["prompt"] for line in lines] == [write_question(record, "lvkc") for record in TEST]
    assert all(pathlib.Path(line["image"]).is_file() for line in lines)
    assert [line["image_size"] for line in lines] == [list(record.image_size) for record in TEST]
    run("prompts", folder, "--out", folder / "prompts.jsonl", "--without-thinking")
    assert "<think>" not in (folder / "prompts.jsonl").read_text()


def test_bad_flags(folder):
    replies = write_replies(folder / "mine.jsonl", RECORDS)
    taken = write_replies(folder / "majority answer + constant box.jsonl", RECORDS)
    for flags, words in (
        (["--split", "val"], "no record of split 'val', found test, train; --split=all scores every record"),
        (["--num-resamples", "0"], "--num-resamples: 0 must be at least 1"),
        (["--open-score", "relative"], "--open-score=relative needs the scores of a judge"),
        (["--perturbed", "x.jsonl"], "--perturbed and --perturbed-records are required together"),
        ([taken], r"constant box\.jsonl: a row of the tables has this name; rename the file"),
    ):
        refuse(words, run, folder, replies, *flags, "--out", folder / "out")
    assert not (folder / "out" / "metrics.json").exists()


def test_a_file_name_that_is_not_utf_8(folder):
    path = write_replies(folder / os.fsdecode(b"a\xff.jsonl"), RECORDS)
    run(folder, path, "--out", folder / "out", "--num-resamples", 5)
    assert read(folder / "out")["models"]["a\\xff"]["file"]["path"].endswith("a\\xff.jsonl")
