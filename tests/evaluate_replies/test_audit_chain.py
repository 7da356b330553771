import csv
import json

import numpy as np
import pytest
from PIL import Image
from report.finished_workdir import make_finished_workdir

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.phantom import draw_planned, plan_case
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.questions.variants import ask_steps
from stepcot_jax.reading.corrections import NOT_GIVEN
from stepcot_jax.reading.image_reader import load_chain_reader
from stepcot_jax.tools.evaluate_replies import audit_runs
from stepcot_jax.tools.evaluate_replies.command import main
from stepcot_jax.tools.report.command import main as report

pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain") / "run"
    make_finished_workdir(folder, num_test=6)
    main(["audit", str(folder), "--model=teacher", "--as-published"])
    return folder


def read_lines(path):
    return {line["id"]: line["reply"] for line in map(json.loads, path.read_text().splitlines())}


def test_replies_are_the_readings_of_the_pictures_shown(folder):
    reader = load_chain_reader(folder, model="teacher", as_published=True)
    replies, records = read_lines(folder / "audit" / "replies.jsonl"), read_vqa_records(folder / "audit").records
    assert len(replies) == len(records) > 6 * 7 * 4
    read, num_healthy = {}, 0
    for record in records:
        path = folder / "audit" / record.image
        reading = read.setdefault(path, reader.read(path))
        step = reading.steps[int(record.provenance["audit_step"])]
        assert replies[record.id] == f"Answer: {record.letters[record.options.index(step.answer)]}"
        if record.provenance["audit_variant"] == "without any finding":
            phantom = reader.trained.run.settings.phantom
            planned = plan_case(int(record.provenance["index"]), seed=phantom.seed, prevalence=phantom.prevalence)
            assert np.array_equal(np.asarray(Image.open(path)), draw_planned(planned, size=32, healthy=True).image)
            num_healthy += 1
    assert num_healthy > 3
    given = read_vqa_records(folder / "audit" / "thinking.jsonl").records
    concluded = read_lines(folder / "audit" / "thinking_replies.jsonl")
    for variant, number in (("own thinking", 6), ("own, first half", 3)):
        for record in (each for each in given if each.provenance["audit_variant"] == variant):
            path = folder / "audit" / record.image
            own = {answer.step.name: answer.answer for answer in read[path].steps[:number]}
            last = reader.read(path, given=own).steps[-1].answer
            assert concluded[record.id] == f"Answer: {record.letters[record.options.index(last)]}"


def test_what_is_given_to_the_earlier_steps():
    """Cases 0 and 2 conclude Normal, case 1 another diagnosis: both take its answers, and it takes those of one."""
    sizes = DEFAULT_CHAIN.answers_per_step
    asked = [
        list(ask_steps(plan_case(index, seed=3).case, DEFAULT_CHAIN, size=(32, 32), provenance={}))[-1]
        for index in (0, 20, 40)
    ]
    assert len({record.patient for record in asked}) == 3
    answers = {
        record.id: np.minimum([place, 1, 2, place, 1, 0, place % 2], np.array(sizes) - 1)
        for place, record in enumerate(asked)
    }
    found = [(each.provenance, given) for each, given in audit_runs._give_answers(asked, answers, sizes)]
    assert len(found) == 3 * 4
    for provenance, given in found:
        own, variant = answers[provenance["audit_of"]], provenance["audit_variant"]
        assert given[-1] == NOT_GIVEN
        if variant == "own, one claim turned":
            changed = np.flatnonzero(given[:-1] != own[:-1])
            assert len(changed) == 1
            assert 0 <= given[changed[0]] < sizes[changed[0]]
            continue
        donor = answers[provenance.get("audit_donor", provenance["audit_of"])]
        number = 3 if variant == "own, first half" else 6
        assert given.tolist() == [*donor[:number], *[NOT_GIVEN] * (7 - number)]
        if variant == "a donor's thinking":
            assert donor[-1] != own[-1]
            assert float(provenance["audit_agree"]) == (0.5 if own[-1] == 0 else 0)


def test_tables_and_the_page_of_the_run(folder, capsys):
    with (folder / "audit" / "audit_looks.csv").open() as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert (rows["own picture"]["cases"], rows["own picture, Diagnosis"]["cases"]) == ("42", "6")
    assert float(rows["own picture"]["answers that change"]) == 0
    assert report([str(folder), "--without-maps", "--num-cases=2"]) == 0
    assert "answers given to the earlier steps" in (folder / "report.html").read_text()
