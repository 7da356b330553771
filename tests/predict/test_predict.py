import csv
import dataclasses
import html
import json
import pathlib
import shutil

import numpy as np
import pandas
import pytest
from PIL import Image
from refusals import refuse
from trained_workdir import make_trained_workdir, write_joint

from stepcot_jax.chain import DEFAULT_CHAIN, Chain, Step
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.evaluation.calibration import Calibration
from stepcot_jax.evaluation.consistency import count_pairs, make_rules
from stepcot_jax.evaluation.joint import write_joints
from stepcot_jax.reading.answer_sheet import find_columns
from stepcot_jax.reading.corrections import check_given, given_distributions, read_corrections
from stepcot_jax.reading.explain import Explainer
from stepcot_jax.reading.image_reader import load
from stepcot_jax.reading.programs import Reader, Reading
from stepcot_jax.reading.radiographs import find_images, read_picture, read_radiograph, to_input
from stepcot_jax.reading.readings import Shift, describe_shifts, make_readings, write_paragraph
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.tools import predict

ROOT = pathlib.Path(__file__).parents[2]
NAMES = ["b.png", "below/a.jpg", "c.png"]
OPTIONS = Chain((Step("One", "?", ("Yes", "No", "100 %")), Step("Two", "?", ("Yes", "No"))))
pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict") / "run"
    make_trained_workdir(folder, calibrated=True)
    return folder


@pytest.fixture(scope="module")
def teacher(workdir):
    return load(workdir, model="teacher", batch_size=2)


@pytest.fixture(scope="module")
def student(workdir):
    return load(workdir, batch_size=2)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    (folder / "below").mkdir()
    for index, name in enumerate(NAMES):
        Image.fromarray(draw_case(index, seed=5, size=48).image).save(folder / name)
    (folder / "notes.txt").write_text("nothing")
    return folder


def test_one_picture_reads_the_same_from_everywhere(student, images):
    path = images / "b.png"
    pixels = np.array(Image.open(path))
    same = (path, str(path), path.read_bytes(), pixels, np.stack([pixels] * 3, -1), Image.open(path))
    readings = [student.read(image) for image in same]
    readings.append(student.read(pixels / 255 * 3 - 1, scale=(-1, 2)))
    readings.append(student.read(255 - pixels.astype(np.int16), scale=(255, 0)))
    assert len({json.dumps(reading.probabilities) for reading in readings}) == 1
    reading = readings[0]
    assert list(reading.answers) == [step.name for step in DEFAULT_CHAIN.steps]
    for name, answer in reading.answers.items():
        assert reading.probabilities[name][answer] == max(reading.probabilities[name].values())
        assert sum(reading.probabilities[name].values()) == pytest.approx(1)
    assert (reading.model, reading.fitted, reading.coverage) == ("student", True, 0.9)
    assert all(answer.answer in answer.answer_set for answer in reading.steps)
    assert reading.source == str(path)
    assert reading.paragraph in str(reading)
    picture = read_picture(path, student.trained.preprocessing)
    assert (picture.shape, picture.dtype) == ((32, 32, 3), np.uint8)


@pytest.mark.parametrize(
    ("image", "scale", "words"),
    [
        (np.zeros((4, 4, 4), np.uint8), None, r"\(4, 4, 4\)"),
        (np.zeros((0, 4), np.uint8), None, r"\(0, 4\)"),
        (b"text", None, "starts with bytes 74 65 78 74"),
        (3, None, "got int"),
        (np.zeros((4, 4)), None, r"uint8.*state its scale, such as scale=\(0, 1\)"),
        ("no.png", None, "no.png cannot be read"),
        (np.array([[0.0, np.nan]]), (0, 1), "without NaN; got float64"),
        (np.zeros((2, 2)), (0, np.inf), "is not two different numbers"),
    ],
)
def test_what_is_no_image_is_refused(image, scale, words):
    refuse(words, read_radiograph, image, Preprocessing(32), scale=scale)


def test_a_list_or_a_folder_gives_rows(student, images, tmp_path):
    pixels = np.array(Image.open(images / "b.png"))
    found = student.read([images / "b.png", b"text", pixels])
    assert [reading.source for reading in found] == [str(images / "b.png"), "image 3"]
    assert list(found.problems) == ["image 2"]
    table = pandas.DataFrame(found.as_rows())
    assert list(table.columns) == list(find_columns(student.chain))
    assert table["image"].tolist() == [str(images / "b.png"), "image 2", "image 3"]
    assert table["Diagnosis"].tolist()[::2] == [found[0].answers["Diagnosis"]] * 2
    assert "starts with bytes 74 65 78 74" in table["problem"][1]
    folder = student.read(images)
    assert [reading.source for reading in folder] == [str(images / name) for name in NAMES]
    assert folder[0].probabilities == found[0].probabilities
    refuse("holds no PNG", student.read, tmp_path)


def test_a_correction_is_followed(teacher, images):
    path, options = images / "b.png", DEFAULT_CHAIN.steps[2].options
    plain = teacher.read(path)
    assert (plain.flipped, plain.shifted) == ((), ())
    for option in (options[0], options[-1]):
        corrected = teacher.read(path, given={"Radiographic pattern": option})
        assert corrected.answers["Radiographic pattern"] == option
        assert [shift.step for shift in corrected.shifted] == [step.name for step in DEFAULT_CHAIN.steps[3:]]
        for shift in corrected.shifted:
            before, after = plain.probabilities[shift.step], corrected.probabilities[shift.step]
            assert shift.change == pytest.approx(max(abs(before[answer] - after[answer]) for answer in before))
            assert shift.change > 0
        assert [answer.answer_set is None for answer in corrected.steps] == [False] * 2 + [True] * 5
        assert "given" in corrected.paragraph


def read_shares(*shares, chain, **arguments):
    """Readings of cases whose probabilities are given, [case, step, answer]."""
    probabilities = np.array(shares)
    reading = Reading(np.log(np.maximum(probabilities, 1e-9)), probabilities, None, None)
    sources = [f"<{case}>.png" for case in range(len(shares))]
    return make_readings(reading, chain, sources=sources, model="teacher", **{"calibration": None} | arguments)


def test_what_limits_a_reading_is_told():
    """Answers that a correction turned, temperatures that were not fitted, pairs that training never had."""
    chain = Chain(tuple(Step(name, "?", ("Yes", "No")) for name in ("One", "Two", "<b>Three")))
    plain = Reading(np.zeros((1, 3, 2)), np.array([[(0.9, 0.1), (0.6, 0.4), (0.7, 0.3)]]), None, None)
    given = np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    notes = ("", "12 annotated cases, fewer than 20: temperature 1", "")
    counts = count_pairs(
        np.repeat([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1]], [250, 250, 250, 50, 9], axis=0), chain
    )
    (told,) = read_shares(
        [(0.9, 0.1), (0.4, 0.6), (0.6, 0.4)],
        chain=chain,
        given=given,
        uncorrected=plain,
        calibration=Calibration(0.9, {"teacher": (1.0, 1.0, 2.0)}, {}, {"teacher": notes}),
        rules=make_rules(chain, counts=counts),
    )
    assert told.answers == {"One": "No", "Two": "No", "<b>Three": "Yes"}
    assert [(flip.step, flip.before, flip.after) for flip in told.flipped] == [("Two", "Yes", "No")]
    assert [(shift.step, round(shift.change, 6)) for shift in told.shifted] == [("Two", 0.2), ("<b>Three", 0.1)]
    for line in (
        "changed by the given answers: Two: Yes → No",
        "largest change of another probability: 20.0 points (Two)",
        "hardly ever together in training: One 'No' with Two 'No'",
        "teacher; probabilities fitted on validation (not of Two) for readings without given answers",
        "calibration error of <b>Three: not measured",
    ):
        assert f"  {line}\n" in str(told)
        assert f"<li>{html.escape(line)}</li>" in told._repr_html_()
    assert told.as_dict()["never_together"] == ["One 'No' with Two 'No'"]
    assert told.as_dict()["steps"][0]["given"]
    assert describe_shifts([Shift("Two", 0.0009), Shift("Three", 0.0)]) == "no other probability moved by 0.1 points"


def test_html_is_escaped_and_terminals_are_not_steered():
    chain = Chain((Step("<b>One</b>", "Is <script>?", ("<i>", "\x1b[2J")), Step("Two", "And?", ("A & B", "N/A"))))
    (reading,) = read_shares([(0.25, 0.75), (1.0, 0.0)], chain=chain)
    page = reading._repr_html_()
    assert not any(markup in page for markup in ("<script>", "<i>", "<b>One"))
    assert "A &amp; B" in page
    assert "\x1b" not in str(reading)
    assert "\\x1b" in str(reading)
    assert json.loads(json.dumps(reading.as_dict()))["steps"][0]["answer"] == "\x1b[2J"


def test_an_uncertain_answer_lies_between_none_and_a_certain_one(teacher, images):
    path, step = images / "b.png", DEFAULT_CHAIN.steps[2]
    certain, unsure = (
        teacher.read(path, given={step.name: answer}) for answer in ("Nodular", {"Nodular": 0.7, "Linear": 0.3})
    )
    told = unsure.steps[2]
    assert (told.answer, told.given) == ("Nodular", True)
    assert told.describe_certainty().startswith("given at 70 % (network: ")
    assert certain.steps[2].describe_certainty().startswith("given (network: ")
    assert unsure.as_dict()["steps"][2]["given_probabilities"]["Linear"] == pytest.approx(0.3)
    assert unsure.probabilities["Diagnosis"] != certain.probabilities["Diagnosis"]
    shares = given_distributions({"3": step.options[2]}, DEFAULT_CHAIN)[None]
    given = (np.array([[-1, -1, 2, -1, -1, -1, -1]]), shares)
    as_labels, as_shares = (check_given(each, teacher.trained, model="teacher", num_cases=1) for each in given)
    assert (as_labels == as_shares).all()
    for wrong in (np.full((1, 7, 8), 0.5), np.full((1, 7, 3), 1 / 3), -as_shares, np.eye(9)[None, [8] * 7]):
        refuse("distributions of shape", check_given, wrong, teacher.trained, model="teacher", num_cases=1)


@pytest.fixture(scope="module")
def joined(workdir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("joined") / "run"
    shutil.copytree(workdir, folder)
    return folder, write_joint(folder)


def test_a_joint_reading_is_the_networks_own_until_an_answer_is_given(joined, images):
    (folder, _), path, chain = joined, images / "b.png", DEFAULT_CHAIN
    reader, published = load(folder), load(folder, as_published=True)
    plain, own = reader.read(path), published.read(path)
    assert [reading.model for reading in (plain, own)] == ["student, joint reading", "student"]
    assert (reader.joined, published.joined) == (True, False)
    for name, shares in own.probabilities.items():
        assert plain.probabilities[name] == pytest.approx(shares, abs=2e-3)
    third = chain.steps[2]
    corrected = reader.read(path, given={third.name: third.options[4]})
    assert corrected.answers["Diagnosis"] == chain.steps[6].options[4]
    # Earlier steps follow too; answer sets and operating points were fitted without given answers.
    assert [shift.step for shift in corrected.shifted] == [step.name for step in chain.steps if step is not third]
    assert all(answer.answer_set is None for answer in corrected.steps)
    assert all(answer.answer_set is not None for answer in plain.steps)
    assert corrected.describe_calibration() == "student, joint reading; probabilities fitted on validation"
    assert corrected.as_dict()["fitted"]
    # A hesitant answer changes less than a certain one.
    unsure = reader.read(path, given={third.name: {third.options[4]: 0.6}})
    before, between, after = (
        reading.probabilities["Diagnosis"][chain.steps[6].options[4]] for reading in (plain, unsure, corrected)
    )
    assert before < between < after


def test_given_answers_are_also_written_back_to_the_network(joined, images, tmp_path):
    """With exponents 1 and 0 a reading under given answers is the network's own, as published."""
    (folder, model), path = joined, images / "b.png"
    copied = shutil.copytree(folder, tmp_path / "run")
    given = {"Radiographic pattern": DEFAULT_CHAIN.steps[2].options[4], "Detection": DEFAULT_CHAIN.steps[0].options[1]}
    for limit, warns in ((-1e3, True), (1e3, False)):
        written = dataclasses.replace(model, exponents=((1.0, 0.0, 0.0),) * 7, conflict_limit=limit)
        write_joints(copied / "joint.json", {"student": written})
        reader = load(copied)
        found, expected = reader.read(path, given=given), load(copied, as_published=True).read(path, given=given)
        for step in DEFAULT_CHAIN.steps[3:]:
            of_step = expected.probabilities[step.name]
            assert found.probabilities[step.name] == pytest.approx(of_step, abs=1e-5)
            assert reader.read(path).probabilities[step.name] != pytest.approx(of_step, abs=1e-3)
        pixels = to_input([found.picture], reader.trained.preprocessing)
        read = Reader(reader.trained, model="student").given_reader(pixels)
        shares = given_distributions(given, DEFAULT_CHAIN)[None, None]
        np.testing.assert_allclose(read(shares)[0, 0, 6], list(found.probabilities["Diagnosis"].values()), atol=1e-5)
        told = [line for line in found.warnings if "picture and given answers disagree" in line]
        assert bool(told) == warns == bool(found.as_dict()["conflict"] > 0)
        assert told == [line for line in found.as_dict()["warnings"] if line in told]
        assert ("warning: picture and given answers disagree, by the training labels" in str(found)) == warns


def test_the_outcomes_of_a_pooled_reading_are_what_it_becomes(joined, images, tmp_path):
    (folder, model), path = joined, images / "b.png"
    copied = shutil.copytree(folder, tmp_path / "run")
    pooled = dataclasses.replace(model, exponents=((0.7, 0.8, 0.1),) * 7)
    write_joints(copied / "joint.json", {"student": pooled})
    reader = load(copied)
    asked = reader.ask_next(reader.read(path))
    for outcome in asked.outcomes:
        followed = reader.read(path, given={asked.step.name: outcome.answer})
        assert followed.answers["Diagnosis"] == outcome.last_answer
        share = followed.probabilities["Diagnosis"][outcome.last_answer]
        assert share == pytest.approx(outcome.last_probability, abs=1e-5)


def test_the_step_that_decides_is_asked_for_and_then_nothing(joined, images):
    (folder, _), path = joined, images / "b.png"
    reader = load(folder)
    plain = reader.read(path)
    asked = reader.ask_next(plain)
    assert asked.step.name == DEFAULT_CHAIN.steps[2].name
    assert asked.gain > 0.01
    assert asked.last_answer == plain.answers["Diagnosis"]
    assert sum(outcome.probability for outcome in asked.outcomes) == pytest.approx(1)
    corrected = reader.correct(plain, {asked.step.name: asked.outcomes[0].answer})
    assert corrected.answers["Diagnosis"] == asked.outcomes[0].last_answer
    assert reader.ask_next(corrected) is None  # the diagnosis is settled
    said = []
    predict.ask_in_turn(reader, path, answer=lambda _: "C", say=said.append)
    assert said[-1] == "\nno further answer is worth asking for (config.evaluation.least_gain)"
    maps, _ = reader.explain(corrected)
    np.testing.assert_allclose(maps.sum(axis=(1, 2)), 1, rtol=1e-4)
    assert load(folder, model="teacher").read(path).model == "teacher"  # this run has a joint model of the student


def test_maps_of_a_joint_reading_are_of_its_answers(joined, images):
    folder, _ = joined
    explainer = Explainer(load_trained(folder), model="student")
    reader = load(folder)
    reading = reader.read(images / "b.png", given={"3": DEFAULT_CHAIN.steps[2].options[4]})
    pixels = to_input([reading.picture], reader.trained.preprocessing)
    given = given_distributions({"3": DEFAULT_CHAIN.steps[2].options[4]}, DEFAULT_CHAIN)[None]
    found = explainer.explain(pixels, given_answers=given)
    shown = [(answer.label, answer.probability) for answer in reading.steps if not answer.given]
    others = [0, 1, 3, 4, 5, 6]
    claimed = [(int(found.labels[0, step]), found.claims[0][step].probability) for step in others]
    np.testing.assert_allclose(claimed, shown, rtol=1e-5)
    # Nothing in the picture moves a given answer: it is explained as the network alone reads it.
    alone = explainer.explain(pixels, labels=found.labels)
    np.testing.assert_allclose(found.maps[0, 2], alone.maps[0, 2], rtol=1e-5)
    assert found.maps[0, 2].std() > 0
    assert not np.allclose(found.maps[0, 6], alone.maps[0, 6])


def test_a_teacher_without_write_back_takes_answers_by_its_joint_model(workdir):
    trained = load_trained(workdir, names=("teacher",))
    settings = dataclasses.replace(trained.run.settings.teacher, write_back=False)
    run = dataclasses.replace(trained.run, settings=dataclasses.replace(trained.run.settings, teacher=settings))
    trained, given = dataclasses.replace(trained, run=run), np.array([[-1, -1, 2, -1, -1, -1, -1]])
    refuse("given answers need config", check_given, given, trained, model="teacher", num_cases=1)
    assert check_given(given, trained, model="teacher", num_cases=1, joined=True)[0, 2, 2] == 1


@pytest.mark.parametrize(
    ("name", "answer", "expected"),
    [
        ("one", "Yes 70 %", [0.7, 0.15, 0.15]),
        ("1", "b 62.5%", [0.1875, 0.625, 0.1875]),
        ("ONE", "C. 100 %", [0, 0, 1]),
        ("One", {"Yes": 0.6, "No": 0, "100 %": 0.4}, [0.6, 0, 0.4]),
        (" one", "100 %", [0, 0, 1]),  # an option of this name
        ("One", {"Yes": 0.6, "No": 0.3}, [0.6, 0.3, 0.1]),
        ("One", {"A": 0.5, "B": 0.3, "C": 0.2}, [0.5, 0.3, 0.2]),
        ("One", {"Yes": 1}, [1, 0, 0]),
    ],
)
def test_steps_and_answers_may_be_abbreviated_and_uncertain(name, answer, expected):
    given = given_distributions({name: answer}, OPTIONS)
    np.testing.assert_allclose(given[0], expected, rtol=1e-6)
    assert not given[1].any()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"Two": "Yes 170 %"}, "'Yes': probability 1.7 is not from 0 to 1"),
        ({"Two": "Yes 50 %"}, "'Yes' leaves 50 % for each other option; name the most probable one"),
        ({"Two": {"Yes": 0.8, "No": 0.3}}, "sum to 1.100; expected at most 1"),
        ({"Two": {"Maybe": 0.5}}, "'Maybe' is not one of A. Yes, B. No"),
        ({"Twoo": "A"}, "step 'Twoo' is not.*nearest: Two"),
        ({"Two": "Yess"}, "Two: 'Yess' is not.*A. Yes.*nearest: Yes"),
        (["Diagnosis"], "STEP=ANSWER"),
    ],
)
def test_a_wrong_correction_names_what_is_accepted(given, words):
    refuse(words, lambda: given_distributions(given if isinstance(given, dict) else read_corrections(given), OPTIONS))
    assert read_corrections(["a=b\n=c="]) == {"a": "b\n=c="}


def test_a_folder_is_searched_and_never_left(images, tmp_path):
    outside = tmp_path / "outside.png"
    shutil.copy(images / "b.png", outside)
    folder = shutil.copytree(images, tmp_path / "folder")
    (folder / "link.png").symlink_to(outside)
    (folder / "away").symlink_to(tmp_path)
    (folder / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
    refused, notes = [], []
    paths = find_images([folder, folder / "c.png", tmp_path / "no.png"], refuse=refused.append, note=notes.append)
    assert paths == [folder / name for name in NAMES] + [tmp_path / "no.png"]
    assert "skipped 2 files that" in notes[0]  # notes.txt and DICOMDIR
    assert "; 2 links out of the folder were not followed: copy it with cp -rL" in notes[0]
    assert not refused
    (folder / "broken.JPG").write_bytes(b"no image")
    (folder / "._b.png").write_bytes(b"no image")
    found = find_images([folder], refuse=refused.append)
    assert found == [folder / name for name in ("b.png", "below/a.jpg", "broken.JPG", "c.png")]
    (tmp_path / "empty").mkdir()
    assert find_images([tmp_path / "empty"], refuse=refused.append) == []
    assert "holds no PNG" in refused[0]


def test_the_paragraph_reads_as_prose():
    labels = (1, 0, 2, 6, 1, 0, 7)
    shares = (0.81, 0.5, 0.999, 0.4, None, 0.001, 0.37)
    text = write_paragraph(list(zip(DEFAULT_CHAIN.steps, labels, shares, strict=True)))
    assert text == (
        "The radiograph shows increased opacity (81 %), focal in distribution (50 %), with a nodular pattern "
        "(more than 99 %), margins and morphology: ill-defined (given), associated signs: volume loss (less than 1 %). "
        "The most likely diagnosis is mass (37 %). Not applicable: anatomical location (40 %)."
    )
    assert write_paragraph([(OPTIONS.steps[1], 0, 0.5)]) == "Two: Yes (50 %)."


def run_tool_here(capsys, *arguments):
    code = predict.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_tool_reads_what_it_can_and_names_the_rest(workdir, images, capsys, tmp_path, monkeypatch):
    bad, lines, sheet = tmp_path / "bad.png", tmp_path / "out.txt", tmp_path / "out.csv"
    bad.write_bytes((images / "b.png").read_bytes()[:200])
    monkeypatch.setattr(predict, "BATCH_SIZE", 2)
    code, told, complained = run_tool_here(capsys, bad, images, f"--checkpoint={workdir}", "--json", f"--out={lines}")
    assert (code, told) == (1, "")
    assert f"{bad}: cannot be decoded" in complained
    assert "skipped 1 files that are not PNG" in complained
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [entry["image"] for entry in found] == [str(images / name) for name in NAMES]
    words = {"image", "model", "fitted", "coverage", "coverage_of", "steps", "flipped", "shifted", "paragraph"}
    words |= {"calibration_error"}
    of_the_image = {"trained_on", "gate_score", "outside", "projection", "notes", "warnings", "conflict"}
    assert set(found[0]) == words | {"never_together", "operating_rule"} | of_the_image
    assert (found[0]["outside"], found[0]["gate_score"]) == (None, None)
    paths = [images / "c.png", bad, images]
    code, told, complained = run_tool_here(capsys, *paths, f"--checkpoint={workdir}", f"--out={sheet}")
    assert (code, told) == (1, "")
    with sheet.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [pathlib.Path(row["image"]).name for row in rows] == ["c.png", "bad.png", "b.png", "a.jpg"]
    assert [bool(row["problem"]) for row in rows] == [False, True, False, False]
    assert rows[1]["problem"] in complained
    (tmp_path / "empty").mkdir()
    assert run_tool_here(capsys, tmp_path / "empty", f"--checkpoint={workdir}")[0] == 1


def test_the_tool_prints_seven_answers_first_and_what_they_mean_below(workdir, images, capsys):
    arguments = (images / "b.png", images / "c.png", f"--checkpoint={workdir}", "--model=teacher")
    code, told, complained = run_tool_here(capsys, *arguments, "--given=Anatomical location=Lower lung zone")
    assert (code, complained) == (0, "")
    lines = told.partition("\n\n")[0].splitlines()
    assert lines[0] == str(images / "b.png")
    assert [line.split("  ")[1] for line in lines[1:8]] == [step.name for step in DEFAULT_CHAIN.steps]
    sets = '"or": the other answers of its set; such sets hold the true answer in 90 % of '
    below = [
        "  teacher; probabilities fitted on validation for readings without given answers",
        "  calibration error of Diagnosis: not measured",
        f"  {sets}the cases",
        "  trained on: phantoms (drawn images), 60 cases; no gate stored",
    ]
    assert lines[-4:] == below
    verbose = run_tool_here(capsys, *arguments[:1], *arguments[2:], "--verbose")[1].splitlines()
    assert f"  {sets}all cases together, not of each answer" in verbose
    assert "Lower lung zone" in lines[4]
    assert "given (network: " in lines[4]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--given=Location=A", "--model=teacher"], "nearest: Anatomical location"),
        (["--ask", "--json"], "--ask cannot be used with --given or --json"),
    ],
)
def test_wrong_flags_are_named(workdir, images, flags, words):
    refuse(words, predict.main, [str(images / "b.png"), f"--checkpoint={workdir}", *flags])
