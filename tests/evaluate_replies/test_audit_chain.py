"""Audits of a network that reads chains: what it said of each picture, and after other earlier answers."""

import csv
import json

import numpy as np
import pytest
from PIL import Image
from report.finished_workdir import make_finished_workdir

from stepcot_jax.data.phantom.phantom import draw_planned, plan_case
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.reading.image_reader import load_chain_reader
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
    read = {}
    for record in records:
        path = folder / "audit" / record.image
        reading = read.setdefault(path, reader.read(path))
        step = reading.steps[int(record.provenance["audit_step"])]
        assert replies[record.id] == f"Answer: {record.letters[record.options.index(step.answer)]}"
        if record.provenance["audit_variant"] == "without any finding":
            planned = plan_case(int(record.provenance["index"]), seed=reader.trained.run.settings.phantom.seed)
            if record.provenance["prevalence"] == "published":
                assert np.array_equal(np.asarray(Image.open(path)), draw_planned(planned, size=32, healthy=True).image)
    given = read_vqa_records(folder / "audit" / "thinking.jsonl").records
    concluded, by_id = read_lines(folder / "audit" / "thinking_replies.jsonl"), {each.id: each for each in records}
    for record in (each for each in given if each.provenance["audit_variant"] == "a donor's thinking"):
        donor = read[folder / "audit" / by_id[record.provenance["audit_donor"]].image]
        own = reader.read(
            folder / "audit" / record.image, given={answer.step.name: answer.answer for answer in donor.steps[:-1]}
        )
        assert concluded[record.id] == f"Answer: {record.letters[record.options.index(own.steps[-1].answer)]}"
        assert donor.steps[-1].answer != read[folder / "audit" / record.image].steps[-1].answer


def test_tables_and_the_page_of_the_run(folder, capsys):
    with (folder / "audit" / "audit_looks.csv").open() as file:
        rows = {row["variant"]: row for row in csv.DictReader(file)}
    assert (rows["own picture"]["cases"], rows["own picture, Diagnosis"]["cases"]) == ("42", "6")
    assert float(rows["own picture"]["answers that change"]) == 0
    assert report([str(folder), "--without-maps", "--num-cases=2"]) == 0
    assert "answers given to the earlier steps" in (folder / "report.html").read_text()
