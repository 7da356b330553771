"""A reading of one radiograph in words: the answers, their probabilities, and what a correction changed."""

import dataclasses
import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from stepcot_jax.chain import Chain
from stepcot_jax.data.images.dicom_projection import Projection
from stepcot_jax.evaluation.consistency import Rules, list_broken
from stepcot_jax.host.text import make_printable
from stepcot_jax.predict.answer_changes import Flip, Shift, describe_shifts, find_changes
from stepcot_jax.predict.called_findings import describe_called
from stepcot_jax.predict.image_check import ImageCheck
from stepcot_jax.predict.paragraph import write_paragraph
from stepcot_jax.predict.reader import Reading
from stepcot_jax.predict.step_answers import StepAnswer, answer_step

if TYPE_CHECKING:
    from stepcot_jax.evaluation.calibration import Calibration
    from stepcot_jax.evaluation.operating_point_files import OperatingPoints


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
      rule: by which the operating points were chosen, in words; "" without any.
      check: whether the image is of the kind that the network was trained on.
      report: file of its structured report, or why there is none; "" if none was asked for (`structured_report`).
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
    rule: str = ""
    check: ImageCheck = dataclasses.field(default_factory=ImageCheck)
    report: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What speaks against the answers, a sentence each: an image unlike the training images, a lateral view."""
        return self.check.warnings

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
        """The chain as one readable paragraph, after what speaks against it."""
        answers = [(each.step, each.label, None if each.given else each.probability) for each in self.steps]
        return " ".join([*(f"Warning: {line}." for line in self.warnings), write_paragraph(answers)])

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
            if each.findings:
                entry["operating_points"] = {finding.answer: finding.as_dict() for finding in each.findings}
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
            "operating_rule": self.rule,
            "steps": steps,
            "flipped": [dataclasses.asdict(flip) for flip in self.flipped],
            "shifted": [dataclasses.asdict(shift) for shift in self.shifted],
            "never_together": list(self.never_together),
            **self.check.as_dict(),
            "paragraph": self.paragraph,
            **({"report": self.report} if self.report else {}),
        }

    def __str__(self) -> str:
        rows = [(each.step.name, each.answer, each.describe_certainty()) for each in self.steps]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{name:<{widths[0]}}  {answer:<{widths[1]}}  {how}" for name, answer, how in rows]
        lines = [*self._describe_check(), *lines, *self._describe_changes(), *self._describe_called()]
        lines += [f"structured report: {self.report}"] if self.report else []
        text = [f"{self.source} ({self._describe_model()})", *(f"  {line}" for line in lines), self.paragraph]
        return "\n".join(make_printable(line) for line in text)

    def _repr_html_(self) -> str:
        """A table for notebooks; every text is escaped."""
        rows = "".join(
            f"<tr><td>{html.escape(each.step.question)}</td><td><b>{html.escape(each.answer)}</b></td>"
            f"<td>{html.escape(each.describe_certainty())}</td></tr>"
            for each in self.steps
        )
        notes = [*self._describe_check(), *self._describe_changes(), *self._describe_called()]
        changes = "".join(f"<li>{html.escape(line)}</li>" for line in notes)
        changed = f"<ul>{changes}</ul>" if changes else ""
        head = "<tr><th>Question</th><th>Answer</th><th>Probability</th></tr>"
        caption = f"<caption>{html.escape(self._describe_model())}</caption>"
        return f"<table>{caption}{head}{rows}</table>{changed}<p>{html.escape(self.paragraph)}</p>"

    def describe_calibration(self) -> str:
        """Return the network's name and what its percentages are."""
        text = f"{self.model}; probabilities {'calibrated' if self.calibrated else 'not calibrated'}"
        if self.calibrated and self.uncalibrated:
            text += f" (not of {', '.join(self.uncalibrated)})"
        if self.calibrated and self.has_given:
            text += " for readings without given answers"
        return text

    def _describe_model(self) -> str:
        """Return the network's name and what its percentages and alternatives are."""
        text = self.describe_calibration()
        if self.coverage is None or all(each.answer_set is None for each in self.steps):
            return text
        return f'{text}; "or": the other answers of its set; such sets hold the true answer in {self.coverage_of}'

    def _describe_check(self) -> list[str]:
        return [str(self.check), *(f"warning: {line}" for line in self.check.warnings)]

    def _describe_changes(self) -> list[str]:
        """Return which answers training never had together, and what the given answers changed, a line each."""
        return [*(f"never together in training: {pair}" for pair in self.never_together), *self._describe_shifts()]

    def _describe_called(self) -> list[str]:
        return describe_called({each.step.name: each.findings for each in self.steps}, self.rule)

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
    points: "OperatingPoints | None" = None,
    trained_on: str = "",
    projections: Sequence[Projection] = (),
) -> list[ChainReading]:
    """Return the readings of images in words.

    Args:
      given: distributions that a person gave, the same for all images, zeros for the network's own; None for none.
      pairs: whether counted pairs were added to the network's logits, which the readings then say.
    """
    given = np.zeros(reading.probabilities.shape[1:]) if given is None else given
    by_step = _answer_steps(reading, chain, model, given=given, calibration=calibration, points=points)
    labels = np.array([[each.label for each in answers] for answers in by_step]).T
    unseen = [()] * len(sources) if rules is None else list_broken(labels, rules, chain)
    scores = [None] * len(sources) if reading.gate_scores is None else reading.gate_scores.tolist()
    changes: list[Any] = [((), ())] * len(sources)
    answered = list(zip(*by_step, strict=True))
    if uncorrected is not None:
        changes = [find_changes(*each) for each in zip(answered, uncorrected.probabilities, strict=True)]
    words = _describe_network(f"{model} with counted pairs" if pairs else model, chain, model, calibration, points)
    return [
        ChainReading(
            source,
            steps=steps,
            flipped=changes[case][0],
            shifted=changes[case][1],
            picture=pictures[case] if len(pictures) else None,
            never_together=unseen[case],
            check=ImageCheck(trained_on, scores[case], projections[case] if projections else ""),
            **words,
        )
        for case, (source, steps) in enumerate(zip(sources, answered, strict=True))
    ]


def _answer_steps(
    reading: Reading,
    chain: Chain,
    model: str,
    *,
    given: Float[np.ndarray, "step answer"],
    calibration: "Calibration | None",
    points: "OperatingPoints | None",
) -> list[list[StepAnswer]]:
    """Return the answers of all cases to each step."""
    sets = reading.answer_sets
    return [
        answer_step(
            step,
            reading.probabilities[:, place],
            given,
            place,
            None if sets is None else sets[:, place],
            points,
            model,
            None if calibration is None else calibration.coverage_range(model, place),
        )
        for place, step in enumerate(chain.steps)
    ]


def _describe_network(
    name: str, chain: Chain, model: str, calibration: "Calibration | None", points: "OperatingPoints | None"
) -> dict[str, Any]:
    """Return the fields of a `ChainReading` that are the same for all images."""
    found: dict[str, Any] = {"model": name, "calibrated": calibration is not None, "coverage": None}
    if calibration is not None:
        found["coverage"] = calibration.coverage
        found["coverage_of"] = calibration.describe_coverage(model)
        unfitted = calibration.steps_without_temperature(model)
        found["uncalibrated"] = tuple(chain.steps[place].name for place in unfitted)
    return found | {"rule": "" if points is None else points.rule.describe()}
