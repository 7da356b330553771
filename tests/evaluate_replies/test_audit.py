import collections
import csv
import json

import msgspec
import numpy as np
import pytest
from evaluate_replies.asked import ask, write_folder
from PIL import Image
from policies.policy_workdir import make_policy_workdir
from refusals import refuse

from stepcot_jax.data.phantom.phantom import draw_planned
from stepcot_jax.data.questions.record_files import read_vqa_records, write_vqa_records
from stepcot_jax.data.questions.variants import plan_again
from stepcot_jax.data.questions.vocabulary import canonical
from stepcot_jax.reading.policy_reader import PolicyReader
from stepcot_jax.reasoning.dialects import read_reply, write_reply
from stepcot_jax.run.settings import load_settings, write_settings
from stepcot_jax.tools.evaluate_replies.command import main
from stepcot_jax.tools.report.command import main as report

RECORDS, PICTURES = ask(48)
BY_ID = {record.id: record for record in RECORDS}


@pytest.fixture(scope="module")
def audit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    write_folder(folder / "asked", RECORDS, PICTURES)
    run("questions", folder / "asked", "--out", folder / "audit")
    return folder / "audit"


def run(*arguments):
    main(["audit", *map(str, arguments)])


def variant_of(record):
    return record.provenance["audit_variant"]


def look(record):
    """The true reply for the picture that is shown: a donor's answer to a donor's picture, the own one to noise."""
    true = BY_ID[record.provenance["audit_of"]]
    if "audit_donor" in record.provenance:
        donor = BY_ID[record.provenance["audit_donor"]]
        texts = {donor.options["ABCD".index(letter)] for letter in donor.answer} if donor.options else donor.answer
        letters = tuple("ABCD"[place] for place, text in enumerate(true.options) if text in texts)
        wrong = next(letter for letter in "ABCD" if letter not in true.answer) if true.options else ""
        answer = {"single": (letters or (wrong,))[0], "multi": letters or (wrong,)}.get(true.kind, donor.answer)
        return write_reply(msgspec.structs.replace(true, answer=answer, references=donor.references), "gemex")
    if variant_of(record) == "without the claimed finding":
        return write_reply(msgspec.structs.replace(true, answer="No"), "gemex")
    return write_reply(true, "gemex")


def write(path, records, reply):
    path.write_text("".join(json.dumps({"id": record.id, "reply": reply(record)}) + "\n" for record in records))
    return path


def read_table(folder, name):
    with (folder / f"audit_{name}.csv").open() as file:
        rows = {row.pop("variant"): row for row in csv.DictReader(file)}
    return {variant: {key: float(cell) for key, cell in row.items() if cell} for variant, row in rows.items()}


def test_a_model_that_looks_and_follows_its_thinking(audit, capsys):
    records = read_vqa_records(audit).records
    prompts = [json.loads(line) for line in (audit / "prompts.jsonl").read_text().splitlines()]
    assert [(line["id"], line["variant"]) for line in prompts] == [(each.id, variant_of(each)) for each in records]
    own = {each.id: each for each in records if variant_of(each) == "own picture"}
    assert set(own) == set(BY_ID)
    for line, record in zip(prompts, records, strict=True):
        if record.id in own:
            assert np.array_equal(np.asarray(Image.open(line["image"])), PICTURES[BY_ID[record.id].image])
    replies = write(audit / "replies.jsonl", records, look)
    run("score", audit, replies)
    assert "Thinks" not in capsys.readouterr().out
    looks, counterfactual = read_table(audit, "looks"), read_table(audit, "counterfactual")
    assert looks["own picture"]["A"] == 1
    assert looks["a donor's picture"]["answers that change"] == 1
    assert looks["a donor's picture"]["A"] == 0
    assert 0 < looks["a donor's picture"]["boxes that move"] < 1
    for name in ("noise", "grey"):
        assert (looks[name]["answers that change"], looks[name]["A"], looks[name]["boxes that move"]) == (0, 1, 0)
    assert counterfactual["without the claimed finding"]["answers that change"] == 1
    assert counterfactual["without another finding"]["answers that change"] == 0
    number = sum(variant_of(record) == "without another finding" for record in records)
    assert counterfactual["without another finding"]["cases"] == number > 0

    def follow(record):
        donor = BY_ID.get(record.provenance.get("audit_donor", ""))
        if donor is not None:
            assert record.question.rpartition("follows from it: ")[2].partition(".")[0] in donor.thinking
        return look(record)

    told = read_vqa_records(audit / "thinking.jsonl").records
    prompts = map(json.loads, (audit / "thinking_prompts.jsonl").read_text().splitlines())
    assert all(record.question in line["prompt"] for record, line in zip(told, prompts, strict=True))
    run("score", audit, replies, "--thinking-replies", write(audit / "thinking_replies.jsonl", told, follow))
    thinks = read_table(audit, "thinks")
    assert (thinks["a donor's thinking"]["follows the donor"], thinks["own thinking"]["keeps"]) == (1, 1)
    assert thinks["a donor's thinking"]["says something else"] == 0
    assert 0 <= thinks["a donor's thinking"]["donor agrees anyway"] < 1
    kinds = [record.kind for record in told if variant_of(record) == "own thinking"]
    of_kinds = {
        name.partition(", ")[2]: row["cases"] for name, row in thinks.items() if name.startswith("own thinking,")
    }
    assert of_kinds == collections.Counter(kinds)
    assert len(of_kinds) > 1
    title = "Thinks: answers after other thinkings (the thinking as text in the question)"
    shown = (capsys.readouterr().out, *((audit / name).read_text() for name in ("audit_thinks.md", "audit_thinks.tex")))
    assert all(title in text for text in shown)
    others = write(audit / "others.jsonl", records, lambda record: look(record).replace("see", "find"))
    asked = audit / "thinking_replies.jsonl"
    refuse("thinkings are of other replies than", run, "score", audit, others, "--thinking-replies", asked)


def test_a_model_that_knows_normal_from_abnormal_alone_is_told_by_the_rows_of_its_rival(audit):
    """It says yes to each finding of an abnormal chest, and claims those of every second patient only."""

    def becomes_normal(record):
        planned = plan_again(record.provenance)
        labels = {canonical(mark.box.label) for mark in draw_planned(planned, size=64).marks}
        return len(labels) == 1  # the finding that goes

    def claims(record):
        return int(record.patient[1:]) % 2 == 0

    def reply(record):
        true, variant = BY_ID[record.provenance["audit_of"]], variant_of(record)
        says_no = variant == "without the claimed finding" and becomes_normal(record)
        is_asked = true.answer == "Yes" and (says_no or not claims(true))
        return write_reply(msgspec.structs.replace(true, answer="No") if is_asked else true, "gemex")

    records = read_vqa_records(audit).records
    run("score", audit, write(audit / "abnormal.jsonl", records, reply))
    rows = read_table(audit, "counterfactual")
    removed = [each for each in records if variant_of(each) == "without the claimed finding"]
    claimed = [each for each in removed if claims(each)]
    alone = sum(map(becomes_normal, claimed))
    assert 0 < alone < len(claimed) < len(removed)
    own, rival = (rows[f"{name}without the claimed finding"] for name in ("", 'only "is anything abnormal": '))
    assert own["cases"] == rival["cases"] == len(claimed)
    assert own["true findings claimed"] == pytest.approx(len(claimed) / len(removed), abs=1e-6)
    assert rival["true findings claimed"] == 1
    for row in (own, rival):
        assert row["answers that change"] == row["A"] == pytest.approx(alone / len(claimed), abs=1e-6)
    parts = [(rows[f"without the claimed finding, {part}"], number, change) for part, number, change in (
        ("another one stays", len(claimed) - alone, 0), ("the chest becomes normal", alone, 1)
    )]  # fmt: skip
    assert all((row["cases"], row["answers that change"]) == (number, change) for row, number, change in parts)
    assert rows['only "is anything abnormal": without another finding']["answers that change"] == 0


def test_files_of_another_kind_are_refused(audit, tmp_path):
    records = read_vqa_records(audit).records
    short = write(tmp_path / "short.jsonl", records[1:], look)
    refuse(f"no reply to 1 of {len(records)} records, the first '{records[0].id}'", run, "score", audit, short)
    lines = short.read_text().splitlines()
    for line, words in ((lines[0], "came in line 1"), ('{"id": "other", "reply": ""}', "'other' is not the id")):
        short.write_text("\n".join([*lines, line]))
        refuse(words, run, "score", audit, short)
    plain = tmp_path / "plain"
    plain.mkdir()
    write_vqa_records(plain / "records.jsonl", RECORDS)
    refuse("not as an audit wrote it", run, "score", plain, short)
    last = next(each for each in reversed(records) if each.kind == "single" and variant_of(each) == "grey")
    edited = msgspec.structs.replace(last, kind="closed", options=(), answer="No")
    write_vqa_records(plain / "records.jsonl", [edited if each is last else each for each in records])
    refuse(f"record '{last.id}': not as an audit wrote it", run, "score", plain, short)


def test_a_policy_in_one_command_with_its_page(tmp_path, monkeypatch, capsys):
    _, records, _ = make_policy_workdir(tmp_path / "run")
    tests = {record.id: record for record in records if record.split == "test"}
    calls = []

    def reply_all(reader, asked, load, *, begun=(), **options):
        calls.append((list(asked), list(begun)))
        assert all(load(record).is_file() for record in asked)
        texts = [write_reply(tests[record.provenance["audit_of"]], "gemex") for record in asked]
        answers = [text[text.index("<response>") :] for text in texts]
        return [f"{start}{answer}" for start, answer in zip(begun, answers, strict=True)] if begun else texts

    monkeypatch.setattr(PolicyReader, "reply_all", reply_all)
    run(tmp_path / "run")
    (asked, _), (told, begun) = calls
    assert {record.provenance["audit_of"] for record in asked} == set(tests)
    assert all(start.startswith("<think>") and start.endswith("</think>\n") for start in begun)
    folder = tmp_path / "run" / "audit"
    assert read_table(folder, "looks")["own picture"]["A"] == 1
    thinks = read_table(folder, "thinks")
    assert thinks["own thinking"]["keeps"] == 1
    assert thinks["own thinking"]["cases"] == sum(variant_of(record) == "own thinking" for record in told)
    assert "the reply continues the thinking" in capsys.readouterr().out
    replies = map(json.loads, (folder / "thinking_replies.jsonl").read_text().splitlines())
    assert all(read_reply(line["reply"], "gemex").answer for line in replies)
    assert report([str(tmp_path / "run")]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Looks: the same questions about other pictures" in page


def test_a_policy_is_audited_on_the_test_part_of_another_layout(tmp_path, monkeypatch):
    make_policy_workdir(tmp_path / "run")
    folder = tmp_path / "yolo"
    for place, part in enumerate(("train", "test", "test")):
        for name in ("images", "labels"):
            (folder / part / name).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(place).integers(0, 256, (64, 64), np.uint8)
        Image.fromarray(pixels).save(folder / part / "images" / f"{place}.png")
        (folder / part / "labels" / f"{place}.txt").write_text(f"{place % 2} 0.5 0.5 0.25 0.5\n")
    (folder / "data.yaml").write_text("train: train/images\ntest: test/images\nnames: [mass, nodule]\n")
    asked = []

    def reply_all(reader, records, load, *, begun=(), **options):
        asked.extend(records)
        assert all(load(record).is_file() for record in records)
        assert not begun  # a list of boxes has no thinking
        return [write_reply(record, "gemex") for record in records]

    monkeypatch.setattr(PolicyReader, "reply_all", reply_all)
    run(tmp_path / "run", "--data", folder)
    own = [record for record in asked if variant_of(record) == "own picture"]
    assert [record.id for record in own] == ["test/1_open", "test/2_open"]
    assert {record.image_size for record in own} == {(32, 32)}  # what the policy sees
    shown = own[-1].image
    assert np.array_equal(np.asarray(Image.open(tmp_path / "run" / "audit" / shown)), pixels)


def test_a_run_of_a_chain_is_refused(tmp_path):
    write_settings(tmp_path / "settings.json", load_settings("quickstart"))
    refuse("a run of a chain, which has no audit; expected one of a policy", run, tmp_path)


def test_an_audit_of_answers_that_cannot_be_read_says_so_first_and_fails(audit, capsys):
    records = read_vqa_records(audit).records
    replies = write(audit / "unread.jsonl", records, lambda record: look(record).replace("<answer>", "<answer>Maybe "))
    refuse("^unread: the answers of [0-9]+ of [0-9]+ replies cannot be read", run, "score", audit, replies)
    assert capsys.readouterr().out.startswith("WARNING: unread: unread answers ")
    assert "WARNING: unread" in (audit / "audit_looks.md").read_text()
