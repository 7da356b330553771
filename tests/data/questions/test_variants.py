"""Variants for audits: donors, noise, grey, and phantoms without a finding, compared pixel by pixel."""

import collections

import msgspec
import numpy as np
import pytest
from scipy import ndimage

from stepcot_jax.data.phantom.anatomy import Frame, render_anatomy
from stepcot_jax.data.phantom.findings import draw_findings
from stepcot_jax.data.phantom.phantom import draw_planned, plan_case
from stepcot_jax.data.questions import variants
from stepcot_jax.data.questions.making import ground_phantom
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.questions.variants import VARIANT, draw_without, vary_picture, vary_thinking
from stepcot_jax.data.questions.vocabulary import canonical, term_of
from stepcot_jax.reasoning.dialects import write_reply

SIZE, NUM = 64, 60


@pytest.fixture(scope="module")
def asked():
    records, pictures = [], {}
    for index in range(NUM):
        image, drawn = ground_phantom(index, seed=3, size=SIZE)
        records += ask_questions(image, seed=3)
        pictures[image.image] = drawn.image
    return records, pictures


@pytest.fixture(scope="module")
def varied(asked):
    records, pictures = asked
    groups = variants.group_subjects(records)
    return {
        record.id: list(
            vary_picture(record, among=groups[variants.subject_of(record)], load=lambda record: pictures[record.image])
        )
        for record in records
    }


def labels_of(drawn):
    return {canonical(mark.box.label) for mark in drawn.marks}


@pytest.mark.parametrize("prevalence", ["flat", "published"])
def test_without_a_finding_all_other_pixels_noise_and_exposure_are_equal(prevalence):
    removed = collections.Counter()
    for index in range(3 * NUM):
        planned = plan_case(index, seed=3, prevalence=prevalence)
        whole = draw_planned(planned, size=SIZE)
        for label in labels_of(whole):
            drawn = draw_without(planned, label, size=SIZE)
            removed[label] += 1
            assert labels_of(drawn) == labels_of(whole) - {label}
            if labels_of(whole) == {label}:  # its only finding: the healthy chest to the last pixel
                assert np.array_equal(drawn.image, draw_planned(planned, size=SIZE, healthy=True).image)
            reach = round(6 * planned.style.blur * SIZE) + 1
            near = ndimage.binary_dilation(
                attenuation(planned, label) != 0, iterations=reach, structure=np.ones((3, 3))
            )
            assert np.array_equal(drawn.image[~near], whole.image[~near])
            assert not np.array_equal(drawn.image, whole.image)
        assert np.array_equal(draw_without(planned, "absent", size=SIZE).image, whole.image)
    assert len(removed) > 9


def attenuation(planned, label):
    """What the removed finding added to the attenuation, from both scenes drawn here."""
    frame, attenuations = Frame.of(planned.pose, SIZE), []
    for scene in (
        planned.scene,
        variants.remove_findings(planned.scene, lambda other: canonical(other) == label),
    ):
        chest = render_anatomy(scene.anatomy, frame)
        attenuations.append(draw_findings(scene, chest=chest, frame=frame)[0])
    return attenuations[0] - attenuations[1]


def spell(record):
    options = {record.options["ABCD".index(letter)] for letter in record.answer} if record.options else None
    return options or record.answer


def test_donors_are_other_patients_with_another_true_answer_to_the_same_question(asked, varied):
    records, pictures = asked
    by_id, number = {record.id: record for record in records}, 0
    for made in varied.values():
        (own, pixels), *others = made
        assert own == msgspec.structs.replace(
            by_id[own.id], thinking="", preamble="", stages=None, provenance=own.provenance
        )
        shown = {record.provenance[VARIANT]: picture for record, picture in others}
        noise = shown["noise"].astype(float)
        assert abs(noise.mean() - pixels.mean()) < 6
        assert abs(np.corrcoef(noise.ravel(), pixels.ravel())[0, 1]) < 0.1
        assert np.ptp(shown["grey"]) == 0
        assert abs(int(shown["grey"][0, 0]) - pixels.mean()) <= 0.5
        for record, picture in others:
            if record.provenance[VARIANT] == variants.DONOR:
                donor = by_id[record.provenance["audit_donor"]]
                number += 1
                assert donor.patient != record.patient
                assert donor.topic == record.topic
                assert np.array_equal(picture, pictures[donor.image])
                assert spell(donor) != spell(record)
    assert number > NUM


def test_questions_of_presence_without_the_claimed_finding_and_without_another(asked, varied):
    records, _ = asked
    counts = collections.Counter()
    for record in records:
        made = {each.provenance[VARIANT]: each for each, _ in varied[record.id]}
        assert record.answer == "Yes" or not {variants.WITHOUT_CLAIMED, variants.WITHOUT_OTHER} & set(made)
        if (claimed := made.get(variants.WITHOUT_CLAIMED)) is not None:
            counts["claimed"] += 1
            assert (claimed.answer, claimed.references) == ("No", ())
        if (other := made.get(variants.WITHOUT_OTHER)) is not None:
            counts["other"] += 1
            removed = term_of(other.provenance["audit_removed"]).name
            assert f"presence of {removed}" != other.topic
            assert (other.answer, other.references) == ("Yes", record.references)
    assert min(counts.values()) > 3
    image, _ = ground_phantom(0, seed=3, size=SIZE)
    other = [msgspec.structs.replace(each, provenance={"source": "elsewhere"}) for each in ask_questions(image, seed=3)]
    load = lambda _: np.zeros((SIZE, SIZE), np.uint8)  # noqa: E731
    for each in (*other, *(record for record in records if record.answer == "Yes")):  # a picture that is no drawing
        assert len(list(vary_picture(each, among=[], load=load))) == 3


def test_thinkings_of_donors_who_were_asked_the_same_and_concluded_another(asked):
    true, flipped = asked[0], {"Yes": "No", "No": "Yes"}
    records = [
        msgspec.structs.replace(record, answer=flipped.get(record.answer, record.answer)) if place % 3 else record
        for place, record in enumerate(true)
    ]  # what the model says, whose answers count
    replies = {record.id: write_reply(record, "gemex") for record in records}
    by_id, number = {record.id: record for record in records}, 0
    for made, thinking in vary_thinking(true, replies, "gemex"):
        record = by_id[made.provenance["audit_of"]]
        assert thinking.sentences
        if made.provenance[VARIANT] == variants.DONATED:
            number += 1
            donor = by_id[made.provenance["audit_donor"]]
            assert spell(donor) != spell(record)
            assert thinking.write().startswith("<think>")
            assert all(sentence in donor.thinking for sentence in thinking.sentences)
            same = [
                spell(other) == spell(record)
                for other in records
                if other.patient != record.patient
                and variants.subject_of(other) == variants.subject_of(record)
                and variants.read_thinking(replies[other.id], other, "gemex")
            ]
            assert float(made.provenance["audit_agree"]) == pytest.approx(np.mean(same), abs=1e-6)
    assert number > 10
