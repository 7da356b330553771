"""`evaluate_replies --rule`: the tables, the verdicts and the page of the rules."""

import csv
import gzip
import json
import pathlib

import msgspec
import pytest
from evaluate_replies.asked import ask, write_folder
from refusals import refuse

from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.evaluation.field_rules.rule_table import RULES
from stepcot_jax.evaluation.field_rules.verdicts import ask as as_asked
from stepcot_jax.tools.evaluate_replies.command import main

DOCS = pathlib.Path(__file__).parents[2] / "docs"
RECORDS = [msgspec.structs.replace(record, references=()) for record in ask(8, num_train=4)[0]]
TEST = [record for record in RECORDS if record.split == "test"]
WAYS = ("{}", "**{}**", "<think>I look.</think>{}", "The answer is {}.")


@pytest.fixture
def files(tmp_path):
    folder, replies = write_folder(tmp_path, RECORDS), tmp_path / "mine.jsonl"
    lines = []
    for place, record in enumerate(TEST):
        answer = record.answer if isinstance(record.answer, str) else ", ".join(record.answer)
        lines.append({"id": record.id, "reply": WAYS[place // 4].format(answer), "person": answer})
    lines[0] |= {"reply": "I cannot tell.", "person": None}
    replies.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder, replies


def run(*arguments):
    main([str(argument) for argument in arguments])


def test_every_rule_beside_a_person_and_ours(files, capsys):
    folder, replies = files
    run(folder, replies, "--rule=all", "--num-resamples=20", "--out", folder / "out")
    rows = {row["rule"]: row for row in csv.DictReader((folder / "out" / "rules.csv").open())}
    assert list(rows) == ["person", "stepcot_jax", "medevalkit", "lmms_eval", "vlmevalkit"]
    verdicts = [json.loads(line)["verdicts"] for line in (folder / "out" / "rules.jsonl").open()]
    assert len(verdicts) == len(TEST)
    for name, row in rows.items():
        judged = [of_rules[name] for of_rules in verdicts if of_rules[name] is not None]
        assert int(row["questions"]) == len(judged)
        assert float(row["all"]) == pytest.approx(sum(each["right"] is True for each in judged) / len(judged))
        assert float(row["unread"]) == pytest.approx(sum(each["right"] is None for each in judged) / len(judged))
        assert float(row["by chance"]) == pytest.approx(sum(each["chance"] for each in judged) / len(judged))
        assert float(row["all low"]) <= float(row["all"]) <= float(row["all high"])
    assert float(rows["person"]["all"]) == float(rows["stepcot_jax"]["all"]) == 1 - 1 / len(TEST)
    assert float(rows["lmms_eval"]["by chance"]) > 0
    pairs = list(csv.DictReader((folder / "out" / "rules_agreement.csv").open()))
    assert len(pairs) == 10
    for pair in pairs:
        both = [(one, other) for of in verdicts if (one := of[pair["rule"]]) and (other := of[pair["other"]])]
        same = sum((one["right"] is True) == (other["right"] is True) for one, other in both)
        assert (int(pair["questions"]), float(pair["same"])) == (len(both), pytest.approx(same / len(both)))
    made = list(csv.DictReader((folder / "out" / "rules_made.csv").open()))
    assert len(made) == 20
    assert {row["medevalkit"] for row in made if row["form"] == "alone"} == {"1.0"}
    page, printed = (folder / "out" / "rules.html").read_text(), capsys.readouterr().out
    for text in ("without the suite&#39;s judge", "no letter in a known form: a random guess"):
        assert text in page
    assert "I cannot tell." not in page  # no rule counts it as right
    assert "right by the rule alone, on the 4 questions" in printed
    run(folder, replies, "--num-resamples=2", "--out", folder / "out")
    assert not list((folder / "out").glob("rules*"))


def test_wrong_names_and_readings_are_refused(files):
    folder, replies = files
    refuse("--rule: 'none' is not one of all, ", run, folder, replies, "--rule=lmms_eval,none", "--out", folder / "out")
    single = next(record for record in TEST if record.kind == "single")
    closed, words = (next(record for record in TEST if record.kind == kind) for kind in ("closed", "open"))
    for record, person, expected in ((single, "X", "single of A, B, C, D"), (closed, "Y", "closed of Yes, No"),
                                     (closed, "", "closed of Yes, No"), (words, " ", "open of any text")):  # fmt: skip
        replies.write_text(json.dumps({"id": record.id, "reply": "A", "person": person}) + "\n")
        told = f"person: {person!r} is not an answer; expected {expected}, or null for none"
        refuse(told, run, folder, replies, "--rule=all", "--num-resamples=2", "--out", folder / "out")


@pytest.mark.parametrize(
    ("row", "kept"),
    [("SFT, thoughts", "origin/sft"), ("GRPO", "origin/grpo-ours"), ("SFT, stages", "released/sft-released-form")],
)
def test_quoted_figures_are_those_of_the_kept_replies(row, kept):
    """The one-choice accuracies of docs/counting.md, by counting alone."""
    path = DOCS / "results" / "replies" / f"{kept}_seed-1_test.jsonl.gz"
    records = [r for r in read_vqa_records(path.with_name("records_seed-1_test.jsonl.gz")) if r.kind == "single"]
    lines = map(json.loads, gzip.decompress(path.read_bytes()).splitlines())
    replies = {line["id"]: line["reply"] for line in lines}
    (quoted,) = [line for line in (DOCS / "counting.md").read_text().splitlines() if line.startswith(f"| {row}")]
    for rule, cell in zip(("medevalkit", "lmms_eval", "vlmevalkit"), quoted.split(" | ")[2:], strict=True):
        verdicts = [RULES[rule].judge(as_asked(record), replies[record.id]) for record in records]
        share = sum(verdict.right is True for verdict in verdicts) / len(records)
        assert float(cell.split()[0]) == pytest.approx(100 * share, abs=0.0501)
