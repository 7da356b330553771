import copy
import dataclasses
import json
import os
import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import assert_says, refuse

from stepcot_jax.box import Box
from stepcot_jax.chain import NOT_ANNOTATED, PUBLISHED_STEPS, Chain, Step
from stepcot_jax.data.identities import fold_patient, read_patient
from stepcot_jax.data.records import data_json, json_arrays
from stepcot_jax.data.records.records import read_records, write_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record

NAMES = ("Detection", "Diagnosis")


def make_record(name="a", **changes):
    first = {"step": "Step 1", "question": "Anything?", "options": ["A. No", "B. Yes", "N/A"], "answer": "A"}
    second = {"step": "Step 2", "question": "What is it?", "options": ["A. Normal", "B. Mass"], "answer": "B. Mass"}
    chain = [first | {"reasoning": "nothing seen"}, second | {"reasoning": None}]
    record = {"patient_id": f"patient-{name}", "image_path": f"images/{name}.png", "vqa_chain": chain}
    return record | {"origin": "somewhere", "report": "Clear lungs."} | changes


def change_step(record, place, **changes):
    record = copy.deepcopy(record)
    record["vqa_chain"][place].update(changes)
    return record


@pytest.fixture
def root(tmp_path):
    (tmp_path / "images").mkdir()
    for name in "abcde":
        (tmp_path / "images" / f"{name}.png").touch()
    return tmp_path


def write(root, records):
    content = records if isinstance(records, bytes) else json.dumps(records).encode()
    (root / "data.json").write_bytes(content)


def read(root, records, **settings):
    write(root, records)
    return read_records(root, step_names=NAMES, **settings)


def refusal(root, records, **settings):
    message = refuse("", read, root, records, **settings)
    assert str(root / "data.json") in message
    return message


def test_reads_labels_text_and_chain(root):
    collection = read(root, [make_record("a"), make_record("b", report=None, origin=None)])
    assert collection.set_aside == ()
    assert collection.chain == Chain(
        (Step("Detection", "Anything?", ("No", "Yes", "N/A")), Step("Diagnosis", "What is it?", ("Normal", "Mass")))
    )
    assert collection.cases[0] == Record(
        patient="patient-a",
        image="images/a.png",
        origin="somewhere",
        report="Clear lungs.",
        answers=(0, 1),
        reasoning=("nothing seen", ""),
    )
    assert (collection.cases[1].report, collection.cases[1].origin) == ("", "")


def test_wordings_and_spellings_that_are_accepted(root, caplog):
    other = [change_step(make_record(name), 0, question="Something?") for name in "bc"]
    assert read(root, [make_record("a"), *other]).chain.steps[0].question == "Anything?"
    message = "2 records word a question differently than record 0, whose wording is used"
    assert [record.getMessage() for record in caplog.records] == [f"{root / 'data.json'}: {message}"]
    # Null and blank answers, steps in any order, unknown fields, numeric patients, a byte order mark, odd options.
    record = change_step(make_record(patient_id=17, extra={"nested": [1]}), 0, confidence=0.5, answer=None)
    reverse = make_record("b")
    reverse["vqa_chain"].reverse()
    other = change_step(make_record("c"), 0, options=["no", "YES ", "N/A"], answer="Yes")
    records = [record, reverse, other, change_step(make_record("d"), 0, answer="  ")]
    collection = read(root, b"\xef\xbb\xbf" + json.dumps(records).encode())
    assert (collection.cases[0].patient, collection.chain.steps[0].options) == ("17", ("No", "Yes", "N/A"))
    assert [case.answers for case in collection.cases] == [(NOT_ANNOTATED, 1), (0, 1), (1, 1), (NOT_ANNOTATED, 1)]
    assert collection.cases[1].reasoning == ("nothing seen", "")


FILES = [
    *((b"[]", "the array has no records"), (b'{"patient_id": 1}', "Expected `array`, got `object`")),
    *((b'[{"patient_id": "1"', "truncated"), (b"[" * 100_000, "not readable as JSON")),
    ('[{"report": "Überblähung"}]'.encode("latin-1"), "not UTF-8 (from byte 13)"),
    (
        b'[{"a": 1}, {"b" 2}]',
        "not readable as JSON: JSON is malformed: expected ':' (byte 16) (record 1, from byte 10)",
    ),
    (b"[1, 2] x", "not readable as JSON: JSON is malformed: trailing characters (byte 7)"),
    *(('[{"report": "x"}]'.encode("utf-16"), "UTF-16"), ('[{"report": "x"}]'.encode("utf-32"), "UTF-32")),
]


@pytest.mark.parametrize(("content", "found"), FILES)
def test_refuses_a_file_that_is_no_array_of_records(root, content, found):
    for on_bad_record in ("stop", "skip"):
        assert_says(refusal(root, content, on_bad_record=on_bad_record), found, "expected a JSON array of records")
    (root / "data.json").unlink()
    os.mkfifo(root / "data.json")
    refuse("not a regular file", read_records, root, step_names=NAMES)


def test_a_file_is_read_in_parts_and_records_with_ever_new_options_are_refused(root, monkeypatch):
    monkeypatch.setattr(json_arrays, "_CHUNK_BYTES", 64)
    write(root, [make_record(name) for name in "abcde"])
    seen = []
    records = json_arrays.read_raw_records(root / "data.json", visit=seen.append)
    assert json.loads(next(records)) == make_record("a")
    assert sum(seen[-1:]) < 1500
    assert [json.loads(record)["patient_id"] for record in records] == [f"patient-{name}" for name in "bcde"]
    assert seen == [*range(64, seen[-1], 64), (root / "data.json").stat().st_size]
    assert len(read_records(root, step_names=NAMES).cases) == 5
    monkeypatch.setattr(data_json, "_MOST_KEPT", 3 * data_json._COST_OF_STEPS)
    records = [change_step(make_record(name), 0, options=["No", f"Yes {name}"]) for name in "abcde"]
    message = refusal(root, records, on_bad_record="skip")
    assert_says(message, "different lists of options", "all records must have the same")
    assert len(read(root, [make_record(name) for name in "abcde"]).cases) == 5


def step_two(**changes):
    return lambda record: record["vqa_chain"][1].update(changes)


BAD_RECORDS = [
    (lambda record: record.pop("report"), "missing required field `report`"),
    (lambda record: record["vqa_chain"][1].pop("options"), "vqa_chain[1]: Object missing required field `options`"),
    (lambda record: record.update(origin=3), "origin: Expected `str | null`, got `int`"),
    (lambda record: record.update(patient_id=" "), "patient_id: ' ' is blank"),
    (step_two(answer="C"), "vqa_chain[1].answer: 'C' is not one of A. Normal, B. Mass"),
    (step_two(options=["A. Normal", "C. Mass"]), "vqa_chain[1].options: option letters ['A', 'C']"),
    (
        step_two(options=["A. Normal", "B. Nodule"], answer="A"),
        "step 2 (Diagnosis): options ['Normal', 'Nodule'] differ from ['Normal', 'Mass'] in record 0",
    ),
    (step_two(options=["Mass", "Normal"], answer="Mass"), "differ from"),
    (step_two(step="Step 1"), "2 steps ['Step 1', 'Step 1'] are not the expected 2, each once: ['Step 1', 'Step 2']"),
    (step_two(step="Step 3"), "config.data.step_names (of data check --step-names) names those of another chain"),
    (step_two(step="Step " + "9" * 5000), "2 steps"),
    (lambda record: record["vqa_chain"].pop(), "1 steps ['Step 1']"),
]


@pytest.mark.parametrize(("damage", "found"), BAD_RECORDS)
def test_a_bad_record_is_named_with_its_field_and_without_its_report(root, damage, found):
    record = make_record("b", report="Mrs Example, born 1950")
    damage(record)
    message = refusal(root, [make_record("a"), record, make_record("c")])
    assert_says(message, "record 1 (image_path 'images/b.png')", found)
    assert "Example" not in message


@pytest.mark.parametrize(
    "again", ["images/a.png", "./images/a.png", "images//a.png", "images\\a.png", "images/link.png"]
)
def test_refuses_an_image_twice_and_names_both_records(root, again):
    (root / "images/link.png").symlink_to(root / "images/a.png")
    message = refusal(root, [make_record("a"), make_record("b"), make_record("c", image_path=again)])
    assert_says(message, f"record 2 (image_path {again.replace('./', '').replace('//', '/')!r}".replace("\\\\", "/"))
    assert_says(message, "image_path: the image of record 0 (image_path 'images/a.png') is named again")


ESCAPES = [
    *("../secret.png", "images/../../secret.png", "/etc/passwd", "C:\\x.png", "C:x.png", "\\\\host\\x.png"),
    *("..\\x.png", ""),
]


@pytest.mark.parametrize("image_path", ESCAPES)
def test_refuses_an_image_path_that_leaves_the_data_root(root, image_path):
    message = refusal(root, [make_record("a"), make_record("b", image_path=image_path)])
    assert_says(message, "record 1", f"image_path: {image_path!r} must be a path below the data root")


@pytest.mark.parametrize("require_images", [True, False])
def test_refuses_links_out_of_the_data_root(root, tmp_path_factory, require_images):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "x.png").touch()
    (root / "images/link.png").symlink_to(outside / "x.png")
    (root / "linked").symlink_to(outside)
    for image_path in ("images/link.png", "linked/x.png"):
        message = refusal(root, [make_record(image_path=image_path)], require_images=require_images)
        assert_says(message, f"image_path: {image_path!r} is a link out of the data root")


ABSENT = [
    *(("nowhere/none.png", "does not exist"), ("images", "is not a file")),
    *(("images/a.png/b.png", "cannot be read as a path"), ("im\0ages/a.png", "cannot be read as a path")),
    ("images/" + "x" * 4000, "cannot be read as a path"),
    *(("images/" + "x" * 5000, "5007 characters; at most 4096"), ("images/loop.png", "cannot be read as a path")),
]


@pytest.mark.parametrize(("image_path", "found"), ABSENT)
def test_refuses_an_image_that_is_not_there(root, image_path, found):
    (root / "images/loop.png").symlink_to("loop.png")
    message = refusal(root, [make_record("a"), make_record("b", image_path=image_path)])
    assert_says(message, "record 1", repr(image_path[:80]), found)


def test_bad_records_stop_with_their_number_or_are_set_aside_each_with_its_reason(root):
    records = [
        *(make_record("a"), make_record("b", report=1), make_record("c"), make_record("a", patient_id="other")),
        change_step(make_record("d"), 0, answer="Z"),
    ]
    collection = read(root, records, on_bad_record="skip")
    assert [case.image for case in collection.cases] == ["images/a.png", "images/c.png"]
    aside = [(item.record, item.image_path, item.patient_id) for item in collection.set_aside]
    assert aside == [(1, "images/b.png", "patient-b"), (3, "images/a.png", "other"), (4, "images/d.png", "patient-d")]
    assert_says(collection.set_aside[2].reason, "'Z' is not one of")
    message = refusal(root, records)
    assert_says(message, "record 1 ", "2 more of the 5 records are bad", "data.on_bad_record=skip")
    assert_says(refusal(root, [records[1], [7]], on_bad_record="skip"), "record 0", "no record is valid")
    odd = change_step(make_record("a"), 1, options=["A. Normal", "B. Nodule"], answer="A")
    collection = read(root, [odd, make_record("b"), make_record("c")], on_bad_record="skip")
    assert collection.chain.steps[1].options == ("Normal", "Mass")
    assert [aside.record for aside in collection.set_aside] == [0]
    assert_says(collection.set_aside[0].reason, "differ from", "in record 1")


words = st.text(string.ascii_letters + "äß()., 0-9", min_size=2, max_size=12).map(
    lambda text: " ".join(f"o{text}".split())
)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
sides = st.floats(0.5, 1e4)
boxes = st.builds(Box.of_size, label=texts, x=sides, y=sides, width=sides, height=sides, sentence=texts)


@st.composite
def chains_with_cases(draw):
    steps = []
    for number in range(draw(st.integers(1, 4))):
        options = draw(st.lists(words, min_size=2, max_size=6, unique_by=lambda text: text.casefold()))
        steps.append(Step(f"s{number}", draw(texts), (*options, *draw(st.sampled_from([(), ("N/A",)])))))
    case = st.builds(
        Record,
        # Spellings of a missing value are refused, those of one patient joined: neither is read back as written.
        patient=texts.filter(lambda text: read_patient(text).strip() and fold_patient(text) == text),
        origin=texts,
        report=texts,
        answers=st.tuples(*(st.sampled_from([NOT_ANNOTATED, *range(step.num_answers)]) for step in steps)),
        reasoning=st.tuples(*(texts for _ in steps)),
        boxes=st.lists(boxes, max_size=2).map(tuple),
        sex=st.sampled_from(["", "F", "M", "O"]),
        age=st.none() | st.floats(0, 150),
        view=texts,
        provenance=st.dictionaries(texts, texts, max_size=2).map(lambda names: dict(sorted(names.items()))),
    )
    drawn = enumerate(draw(st.lists(case, min_size=1, max_size=4)))
    return Chain(tuple(steps)), tuple(msgspec.structs.replace(one, image=f"images/{n}.png") for n, one in drawn)


@given(chains_with_cases())
def test_written_cases_read_back_equal(tmp_path_factory, chain_with_cases):
    chain, cases = chain_with_cases
    root = tmp_path_factory.mktemp("written")
    write_records(root, chain=chain, cases=cases)
    collection = read_records(root, step_names=[step.name for step in chain.steps], require_images=False)
    assert (collection.cases, collection.chain) == (cases, chain)


@given(st.recursive(st.none() | st.integers() | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)))
def test_any_json_is_read_or_refused(tmp_path_factory, content):
    root = tmp_path_factory.mktemp("any")
    for whole in (content, [make_record(), content], [{**make_record(), "vqa_chain": content}]):
        write(root, whole)
        with pytest.raises(BadInput):
            read_records(root, step_names=NAMES, require_images=False)


def test_reads_the_real_sample(shared, tmp_path):
    collection = read_records(shared / "data" / "nih_sample")
    assert (len(collection.cases), collection.set_aside) == (589, ())
    assert collection.chain.answers_per_step == (4, 4, 6, 7, 5, 7, 9)
    assert [step.name for step in collection.chain.steps] == [name for name, _ in PUBLISHED_STEPS]
    assert collection.cases[0].answers == (0, 3, 5, 6, 4, 6, 0)
    assert 100 < sum(NOT_ANNOTATED in case.answers for case in collection.cases) < 489
    write_records(tmp_path, chain=collection.chain, cases=collection.cases)
    assert dataclasses.replace(read_records(tmp_path, require_images=False), root=collection.root) == collection
    original = msgspec.json.decode((shared / "data" / "nih_sample" / "data.json").read_bytes())
    assert msgspec.json.decode((tmp_path / "data.json").read_bytes()) == original
