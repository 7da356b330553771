"""One joint distribution of a structured report: a network's reading times what answers go together.

Steps with the same `asked_if` are asked together. A step depends on the step that opens it and on one partner among
those asked with it. Partners are the pairs of most mutual information in training reports (Chow and Liu, 1968) that pay
for their parameters (BIC); topics have partners too, so that one area's answer moves another's. A step that is not
opened is "not asked", with probability one.

- Each step's own distribution Q_s is the network's P_s, shrunk towards the share in training labels:
  Q_s ~ P_s^w share^(1 - w), with one weight w for each part of the form. Without a network w is 0 (counting alone).
- Partners keep the odds ratios of training reports to the power of a coupling, and have the distributions Q (iterative
  proportional fitting). So without given answers an asked step has exactly Q_s.
- Given answers are virtual evidence, as in `joint`; "not asked" is as likely as the least likely answer.

Inference is exact: belief propagation in the tree, level by level.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float, Float64, Int

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.interventions import entropy
from stepcot_jax.evaluation.joint import as_evidence, condition_answers, count_answers, measure_information
from stepcot_jax.evaluation.predictions import refuse_other_chain
from stepcot_jax.evaluation.statistics import Interval
from stepcot_jax.evaluation.structured_reports import (
    ALL,
    Form,
    answer_tree,
    choose_threshold,
    format_percent,
    prepare_figures,
    resample,
)
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_json

_LEAST = 1e-9  # probability of an answer, so that no given answer is impossible
_TINY = np.finfo(np.float64).tiny
_SWEEPS = 60  # of iterative proportional fitting
_TOLERANCE = 1e-6

Pairs = Mapping[int, tuple[int, Float64[np.ndarray, "partner answer"]]]
"""By step its partner, and P(answer | asked, partner's answer)."""


@dataclasses.dataclass(frozen=True)
class ReportTree:
    """What answers of training reports go together: P(answer | asked) of each step, and pairs."""

    chain: Chain
    shares: Float64[np.ndarray, "step answer"]  # 0 beyond a step's own answers
    pairs: Pairs

    @functools.cached_property
    def parents(self) -> tuple[int | None, ...]:
        """For each step its partner, or else the step that opens it; None for a root."""
        opened_by = [step.asked_if[0] if step.asked_if else None for step in self.chain.steps]
        return tuple(self.pairs[step][0] if step in self.pairs else above for step, above in enumerate(opened_by))

    @functools.cached_property
    def levels(self) -> tuple[list[int], ...]:
        """Steps by their distance from a root, those of a parent next to each other; fewer if there is a circle."""
        children = dict[int | None, list[int]]()
        for step, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(step)
        levels = [children.get(None, [])]
        while levels[-1]:
            levels.append([child for parent in levels[-1] for child in children.get(parent, [])])
        return tuple(levels[:-1])

    def count(self, num_cases: int) -> Float64[np.ndarray, "case step answer"]:
        """Return the logarithms of the shares as logits of cases: counting alone."""
        return np.tile(np.log(np.maximum(self.shares, _TINY)), (num_cases, 1, 1))


def learn_report_tree(labels: Int[np.ndarray, "case step"], chain: Chain) -> ReportTree:
    """Learn from training labels what answers go together; a missing label enters no count.

    A step's share is smoothed towards that of all steps of its part with the same options.
    """
    sizes, kinds = chain.answers_per_step, [(step.part, step.options, bool(step.choice)) for step in chain.steps]
    pooled = dict[tuple[object, ...], np.ndarray]()
    together = dict[tuple[int, int] | None, list[int]]()
    for position, kind in enumerate(kinds):
        pooled[kind] = pooled.get(kind, np.array(1)) + count_answers(labels, sizes, [position])
        together.setdefault(chain.steps[position].asked_if, []).append(position)
    shares = np.zeros((chain.num_steps, max(sizes)))
    for position, kind in enumerate(kinds):
        like = pooled[kind] / pooled[kind].sum()
        shares[position, : sizes[position]] = condition_answers(labels, sizes, [position], like)
    pairs = {}
    for group in together.values():
        for partner, step in _pair(labels, sizes, group):
            table = condition_answers(labels, sizes, [partner, step], shares[step, : sizes[step]])
            pairs[step] = (partner, table)
    return ReportTree(chain, shares, pairs)


def _pair(labels: Int[np.ndarray, "case step"], sizes: tuple[int, ...], group: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (partner, step) of the forest of most information among steps asked together (Prim's algorithm)."""
    worth = dict[tuple[int, int], float]()
    for one, other in itertools.combinations(group, 2):
        counts = count_answers(labels, sizes, [one, other])
        price = (sizes[one] - 1) * (sizes[other] - 1) * np.log(max(counts.sum(), 1)) / 2
        worth[one, other] = worth[other, one] = measure_information(counts[None]) - price
    inside, outside = group[:1], group[1:]
    while outside:
        best = max(itertools.product(inside, outside), key=lambda pair: worth[pair])
        if worth[best] > 0:
            yield best
        inside.append(best[1])
        outside.remove(best[1])


@dataclasses.dataclass(frozen=True)
class ReportModel:
    """What answers go together, and how much a network's reading counts."""

    tree: ReportTree
    weights: Mapping[str, float]  # w of the module's formula, by part
    coupling: float = 1.0
    threshold: float = 0.5  # of `answer_tree`, chosen on validation

    def calibrate(self, logits: Float[np.ndarray, "case step answer"]) -> Float64[np.ndarray, "case step answer"]:
        """Return each step's own distribution Q; 0 beyond its own answers."""
        shares = self.tree.shares
        weights = np.array([self.weights[step.part] for step in self.tree.chain.steps])[:, None]
        own = _log_softmax(logits[:, :, : shares.shape[1]], shares > 0)
        own = weights * own + (1 - weights) * np.log(np.where(shares > 0, shares, 1.0))
        return np.where(shares > 0, np.maximum(np.exp(_log_softmax(own, shares > 0)), _LEAST), 0.0)

    def join(self, logits: Float[np.ndarray, "case step answer"]) -> "ReportReader":
        """Return the reader of a few cases from logits of a pass without given answers; it takes 2 MB a case."""
        own, tree = self.calibrate(logits), self.tree
        width, steps = own.shape[2], tree.chain.steps
        table = np.zeros((*own.shape[:2], width + 1, width + 1))
        table[..., width] = 1  # not asked, unless opened
        alone = [step for step in range(len(steps)) if step not in tree.pairs]
        opens = [0 if key is None else key[1] for key in (steps[step].asked_if for step in alone)]
        table[:, alone, opens, width] = 0
        table[:, alone, opens, :width] = own[:, alone]
        if tree.pairs:
            paired, partners = list(tree.pairs), [partner for partner, _ in tree.pairs.values()]
            odds = np.zeros((len(paired), width, width))
            for place, (partner, rows) in enumerate(tree.pairs.values()):
                shares = tree.shares[partner, : len(rows), None]
                odds[place, : rows.shape[0], : rows.shape[1]] = (shares * rows) ** self.coupling
            table[:, paired, :width, width] = 0
            table[:, paired, :width, :width] = _fit_pairs(odds, own[:, partners], own[:, paired])
        return ReportReader(tree, table)

    def answer(
        self, read: Float[np.ndarray, "case step answer"], logits: Float[np.ndarray, "case step answer"]
    ) -> Int[np.ndarray, "case step"]:
        """Return the answers of a reading: the network's own, moved by what given answers changed."""
        own = _log_softmax(logits[:, :, : read.shape[2]], self.tree.shares > 0)
        moved = _as_logits(read) - np.log(np.maximum(self.calibrate(logits), _TINY))
        return answer_tree(own + moved, self.tree.chain, threshold=self.threshold)


def _log_softmax(logits: Float[np.ndarray, "case step answer"], own: np.ndarray) -> Float64[np.ndarray, "..."]:
    logs = np.where(own, logits.astype(np.float64), -np.inf)
    logs -= logs.max(axis=-1, keepdims=True)
    return np.where(own, logs - np.log(np.exp(logs).sum(axis=-1, keepdims=True)), 0.0)


def _fit_pairs(
    odds: Float64[np.ndarray, "pair partner answer"],
    of_partner: Float64[np.ndarray, "case pair partner"],
    own: Float64[np.ndarray, "case pair answer"],
) -> Float64[np.ndarray, "case pair partner answer"]:
    """Return P(answer | partner's answer) with given marginals and odds ratios."""
    rows, columns = (shares.transpose(1, 2, 0) for shares in (of_partner, own))  # [pair, answer, case]
    column = np.ones_like(columns)
    for _ in range(_SWEEPS):
        row = rows / np.maximum(odds @ column, _TINY)
        column = columns / np.maximum(odds.swapaxes(1, 2) @ row, _TINY)
    table = odds * column.transpose(2, 0, 1)[:, :, None]
    return table / np.maximum(table.sum(axis=-1, keepdims=True), _TINY)


class ReportReader:
    """Reads cases, which a network has read, under given answers.

    `transitions` is P(state | parent's state); the last state is "not asked", the parent of a root has state 0.
    """

    def __init__(self, tree: ReportTree, transitions: Float64[np.ndarray, "case step parent state"]) -> None:
        self.tree, self._order = tree, np.concatenate(tree.levels).astype(int)
        self._tables = transitions[:, self._order]
        place, start = np.argsort(self._order), len(tree.levels[0])
        self._levels = list[tuple[slice, Int[np.ndarray, "step"], Int[np.ndarray, "parent"]]]()
        for level in tree.levels[1:]:
            parents = place[np.array([tree.parents[step] for step in level], int)]
            self._levels.append(
                (slice(start, start + len(level)), parents, np.flatnonzero(np.diff(parents, prepend=-1)))
            )
            start += len(level)

    def __call__(
        self, given: Float[np.ndarray, "variant case step answer"]
    ) -> Float64[np.ndarray, "variant case step answer"]:
        """Return P(asked, answer) of each step given all answers; the rest up to 1 is "not asked"."""
        given = given.astype(np.float64)
        least = np.where(self.tree.shares > 0, given, np.inf).min(axis=-1, keepdims=True)
        evidence = np.where(given.any(axis=-1, keepdims=True), np.concatenate([given, least], axis=-1), 1.0)
        read = self._infer(evidence[:, :, self._order].transpose(1, 2, 0, 3).copy())
        found = np.zeros(given.shape)
        found[:, :, self._order] = read.transpose(2, 0, 1, 3)[..., :-1]
        return found

    def _infer(
        self, beliefs: Float64[np.ndarray, "case step variant state"]
    ) -> Float64[np.ndarray, "case step variant state"]:
        """Return each state's probability: messages from the leaves to the roots, and distributions back."""
        messages, read = np.empty_like(beliefs), np.empty_like(beliefs)
        for level, parents, firsts in reversed(self._levels):
            sent = beliefs[:, level] @ self._tables[:, level].swapaxes(-1, -2)
            messages[:, level] = sent / np.maximum(sent.max(axis=-1, keepdims=True), _TINY)
            beliefs[:, parents[firsts]] *= np.multiply.reduceat(messages[:, level], firsts, axis=1)
        roots = slice(0, len(self.tree.levels[0]))
        read[:, roots] = self._tables[:, roots, :1] * beliefs[:, roots]
        if not read[:, roots].any(axis=-1).all():
            raise BadInput("given answers: one closes a question that another one answers")
        read[:, roots] /= read[:, roots].sum(axis=-1, keepdims=True)
        for level, parents, _ in self._levels:
            above = read[:, parents] / np.maximum(messages[:, level], _TINY)
            found = above @ self._tables[:, level] * beliefs[:, level]
            read[:, level] = found / np.maximum(found.sum(axis=-1, keepdims=True), _TINY)
        return read


def _as_logits(read: Float64[np.ndarray, "... answer"]) -> Float64[np.ndarray, "... answer"]:
    """Return log P(answer | asked) of a reading; equal for a step that cannot be asked."""
    share = read.sum(axis=-1, keepdims=True)
    return np.log(np.maximum(np.where(share > _TINY, read / np.maximum(share, _TINY), 1.0), _TINY))


# Fit what a network's reading counts on validation reports.


_MOST_FITTED, _NUM_DRAWS, _MOST_GIVEN = 200, 8, 10  # reports; draws of given answers for each; answers of a draw
_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
_COUPLINGS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)
_BATCH = 16  # reports that are read at once


def fit_report_model(
    tree: ReportTree, logits: Float[np.ndarray, "case step answer"] | None, labels: Int[np.ndarray, "case step"]
) -> ReportModel:
    """Fit weights, coupling and threshold on validation reports; of counting alone without logits.

    Weights maximise the log-probability of asked steps without given answers, the coupling that of all steps that are
    not given, with one to ten answers given in random order; the threshold maximises F1.
    """
    rng, parts = np.random.default_rng(0), [step.part for step in tree.chain.steps]
    chosen = np.sort(rng.permutation(len(labels))[:_MOST_FITTED])
    labels, weights = labels[chosen], dict.fromkeys(parts, 0.0)
    if logits is None:
        logits = tree.count(len(labels))
    else:
        logits, scores = logits[chosen], []
        for weight in _WEIGHTS:
            own = _choose(ReportModel(tree, dict.fromkeys(parts, weight)).calibrate(logits), labels)
            scores.append((np.log(own) * (labels != NOT_ANNOTATED)).sum(axis=0))
        for part in weights:
            of_part = np.stack(scores)[:, [name == part for name in parts]].sum(axis=1)
            weights[part] = _WEIGHTS[int(of_part.argmax())]
    told = np.stack([draw_told(labels, tree.chain, rng=rng) for _ in range(_NUM_DRAWS)])
    tried = [ReportModel(tree, weights, coupling) for coupling in _COUPLINGS]
    model = max(tried, key=lambda each: score_given(each, logits, labels, told))
    return dataclasses.replace(model, threshold=choose_threshold(logits, labels, tree.chain))


def _choose(
    read: Float64[np.ndarray, "... step answer"], labels: Int[np.ndarray, "... step"]
) -> Float64[np.ndarray, "... step"]:
    return np.maximum(np.take_along_axis(read, np.maximum(labels, 0)[..., None], axis=-1)[..., 0], _LEAST)


def find_askable(told: Int[np.ndarray, "step"], chain: Chain) -> Bool[np.ndarray, "question"]:
    """Return which questions can be asked: not told yet, and always asked or opened by a told answer."""
    firsts = [question[0] for question in chain.questions]
    opens = [chain.steps[first].asked_if for first in firsts]
    return np.array([key is None or told[key[0]] == key[1] for key in opens]) & (told[firsts] == NOT_ANNOTATED)


def draw_told(
    labels: Int[np.ndarray, "case step"], chain: Chain, *, rng: np.random.Generator
) -> Int[np.ndarray, "case step"]:
    """Return the labels of one to ten questions of each report, drawn one after another among the askable ones."""
    told = np.full_like(labels, NOT_ANNOTATED)
    for truth, of_case in zip(labels, told, strict=True):
        for _ in range(rng.integers(1, _MOST_GIVEN + 1)):
            questions = np.flatnonzero(find_askable(of_case, chain))
            if len(questions):
                question = chain.questions[rng.choice(questions)]
                of_case[question] = truth[question]
    return told


def score_given(
    model: ReportModel,
    logits: Float[np.ndarray, "case step answer"],
    labels: Int[np.ndarray, "case step"],
    told: Int[np.ndarray, "draw case step"],
) -> float:
    """Return the log-probability of what was not told, "not asked" included, summed over steps; mean over reports."""
    total = 0.0
    for start in range(0, len(labels), _BATCH):
        cases = slice(start, start + _BATCH)
        read = model.join(logits[cases])(as_evidence(told[:, cases], model.tree.chain.answers_per_step))
        truth = np.broadcast_to(labels[cases], read.shape[:3])
        closed = np.maximum(1 - read.sum(axis=-1), _LEAST)
        logs = np.log(np.where(truth == NOT_ANNOTATED, closed, _choose(read, truth)))
        total += float((logs * (told[:, cases] == NOT_ANNOTATED)).sum())
    return total / max(told.shape[0] * len(labels), 1)


# Which question is worth asking next, and what true answers to some questions are worth.


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
) -> list[AskedRow]:
    """Return the figures of each network and way to ask, after each number of true answers."""
    rows, count_list = list[AskedRow](), sorted(set(counts))
    for name, (model, logits) in networks.items():
        readers = (model.join(logits[case : case + 1]) for case in range(len(labels)))
        found = {way: list[list[tuple[np.ndarray, np.ndarray]]]() for way in WAYS}
        rng = np.random.default_rng(0)
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


# Joint models on disk, as JSON: one tree, and what each network's reading counts; `COUNTING` has no network.


COUNTING = "counting"
_LAYOUT = "stepcot_jax joint model of reports 1"
_MAX_BYTES = 2**26

_Share = Annotated[float, msgspec.Meta(ge=1e-30, le=1)]  # as in `joint_files`
_Weight = Annotated[float, msgspec.Meta(ge=0, le=2)]


class _FileStep(msgspec.Struct, frozen=True):
    name: str
    options: tuple[str, ...]
    shares: list[_Share]
    partner: int | None = None
    table: list[list[_Share]] = []


class _FileModel(msgspec.Struct, frozen=True):
    weights: dict[str, _Weight]
    coupling: _Weight
    threshold: Annotated[float, msgspec.Meta(gt=0, le=1)]


class _File(msgspec.Struct, frozen=True):
    layout: str
    steps: list[_FileStep]
    models: dict[str, _FileModel]


def write_report_models(path: str | os.PathLike[str], models: Mapping[str, ReportModel]) -> None:
    """Write the joint models of a run, which share their tree, atomically."""
    tree = next(iter(models.values())).tree
    steps = [
        _FileStep(step.name, step.options, shares[: step.num_answers].tolist())
        for step, shares in zip(tree.chain.steps, tree.shares, strict=True)
    ]
    for step, (partner, table) in tree.pairs.items():
        steps[step] = msgspec.structs.replace(steps[step], partner=partner, table=table.tolist())
    stored = {name: _FileModel(dict(each.weights), each.coupling, each.threshold) for name, each in models.items()}
    write_json(path, msgspec.to_builtins(_File(_LAYOUT, steps, stored)))


def read_report_models(path: str | os.PathLike[str], chain: Chain) -> dict[str, ReportModel]:
    """Read the joint models of a run."""
    file = read_json(path, _File, accepted="expected the joint.json of a run on reports", max_bytes=_MAX_BYTES)
    if file.layout != _LAYOUT:
        raise BadInput(f"{path}, 'layout': {file.layout[:80]!r} is not {_LAYOUT!r}")
    described = [(step.name, step.options) for step in file.steps]
    refuse_other_chain(f"{path}: joint model of another chain", described, chain)
    shares, pairs = np.zeros((chain.num_steps, max(chain.answers_per_step))), {}
    for position, (stored, step) in enumerate(zip(file.steps, chain.steps, strict=True)):
        where, partner = f"{path}, {step.name[:80]!r}", stored.partner
        shares[position, : step.num_answers] = _read_rows(where, "shares", [stored.shares], (1, step.num_answers))[0]
        if partner is not None:
            if not 0 <= partner < chain.num_steps or chain.steps[partner].asked_if != step.asked_if:
                raise BadInput(f"{where}, 'partner': {partner} is no step that is asked together with this one")
            shape = (chain.steps[partner].num_answers, step.num_answers)
            pairs[position] = (partner, _read_rows(where, "table", stored.table, shape))
    tree = ReportTree(chain, shares, pairs)
    if sum(map(len, tree.levels)) < chain.num_steps:
        raise BadInput(f"{path}, 'partner': steps are partners in a circle; expected a forest")
    for name, model in file.models.items():
        if missing := {step.part for step in chain.steps} - model.weights.keys():
            raise BadInput(f"{path}, {name[:80]!r}, 'weights': none for {sorted(missing)[0]!r}")
    return {name: ReportModel(tree, each.weights, each.coupling, each.threshold) for name, each in file.models.items()}


def _read_rows(where: str, field: str, rows: list[list[float]], shape: tuple[int, int]) -> Float64[np.ndarray, "..."]:
    if len(rows) != shape[0] or any(len(row) != shape[1] or abs(sum(row) - 1) > _TOLERANCE for row in rows):
        raise BadInput(f"{where}, {field!r}: expected {shape[0]} times {shape[1]} shares that sum to 1")
    return np.array(rows)
