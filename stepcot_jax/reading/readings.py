"""A reading of one radiograph in words: the answers, their probabilities, and what a correction changed."""

import dataclasses
import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_APPLICABLE, PUBLISHED_STEPS, Chain, Step, fold
from stepcot_jax.data.projections import Projection
from stepcot_jax.evaluation.consistency import Rules, list_broken
from stepcot_jax.evaluation.joint import name_joined
from stepcot_jax.host.text import make_printable
from stepcot_jax.reading.programs import Reading

if TYPE_CHECKING:
    from stepcot_jax.evaluation.calibration import Calibration
    from stepcot_jax.evaluation.operating_points import OperatingPoints
    from stepcot_jax.reading.radiographs import Header

# Changes that given answers cause in later steps.


_LEAST_SHIFT = 0.001  # Smaller changes of a probability are below the precision of a printed reading


@dataclasses.dataclass(frozen=True)
class Flip:
    """An answer that a given answer changed."""

    step: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Shift:
    """Largest change of a probability in another step, 0 to 1, that the given answers caused."""

    step: str
    change: float


def describe_shifts(shifts: Sequence[Shift]) -> str:
    """Return the largest change of a probability in words; "" if no step can change."""
    if not shifts:
        return ""
    most = max(shifts, key=lambda shift: shift.change)
    if most.change < _LEAST_SHIFT:
        return "no other probability moved by 0.1 points"
    return f"largest change of another probability: {100 * most.change:.1f} points ({most.step})"


def find_changes(
    steps: Sequence["StepAnswer"], before: Float[np.ndarray, "step answer"], *, of_all: bool = False
) -> tuple[tuple[Flip, ...], tuple[Shift, ...]]:
    """Return the changes of answers and probabilities against those without given answers, `before`.

    Changes are those of later steps or, in a joint reading, of all steps that are not given.
    """
    flips, shifts, has_given = [], [], of_all
    for answer, row in zip(steps, before, strict=True):
        has_given = has_given or answer.given
        if answer.given or not has_given:
            continue
        uncorrected = row[: answer.step.num_answers]
        without = answer.step.options[int(uncorrected.argmax())]
        if without != answer.answer:
            flips.append(Flip(answer.step.name, without, answer.answer))
        shifts.append(Shift(answer.step.name, float(np.abs(np.asarray(answer.probabilities) - uncorrected).max())))
    return tuple(flips), tuple(shifts)


# Answers of a reading at or above their operating points, with the points' figures on the test split.


_FIGURES = ("threshold", "sensitivity", "specificity")
Points = Mapping[int, tuple[str, float, float, float]]
"""A step's operating points: by label the answer, its threshold, and its sensitivity and specificity on test."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """An answer with an operating point."""

    answer: str
    probability: float
    threshold: float  # probability from which the finding is called; infinite if it never is
    sensitivity: float  # of the test cases at the threshold; NaN where no test case has the answer
    specificity: float  # of the test cases at the threshold; NaN where every test case has the answer

    @property
    def is_above(self) -> bool:
        """Whether the probability is the threshold or more."""
        return self.probability >= self.threshold

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON; None for numbers that are not finite."""
        numbers = {name: getattr(self, name) for name in _FIGURES}
        finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {**finite, "above": self.is_above}

    def __str__(self) -> str:
        shares = (("sensitivity", self.sensitivity), ("specificity", self.specificity))
        known = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares if not math.isnan(share))
        return f"{self.answer} ({known or 'not measured'})"


def find_points(step: Step, points: "OperatingPoints | None", model: str) -> Points:
    """Return the answers of a step that have an operating point."""
    chosen = {} if points is None else points.of_step(model, step.name)
    return {
        label: (option, *(getattr(chosen[option], name).value for name in _FIGURES))
        for label, option in enumerate(step.options)
        if option in chosen
    }


def describe_called(findings: Mapping[str, Sequence[Finding]], rule: str) -> list[str]:
    """Return a heading and a line for each step with answers at or above their operating points."""
    if not any(findings.values()):
        return []
    lines = [f"above the operating point ({rule}; figures of the test cases):"]
    for step, of_step in findings.items():
        called = [str(finding) for finding in of_step if finding.is_above]
        lines += [f"  {step}: {', '.join(called) or 'none'}"] if of_step else []
    return lines


# Check by gate and DICOM header whether an image is like those that a network was trained on.


NO_GATE = "no gate stored"
_LIMIT = "above 1: unlike the training images"


@dataclasses.dataclass(frozen=True)
class ImageCheck:
    """An image compared with the images that a network was trained on."""

    trained_on: str = ""  # the training data in a few words; "" if unknown
    gate_score: float | None = None  # distance to the training images, above 1 outside of them
    projection: Projection = ""  # projection by the DICOM header; "" if it has none
    notes: tuple[str, ...] = ()  # what is odd about the picture's elements in its DICOM header

    @property
    def outside(self) -> bool | None:
        """Whether the gate finds the image outside of what the network was trained on; None without a gate."""
        return None if self.gate_score is None else self.gate_score > 1

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to distrust the answers, one sentence for each; empty without any."""
        lines = []
        if self.outside:
            lines.append(f"outside of what it was trained on: gate score {self.gate_score:.2f} ({_LIMIT})")
        if self.projection not in ("frontal", ""):
            article = "an" if self.projection[0] in "aeiou" else "a"
            lines.append(f"the DICOM header names {article} {self.projection} view; the network expects a frontal one")
        return tuple(lines)

    def __str__(self) -> str:
        """Return the training data and the score in one line."""
        score = NO_GATE if self.gate_score is None else f"gate score {self.gate_score:.2f} ({_LIMIT})"
        return f"trained on: {self.trained_on or 'unknown'}; {score}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        listed = {"notes": list(self.notes), "warnings": list(self.warnings)}
        return {**dataclasses.asdict(self), "outside": self.outside, **listed}


# Write a chain of answers as one readable paragraph.


_NAMES = tuple(fold(name) for name, _ in PUBLISHED_STEPS)
_WORDINGS = dict(
    zip(
        _NAMES,
        (
            "The radiograph shows {answer}{how}",
            "{answer} in distribution{how}",
            "with a {answer} pattern{how}",
            "located in: {answer}{how}",
            "margins and morphology: {answer}{how}",
            "associated signs: {answer}{how}",
            "The most likely diagnosis is {answer}{how}",
        ),
        strict=True,
    )
)  # Wordings of the published steps; any other step becomes "name: answer"

_FIRST, _LAST = _NAMES[0], _NAMES[-1]
_ENGLISH = {*_NAMES, "mixed opacity", *(fold(option) for step in DEFAULT_CHAIN.steps for option in step.options)}


def write_paragraph(answers: Iterable[tuple[Step, int, float | None]]) -> str:
    """Write answers, each a step, its label and probability (None: given by a person), as a paragraph."""
    sentences: list[str] = []
    clauses: list[str] = []
    absent: list[str] = []
    for step, label, probability in answers:
        answer = step.options[label]
        how = " (given)" if probability is None else f" ({percent(probability)})"
        name = fold(step.name)
        if fold(answer) == fold(NOT_APPLICABLE):
            absent.append(f"{_soften(step.name)}{how}")
            continue
        if name == _FIRST and fold(answer) == "mixed":
            answer = "mixed opacity"
        wording = _WORDINGS.get(name, "{name}: {answer}{how}")
        clause = wording.format(name=_soften(step.name), answer=_soften(answer), how=how)
        if name == _LAST:
            sentences += [", ".join(clauses), clause]
            clauses = []
        else:
            clauses.append(clause)
    sentences.append(", ".join(clauses))
    if absent:
        sentences.append(f"Not applicable: {', '.join(absent)}")
    return " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in sentences if sentence)


def percent(share: float) -> str:
    """Return a share in whole percent, never 0 % or 100 %: no network is certain."""
    rounded = round(100 * share)
    return "more than 99 %" if rounded == 100 else "less than 1 %" if rounded == 0 else f"{rounded} %"


def _soften(text: str) -> str:
    """Return a published text for the middle of a sentence; other texts and abbreviations keep their capitals."""
    known = fold(text) in _ENGLISH
    parts = [part[:1].lower() + part[1:] if known and part[1:2].islower() else part for part in text.split("/")]
    return "/".join(parts)


# The answer to one question of a reading, with its probabilities, answer set and operating points.


@dataclasses.dataclass(frozen=True)
class StepAnswer:
    """The answer to one question."""

    step: Step  # the question with its options
    label: int  # label of the most probable answer: the person's if one was given, else the network's
    probabilities: tuple[float, ...]  # the network's probability of each option, also if an answer was given
    given_shares: tuple[float, ...]  # the person's probability of each option; () if no answer was given
    answer_set: tuple[str, ...] | None  # of the conformal set, most probable first
    coverage_range: tuple[float, float] | None = None  # 95 % range
    points: Points = dataclasses.field(default_factory=dict, hash=False)  # empty from a given answer on

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The answers with an operating point, most probable first, equal ones in the order of the options."""
        order = sorted(self.points, key=lambda label: -self.probabilities[label])
        chosen = ((self.probabilities[label], self.points[label]) for label in order)
        return tuple(Finding(answer, share, *figures) for share, (answer, *figures) in chosen)

    @property
    def above(self) -> tuple[str, ...]:
        """The answers at or above their operating points, most probable first."""
        return tuple(finding.answer for finding in self.findings if finding.is_above)

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


def _answer_steps(
    reading: Reading,
    chain: Chain,
    model: str,
    *,
    given: Float[np.ndarray, "step answer"],
    calibration: "Calibration | None",
    points: "OperatingPoints | None",
    joined: bool = False,
) -> list[list[StepAnswer]]:
    """Return the answers of all cases to each step; `given` are a person's distributions, zeros without."""
    answered, model = [], name_joined(model) if joined else model
    for position, step in enumerate(chain.steps):
        probabilities = reading.probabilities[:, position, : step.num_answers]
        own = given[position, : step.num_answers]
        shares = tuple(own.tolist()) if own.any() else ()
        labels = [int(np.argmax(shares))] * len(probabilities) if shares else probabilities.argmax(axis=1).tolist()
        spread = None if calibration is None else calibration.coverage_range(model, position)
        chosen: Points = {}
        included: list[list[bool]] | None = None
        # Sets and operating points were fitted without given answers, which move later steps, or all if joined.
        if not given[: len(chain.steps) if joined else position + 1].any():
            chosen = find_points(step, points, model)
            included = None if reading.answer_sets is None else reading.answer_sets[:, position].tolist()
        orders = np.argsort(-probabilities, axis=1, kind="stable").tolist()
        rows = []
        for case, (label, row, order) in enumerate(zip(labels, probabilities.tolist(), orders, strict=True)):
            held = None
            if included is not None:
                held = tuple(step.options[answer] for answer in order if included[case][answer])
            rows.append(StepAnswer(step, label, tuple(row), shares, held, spread, chosen))
        answered.append(rows)
    return answered


@dataclasses.dataclass(frozen=True)
class ChainReading:
    """A network's reading of one radiograph."""

    source: str  # the image, such as its path
    model: str  # "teacher", "student" or "plain", with ", joint reading" if its joint model read
    fitted: bool  # whether probabilities were fitted on validation; a joint reading's also with given answers
    coverage: float | None  # target share of answer sets that hold the true answer; None without answer sets
    steps: tuple[StepAnswer, ...]  # the answers, in the chain's order
    flipped: tuple[Flip, ...] = ()  # other answers that the given ones changed; empty without given answers
    shifted: tuple[Shift, ...] = ()  # the change in each other step that can change; empty without given answers
    picture: Any = dataclasses.field(default=None, repr=False, compare=False)  # uint8 [size, size, 3]
    coverage_of: str = ""  # the coverage in words (`Calibration.describe_coverage`)
    error_of: str = ""  # the calibration error of the last step in words (`Calibration.describe_error`)
    unfitted: tuple[str, ...] = ()  # names of the steps whose temperature could not be fitted
    never_together: tuple[str, ...] = ()  # in words
    rule: str = ""  # the rule that chose the operating points, in words; "" without any
    check: ImageCheck = dataclasses.field(default_factory=ImageCheck)
    joined: bool = False  # whether the network's joint model read
    conflict: float | None = None  # of picture, given and trained answers, nats above the limit; None without a limit

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons to distrust the answers, such as an image unlike the training images or a lateral view."""
        if self.conflict is None or self.conflict <= 0:
            return self.check.warnings
        what = "picture and given answers disagree" if self.has_given else "the picture's answers seldom go together"
        return (
            *self.check.warnings,
            f"{what}, by the training labels ({self.conflict:.1f} nats above the limit)",
        )

    @property
    def has_given(self) -> bool:
        """Whether a person gave any of the answers."""
        return any(answer.given for answer in self.steps)

    @property
    def answers(self) -> dict[str, str]:
        """The answer of each step, by name."""
        return {answer.step.name: answer.answer for answer in self.steps}

    @property
    def probabilities(self) -> dict[str, dict[str, float]]:
        """The probability of each option of each step."""
        return {
            answer.step.name: dict(zip(answer.step.options, answer.probabilities, strict=True)) for answer in self.steps
        }

    @property
    def paragraph(self) -> str:
        """The chain as one readable paragraph, after its warnings."""
        return " ".join([*(f"Warning: {line}." for line in self.warnings), self._text])

    @property
    def _text(self) -> str:
        answers = [(answer.step, answer.label, None if answer.given else answer.probability) for answer in self.steps]
        return write_paragraph(answers)

    def as_dict(self) -> dict[str, Any]:
        """Return plain types, for JSON."""
        steps = []
        for answer in self.steps:
            entry: dict[str, Any] = {
                "step": answer.step.name,
                "question": answer.step.question,
                "answer": answer.answer,
                "given": answer.given,
                "probability": answer.probability,
                "probabilities": dict(zip(answer.step.options, answer.probabilities, strict=True)),
            }
            if answer.given:
                entry["given_probabilities"] = dict(zip(answer.step.options, answer.given_shares, strict=True))
            if answer.findings:
                entry["operating_points"] = {finding.answer: finding.as_dict() for finding in answer.findings}
            if answer.answer_set is not None:
                entry["answer_set"] = list(answer.answer_set)
                entry["coverage_range"] = answer.coverage_range and list(answer.coverage_range)
            steps.append(entry)
        return {
            "image": self.source,
            "model": self.model,
            "fitted": self.fitted and (self.joined or not self.has_given),
            "calibration_error": self.error_of,
            "coverage": self.coverage,
            "coverage_of": self.coverage_of,
            "operating_rule": self.rule,
            "steps": steps,
            "flipped": [dataclasses.asdict(flip) for flip in self.flipped],
            "shifted": [dataclasses.asdict(shift) for shift in self.shifted],
            "never_together": list(self.never_together),
            **self.check.as_dict(),
            "warnings": list(self.warnings),
            "conflict": self.conflict,
            "paragraph": self.paragraph,
        }

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *, verbose: bool = False) -> str:
        """Return the answers and the warnings, one a line, the paragraph, and notes below it.

        Args:
          verbose: whether the notes say how answer sets were made, with their range, and give the figures of the
            operating points.
        """
        rows = [(answer.step.name, answer.answer, answer.describe_certainty()) for answer in self.steps]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        lines = [f"{name:<{widths[0]}}  {answer:<{widths[1]}}  {how}" for name, answer, how in rows]
        lines += [*(f"warning: {line}" for line in self.warnings), *self._describe_changes()]
        notes = self._describe_notes(verbose=verbose)
        text = [self.source, *(f"  {line}" for line in lines), self._text, *(f"  {line}" for line in notes)]
        return "\n".join(make_printable(line) for line in text)

    def _repr_html_(self) -> str:
        """Return a table for notebooks; every text is escaped."""
        rows = "".join(
            f"<tr><td>{html.escape(answer.step.question)}</td><td><b>{html.escape(answer.answer)}</b></td>"
            f"<td>{html.escape(answer.describe_certainty())}</td></tr>"
            for answer in self.steps
        )
        notes = [*self._describe_changes(), *self._describe_notes()]
        listed = "".join(f"<li>{html.escape(line)}</li>" for line in notes)
        head = "<tr><th>Question</th><th>Answer</th><th>Probability</th></tr>"
        return f"<table>{head}{rows}</table><p>{html.escape(self.paragraph)}</p><ul>{listed}</ul>"

    def describe_calibration(self) -> str:
        """Return the network's name and whether its probabilities were fitted."""
        text = f"{self.model}; probabilities {'fitted on validation' if self.fitted else 'not fitted'}"
        if self.fitted and self.unfitted:
            text += f" (not of {', '.join(self.unfitted)})"
        if self.fitted and self.has_given and not self.joined:
            text += " for readings without given answers"
        return text

    def _describe_notes(self, *, verbose: bool = False) -> list[str]:
        """Return what the figures mean, one a line: calibration, answer sets, operating points, training data."""
        lines = [*(f"note: {line}" for line in self.check.notes), self.describe_calibration()]
        lines += [self.error_of] if self.error_of else []
        if self.coverage is not None and any(answer.answer_set is not None for answer in self.steps):
            of = self.coverage_of if verbose else f"{100 * self.coverage:g} % of the cases"
            lines.append(f'"or": the other answers of its set; such sets hold the true answer in {of}')
        if verbose:
            lines += describe_called({answer.step.name: answer.findings for answer in self.steps}, self.rule)
        elif any(answer.findings for answer in self.steps):
            called = [f"{answer.step.name}: {', '.join(answer.above)}" for answer in self.steps if answer.above]
            lines.append(f"above the operating point: {'; '.join(called) or 'none'}")
        # A warning has the score already.
        lines.append(f"trained on: {self.check.trained_on or 'unknown'}" if self.check.outside else str(self.check))
        return lines

    def _describe_changes(self) -> list[str]:
        """Return the answers that training never had together and the changes by given answers, one a line."""
        lines = [f"hardly ever together in training: {pair}" for pair in self.never_together]
        if self.shifted:
            flips = [f"{flip.step}: {flip.before} → {flip.after}" for flip in self.flipped]
            lines += [f"changed by the given answers: {flip}" for flip in flips]
            lines += [] if flips else ["the given answers changed no other answer"]
            lines.append(describe_shifts(self.shifted))
        return lines


def name_reading(model: str, *, joined: bool) -> str:
    """Return the name of a network in readings, with its joint model or without."""
    return f"{model}, joint reading" if joined else model


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
    joined: bool = False,
    rules: Rules | None = None,
    points: "OperatingPoints | None" = None,
    trained_on: str = "",
    headers: Sequence["Header"] = (),
) -> list[ChainReading]:
    """Return the readings of images in words; `given` are a person's distributions for all images."""
    given = np.zeros(reading.probabilities.shape[1:]) if given is None else given
    by_step = _answer_steps(reading, chain, model, given=given, calibration=calibration, points=points, joined=joined)
    labels = np.array([[answer.label for answer in answers] for answers in by_step]).T
    unseen = [()] * len(sources) if rules is None else list_broken(labels, rules, chain)
    scores = [None] * len(sources) if reading.gate_scores is None else reading.gate_scores.tolist()
    conflicts = [None] * len(sources) if reading.conflicts is None else reading.conflicts.tolist()
    changes: list[Any] = [((), ())] * len(sources)
    answered = list(zip(*by_step, strict=True))
    if uncorrected is not None:
        cases = zip(answered, uncorrected.probabilities, strict=True)
        changes = [find_changes(*case, of_all=joined) for case in cases]
    words = _describe_network(chain, model, calibration, points, joined=joined)
    return [
        ChainReading(
            source,
            steps=steps,
            flipped=changes[case][0],
            shifted=changes[case][1],
            picture=pictures[case] if len(pictures) else None,
            never_together=unseen[case],
            check=ImageCheck(trained_on, scores[case], *(headers[case] if headers else ())),
            joined=joined,
            conflict=conflicts[case],
            **words,
        )
        for case, (source, steps) in enumerate(zip(sources, answered, strict=True))
    ]


def _describe_network(
    chain: Chain, model: str, calibration: "Calibration | None", points: "OperatingPoints | None", *, joined: bool
) -> dict[str, Any]:
    """Return the fields of a `ChainReading` that are the same for all images."""
    name = name_reading(model, joined=joined)
    fields: dict[str, Any] = {"model": name, "fitted": calibration is not None, "coverage": None}
    if calibration is not None:
        fields["coverage"] = calibration.coverage
        fitted = name_joined(model) if joined else model
        fields["coverage_of"] = calibration.describe_coverage(fitted)
        fields["error_of"] = calibration.describe_error(fitted, chain.steps[-1].name)
        unfitted = calibration.steps_without_temperature(model)
        fields["unfitted"] = tuple(chain.steps[position].name for position in unfitted)
    return fields | {"rule": "" if points is None else points.rule.describe()}
