import collections
import io
import json
import shutil
import tracemalloc

import numpy as np
import pytest
from data.checked import check, load
from data.odd_inputs import ODD_INPUTS, make_folder, read_rows, records_of, write_all, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from stepcot_jax.data.reasons import Reasons
from stepcot_jax.data.records.data_json import scan_records
from stepcot_jax.data.records.records import read_records
from stepcot_jax.data.splits.split_resolver import read_splits, resolve_tables
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.run_checks import check_annotated
from stepcot_jax.tools.data.command import main, print_facts


@pytest.fixture(scope="module")
def good_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good") / "root"
    make_folder(folder)
    return folder


@pytest.fixture
def root(good_folder, tmp_path):
    return shutil.copytree(good_folder, tmp_path / "root")


def run_check(*arguments):
    try:
        return main(["check", *map(str, arguments)])
    except BadInput as error:
        return 2, str(error)


def try_run(root, **settings):
    """What stops a run on this folder; None if nothing does."""
    try:
        check_annotated(load(root, **settings))
    except BadInput as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ODD_INPUTS)
def test_odd_inputs_are_said_and_a_run_agrees(root, capsys, name):
    make_odd, code, *words = ODD_INPUTS[name]
    arguments = ["--images", "none"] if "images elsewhere" in name else []
    make_odd(root)
    found = run_check(root, *arguments)
    output = found[1] if code == 2 else capsys.readouterr().out
    assert (found[0] if code == 2 else found) == code
    assert code != 2 or "\n" not in output
    assert [word for word in words if word not in " ".join(output.split())] == [], output
    stopped = try_run(root, require_images=not arguments)
    assert (stopped is None) == (code == 0), stopped


def test_facts_of_a_good_folder_are_the_same_in_json_and_on_a_terminal(root, tmp_path, capsys):
    facts = check(root)
    records = records_of(root)
    assert (facts["layout"], facts["records"], facts["cases"], facts["patients"]) == ("published", 15, 15, 12)
    assert (facts["set_aside"], facts["stops"], facts["set_aside_reasons"]) == (0, [], [])
    assert (facts["images_found"], facts["images_missing"], facts["images_unreadable"]) == (15, 0, 0)
    for place, step in enumerate(facts["steps"]):
        entries = [record["vqa_chain"][place] for record in records]
        letters = collections.Counter(entry["answer"] for entry in entries)
        options = entries[0]["options"]
        assert list(step["answers"].values()) == [letters[option.partition(". ")[0]] for option in options]
        assert (step["annotated"], step["wordings"], step["question"]) == (15, 1, entries[0]["question"])
    assert facts["origins"] == dict(collections.Counter(record["origin"] for record in records))
    for split in facts["splits"]:
        rows = read_rows(root, split["name"])
        assert (split["cases"], split["rows"], split["patients"]) == (len(rows), len(rows), len({r[0] for r in rows}))
    assert (facts["splits_from"], run_check(root, "--json", tmp_path / "facts.json")) == ("tables", 0)
    named = next((name, count) for name, count in facts["steps"][-1]["answers"].items() if count)
    assert f"{named[0]} {named[1]} ({named[1] / 15:.1%})" in " ".join(capsys.readouterr().out.split())
    assert run_check(root, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "facts.json").read_text()) == check(root)
    screen, plain, facts = io.StringIO(), io.StringIO(), check(root)
    screen.isatty = lambda: True
    facts["origins"] = {"[red]\x1b[2J": 15}
    for file, has_rules in ((screen, True), (plain, False)):
        print_facts(facts, file)
        assert ("─" in file.getvalue()) == has_rules
        assert "[red]\\x1b[2J" in file.getvalue()
        assert "\x1b[2J" not in file.getvalue()
        assert "a run can use it" in file.getvalue()


def test_steps_of_another_chain_are_told_of_their_names(root):
    assert not any("step_names" in note for note in check(root)["notes"])
    records = records_of(root)
    for entry in (entry for record in records for entry in record["vqa_chain"]):
        entry.update(options=["A. Broken", "B. Whole"], answer="A")
    (root / "data.json").write_text(json.dumps(records))
    assert any("config.data.step_names" in note for note in check(root)["notes"])
    names = tuple("abcdefg")
    assert not any("step_names" in note for note in check(root, step_names=names)["notes"])


def test_splits_are_made_as_a_run_makes_them(root):
    for name in SPLIT_NAMES:
        (root / f"{name}.csv").unlink()
    facts = check(root)
    assert facts["splits_from"] == "made"
    assert {split["name"]: split["cases"] for split in facts["splits"]} == load(root).num_cases


def test_bad_records_stop_or_are_skipped_as_in_a_run(root):
    records = records_of(root)
    records[3]["report"] = 7
    records[5]["vqa_chain"][0]["answer"] = "Q"
    write_all(root, records)
    stopped, skipped = check(root), check(root, on_bad_record="skip")
    assert "2 of 15 records are bad" in stopped["stops"][0]
    assert (skipped["stops"], skipped["cases"], skipped["set_aside"]) == ([], 13, 2)
    assert try_run(root, on_bad_record="skip") is None
    reason = next(each for each in skipped["set_aside_reasons"] if "answer" in each["reason"])
    assert reason["examples"][0]["record"] == 5
    assert "vqa_chain[0].answer: 'Q' is not one of" in reason["examples"][0]["reason"]


def test_ways_to_look_at_images(root):
    (root / records_of(root)[4]["image_path"]).write_bytes(b"no picture")
    decoded, seen, ignored = (check(root, images=images) for images in ("decode", "exists", "none"))
    assert (decoded["images_unreadable"], decoded["images_found"], len(decoded["stops"])) == (1, 15, 1)
    assert (seen["images_unreadable"], seen["images_found"], seen["stops"]) == (None, 15, [])
    assert (ignored["images_unreadable"], ignored["images_found"], ignored["stops"]) == (None, None, [])
    (root / records_of(root)[4]["image_path"]).unlink()
    assert (check(root, images="exists")["images_missing"], check(root, images="none")["stops"]) == (1, [])


def test_equal_pictures_are_named_with_their_splits(root):
    (train, *_), (test, *_) = read_rows(root, "train"), read_rows(root, "test")
    shutil.copy(root / train[1], root / test[1])
    facts = check(root)
    assert (facts["images_with_equal_pixels"], sorted(facts["equal_images"][0])) == (1, sorted([train[1], test[1]]))
    found = {each["image_path"]: (each["patient_id"], each["splits"]) for each in facts["leaks"][0]}
    assert (found, facts["stops"]) == ({train[1]: (train[0], ["train"]), test[1]: (test[0], ["test"])}, [])


def test_nothing_of_reports_or_patients_but_their_identifiers_is_printed(root, capsys):
    records = records_of(root)
    for record in records:
        record.update(report="Mrs Example", stepcot_jax={"sex": "F", "age": 71.5, "provenance": {"reader": "Dr No"}})
        record["vqa_chain"][0]["reasoning"] = "Mrs Example again"
    records[2]["image_path"], records[3]["vqa_chain"][0]["answer"] = "/absolute.png", "Z"
    write_all(root, records)
    for arguments in ([], ["--json", "-"]):
        assert run_check(root, *arguments) == 1
        output = capsys.readouterr().out
        assert not [word for word in ("Example", "71.5", "Dr No") if word in output]


def test_wrong_arguments_and_folders_are_refused(tmp_path):
    assert (run_check(tmp_path / "nowhere")[0], run_check(tmp_path)[0]) == (2, 2)
    for arguments in (["--max-megapixels", "0"], ["--max-megapixels", "inf"], ["--num-threads", "0"]):
        assert "must be above 0" in run_check(tmp_path, *arguments)[1]


STEP = {"step": "Step 1", "question": "?", "options": ["No", "Yes"], "reasoning": "", "answer": "A"}
PATHS = [f"images/{letter}.png" for letter in "abcdefgh"]
names = st.sampled_from(["1", "01", "007", "7", "p", "P 8", "7.0", "", "x"])
paths = st.sampled_from([*PATHS, "", ".\\images\\a.png"])
any_rows = st.lists(st.tuples(names, paths), max_size=7)


@st.composite
def nearly_right_tables(draw, cases):
    """Each case in the split of its patient, named in one way or another, and perhaps a row more somewhere."""
    patients = sorted(set(cases.values()))
    tables = {name: [] for name in SPLIT_NAMES}
    for path, patient in cases.items():
        row = draw(st.sampled_from([(patient, path), ("", path), (patient, "")]))
        tables[SPLIT_NAMES[patients.index(patient) % 3]].append(row)
    for row in draw(st.lists(st.tuples(names, paths), max_size=1)):
        tables[draw(st.sampled_from(SPLIT_NAMES))].append(row)
    return tables


@settings(max_examples=60)
@given(st.data())
def test_tables_are_refused_exactly_where_a_run_refuses_them(tmp_path_factory, data):
    root, reasons = tmp_path_factory.mktemp("tables"), Reasons()
    cases = data.draw(st.dictionaries(st.sampled_from(PATHS), names.filter(str.strip), min_size=4, max_size=8))
    bad = data.draw(st.sets(st.sampled_from(PATHS), max_size=2))
    tables = data.draw(nearly_right_tables(cases) | st.fixed_dictionaries(dict.fromkeys(SPLIT_NAMES, any_rows)))
    shared = {"report": "", "vqa_chain": [STEP]}
    write_all(root, [dict(patient_id=patient, image_path=path, origin=3 if path in bad else "", **shared)
                     for path, patient in cases.items()])  # fmt: skip
    for name, table in tables.items():
        write_rows(root, name, table)
    scan = scan_records(root, reasons.append, step_names=("One",), require_images=False, with_texts=False)
    aside = {"set_aside_paths": reasons.image_paths, "set_aside_patients": reasons.patient_ids}
    facts = resolve_tables(root, scan.table, good=scan.good, **aside)
    collection = read_records(root, step_names=("One",), on_bad_record="skip", require_images=False)
    try:
        splits = read_splits(root, collection.cases, set_aside=collection.set_aside)
    except BadInput:
        assert facts.problems
        return
    assert not facts.problems
    for member, indices in zip(facts.member, splits.by_name().values(), strict=True):
        assert np.flatnonzero(member[scan.good]).tolist() == list(indices)


def test_memory_does_not_grow_with_the_texts_and_many_origins_are_merged(tmp_path):
    shared = {"report": "x" * 20_000, "vqa_chain": [STEP]}
    write_all(
        tmp_path, [{"patient_id": f"{n}", "image_path": f"i/{n}.png", "origin": str(n), **shared} for n in range(1500)]
    )
    tracemalloc.start()
    scan = scan_records(tmp_path, [].append, step_names=("One",), require_images=False, with_texts=False)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(scan.table) == 1500
    assert peak < 8e6  # of a file of 30 MB
    facts = check(tmp_path, images="none", step_names=("One",))
    assert (len(facts["origins"]), facts["origins"]["(further origins)"]) == (1001, 500)


def test_real_sample_and_real_box_list(shared):
    facts = check(shared / "data" / "nih_sample")
    assert (facts["records"], facts["cases"], facts["patients"], facts["stops"]) == (589, 589, 434, [])
    assert (facts["images_found"], facts["images_unreadable"], facts["pictures_in_several_splits"]) == (589, 0, 0)
    assert {split["name"]: split["cases"] for split in facts["splits"]} == {"train": 403, "val": 101, "test": 85}
    facts = check(shared / "data" / "nih_chestxray8", images="none")
    assert facts["layout"] == "chestxray8"
    assert (facts["boxes"], facts["images_with_boxes"], facts["images_with_one_box_label"]) == (984, 880, 787)
    assert (facts["records"], facts["cases"], facts["stops"]) == (880, 787, [])
    facts = check(shared / "data" / "nih_chestxray8", images="exists")
    assert (facts["images_missing"], len(facts["stops"])) == (787, 1)


def test_steps_with_one_answer_are_told_before_training(root):
    entries = records_of(root)
    for split, num_steps in (("train", 2), ("val", 7)):
        paths = {path for _, path in read_rows(root, split)}
        first, *others = [entry["vqa_chain"] for entry in entries if entry["image_path"] in paths]
        for chain in others:
            for place in range(num_steps):
                chain[place]["answer"] = first[place]["answer"]
    write_all(root, entries)
    notes = check(root, images="none")["notes"]
    of_train = [note for note in notes if note.startswith("every case of the train split")]
    of_val = [note for note in notes if note.startswith("every case of the val split")]
    assert len(of_train) == len(of_val) == 1
    assert of_train[0].endswith("at Detection, Lesion distribution (2 of 7 steps): nothing to learn there")
    assert of_val[0].endswith("no best weights can be chosen, the last are kept")
    assert {f"note: {note}" for note in (*of_train, *of_val)} <= set(check_annotated(load(root)))
