import math
import statistics

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from stepcot_jax.evaluation.audits import negate, perturb, perturb_records, reorder, spread
from stepcot_jax.record import Record, Stages

TABLE_5 = {  # GEMeX-RMCoT, Table 5: original, three rounds, printed std; and the one about the original
    ("closed", "200K"): (79.93, (76.98, 83.06, 75.69), 3.2136, 3.487),
    ("closed", "RMCoT"): (87.11, (88.39, 86.56, 87.66), 0.7522, 0.865),
    ("single", "200K"): (78.92, (79.00, 77.69, 77.31), 0.7239, 1.171),
    ("single", "RMCoT"): (80.08, (80.15, 80.00, 79.69), 0.1915, 0.233),
}


def ask(question, *, answer="Yes", name="1", **fields):
    kind = "single" if fields.get("options") else "closed"
    return Record(
        id=name, image="a.png", image_size=(64, 64), patient="p", kind=kind, question=question, answer=answer,
        **fields,
    )  # fmt: skip


@pytest.mark.parametrize("row", TABLE_5)
def test_the_spread_of_table_5(row):
    original, rounds, population, from_original = TABLE_5[row]
    assert spread(rounds, original=original) == pytest.approx(population, abs=5e-5)
    assert spread(rounds, original=original, std="from_original") == pytest.approx(from_original, abs=5e-4)
    assert spread(rounds, original=original) == pytest.approx(statistics.pstdev(rounds))
    assert spread(rounds, original=original, std="sample") == pytest.approx(statistics.stdev(rounds))
    assert math.isnan(spread([0.5], original=0.5, std="sample"))


@pytest.mark.parametrize(
    ("question", "prefer_is", "expected", "flipped"),
    [
        ("Is there a mass?", False, "Isn't there a mass?", True),
        ("is the heart enlarged?", True, "isn't the heart enlarged?", True),
        ("Is the heart abnormal?", True, "Isn't the heart abnormal?", True),
        ("Is the heart abnormal?", False, "Is the heart normal?", True),
        ("Abnormal lungs?", True, "Normal lungs?", True),
        ("An  abnormal heart?", False, "A  normal heart?", True),
        ("Isn't there a mass?", True, "Isn't there a mass?", False),
        ("Island of density?", True, "Island of density?", False),
        ("The heart is large?", True, "The heart is large?", False),
    ],
)
def test_negated_questions(question, prefer_is, expected, flipped):
    for answer, other in (("Yes", "No"), ("No", "Yes")):
        record = ask(question, answer=answer, thinking="I see it.", stages=Stages("a", "b", "c", "d"))
        found = negate(record, prefer_is=prefer_is)
        assert found.question == expected
        assert found.answer == (other if flipped else answer)
        assert (found.thinking, found.stages is None) == (("", True) if flipped else ("I see it.", False))
        if not flipped:
            assert found is record


def test_a_kept_answer():
    record = ask("Is the heart abnormal?", thinking="It is.")
    kept = negate(record, prefer_is=True, negated_answer="keep")
    assert (kept.question, kept.answer, kept.thinking) == ("Isn't the heart abnormal?", "Yes", "It is.")
    assert negate(record, prefer_is=False, negated_answer="keep").answer == "No"  # "normal" turns it in any case


def test_each_question_is_changed_by_halves_and_rounds_and_seeds_differ():
    records = [ask("Is the heart abnormal?", name=f"q{k}") for k in range(4000)]
    found = [record.provenance.get("perturbation") for record in perturb_records(records, seed=0, round_number=1)]
    assert abs(found.count(None) / 4000 - 0.5) < 0.03
    assert abs(found.count("isn't") / 4000 - 0.25) < 0.03
    assert abs(found.count("normal") / 4000 - 0.25) < 0.03
    records = [ask("Is it abnormal?", name=f"q{k}") for k in range(50)]
    draws = [(seed, number) for seed in (0, 1) for number in (1, 2, 3)]
    rounds = [perturb_records(records, seed=seed, round_number=number) for seed, number in draws]
    assert len({tuple(record.question for record in changed) for changed in rounds}) == 6


@hypothesis.given(st.integers(0, 10**6), st.integers(1, 5), st.randoms())
def test_a_record_depends_on_seed_round_and_id_alone(seed, number, random):
    records = [ask("Is it abnormal?", name=f"q{k}") for k in range(20)]
    records += [ask("Which?", name=f"s{k}", answer="B", options=("a mass", "a node", "air")) for k in range(20)]
    alone = {record.id: perturb(record, seed=seed, round_number=number) for record in records}
    random.shuffle(records)
    assert {each.id: each for each in perturb_records(records, seed=seed, round_number=number)} == alone


@hypothesis.given(st.permutations(range(4)))
def test_the_right_option_stays_right(places):
    choices = ("mass", "nodule", "effusion", "normal")
    record = ask(
        "Which of (A) to (D)?",
        answer="C",
        options=choices,
        thinking="Option A, mass: no. Options (B) and D are not seen; the answer is C, effusion. C: effusion. A chest.",
        stages=Stages("a", "b", "c", "So the answer is C."),
    )
    found = reorder(record, places)
    assert sorted(found.options) == sorted(choices)
    new = {text: letter for letter, text in zip("ABCD", found.options, strict=True)}
    assert found.answer == new["effusion"]
    assert found.thinking == (
        f"Option {new['mass']}, mass: no. Options ({new['nodule']}) and {new['normal']} are not seen; the answer is "
        f"{new['effusion']}, effusion. {new['effusion']}: effusion. A chest."
    )
    assert found.stages.conclusion == f"So the answer is {new['effusion']}."
    assert found.question == f"Which of ({new['mass']}) to ({new['normal']})?"
    several = reorder(msgspec.structs.replace(record, kind="multi", answer=("A", "C")), places)
    assert {several.options["ABCD".index(letter)] for letter in several.answer} == {"mass", "effusion"}


def test_other_kinds_stay_and_are_left_out():
    record = msgspec.structs.replace(ask("Is it abnormal?"), kind="open", answer="mass")
    assert perturb(record, seed=0, round_number=1) is record
    assert perturb_records([record], seed=0, round_number=1) == []
