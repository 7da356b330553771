import collections
import csv
import hashlib
import math

import msgspec
import numpy as np
import pytest
from answers import name_answers
from PIL import Image
from refusals import refuse

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN, DIAGNOSIS_OPTIONS
from stepcot_jax.data.phantom import phantom
from stepcot_jax.data.phantom.answers import NUM_PUBLISHED, answer_texts
from stepcot_jax.data.phantom.phantom import draw_case, export_phantom
from stepcot_jax.data.records.records import read_records

NUM_ANSWERED = 3000


@pytest.fixture(scope="module")
def flat_answers():
    return [answer_texts(index, seed=11, prevalence="flat") for index in range(NUM_ANSWERED)]


@pytest.fixture(scope="module")
def flat_cases():
    return [draw_case(index, seed=5, size=64, prevalence="flat") for index in range(150)]


FIELDS = ("image", "patient", "origin", "sex", "age", "view", "report", "answers", "reasoning")


def test_phantoms_are_the_ones_of_before():
    digest = hashlib.sha256()
    for index in range(12):
        for prevalence in ("flat", "published"):
            drawn = draw_case(index, seed=5, size=48, prevalence=prevalence)
            boxes = [[box.label, box.corners] for box in drawn.boxes]
            digest.update(drawn.image.tobytes() + drawn.lung_mask.tobytes())
            digest.update(msgspec.json.encode([getattr(drawn.case, name) for name in FIELDS]))
            digest.update(msgspec.json.encode(boxes))
    assert digest.hexdigest() == "9e77b7d606999342a7d83dec0f437b063a32f6a68ad082ec339181f5aced3b10"


def test_size_changes_pixels_only(flat_cases):
    assert draw_case(1, seed=5, size=16, prevalence="flat").image.shape == (16, 16)
    for index in range(12):
        larger = draw_case(index, seed=5, size=128, prevalence="flat")
        assert larger.case == flat_cases[index].case
        assert larger.image.shape == larger.lung_mask.shape == (128, 128)
        halved = larger.image.reshape(64, 2, 64, 2).mean((1, 3))
        assert np.corrcoef(halved.ravel(), flat_cases[index].image.ravel())[0, 1] > 0.93
        labels, labels_larger = ({box.label for box in case.boxes} for case in (flat_cases[index], larger))
        assert labels == labels_larger


def test_answers_agree_with_each_other_and_the_diagnosis_does_not_settle_them(flat_answers):
    same = {("Effusion", "Pleural effusion"), ("Pneumothorax", "Pneumothorax"), ("Cardiomegaly", "Cardiomegaly")}
    for answers in flat_answers:
        detection, distribution, pattern, location, _, secondary, diagnosis = answers
        normal = diagnosis == "Normal"
        assert (detection == "No abnormality") == normal
        assert (answers[1:6] == ("N/A",) * 5) == normal or location == "Cardiac"
        assert (detection == "Decreased opacity") <= (diagnosis == "Pneumothorax")
        assert (pattern == "Cavity") <= (detection == "Mixed")
        assert (location == "Cardiac") <= (diagnosis == "Cardiomegaly")
        assert (diagnosis, secondary) not in same
        assert distribution != "N/A" or diagnosis in ("Normal", "Cardiomegaly")
    for step, found in zip(DEFAULT_CHAIN.steps, zip(*flat_answers, strict=True), strict=True):
        assert set(found) == set(step.options)
    for diagnosis in DIAGNOSIS_OPTIONS[1:]:
        chains = collections.Counter(answers for answers in flat_answers if answers[6] == diagnosis)
        assert max(chains.values()) < 0.25 * chains.total()


@pytest.mark.parametrize("prevalence", ["published", "flat"])
def test_prevalence_is_within_binomial_bounds(prevalence):
    found = collections.Counter(answer_texts(i, seed=2, prevalence=prevalence)[6] for i in range(NUM_ANSWERED))
    counts = NUM_PUBLISHED if prevalence == "published" else dict.fromkeys(DIAGNOSIS_OPTIONS, 1)
    for diagnosis, count in counts.items():
        share = count / sum(counts.values())
        assert abs(found[diagnosis] - NUM_ANSWERED * share) <= (4 * math.sqrt(NUM_ANSWERED * share * (1 - share)) + 1)


def test_boxes_masks_and_reasoning_say_what_the_answers_say(flat_cases):
    for case in flat_cases:
        answers, labels = name_answers(case.case.answers), {box.label for box in case.boxes}
        assert bool(labels) == (answers[6] != "Normal")
        assert not labels or answers[6] in labels
        assert labels <= {answers[6], answers[5], "Emphysema"}
        assert answers[5] in {"N/A"} | labels
        for box in case.boxes:
            assert min(box.size) > 0
            assert min(box.x1, box.y1) >= 0
            assert max(box.x2, box.y2) <= 64
    for case in flat_cases:
        assert not (case.lung_mask & case.heart_mask).any()
        assert 0.08 < case.lung_mask.mean() < 0.5
        assert 0.02 < case.heart_mask.mean() < 0.3
        assert case.lung_mask[:, :32].any()
        assert case.lung_mask[:, 32:].any()
        if not case.boxes:
            assert case.image[case.lung_mask].mean() + 20 < case.image[case.heart_mask].mean()
    for case in flat_cases:
        assert len(case.case.reasoning) == 7
        for phrase in case.case.reasoning:
            assert phrase == "The report names none." or phrase.split('"')[1] in case.case.report


@pytest.mark.parametrize("size", [48, 96])
def test_findings_change_the_picture_inside_their_boxes(size):
    for index in range(50):
        shot = phantom.plan_case(index, seed=9, prevalence="flat")
        drawn = phantom.draw_planned(shot, size=size)
        healthy = phantom.draw_planned(shot, size=size, healthy=True)
        energy = (drawn.image.astype(np.float64) - healthy.image) ** 2
        if not drawn.boxes:
            assert not energy.any()
            continue
        inside = np.zeros(energy.shape, bool)
        for box in drawn.boxes:
            inside[box.y1 : box.y2, box.x1 : box.x2] = True
        assert energy[inside].sum() >= 0.95 * energy.sum()
        assert math.sqrt(energy[inside].mean()) > 4  # grey levels of 255


def test_one_patient_in_six_has_several_images_of_one_origin_and_anatomy():
    images = collections.Counter(phantom._patient(index, seed=4) for index in range(1500))
    assert sum(count > 1 for count in images.values()) / len(images) == pytest.approx(1 / 6)
    assert max(images.values()) == 3
    shots = collections.defaultdict(list)
    for index in range(60):
        shot = phantom.plan_case(index, seed=4, prevalence="flat")
        shots[shot.case.patient].append(shot)
    for first, *others in shots.values():
        for other in others:
            assert other.case.origin == first.case.origin
            assert other.scene.healthy.right_width == first.scene.healthy.right_width
            assert other.pose != first.pose


def test_export_reads_back_equal(tmp_path):
    export_phantom(tmp_path, num_cases=20, seed=8, size=48, prevalence="flat")
    drawn = [draw_case(index, seed=8, size=48, prevalence="flat") for index in range(20)]
    collection = read_records(tmp_path)
    assert (collection.chain, collection.cases) == (DEFAULT_CHAIN, tuple(case.case for case in drawn))
    with (tmp_path / "boxes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for case in drawn:
        masks = {
            f"masks/{name}/{case.case.image[7:]}": 255 * getattr(case, f"{name}_mask") for name in ("lung", "heart")
        }
        for path, pixels in ({case.case.image: case.image} | masks).items():
            with Image.open(tmp_path / path) as image:
                assert image.mode == "L"
                assert np.array_equal(np.asarray(image), pixels)
        numbers = [[row["label"], *(int(row[key]) for key in ("x", "y", "width", "height"))] for row in rows
                   if row["image_path"] == case.case.image]  # fmt: skip
        assert [Box.of_size(*row) for row in numbers] == list(case.boxes)


REFUSED = [({"seed": -1}, "seed -1"), ({"size": 8}, "size: 8"), ({"size": 20_000}, "size: 20000 pixels; expected 16")]


@pytest.mark.parametrize(("settings", "message"), [*REFUSED, ({"prevalence": "flatt"}, "prevalence: 'flatt'")])
def test_settings_out_of_range_are_refused(settings, message):
    refuse(message, draw_case, 0, **{"seed": 0, "size": 32, "prevalence": "flat", **settings})
