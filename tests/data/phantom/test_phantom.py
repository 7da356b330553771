"""Phantom chests: the same seed gives the same case, and what the answers say is in the picture."""

import collections
import csv
import math

import numpy as np
import pytest
from PIL import Image

from stepcot_jax.box import Box
from stepcot_jax.chain import DEFAULT_CHAIN, DIAGNOSIS_OPTIONS
from stepcot_jax.data.phantom import phantom
from stepcot_jax.data.phantom.answers import NUM_PUBLISHED, answer_texts
from stepcot_jax.data.phantom.phantom import draw_case, export_phantom
from stepcot_jax.data.records.records import read_records
from stepcot_jax.host.errors import BadInput

NUM_ANSWERED = 3000


@pytest.fixture(scope="module")
def flat_answers():
    return [answer_texts(index, seed=11, prevalence="flat") for index in range(NUM_ANSWERED)]


@pytest.fixture(scope="module")
def flat_cases():
    return [draw_case(index, seed=5, size=64, prevalence="flat") for index in range(150)]


def _texts(labels):
    return tuple(step.options[label] for step, label in zip(DEFAULT_CHAIN.steps, labels, strict=True))


def _same(first, second):
    return (
        first.case == second.case
        and first.marks == second.marks
        and first.side == second.side
        and np.array_equal(first.image, second.image)
        and np.array_equal(first.lung_mask, second.lung_mask)
        and np.array_equal(first.heart_mask, second.heart_mask)
    )


def test_same_seed_same_case_in_any_order(flat_cases):
    for index in (7, 3, 140):
        assert _same(draw_case(index, seed=5, size=64, prevalence="flat"), flat_cases[index])


def test_size_changes_pixels_only(flat_cases):
    for index in range(12):
        larger = draw_case(index, seed=5, size=128, prevalence="flat")
        assert larger.case == flat_cases[index].case
        assert larger.image.shape == larger.lung_mask.shape == (128, 128)
        halved = larger.image.reshape(64, 2, 64, 2).mean((1, 3))
        assert np.corrcoef(halved.ravel(), flat_cases[index].image.ravel())[0, 1] > 0.93
        labels, labels_larger = ({box.label for box in case.boxes} for case in (flat_cases[index], larger))
        assert labels == labels_larger


def test_normal_and_only_normal_has_no_abnormality(flat_answers):
    for answers in flat_answers:
        normal = answers[6] == "Normal"
        assert (answers[0] == "No abnormality") == normal
        assert (answers[1:6] == ("N/A",) * 5) == normal or answers[3] == "Cardiac"


def test_answers_agree_with_each_other(flat_answers):
    for detection, distribution, pattern, location, _, secondary, diagnosis in flat_answers:
        assert (detection == "Decreased opacity") <= (diagnosis == "Pneumothorax")
        assert (pattern == "Cavity") <= (detection == "Mixed")
        assert (location == "Cardiac") <= (diagnosis == "Cardiomegaly")
        assert (diagnosis, secondary) not in {
            ("Effusion", "Pleural effusion"),
            ("Pneumothorax", "Pneumothorax"),
            ("Cardiomegaly", "Cardiomegaly"),
        }
        if diagnosis not in ("Normal", "Cardiomegaly"):
            assert distribution != "N/A"


def test_every_answer_of_every_step_occurs(flat_answers):
    for step, found in zip(DEFAULT_CHAIN.steps, zip(*flat_answers, strict=True), strict=True):
        assert set(found) == set(step.options)


def test_diagnosis_does_not_settle_the_other_steps(flat_answers):
    for diagnosis in DIAGNOSIS_OPTIONS[1:]:
        chains = collections.Counter(answers for answers in flat_answers if answers[6] == diagnosis)
        assert max(chains.values()) < 0.25 * chains.total()


@pytest.mark.parametrize("prevalence", ["published", "flat"])
def test_prevalence_is_within_binomial_bounds(prevalence):
    found = collections.Counter(answer_texts(i, seed=2, prevalence=prevalence)[6] for i in range(NUM_ANSWERED))
    counts = NUM_PUBLISHED if prevalence == "published" else dict.fromkeys(DIAGNOSIS_OPTIONS, 1)
    for diagnosis, count in counts.items():
        share = count / sum(counts.values())
        bound = 4 * math.sqrt(NUM_ANSWERED * share * (1 - share)) + 1
        assert abs(found[diagnosis] - NUM_ANSWERED * share) <= bound


def test_boxes_lie_inside_and_name_the_diagnosis(flat_cases):
    for case in flat_cases:
        answers = _texts(case.case.answers)
        assert bool(case.boxes) == (answers[6] != "Normal")
        labels = {box.label for box in case.boxes}
        assert not case.boxes or answers[6] in labels
        assert labels <= {answers[6], answers[5], "Emphysema"}
        assert answers[5] == "N/A" or answers[5] in labels
        for box in case.boxes:
            assert box.size[0] > 0
            assert box.size[1] > 0
            assert 0 <= box.x1 <= box.x2 <= 64
            assert 0 <= box.y1 <= box.y2 <= 64


@pytest.mark.parametrize("size", [48, 128])
def test_findings_change_the_picture_inside_their_boxes(size):
    for index in range(80):
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


def test_masks_are_where_lungs_and_heart_are(flat_cases):
    for case in flat_cases:
        assert not (case.lung_mask & case.heart_mask).any()
        assert 0.08 < case.lung_mask.mean() < 0.5
        assert 0.02 < case.heart_mask.mean() < 0.3
        assert case.lung_mask[:, :32].any()
        assert case.lung_mask[:, 32:].any()
        if not case.boxes:
            assert case.image[case.lung_mask].mean() + 20 < case.image[case.heart_mask].mean()


def test_one_patient_in_six_has_several_images():
    numbers = [phantom._patient(index, seed=4) for index in range(1500)]
    images = collections.Counter(numbers)
    assert sum(count > 1 for count in images.values()) / len(images) == pytest.approx(1 / 6)
    assert max(images.values()) == 3
    assert len({phantom._patient(index, seed=5) for index in range(15)}) == 12


def test_images_of_one_patient_share_origin_and_anatomy():
    shots = collections.defaultdict(list)
    for index in range(60):
        shot = phantom.plan_case(index, seed=4, prevalence="flat")
        shots[shot.case.patient].append(shot)
    for first, *others in shots.values():
        for other in others:
            assert other.case.origin == first.case.origin
            assert other.scene.healthy.right_width == first.scene.healthy.right_width
            assert other.pose != first.pose


def test_reasoning_quotes_the_report(flat_cases):
    for case in flat_cases:
        assert len(case.case.reasoning) == 7
        for phrase in case.case.reasoning:
            quotes = phrase.split('"')
            assert phrase == "The report names none." or quotes[1] in case.case.report


def test_export_reads_back_equal(tmp_path):
    seen = []

    def watch(indices):
        for index in indices:
            seen.append(index)
            yield index

    export_phantom(tmp_path, num_cases=20, seed=8, size=48, prevalence="flat", progress=watch)
    drawn = [draw_case(index, seed=8, size=48, prevalence="flat") for index in range(20)]
    collection = read_records(tmp_path)
    assert collection.chain == DEFAULT_CHAIN
    assert collection.cases == tuple(case.case for case in drawn)
    assert seen == list(range(20))
    with (tmp_path / "boxes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for case in drawn:
        name = case.case.image.removeprefix("images/")
        with Image.open(tmp_path / case.case.image) as image:
            assert image.mode == "L"
            assert np.array_equal(np.asarray(image), case.image)
        for folder, mask in (("lung", case.lung_mask), ("heart", case.heart_mask)):
            with Image.open(tmp_path / "masks" / folder / name) as image:
                assert np.array_equal(np.asarray(image) == 255, mask)
        written = [row for row in rows if row["image_path"] == case.case.image]
        numbers = ("x", "y", "width", "height")
        assert [Box.of_size(row["label"], *(int(row[key]) for key in numbers)) for row in written] == list(case.boxes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": -1}, "seed -1"),
        ({"size": 8}, "size: 8"),
        ({"size": 20_000}, "size: 20000 pixels; expected 16 to 4096"),
        ({"prevalence": "flatt"}, "prevalence: 'flatt'"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(BadInput, match=message):
        draw_case(0, **{"seed": 0, "size": 32, "prevalence": "flat", **settings})


def test_least_size_still_draws():
    for index in range(30):
        case = draw_case(index, seed=0, size=16, prevalence="flat")
        assert case.image.dtype == np.uint8
        assert all(box.x2 <= 16 and box.y2 <= 16 for box in case.boxes)
