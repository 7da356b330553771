"""The step of a reading that is worth checking."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.interventions import Gains, ReadGiven, expected_gains, look_ahead
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.readings import percent


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The last step's answer if a step gets one answer."""

    answer: str  # the step's answer
    probability: float  # the reading's probability of it
    last_answer: str  # the last step's most probable answer with it
    last_probability: float


@dataclasses.dataclass(frozen=True)
class NextStep:
    """The step worth checking next."""

    step: Step  # the question with its options
    gain: float  # expected rise of the last answer's probability to be right, 0 to 1 (`interventions.expected_gains`)
    gains: dict[str, float]  # the same for every step that can be asked, by name
    last_answer: str  # the last step's most probable answer without it
    last_probability: float
    outcomes: tuple[Outcome, ...]  # by option, the most probable first

    @property
    def changing(self) -> tuple[Outcome, ...]:
        """The outcomes that change the last step's answer."""
        return tuple(outcome for outcome in self.outcomes if outcome.last_answer != self.last_answer)

    def describe(self) -> str:
        """Return the last step's answers with the three most probable answers to the step, in a sentence."""
        named = "; ".join(
            f"{outcome.answer} ({percent(outcome.probability)}) → {outcome.last_answer} "
            f"{percent(outcome.last_probability)}"
            for outcome in self.outcomes[:3]
        )
        return f"Worth checking: {self.step.name}. {named}."


def find_next_steps(
    read: ReadGiven,
    given: npt.NDArray[np.floating],
    chain: Chain,
    *,
    costs: Sequence[float] = (),
    leave_out: Collection[str] = (),
    least_gain: float = -np.inf,
) -> list[NextStep | None]:
    """Return the step worth checking in each case, by expected accuracy per cost.

    None where all steps are given, or where the gain of each is less than `least_gain`, whatever it costs. Outcomes are
    what the reading becomes with each answer; gains are those of `interventions.look_ahead`.
    """
    if costs and len(costs) != chain.num_steps:
        raise BadInput(
            f"config.evaluation.step_costs: {len(costs)} costs are not one for each of {chain.num_steps} steps"
        )
    given = np.asarray(given, np.float32)
    pairs, now = look_ahead(read, given, chain), read(given[None])[0, :, -1]
    can_ask = given.sum(axis=-1) == 0
    can_ask[:, [step.name in leave_out for step in chain.steps]] = False
    gains = expected_gains(pairs, can_ask)
    worth = Gains(
        *(np.where(gains.accuracy < least_gain, -np.inf, each) for each in (gains.accuracy, gains.information))
    )
    chosen = worth.choose(costs=costs)
    after = _read_after(read, given, chosen)
    steps: list[NextStep | None] = [None] * len(given)
    for case in np.flatnonzero(chosen >= 0).tolist():
        position = int(chosen[case])
        shares = pairs[position][case].sum(axis=1)
        steps[case] = _describe(shares, after[:, case], now[case], position, gains.accuracy[case], chain)
    return steps


def _read_after(read: ReadGiven, given: npt.NDArray[np.float32], chosen: npt.NDArray[np.int64]) -> npt.NDArray:
    """Return the last step's distribution [answer, case, last answer] as it is read with each answer to the step."""
    asked = np.flatnonzero(chosen >= 0)
    varied = np.repeat(given[None], given.shape[-1], axis=0)
    varied[:, asked, chosen[asked]] = np.eye(given.shape[-1], dtype=np.float32)[:, None]
    return read(varied)[:, :, -1] if len(asked) else varied[:, :, -1]


def _describe(
    shares: npt.NDArray, after: npt.NDArray, now: npt.NDArray, position: int, gains: npt.NDArray, chain: Chain
) -> NextStep:
    step, last = chain.steps[position], chain.steps[-1]

    def conclude(probabilities: npt.NDArray) -> tuple[str, float]:
        of_last = probabilities[: last.num_answers]
        return last.options[int(of_last.argmax())], float(of_last.max())

    outcomes = [
        Outcome(option, float(share), *conclude(of_last))
        for option, share, of_last in zip(step.options, shares, after, strict=False)
    ]
    known = {other.name: float(gain) for other, gain in zip(chain.steps, gains, strict=True) if np.isfinite(gain)}
    outcomes.sort(key=lambda outcome: -outcome.probability)
    return NextStep(step, float(gains[position]), known, *conclude(now), tuple(outcomes))
