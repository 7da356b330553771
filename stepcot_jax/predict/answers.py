"""A reading of one radiograph in words: the answers, their probabilities, and what a correction changed."""

import dataclasses
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from stepcot_jax.chain import Chain, Step
from stepcot_jax.evaluation.consistency import Rules, count_broken
from stepcot_jax.host.text import make_printable
from stepcot_jax.predict.answer_changes import Flip, Shift, describe_shifts
from stepcot_jax.predict.paragraph import percent, write_paragraph
from stepcot_jax.predict.reader import Reading

if TYPE_CHECKING:
    from stepcot_jax.evaluation.calibration import Calibration


@dataclasses.dataclass(frozen=True)
class StepAnswer:
    """The answer to one question.

    Attributes:
      step: the question with its options.
      label: of the most probable answer: the person's if one was given, else the network's.
      probabilities: the network's, one for each option, also if an answer was given.
      given_shares: the person's probability of each option; () if no answer was given.
      answer_set: the options of the conformal set, most probable first; None without calibration.
      coverage_range: 95 % range of the set's coverage (`Calibration.coverage_range`); None if unknown.
    """

    step: Step
    label: int
    probabilities: tuple[float, ...]
    given_shares: tuple[float, ...]
    answer_set: tuple[str, ...] | None
    coverage_range: tuple[float, float] | None = None

    @property
    def given(self) -> bool:
        """Whether a person gave the answer."""
        return bool(self.given_shares)

    @property
    def answer(self) -> str:
        """The answer's text."""
        return self.step.options[self.label]

    @property
    def probability(self) -> float:
        """The network's probability of the answer."""
        return self.probabilities[self.label]

    def describe_certainty(self) -> str:
        """Return the probability and the other answers of the conformal set, in words."""
        if self.given:
            share = self.given_shares[self.label]
            return f"given{'' if share == 1 else f' at {percent(share)}'} (network: {percent(self.probability)})"
        others = [option for option in self.answer_set or () if option != self.answer]
        return " or ".join([percent(self.probability), *([", ".join(others)] if others else [])])


@dataclasses.dataclass(frozen=True)
class ChainReading:
    """A network's reading of one radiograph.

    Attributes:
      source: the image, such as its path.
      model: "teacher" or "student", with "with counted pairs" if they were added to its logits.
      calibrated: whether the probabilities were calibrated on the validation split, which is read without given
        answers: it does not hold for the steps after a given one.
      coverage: target share of answer sets that hold the true answer; None without answer sets.
      steps: the answers, in the chain's order.
      flipped: later answers that the given ones changed; empty without given answers.
      shifted: the change in each later step; empty without given answers.
      picture: uint8 [size, size, 3] as read, for reading it again; None if it was not kept.
      coverage_of: what the coverage is of, in words (`Calibration.describe_coverage`).
      uncalibrated: names of the steps whose calibration had too few cases to fit, or none that told anything.
      never_together: pairs of these answers that no training chain has, though chance would give 20, in words.
    """

    source: str
    model: str
    calibrated: bool
    coverage: float | None
    steps: tuple[StepAnswer, ...]
    flipped: tuple[Flip, ...] = ()
    shifted: tuple[Shift, ...] = ()
    picture: Any = dataclasses.field(default=None, repr=False, compare=False)
    coverage_of: str = ""
    uncalibrated: tuple[str, ...] = ()
    never_together: tuple[str, ...] = ()

    @property
    def has_given(self) -> bool:
        """Whether a person gave any of the answers."""
        return any(each.given for each in self.steps)

    @property
    def answers(self) -> dict[str, str]:
        """The answer of each step, by name."""
        return {answer.step.name: answer.answer for answer in self.steps}

    @property
    def probabilities(self) -> dict[str, dict[str, float]]:
        """The probability of each option of each step."""
        return {each.step.name: dict(zip(each.step.options, each.probabilities, strict=True)) for each in self.steps}

    @property
    def paragraph(self) -> str:
        """The chain as one readable paragraph."""
        return write_paragraph(
            [(each.step, each.label, None if each.given else each.probability) for each in self.steps]
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
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
            if each.given:
                entry["given_probabilities"] = dict(zip(each.step.options, each.given_shares, strict=True))
            if each.answer_set is not None:
                entry["answer_set"] = list(each.answer_set)
                entry["coverage_range"] = each.coverage_range and list(each.coverage_range)
            steps.append(entry)
        return {
            "image": self.source,
            "model": self.model,
            "calibrated": self.calibrated and not self.has_given,
            "coverage": self.coverage,
            "coverage_of": self.coverage_of,
            "steps": steps,
            "flipped": [dataclasses.asdict(flip) for flip in self.flipped],
            "shifted": [dataclasses.asdict(shift) for shift in self.shifted],
            "never_together": list(self.never_together),
            "paragraph": self.paragraph,
        }

    def __str__(self) -> str:
        rows = [(each.step.name, each.answer, each.describe_certainty()) for each in self.steps]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{name:<{widths[0]}}  {answer:<{widths[1]}}  {how}" for name, answer, how in rows]
        lines += self._describe_changes()
        text = [f"{self.source} ({self._describe_model()})", *(f"  {line}" for line in lines), self.paragraph]
        return "\n".join(make_printable(line) for line in text)

    def _repr_html_(self) -> str:
        """A table for notebooks; every text is escaped."""
        rows = "".join(
            f"<tr><td>{html.escape(each.step.question)}</td><td><b>{html.escape(each.answer)}</b></td>"
            f"<td>{html.escape(each.describe_certainty())}</td></tr>"
            for each in self.steps
        )
        changes = "".join(f"<li>{html.escape(line)}</li>" for line in self._describe_changes())
        changed = f"<ul>{changes}</ul>" if changes else ""
        head = "<tr><th>Question</th><th>Answer</th><th>Probability</th></tr>"
        caption = f"<caption>{html.escape(self._describe_model())}</caption>"
        return f"<table>{caption}{head}{rows}</table>{changed}<p>{html.escape(self.paragraph)}</p>"

    def _describe_model(self) -> str:
        """Return the network's name and what its percentages and alternatives are."""
        text = f"{self.model}; probabilities {'calibrated' if self.calibrated else 'not calibrated'}"
        if self.calibrated and self.uncalibrated:
            text += f" (not of {', '.join(self.uncalibrated)})"
        if self.calibrated and self.has_given:
            text += " for readings without given answers"
        if self.coverage is None or all(each.answer_set is None for each in self.steps):
            return text
        return f'{text}; "or": answers that cannot be ruled out, with sets that hold the true one in {self.coverage_of}'

    def _describe_changes(self) -> list[str]:
        """Return which answers training never had together, and what the given answers changed, a line each."""
        return [*(f"never together in training: {pair}" for pair in self.never_together), *self._describe_shifts()]

    def _describe_shifts(self) -> list[str]:
        if not self.shifted:
            return []
        lines = [f"changed by the given answers: {flip.step}: {flip.before} → {flip.after}" for flip in self.flipped]
        return [*(lines or ["the given answers changed no later answer"]), describe_shifts(self.shifted)]


def make_readings(
    reading: Reading,
    chain: Chain,
    *,
    sources: Sequence[str],
    model: str,
    calibration: "Calibration | None",
    given: Float[np.ndarray, "step answer"] | None = None,
    uncorrected: Reading | None = None,
    pictures: Sequence[Any] = (),
    pairs: bool = False,
    rules: Rules | None = None,
) -> list[ChainReading]:
    """Return the readings of images in words.

    Args:
      reading: of the images.
      chain: the steps.
      sources: name of each image.
      model: that read them.
      calibration: of the probabilities and answer sets; None without.
      given: distributions that a person gave, the same for all images, zeros for the network's own; None for none.
      uncorrected: of the same images without given answers, to find the changes.
      pictures: of the images, kept in the readings; () for none.
      pairs: whether counted pairs were added to the network's logits, which the readings then say.
      rules: pairs of answers that training never had together; None for none.
    """
    given = np.zeros(reading.probabilities.shape[1:]) if given is None else given
    coverage: float | None = None
    words: tuple[Any, ...] = ()
    is_calibrated, described = calibration is not None, f"{model} with counted pairs" if pairs else model
    if calibration is not None:
        unfitted = calibration.steps_without_temperature(model)
        coverage = calibration.coverage
        words = calibration.describe_coverage(model), tuple(chain.steps[place].name for place in unfitted)
    readings = []
    for case, source in enumerate(sources):
        sets = None if reading.answer_sets is None else reading.answer_sets[case]
        steps = tuple(
            _answer_step(step, reading.probabilities[case, place], given, place, sets)
            for place, step in enumerate(chain.steps)
        )
        if calibration is not None:
            spreads = (calibration.coverage_range(model, place) for place in range(chain.num_steps))
            steps = tuple(
                dataclasses.replace(each, coverage_range=spread) for each, spread in zip(steps, spreads, strict=True)
            )
        changes = ((), ()) if uncorrected is None else _find_changes(steps, uncorrected.probabilities[case])
        picture = pictures[case] if len(pictures) else None
        labels = np.array([[each.label for each in steps]])
        unseen = () if rules is None else tuple(count_broken(labels, rules, chain))
        own = ChainReading(source, described, is_calibrated, coverage, steps, *changes, picture, *words)
        readings.append(dataclasses.replace(own, never_together=unseen))
    return readings


def _answer_step(
    step: Step, probabilities: Float[np.ndarray, "answer"], given: np.ndarray, place: int, sets: np.ndarray | None
) -> StepAnswer:
    own = probabilities[: step.num_answers]
    shares = tuple(float(share) for share in given[place, : step.num_answers]) if given[place].any() else ()
    label = int(np.argmax(shares or own))
    answer_set = None
    if sets is not None and not given[: place + 1].any():
        ordered = np.argsort(-own, kind="stable")
        answer_set = tuple(step.options[option] for option in ordered if sets[place, option])
    return StepAnswer(step, label, tuple(float(share) for share in own), shares, answer_set)


def _find_changes(
    steps: Sequence[StepAnswer], before: Float[np.ndarray, "step answer"]
) -> tuple[tuple[Flip, ...], tuple[Shift, ...]]:
    """Return the network's answers and probabilities that differ from those without given answers, `before`."""
    flips, shifts, has_given = [], [], False
    for answer, row in zip(steps, before, strict=True):
        has_given = has_given or answer.given
        if answer.given or not has_given:
            continue
        own = row[: answer.step.num_answers]
        without = answer.step.options[int(own.argmax())]
        if without != answer.answer:
            flips.append(Flip(answer.step.name, without, answer.answer))
        shifts.append(Shift(answer.step.name, float(np.abs(np.asarray(answer.probabilities) - own).max())))
    return tuple(flips), tuple(shifts)
