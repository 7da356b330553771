"""One joint distribution of a structured report: a network's reading times what answers go together.

Steps with the same `asked_if` are asked together. A step depends on the step that opens it and on one partner among
those asked with it: P(report) = prod_s P(a_s | opened, partner's answer), over the steps that are asked. Partners are
the pairs of most mutual information (Chow and Liu, 1968) that pay for their parameters (BIC), topics included, so that
one area's answer moves another's. A step that is not opened is "not asked", with probability one.

- Each step's own distribution Q_s is the network's P_s, shrunk towards the share in training labels:
  Q_s ~ P_s^w share^(1 - w), with one weight w for each part of the form. Without a network w is 0 (counting alone).
- Pairs keep the odds ratios of training reports to the power of a coupling, and have the distributions Q (iterative
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
from jaxtyping import Float, Float64, Int

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.joint import as_evidence, count_answers, measure_information
from stepcot_jax.evaluation.predictions import describe_difference
from stepcot_jax.evaluation.structured_reports import choose_threshold
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_json

_SMOOTHING = 2.0  # cases that each distribution has in addition, spread as those of like steps
_LEAST = 1e-9  # probability of an answer, so that no given answer is impossible
_TINY = np.finfo(np.float64).tiny
_SWEEPS = 60  # of iterative proportional fitting
_TOLERANCE = 1e-6

PARTNERS = ("none", "topics", "all")
Partners = Literal["none", "topics", "all"]


@dataclasses.dataclass(frozen=True)
class ReportTree:
    """What answers of training reports go together.

    Attributes:
      partners: for each step a step with the same `asked_if`, or None.
      shares: float64 [step, answer], P(answer | asked); 0 beyond a step's own answers.
      tables: for each step float64 [partner's answer, answer], P(answer | asked, partner's answer); None without one.
    """

    chain: Chain
    partners: tuple[int | None, ...]
    shares: Float64[np.ndarray, "step answer"]
    tables: tuple[Float64[np.ndarray, "partner answer"] | None, ...]

    @functools.cached_property
    def parents(self) -> tuple[int | None, ...]:
        """For each step the step that its table is for: its partner, or else the one that opens it."""
        opened_by = [None if step.asked_if is None else step.asked_if[0] for step in self.chain.steps]
        return tuple(
            above if partner is None else partner for partner, above in zip(self.partners, opened_by, strict=True)
        )

    @functools.cached_property
    def levels(self) -> tuple[Int[np.ndarray, "step"], ...]:
        """Steps by their distance from a root, those of a parent next to each other; fewer if there is a circle."""
        children = dict[int | None, list[int]]()
        for step, parent in enumerate(self.parents):
            children.setdefault(parent, []).append(step)
        levels = [children.get(None, [])]
        while levels[-1]:
            levels.append([child for parent in levels[-1] for child in children.get(parent, [])])
        return tuple(np.array(level) for level in levels[:-1])

    def score(self, labels: Int[np.ndarray, "case step"]) -> float:
        """Return the mean logarithm of P(report) of whole reports; closed steps have no label."""
        total = np.zeros(len(labels))
        for step, (partner, table) in enumerate(zip(self.partners, self.tables, strict=True)):
            asked = labels[:, step] != NOT_ANNOTATED
            own = labels[asked, step]
            total[asked] += np.log(self.shares[step, own] if table is None else table[labels[asked, partner], own])
        return float(total.mean())


def learn_report_tree(labels: Int[np.ndarray, "case step"], chain: Chain, *, partners: Partners = "all") -> ReportTree:
    """Learn from training labels what answers go together; a missing label enters no count."""
    sizes, kinds = chain.answers_per_step, [(step.part, step.options, bool(step.choice)) for step in chain.steps]
    pooled = dict[tuple[object, ...], Float64[np.ndarray, "answer"]]()
    counts = [count_answers(labels, sizes, [step]) for step in range(chain.num_steps)]
    for kind, own in zip(kinds, counts, strict=True):
        pooled[kind] = pooled.get(kind, np.ones(len(own))) + own
    shares = np.zeros((chain.num_steps, max(sizes)))
    for step, (kind, own) in enumerate(zip(kinds, counts, strict=True)):
        shares[step, : len(own)] = (own + _SMOOTHING * pooled[kind] / pooled[kind].sum()) / (own.sum() + _SMOOTHING)
    together = dict[tuple[int, int] | None, list[int]]()
    for position, step in enumerate(chain.steps):
        together.setdefault(step.asked_if, []).append(position)
    chosen, tables = list[int | None]([None] * chain.num_steps), list[Float64[np.ndarray, "partner answer"] | None]()
    for asked_if, group in together.items():
        if partners == "all" or (partners == "topics" and asked_if is None):
            for partner, step in _pair(labels, sizes, group):
                chosen[step] = partner
    for step, partner in enumerate(chosen):
        if partner is None:
            tables.append(None)
            continue
        pairs = count_answers(labels, sizes, [partner, step])
        base = _SMOOTHING * shares[step, : sizes[step]]
        tables.append((pairs + base) / (pairs.sum(axis=1, keepdims=True) + _SMOOTHING))
    return ReportTree(chain, tuple(chosen), shares, tuple(tables))


def _pair(labels: Int[np.ndarray, "case step"], sizes: Sequence[int], group: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (partner, step) of the forest of most information among steps asked together (Prim's algorithm)."""
    worth = dict[tuple[int, int], float]()
    for pair in itertools.combinations(group, 2):
        counts = count_answers(labels, sizes, list(pair))
        parameters = (counts.shape[0] - 1) * (counts.shape[1] - 1)
        price = parameters * np.log(max(counts.sum(), 1)) / 2
        worth[pair] = worth[pair[::-1]] = measure_information(counts[None]) - price
    inside, outside = group[:1], group[1:]
    while outside:
        best = max(itertools.product(inside, outside), key=lambda pair: worth[pair])
        if worth[best] > 0:
            yield best
        inside.append(best[1])
        outside.remove(best[1])


@dataclasses.dataclass(frozen=True)
class ReportModel:
    """What answers go together, and how much a network's reading counts.

    Attributes:
      weights: w of the module's formula, by part.
      couplings: powers of the odds ratios of topics (steps that are always asked), and of other steps.
      threshold: of `answer_tree`, chosen on validation.
    """

    tree: ReportTree
    weights: Mapping[str, float]
    couplings: tuple[float, float] = (1.0, 1.0)
    threshold: float = 0.5

    def calibrate(self, logits: Float[np.ndarray, "case step answer"]) -> Float64[np.ndarray, "case step answer"]:
        """Return each step's own distribution Q; 0 beyond its own answers."""
        shares = self.tree.shares
        own, width = shares > 0, shares.shape[1]
        weights = np.array([self.weights[step.part] for step in self.tree.chain.steps])[:, None]
        logs = weights * _log_softmax(logits[:, :, :width], own)
        logs += (1 - weights) * np.log(np.where(own, shares, 1.0))
        return np.where(own, np.maximum(np.exp(_log_softmax(logs, own)), _LEAST), 0.0)

    def join(self, logits: Float[np.ndarray, "case step answer"]) -> "ReportReader":
        """Return the reader of a few cases from logits of a pass without given answers; 2 MB a case."""
        return ReportReader(self.tree, _make_transitions(self.tree, self.calibrate(logits), self.couplings))


def _log_softmax(logits: Float[np.ndarray, "case step answer"], own: np.ndarray) -> Float64[np.ndarray, "..."]:
    logs = np.where(own, logits.astype(np.float64), -np.inf)
    logs = logs - logs.max(axis=-1, keepdims=True)
    return np.where(own, logs - np.log(np.exp(logs).sum(axis=-1, keepdims=True)), 0.0)


def _make_transitions(
    tree: ReportTree, own: Float64[np.ndarray, "case step answer"], couplings: tuple[float, float]
) -> Float64[np.ndarray, "case step parent state"]:
    """Return P(state | parent's state) of each step; the last state is "not asked", a root's parent has state 0."""
    (num_cases, num_steps, width), steps = own.shape, tree.chain.steps
    table = np.zeros((num_cases, num_steps, width + 1, width + 1))
    paired = np.array([step for step in range(num_steps) if tree.partners[step] is not None], int)
    alone = np.setdiff1d(np.arange(num_steps), paired)
    opens = [0 if asked_if is None else asked_if[1] for asked_if in (steps[step].asked_if for step in alone)]
    table[:, :, :, width] = 1
    table[:, paired, :width, width] = 0
    table[:, alone, opens, width] = 0
    table[:, alone, opens, :width] = own[:, alone]
    if len(paired):
        partners = np.array([tree.partners[step] for step in paired], int)
        pairs = np.zeros((len(paired), width, width))
        for place, step in enumerate(paired):
            rows = tree.tables[step]
            pairs[place, : rows.shape[0], : rows.shape[1]] = rows
            pairs[place] *= tree.shares[partners[place], :, None]
        power = np.where([steps[step].asked_if is None for step in paired], *couplings)
        pairs = np.where(pairs > 0, pairs, 1.0) ** power[:, None, None] * (pairs > 0)
        table[:, paired, :width, :width] = _fit_pairs(pairs, own[:, partners], own[:, paired])
    return table


def _fit_pairs(
    pairs: Float64[np.ndarray, "pair partner answer"],
    of_partner: Float64[np.ndarray, "case pair partner"],
    own: Float64[np.ndarray, "case pair answer"],
) -> Float64[np.ndarray, "case pair partner answer"]:
    """Return P(answer | partner's answer) with given marginals and the pairs' odds ratios."""
    rows, columns = (shares.transpose(1, 2, 0) for shares in (of_partner, own))  # [pair, answer, case]
    column = np.ones_like(columns)
    for _ in range(_SWEEPS):
        row = rows / np.maximum(pairs @ column, _TINY)
        column = columns / np.maximum(pairs.swapaxes(1, 2) @ row, _TINY)
    table = pairs * column.transpose(2, 0, 1)[:, :, None]
    return table / np.maximum(table.sum(axis=-1, keepdims=True), _TINY)


class ReportReader:
    """Reads cases, which a network has read, under given answers."""

    def __init__(self, tree: ReportTree, transitions: Float64[np.ndarray, "case step parent state"]) -> None:
        self.tree = tree
        self._order = np.concatenate(tree.levels)
        self._transitions = transitions[:, self._order]
        place, start = np.argsort(self._order), len(tree.levels[0])
        self._levels = list[tuple[slice, Int[np.ndarray, "step"], Int[np.ndarray, "parent"]]]()
        for level in tree.levels[1:]:
            parents = place[[tree.parents[step] for step in level]]
            firsts = np.flatnonzero(np.diff(parents, prepend=-1))
            self._levels.append((slice(start, start + len(level)), parents, firsts))
            start += len(level)

    def __call__(
        self, given: Float[np.ndarray, "variant case step answer"]
    ) -> Float64[np.ndarray, "variant case step answer"]:
        """Return P(asked, answer) of each step given all answers; the rest up to 1 is "not asked"."""
        own = self.tree.shares > 0
        told = given[..., : own.shape[1]].astype(np.float64)
        least = np.where(own, told, np.inf).min(axis=-1, keepdims=True)
        evidence = np.where(told.any(axis=-1, keepdims=True), np.concatenate([told, least], axis=-1), 1.0)
        read = self._infer(evidence[:, :, self._order].transpose(1, 2, 0, 3))
        found = np.zeros(given.shape)
        found[:, :, self._order, : own.shape[1]] = read.transpose(2, 0, 1, 3)[..., :-1]
        return found

    def _infer(
        self, beliefs: Float64[np.ndarray, "case step variant state"]
    ) -> Float64[np.ndarray, "case step variant state"]:
        """Return each state's probability: messages from the leaves to the roots, and distributions back."""
        beliefs, tables = beliefs.copy(), self._transitions
        messages, read = np.empty_like(beliefs), np.empty_like(beliefs)
        for level, parents, firsts in reversed(self._levels):
            sent = beliefs[:, level] @ tables[:, level].swapaxes(-1, -2)
            sent /= np.maximum(sent.max(axis=-1, keepdims=True), _TINY)
            messages[:, level] = sent
            beliefs[:, parents[firsts]] *= np.multiply.reduceat(sent, firsts, axis=1)
        roots = slice(0, len(self.tree.levels[0]))
        read[:, roots] = tables[:, roots, :1] * beliefs[:, roots]
        if not (read[:, roots].sum(axis=-1) > 0).all():
            raise BadInput("given answers: one closes a question that another one answers")
        _normalise(read[:, roots])
        for level, parents, _ in self._levels:
            above = read[:, parents] / np.maximum(messages[:, level], _TINY)
            read[:, level] = above @ tables[:, level] * beliefs[:, level]
            _normalise(read[:, level])
        return read


def _normalise(weights: Float64[np.ndarray, "..."]) -> None:
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), _TINY)


def as_logits(read: Float64[np.ndarray, "... answer"]) -> Float64[np.ndarray, "... answer"]:
    """Return log P(answer | asked) of a reading, for `answer_tree`; equal for a step that cannot be asked."""
    share = read.sum(axis=-1, keepdims=True)
    return np.log(np.maximum(np.where(share > _TINY, read / np.maximum(share, _TINY), 1.0), _TINY))


# Fit what a network's reading counts on validation reports.


_MOST_FITTED = 200  # validation reports
_NUM_DRAWS = 2  # of given answers, for each report
_MOST_GIVEN = 10
_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5)
_COUPLINGS = (1.0, 0.0, 0.25, 0.5, 0.75, 1.25)
_BATCH = 16  # reports that are read at once


def fit_report_model(
    tree: ReportTree,
    logits: Float[np.ndarray, "case step answer"] | None,
    labels: Int[np.ndarray, "case step"],
    *,
    seed: int = 0,
) -> ReportModel:
    """Fit weights, couplings and threshold on validation reports; of counting alone without logits.

    Weights maximise the mean log-probability of asked steps without given answers, couplings that of all steps that are
    not given, "not asked" included, with one to ten answers given in random order; the threshold maximises F1.
    """
    chain, rng = tree.chain, np.random.default_rng(seed)
    if len(labels) > _MOST_FITTED:
        chosen = np.sort(rng.permutation(len(labels))[:_MOST_FITTED])
        labels, logits = labels[chosen], None if logits is None else logits[chosen]
    model = ReportModel(tree, {step.part: 0.0 for step in chain.steps})
    if logits is None:
        logits = np.zeros((*labels.shape, tree.shares.shape[1]))
    else:
        model = dataclasses.replace(model, weights=_fit_weights(model, logits, labels))
    told = np.stack([draw_told(labels, chain, rng=rng, most=_MOST_GIVEN) for _ in range(_NUM_DRAWS)])
    for kind in (0, 1):
        tried = [
            dataclasses.replace(model, couplings=(*model.couplings[:kind], value, *model.couplings[kind + 1 :]))
            for value in _COUPLINGS
        ]
        model = max(tried, key=lambda each: score_given(each, logits, labels, told))
    threshold = choose_threshold(as_logits(model.calibrate(logits)), labels, chain)
    return dataclasses.replace(model, threshold=threshold)


def _fit_weights(
    model: ReportModel, logits: Float[np.ndarray, "case step answer"], labels: Int[np.ndarray, "case step"]
) -> dict[str, float]:
    parts, known = np.array([step.part for step in model.tree.chain.steps]), labels != NOT_ANNOTATED
    scores = []
    for weight in _WEIGHTS:
        own = dataclasses.replace(model, weights=dict.fromkeys(model.weights, weight)).calibrate(logits)
        chosen = np.take_along_axis(own, np.maximum(labels, 0)[..., None], axis=2)[..., 0]
        scores.append((np.log(np.maximum(chosen, _LEAST)) * known).sum(axis=0))
    totals = {part: np.stack(scores)[:, parts == part].sum(axis=1) for part in model.weights}
    return {part: _WEIGHTS[int(of_weights.argmax())] for part, of_weights in totals.items()}


def find_askable(told: Int[np.ndarray, "... step"], chain: Chain) -> np.ndarray:
    """Return which questions [..., question] can be asked: not told yet, and always asked or opened by a told one."""
    firsts = [question[0] for question in chain.questions]
    opens = [chain.steps[first].asked_if for first in firsts]
    opened = [np.ones(told.shape[:-1], bool) if key is None else told[..., key[0]] == key[1] for key in opens]
    return np.stack(opened, axis=-1) & (told[..., firsts] == NOT_ANNOTATED)


def draw_told(
    labels: Int[np.ndarray, "case step"], chain: Chain, *, rng: np.random.Generator, most: int
) -> Int[np.ndarray, "case step"]:
    """Return the labels of one to `most` questions of each report, drawn one after another among the askable ones."""
    told = np.full_like(labels, NOT_ANNOTATED)
    for truth, of_case in zip(labels, told, strict=True):
        for _ in range(rng.integers(1, most + 1)):
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
    total, sizes = 0.0, model.tree.chain.answers_per_step
    for start in range(0, len(labels), _BATCH):
        cases = slice(start, start + _BATCH)
        read = model.join(logits[cases])(as_evidence(told[:, cases], sizes))
        truth = np.broadcast_to(labels[cases], read.shape[:3])
        asked = np.take_along_axis(read, np.maximum(truth, 0)[..., None], axis=3)[..., 0]
        right = np.where(truth == NOT_ANNOTATED, 1 - read.sum(axis=-1), asked)
        total += float((np.log(np.maximum(right, _LEAST)) * (told[:, cases] == NOT_ANNOTATED)).sum())
    return total / max(told.shape[0] * len(labels), 1)


# Joint models on disk, as JSON: one tree, and what each network's reading counts; `COUNTING` has no network.


COUNTING = "counting"
_LAYOUT = "stepcot_jax joint model of reports 1"
_MAX_BYTES = 2**26

_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
_Weight = Annotated[float, msgspec.Meta(ge=0, le=2)]


class _FileStep(msgspec.Struct, frozen=True):
    name: str
    options: tuple[str, ...]
    shares: list[_Share]
    partner: int | None = None
    table: list[list[_Share]] = []


class _FileModel(msgspec.Struct, frozen=True):
    weights: dict[str, _Weight]
    couplings: tuple[_Weight, _Weight]
    threshold: Annotated[float, msgspec.Meta(gt=0, le=1)]


class _File(msgspec.Struct, frozen=True):
    layout: str
    steps: list[_FileStep]
    models: dict[str, _FileModel]


def write_report_models(path: str | os.PathLike[str], models: Mapping[str, ReportModel]) -> None:
    """Write the joint models of a run, which share their tree, atomically."""
    tree = next(iter(models.values())).tree
    steps = []
    for step, shares, partner, table in zip(tree.chain.steps, tree.shares, tree.partners, tree.tables, strict=True):
        own = {"name": step.name, "options": list(step.options), "shares": shares[: step.num_answers].tolist()}
        steps.append(own if table is None else own | {"partner": partner, "table": table.tolist()})
    stored = {
        name: {"weights": dict(model.weights), "couplings": list(model.couplings), "threshold": model.threshold}
        for name, model in models.items()
    }
    write_json(path, {"layout": _LAYOUT, "steps": steps, "models": stored})


def read_report_models(path: str | os.PathLike[str], chain: Chain) -> dict[str, ReportModel]:
    """Read the joint models of a run."""
    file = read_json(path, _File, accepted="expected the joint.json of a run on reports", max_bytes=_MAX_BYTES)
    if file.layout != _LAYOUT:
        raise BadInput(f"{path}, 'layout': {file.layout[:80]!r} is not {_LAYOUT!r}")
    difference = describe_difference([(step.name, step.options) for step in file.steps], chain)
    if difference:
        raise BadInput(f"{path}: joint model of another chain: {difference}")
    shares = np.zeros((chain.num_steps, max(chain.answers_per_step)))
    tables = list[Float64[np.ndarray, "partner answer"] | None]()
    for position, (stored, step) in enumerate(zip(file.steps, chain.steps, strict=True)):
        where = f"{path}, {step.name[:80]!r}"
        shares[position, : step.num_answers] = _read_rows(where, "shares", [stored.shares], (1, step.num_answers))[0]
        if stored.partner is None:
            tables.append(None)
            continue
        if not 0 <= stored.partner < chain.num_steps or chain.steps[stored.partner].asked_if != step.asked_if:
            raise BadInput(f"{where}, 'partner': {stored.partner} is no step that is asked together with this one")
        shape = (chain.steps[stored.partner].num_answers, step.num_answers)
        tables.append(_read_rows(where, "table", stored.table, shape))
    tree = ReportTree(chain, tuple(step.partner for step in file.steps), shares, tuple(tables))
    if sum(map(len, tree.levels)) < chain.num_steps:
        raise BadInput(f"{path}, 'partner': steps are partners in a circle; expected a forest")
    models = {}
    for name, model in file.models.items():
        if missing := {step.part for step in chain.steps} - model.weights.keys():
            raise BadInput(f"{path}, {name[:80]!r}, 'weights': none for {sorted(missing)[0]!r}")
        models[name] = ReportModel(tree, model.weights, model.couplings, model.threshold)
    return models


def _read_rows(where: str, field: str, rows: list[list[float]], shape: tuple[int, int]) -> Float64[np.ndarray, "..."]:
    good = len(rows) == shape[0] and all(len(row) == shape[1] and abs(sum(row) - 1) < _TOLERANCE for row in rows)
    if not good:
        raise BadInput(f"{where}, {field!r}: expected {shape[0]} times {shape[1]} shares that sum to 1")
    return np.array(rows)
