"""Rad-ReStruct's reports: the tree of the template, answers in its order, splits, texts, and the release itself."""

import json
import tarfile

import numpy as np
import pytest
from PIL import Image
from refusals import assert_says, refuse
from structured_folder import CYST, NORMAL, OPACITIES, questions_of, write_structured_folder

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.sources.layout_table import detect_layout
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.tools.data.command import main as data

N = NOT_ANNOTATED
NAMES = [
    "foreign objects/objects", "foreign objects/objects/stent/1", "lung/signs", "lung/signs/opacity/1",
    "lung/signs/opacity/1/body_region: apex", "lung/signs/opacity/1/body_region: base",
    "lung/signs/opacity/1/body_region: unspecified", "lung/signs/opacity/1/localization", "lung/signs/opacity/2",
    "lung/signs/opacity/2/body_region: apex", "lung/signs/opacity/2/body_region: base",
    "lung/signs/opacity/2/body_region: unspecified", "lung/signs/opacity/2/localization", "lung/signs/cyst/1",
    "lung/signs/cyst/1/degree: mild", "abdomen/infos/1", "abdomen/infos/1/attributes",
]  # fmt: skip
ANSWERS = {
    "normal": [1, N, 1, *[N] * 12, 1, N],
    "opacities": [1, N, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 2, 1, N, 1, N],
    "cyst": [1, N, 0, 1, *[N] * 9, 0, 0, 0, 1],
}


@pytest.fixture
def root(tmp_path):
    return write_structured_folder(
        tmp_path / "radrestruct", train={1: NORMAL, 2: OPACITIES}, val={3: CYST}, test={4: NORMAL}
    )


def test_answers_follow_the_tree(root):
    assert detect_layout(root) == "rad_restruct"
    collection = read_source(root, require_images=False)
    chain = collection.chain
    assert [step.name for step in chain.steps] == NAMES
    cases = {case.patient: case for case in collection.cases}
    assert [cases[f"CXR{number}"].split for number in range(1, 5)] == ["train", "train", "val", "test"]
    assert [list(cases[f"CXR{number}"].answers) for number in range(1, 4)] == list(ANSWERS.values())
    labels = collection.cases.labels
    np.testing.assert_array_equal(labels >= 0, chain.find_asked(labels))
    assert chain.steps[8].asked_if == (3, 0), "another one is asked for after the first"
    assert [(len(q), chain.steps[q[0]].choice) for q in chain.questions if len(q) > 1] == [(3, "apex")] * 2
    parts = [chain.steps[position].part for position in (0, 1, 4, 15)]
    assert parts == ["level 1", "level 2/objects", "level 3", "level 2/body_regions"]


def test_pictures_are_required_unless_told_otherwise(root):
    refuse(r"no image 'CXR1_IM-1.png'", read_source, root)
    (root / "images").mkdir()
    for number in range(1, 5):
        Image.new("L", (8, 8)).save(root / "images" / f"CXR{number}_IM-1.png")
    assert read_source(root).cases[0].image == "images/CXR1_IM-1.png"


def test_without_a_test_part_validation_is_held_out(tmp_path, caplog):
    root = write_structured_folder(
        tmp_path / "r", train=dict.fromkeys(range(1, 21), NORMAL), val={30: NORMAL, 31: CYST}
    )
    cases = read_source(root, require_images=False).cases
    of_split = {split: [case.patient for case in cases if case.split == split] for split in ("train", "val", "test")}
    assert (len(of_split["train"]), of_split["val"], of_split["test"]) == (18, ["CXR10", "CXR20"], ["CXR30", "CXR31"])
    assert "no test_qa_pairs" in caplog.text


def test_reports_without_text_are_set_aside_where_there_are_texts(root):
    (root / "iu_xray").mkdir()
    abstract = (
        '<AbstractText Label="FINDINGS">Clear.</AbstractText><AbstractText Label="INDICATION">Pain.</AbstractText>'
    )
    mesh = "<MeSH><major>Opacity/lung</major></MeSH>"
    text = f'<eCitation><uId id="CXR1"/><Abstract>{abstract}</Abstract>{mesh}</eCitation>'
    (root / "iu_xray" / "1.xml").write_text(text)
    collection = read_source(root, require_images=False)
    assert [(case.patient, case.report) for case in collection.cases] == [("CXR1", "FINDINGS: Clear.")]
    assert len(collection.set_aside) == 3


BROKEN = {
    "a question too many": (lambda asked: asked.append(asked[1]), "no answer before it opens it"),
    "a question too few": (lambda asked: asked.pop(), "missing; expected 'abdomen_infos'"),
    "another order": (lambda asked: asked.reverse(), "is 'abdomen_infos'; expected 'foreign objects_objects'"),
    "an answer that is no option": (lambda asked: asked[0].__setitem__(1, ["maybe"]), "are not among its options"),
    "no answer": (lambda asked: asked[0].__setitem__(1, []), "are not among its options"),
    "two answers where one is right": (lambda asked: asked[0].__setitem__(1, ["yes", "no"]), "2 answers; expected one"),
    "other options": (lambda asked: asked[0][3].update(options=["no", "yes"]), "of template_final_clean.json"),
    "no list of answers": (lambda asked: asked[0].__setitem__(1, "no"), "Expected `array`, got `str`"),
    "an unknown kind": (lambda asked: asked[0][3].update(answer_type="open"), "Invalid enum value 'open'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_report_that_does_not_fit_the_template_is_a_bad_record(root, name):
    change, problem = BROKEN[name]
    asked = questions_of(NORMAL)
    change(asked)
    (root / "train_qa_pairs" / "1.json").write_text(json.dumps(asked))
    assert_says(refuse("", read_source, root, require_images=False), "train_qa_pairs/1.json: ", problem)
    collection = read_source(root, on_bad_record="skip", require_images=False)
    assert [case.patient for case in collection.cases] == ["CXR2", "CXR3", "CXR4"]


def with_options(options, number=1):
    """A template with a question of these options about each of some elements."""
    infos = {"infos": {"attributes": {"answer_type": "multi_choice", "options": options}}}
    return json.dumps([{"area": "lung", "signs": {f"opacity {each}": infos for each in range(number)}}])


TEMPLATES = {
    "{}": "Expected `array`",
    '[{"area": "lung", "signs": {"opacity": {"infos": 3}}}]': "Expected `object`",
    "[]": "at least one step",
    with_options([]): "length >= 1",
    with_options(["x", "x"]): "repeat one",
    with_options([str(number) for number in range(201)]): "length <= 200",
    with_options([str(number) for number in range(200)], 101): "more than 20,000 steps",
}
FILES = [
    *(("template_final_clean.json", *each) for each in TEMPLATES.items()),
    ("max_instances.json", '{"lung/opacity": 1000000}', "is not 1 to 20"),
    ("id_to_img_mapping_frontal_reports.json", '{"1": ["../secret"]}', "not a file name without folders"),
    ("id_to_img_mapping_frontal_reports.json", "{}", "names no image of report '1'"),
    ("train_qa_pairs/x.json", "[]", "'x.json' is not the number of a report"),
]


@pytest.mark.parametrize(("file", "content", "problem"), FILES, ids=range(len(FILES)))
def test_a_broken_folder_is_refused(root, file, content, problem):
    (root / file).write_text(content)
    refuse(problem, read_source, root, require_images=False)


def test_check_and_statistics_count_by_part(root, tmp_path, capsys):
    assert data(["check", str(root), "--images=none", "--json=-"]) == 0
    facts = json.loads(capsys.readouterr().out)
    parts = {part["name"]: part for part in facts["parts"]}
    assert (parts["all"]["questions"], parts["all"]["several_right"]) == (13, 2)
    assert parts["all"]["asked"] == {"train": 3 + 10, "val": 7, "test": 3}
    assert parts["all"]["only_no"] == {"train": 1, "val": 0, "test": 1}
    assert data(["check", str(root), "--images=none"]) == 0
    shown = capsys.readouterr().out
    assert "only no" in shown
    assert "lung/signs/cyst" not in shown
    assert data(["stats", str(root), f"--out={tmp_path / 'out'}"]) == 0
    rows = (tmp_path / "out" / "questions.csv").read_text().splitlines()
    assert "lung/signs/opacity/1/localization" in rows[22]
    assert "| all | no to everything | 50.0 [" in (tmp_path / "out" / "reports.md").read_text()


@pytest.mark.slow
def test_the_release_has_the_published_counts(shared, tmp_path):
    with tarfile.open(shared / "data" / "rad_restruct" / "rad_restruct_train_val.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / "data" / "radrestruct"
    assert data(["check", str(root), "--images=none", f"--json={tmp_path / 'facts.json'}"]) == 0
    facts = json.loads((tmp_path / "facts.json").read_text())
    whole = facts["parts"][0]
    assert (whole["questions"], len(facts["steps"])) == (718, 1702)
    assert whole["asked"]["train"] + whole["asked"]["val"] == 142_340
    assert (whole["asked"]["test"], whole["only_no"]["test"], whole["patients"]["test"]) == (16_874, 150, 360)
    chain = read_source(root, require_images=False).chain
    from stepcot_jax.evaluation.structured_reports import Form

    keys, form = json.loads((root / "report_keys.json").read_text()), Form.of(chain)
    assert len(form.step) == len(keys) == 2470
    for key, position, label in zip(keys, form.step, form.label, strict=True):
        step = chain.steps[position]
        assert f"_{step.choice or step.options[label]}" in key, key
