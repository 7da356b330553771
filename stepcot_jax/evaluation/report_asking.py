"""Which question of a structured report is worth asking next, and what true answers to some questions are worth."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Float64, Int

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.interventions import entropy
from stepcot_jax.evaluation.joint import as_evidence
from stepcot_jax.evaluation.joint_reports import ReportModel, ReportReader, find_askable
from stepcot_jax.evaluation.statistics import Interval
from stepcot_jax.evaluation.structured_reports import ALL, Form, format_percent, prepare_figures, resample

Asking = Literal["information", "tree order", "random"]
WAYS: tuple[Asking, ...] = ("information", "tree order", "random")
"""Ways to choose the next of the questions that can be asked."""


def expected_information(
    read: ReportReader, given: Float[np.ndarray, "step answer"]
) -> Float64[np.ndarray, "question"]:
    """Return what each question's answer tells of all questions that are not given, in nats; -inf if not askable.

    This is the sum over steps of the mutual information of question and step, itself included: the expected fall of
    their entropies. Of a question with several right answers each step counts what the best option tells of it, which
    is a lower bound. An answer is expected as if the question is asked.

    Args:
      read: reader of one case.
      given: answers of the case, zeros for none.
    """
    chain = read.tree.chain
    told = np.where(given.any(axis=-1), given.argmax(axis=-1), NOT_ANNOTATED)
    questions = np.flatnonzero(find_askable(told, chain))
    gains = np.full(len(chain.questions), -np.inf)
    if not len(questions):
        return gains
    now = read(given[None, None])[0, 0]
    steps = [step for question in questions for step in chain.questions[question]]
    sizes = [chain.steps[step].num_answers for step in steps]
    variants = np.repeat(given[None], sum(sizes), axis=0)
    variants[np.arange(sum(sizes)), np.repeat(steps, sizes)] = np.concatenate(
        [np.eye(given.shape[-1])[:size] for size in sizes]
    )
    answered = read(variants[:, None])[:, 0]
    states = np.concatenate([answered, np.maximum(1 - answered.sum(axis=-1, keepdims=True), 0)], axis=-1)
    left, starts = entropy(states), np.cumsum([0, *sizes])
    told_of = dict[int, Float64[np.ndarray, "step"]]()
    for step, start, size in zip(steps, starts, sizes, strict=False):
        rows, shares = slice(start, start + size), now[step, :size] / now[step, :size].sum()
        mixed = np.tensordot(shares, states[rows], axes=1)
        told_of[step] = np.where(told == NOT_ANNOTATED, entropy(mixed) - shares @ left[rows], 0.0)
    for question in questions:
        gains[question] = np.max([told_of[step] for step in chain.questions[question]], axis=0).sum()
    return gains


def ask_in_turn(
    way: Asking,
    read: ReportReader,
    truth: Int[np.ndarray, "step"],
    counts: Sequence[int],
    *,
    rng: np.random.Generator,
) -> Iterator[tuple[Float64[np.ndarray, "step answer"], Bool[np.ndarray, "step"]]]:
    """Yield a case's reading and the steps that are given, after each number of true answers."""
    chain = read.tree.chain
    told = np.full(chain.num_steps, NOT_ANNOTATED)
    for number in range(max(counts) + 1):
        given = as_evidence(told, chain.answers_per_step)
        if number in counts:
            yield read(given[None, None])[0, 0], told != NOT_ANNOTATED
        questions = np.flatnonzero(find_askable(told, chain))
        if number == max(counts) or not len(questions):
            continue
        chosen = questions[0]
        if way == "information":
            chosen = int(expected_information(read, given).argmax())
        elif way == "random":
            chosen = rng.choice(questions)
        steps = chain.questions[chosen]
        told[steps] = truth[steps]


@dataclasses.dataclass(frozen=True)
class AskedRow:
    """Figures of the test reports after some true answers."""

    network: str
    way: Asking
    number: int
    f1: Interval
    report_accuracy: Interval
    unasked_accuracy: float  # share of the questions that reports have and that are not given, answered right in whole


def measure_asking(
    networks: Mapping[str, tuple[ReportModel, Float[np.ndarray, "case step answer"]]],
    labels: Int[np.ndarray, "case step"],
    patients: npt.NDArray[np.str_],
    *,
    counts: Sequence[int] = (0, 1, 3, 10),
    num_resamples: int = 1000,
    seed: int = 0,
) -> list[AskedRow]:
    """Return the figures of each network and way to ask, after each number of true answers."""
    rows, count_list = list[AskedRow](), sorted(set(counts))
    for name, (model, logits) in networks.items():
        readers = (model.join(logits[case : case + 1]) for case in range(len(labels)))
        found = {way: list[list[tuple[np.ndarray, np.ndarray]]]() for way in WAYS}
        rng = np.random.default_rng(seed)
        for truth, read in zip(labels, readers, strict=True):
            for way in WAYS:
                found[way].append(list(ask_in_turn(way, read, truth, count_list, rng=rng)))
        for way, of_cases in found.items():
            for place, number in enumerate(count_list):
                read_then, told = (np.stack([case[place][part] for case in of_cases]) for part in (0, 1))
                answers = np.where(told, labels, model.answer(read_then, logits))  # given options stay as they are
                figures = _score(answers, labels, told, model.tree.chain, patients, num_resamples)
                rows.append(AskedRow(name, way, number, *figures))
    return rows


def _score(
    answers: Int[np.ndarray, "case step"],
    labels: Int[np.ndarray, "case step"],
    told: Bool[np.ndarray, "case step"],
    chain: Chain,
    patients: npt.NDArray[np.str_],
    num_resamples: int,
) -> tuple[Interval, Interval, float]:
    form = Form.of(chain)
    form = dataclasses.replace(form, parts={ALL: form.parts[ALL]})
    figures = resample(prepare_figures(form, form.fill(labels), form.fill(answers)), form, patients, num_resamples)[ALL]
    firsts = [question[0] for question in chain.questions]
    right = np.logical_and.reduceat(answers == labels, firsts, axis=1)
    counted = (labels[:, firsts] != NOT_ANNOTATED) & ~told[:, firsts]
    return figures["f1"], figures["report_accuracy"], float(right[counted].mean()) if counted.any() else np.nan


def format_asking(rows: Sequence[AskedRow]) -> list[str]:
    """Return the lines of a Markdown table in percent."""
    lines = [
        "| answers of | asked by | true answers | F1 | report accuracy | unasked questions right |",
        "|---" * 6 + "|",
    ]
    for row in rows:
        unasked = "-" if np.isnan(row.unasked_accuracy) else f"{100 * row.unasked_accuracy:.1f}"
        cells = [str(row.number), format_percent(row.f1), format_percent(row.report_accuracy), unasked]
        lines.append("| " + " | ".join([row.network, row.way, *cells]) + " |")
    return lines


_LEAST_SHOWN = 0.5  # probability from which a finding is listed
_MOST_QUESTIONS = 5


def describe_next(read: ReportReader, given: Float[np.ndarray, "step answer"]) -> list[str]:
    """Return lines of text: the findings of one case under given answers, and the questions worth asking."""
    steps, lines = read.tree.chain.steps, list[str]()
    for step, shares, told in zip(steps, read(given[None, None])[0, 0], given.sum(axis=1) > 0, strict=True):
        likely = int(shares.argmax())
        if shares[likely] >= _LEAST_SHOWN and likely != step.negative:
            lines.append(
                f"{step.name}: {step.options[likely]} ({100 * shares[likely]:.0f} %{', given' if told else ''})"
            )
    gains = expected_information(read, given)
    for question in np.argsort(-gains, kind="stable")[:_MOST_QUESTIONS]:
        if np.isfinite(gains[question]):
            step = steps[read.tree.chain.questions[question][0]]
            name = step.name.removesuffix(f": {step.choice}")
            lines.append(f"Worth asking: {name}. {step.question} ({gains[question]:.2f} nats)")
    return lines
