"""A reading of one radiograph in words: seven answers, how sure each is, and what a correction changed."""

import dataclasses
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from stepcot_jax.chain import Chain, Step
from stepcot_jax.data.checks.check_printing import make_printable
from stepcot_jax.predict.changes import Flip, Shift, StepAnswer, describe_shifts, find_flips, measure_shifts
from stepcot_jax.predict.paragraph import percent, write_paragraph
from stepcot_jax.predict.reader import NOT_GIVEN, Reading

if TYPE_CHECKING:
    from stepcot_jax.evaluation.calibration import Calibration


@dataclasses.dataclass(frozen=True)
class ChainReading:
    """What a network reads in one radiograph.

    Attributes:
      source: what was read, such as its path.
      model: "teacher" or "student".
      calibrated: whether the probabilities were calibrated on the validation split.
      coverage: how often an answer set holds the true answer; None where there are no answer sets.
      steps: the answers, in the chain's order.
      flipped: later answers that the given ones changed; empty without given answers.
      shifted: the change in each later step, of which most turn no answer; empty without given answers.
    """

    source: str
    model: str
    calibrated: bool
    coverage: float | None
    steps: tuple[StepAnswer, ...]
    flipped: tuple[Flip, ...] = ()
    shifted: tuple[Shift, ...] = ()

    @property
    def answers(self) -> dict[str, str]:
        """The answer of each step by its name."""
        return {answer.step.name: answer.answer for answer in self.steps}

    @property
    def probabilities(self) -> dict[str, dict[str, float]]:
        """The probability of each option of each step."""
        return {
            answer.step.name: dict(zip(answer.step.options, answer.probabilities, strict=True)) for answer in self.steps
        }

    @property
    def paragraph(self) -> str:
        """The chain as one readable paragraph."""
        return write_paragraph(
            [(each.step, each.label, None if each.given else each.probability) for each in self.steps]
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain types, for JSON."""
        steps = []
        for each in self.steps:
            entry: dict[str, Any] = {
                "step": each.step.name,
                "question": each.step.question,
                "answer": each.answer,
                "given": each.given,
                "probability": each.probability,
                "probabilities": dict(zip(each.step.options, each.probabilities, strict=True)),
            }
            if each.answer_set is not None:
                entry["answer_set"] = list(each.answer_set)
            steps.append(entry)
        return {
            "image": self.source,
            "model": self.model,
            "calibrated": self.calibrated,
            "coverage": self.coverage,
            "steps": steps,
            "flipped": [dataclasses.asdict(flip) for flip in self.flipped],
            "shifted": [dataclasses.asdict(shift) for shift in self.shifted],
            "paragraph": self.paragraph,
        }

    def __str__(self) -> str:
        rows = [(each.step.name, each.answer, _describe_certainty(each)) for each in self.steps]
        head = f"{self.source} ({self._describe_shares()})"
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{name:<{widths[0]}}  {answer:<{widths[1]}}  {how}" for name, answer, how in rows]
        lines += self._describe_changes()
        text = [head, *(f"  {line}" for line in lines), self.paragraph]
        return "\n".join(make_printable(line) for line in text)

    def _describe_shares(self) -> str:
        """Who reads, and what the percentages and the further answers beside them are."""
        text = f"{self.model}; probabilities {'calibrated' if self.calibrated else 'as the network gives them'}"
        if self.coverage is None or all(each.answer_set is None for each in self.steps):
            return text
        return f'{text}; "or": answers that cannot be ruled out at {100 * self.coverage:.0f} % coverage'

    def _describe_changes(self) -> list[str]:
        """What the given answers changed, in words; nothing without any."""
        if not self.shifted:
            return []
        lines = [f"changed by what was given: {flip.step}: {flip.before} → {flip.after}" for flip in self.flipped]
        lines += [] if self.flipped else ["what was given changed no later answer"]
        return [*lines, describe_shifts(self.shifted)]

    def _repr_html_(self) -> str:
        """A table for notebooks; every text is escaped."""
        rows = "".join(
            f"<tr><td>{html.escape(each.step.question)}</td><td><b>{html.escape(each.answer)}</b></td>"
            f"<td>{html.escape(_describe_certainty(each))}</td></tr>"
            for each in self.steps
        )
        changes = "".join(f"<li>{html.escape(line)}</li>" for line in self._describe_changes())
        changed = f"<ul>{changes}</ul>" if changes else ""
        head = "<tr><th>Question</th><th>Answer</th><th>Probability</th></tr>"
        caption = f"<caption>{html.escape(self._describe_shares())}</caption>"
        return f"<table>{caption}{head}{rows}</table>{changed}<p>{html.escape(self.paragraph)}</p>"


def _describe_certainty(answer: StepAnswer) -> str:
    if answer.given:
        return f"given (network: {percent(answer.probability)})"
    text = percent(answer.probability)
    others = [option for option in answer.answer_set or () if option != answer.answer]
    return f"{text} or {', '.join(others)}" if others else text


def make_readings(
    reading: Reading,
    chain: Chain,
    *,
    sources: Sequence[str],
    model: str,
    calibration: "Calibration | None",
    given: Int[np.ndarray, "step"] | None = None,
    uncorrected: Reading | None = None,
) -> list[ChainReading]:
    """The readings of images in words.

    Args:
      reading: of the images.
      chain: the steps.
      sources: name of each image.
      model: that read them.
      calibration: of the probabilities and answer sets; None where there is none.
      given: labels that a person gave, the same for all images; None or `NOT_GIVEN` where there are none.
      uncorrected: of the same images without given answers, to tell what changed.
    """
    given = np.full(chain.num_steps, NOT_GIVEN) if given is None else given
    coverage = None if calibration is None else calibration.coverage
    readings = []
    for case, source in enumerate(sources):
        sets = None if reading.answer_sets is None else reading.answer_sets[case]
        steps = tuple(
            _answer_step(step, reading.probabilities[case, place], given, place, sets)
            for place, step in enumerate(chain.steps)
        )
        flipped: tuple[Flip, ...] = ()
        shifted: tuple[Shift, ...] = ()
        if uncorrected is not None:
            flipped = find_flips(steps, uncorrected.probabilities[case])
            shifted = measure_shifts(steps, uncorrected.probabilities[case])
        readings.append(
            ChainReading(source, model, calibration is not None, coverage, steps, flipped=flipped, shifted=shifted)
        )
    return readings


def _answer_step(
    step: Step, probabilities: Float[np.ndarray, "answer"], given: np.ndarray, place: int, sets: np.ndarray | None
) -> StepAnswer:
    own = probabilities[: step.num_answers]
    is_given = bool(given[place] != NOT_GIVEN)
    label = int(given[place]) if is_given else int(own.argmax())
    answer_set = None
    if sets is not None and not (given[: place + 1] != NOT_GIVEN).any():
        ordered = np.argsort(-own, kind="stable")
        answer_set = tuple(step.options[option] for option in ordered if sets[place, option])
    return StepAnswer(step, label, tuple(float(share) for share in own), is_given, answer_set)
