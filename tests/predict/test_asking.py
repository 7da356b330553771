import numpy as np
import pytest
from refusals import refuse

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.interventions import as_distributions, as_probabilities, expected_gains, look_ahead
from stepcot_jax.reading.asking import find_next_steps
from stepcot_jax.reading.corrections import given_distributions
from stepcot_jax.reading.programs import Reading
from stepcot_jax.reading.readings import make_readings
from stepcot_jax.tools.predict import ask_in_turn

CHAIN = Chain(
    (Step("A", "A?", ("one", "two")), Step("B", "B?", ("up", "down", "off")), Step("C", "C?", ("peak", "quiet")))
)
OWN = np.array([[0.0, 0.2, -1e9], [0.1, 0.0, -0.1], [0.1, 0.0, -1e9]])
PULL_A, PULL_B = np.array([0.5, -0.5, 0]), np.array([4.0, -4.0, 0])


def network(given):
    logits = np.broadcast_to(OWN, given.shape).copy()
    logits[..., 2, :] += (given[..., 0, 0] - given[..., 0, 1])[..., None] * PULL_A
    logits[..., 2, :] += (given[..., 1, 0] - given[..., 1, 1])[..., None] * PULL_B
    return logits


READ = as_probabilities(network)
NONE = np.zeros((2, 3, 3), np.float32)


def test_the_step_that_settles_the_last_one_most_is_worth_checking():
    found = find_next_steps(READ, NONE, CHAIN)
    gains = expected_gains(look_ahead(READ, NONE, CHAIN), np.ones((2, 3), bool)).accuracy
    for case, asked in enumerate(found):
        assert asked.step.name == "B"
        assert asked.gains == {"A": pytest.approx(gains[case, 0]), "B": pytest.approx(gains[case, 1])}
        assert asked.gain == asked.gains["B"] > asked.gains["A"]
        assert asked.last_answer == "peak"
        assert [each.answer for each in asked.outcomes] == ["up", "down", "off"]  # the most probable first
        assert {each.answer for each in asked.changing} == {"down"}
        assert asked.outcomes[1].last_probability == pytest.approx(1 / (1 + np.exp(-7.9)))
        assert "B. up" in asked.describe()
        assert "→ quiet" in asked.describe()


def test_costs_given_and_left_out_steps_count():
    assert find_next_steps(READ, NONE, CHAIN, costs=(1, 1e6, 1))[0].step.name == "A"
    assert find_next_steps(READ, NONE, CHAIN, leave_out=["B"])[0].step.name == "A"
    gain = find_next_steps(READ, NONE, CHAIN)[0].gain
    assert find_next_steps(READ, NONE, CHAIN, least_gain=gain)[0].step.name == "B"
    assert find_next_steps(READ, NONE, CHAIN, least_gain=gain + 1e-6) == [None, None]
    costly = find_next_steps(READ, NONE, CHAIN, costs=(1e-6, 1, 1), least_gain=gain)  # A is cheap, B worth asking
    assert costly[0].step.name == "B"
    given = as_distributions(np.array([[-1, 0, -1], [0, 0, -1]]), CHAIN)
    first, second = find_next_steps(READ, given, CHAIN)
    assert first.step.name == "A"
    assert second is None
    refuse("step_costs: 2 costs are not one for each of 3", find_next_steps, READ, NONE, CHAIN, costs=(1, 2))


class FakeReader:
    """A reader of `network`, with the interface that the dialogue uses."""

    def read(self, image, given=None):
        shares = given_distributions(given or {}, CHAIN)
        reading = Reading(np.zeros((1, 3, 3)), READ(shares[None, None])[0], None, None)
        return make_readings(reading, CHAIN, sources=[image], model="teacher", calibration=None, given=shares)[0]

    def ask_next(self, reading, *, leave_out=()):
        given = np.zeros((1, 3, 3), np.float32)
        for index, step in enumerate(reading.steps):
            given[0, index, : len(step.given_shares)] = step.given_shares
        return find_next_steps(READ, given, CHAIN, leave_out=leave_out)[0]


def converse(*typed):
    replies, said = iter(typed), []

    def answer(prompt):
        for reply in replies:
            return reply
        raise EOFError

    return ask_in_turn(FakeReader(), "image", answer=answer, say=said.append), said


def test_each_answer_moves_the_last_step_and_leads_to_the_next_question():
    reading, said = converse("nonsense", "down", "")
    assert said[0] == "C: peak (52 %)"
    asked = [line.split(":")[0].strip() for line in said if "?" in line]
    assert asked == ["B", "B", "A"]
    assert any("'nonsense' is not one of" in line for line in said)
    assert said[-1].startswith("  ") or "?" in said[-1]
    assert any(line.startswith("C: quiet (") for line in said)
    assert [(each.answer, each.given) for each in reading.steps[:2]] == [("two", False), ("down", True)]


def test_the_dialogue_ends_on_request_and_at_the_end_of_the_input():
    assert not converse("q")[0].has_given
    assert not converse()[0].has_given
    assert len([line for line in converse("", "", "up")[1] if "?" in line]) == 2  # skipped steps are not asked again
