"""The step of a reading that is worth checking."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.interventions import ReadGiven, expected_gains
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.readings import percent


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The last step's answer if a step gets one answer."""

    answer: str  # the step's answer
    probability: float  # the network's probability of it
    last_answer: str  # the last step's most probable answer with it
    last_probability: float


@dataclasses.dataclass(frozen=True)
class NextStep:
    """The step worth checking next."""

    step: Step  # the question with its options
    gain: float  # expected information of its answer on the last step's, in nats (`interventions.expected_gains`)
    gains: dict[str, float]  # the same for every step that can be asked, by name
    last_answer: str  # the last step's most probable answer without it
    last_probability: float
    outcomes: tuple[Outcome, ...]  # by option, the most probable first

    @property
    def changing(self) -> tuple[Outcome, ...]:
        """The outcomes that change the last step's answer."""
        return tuple(outcome for outcome in self.outcomes if outcome.last_answer != self.last_answer)

    def describe(self, *, num_shown: int = 3) -> str:
        """Return the last step's answers with the most probable answers to the step, in a sentence."""
        named = "; ".join(
            f"{outcome.answer} ({percent(outcome.probability)}) → {outcome.last_answer} "
            f"{percent(outcome.last_probability)}"
            for outcome in self.outcomes[:num_shown]
        )
        return f"Worth checking: {self.step.name}. {named}."


def find_next_steps(
    read: ReadGiven,
    given: npt.NDArray[np.floating],
    chain: Chain,
    *,
    costs: Sequence[float] = (),
    leave_out: Collection[str] = (),
) -> list[NextStep | None]:
    """Return the step worth checking in each case, by expected gain per cost; None where all steps are given."""
    if costs and len(costs) != chain.num_steps:
        raise BadInput(
            f"config.evaluation.step_costs: {len(costs)} costs are not one for each of {chain.num_steps} steps"
        )
    gains, readings = expected_gains(read, given.astype(np.float32), chain)
    gains[:, [step.name in leave_out for step in chain.steps]] = -np.inf
    weights = np.asarray(costs or [1.0] * chain.num_steps)
    scores = gains / weights
    starts = np.concatenate([[1], 1 + np.cumsum(chain.answers_per_step[:-1])])
    chosen: list[NextStep | None] = []
    for case in range(len(given)):
        position = int(scores[case].argmax())
        if not np.isfinite(gains[case, position]):
            chosen.append(None)
            continue
        chosen.append(_describe(readings[:, case], position, int(starts[position]), gains[case], chain))
    return chosen


def _describe(readings: npt.NDArray, position: int, start: int, gains: npt.NDArray, chain: Chain) -> NextStep:
    step, last = chain.steps[position], chain.steps[-1]

    def conclude(probabilities: npt.NDArray) -> tuple[str, float]:
        of_last = probabilities[-1, : last.num_answers]
        return last.options[int(of_last.argmax())], float(of_last.max())

    outcomes = [
        Outcome(option, float(readings[0, position, answer]), *conclude(readings[start + answer]))
        for answer, option in enumerate(step.options)
    ]
    known = {other.name: float(gain) for other, gain in zip(chain.steps, gains, strict=True) if np.isfinite(gain)}
    outcomes.sort(key=lambda outcome: -outcome.probability)
    return NextStep(step, float(gains[position]), known, *conclude(readings[0]), tuple(outcomes))
