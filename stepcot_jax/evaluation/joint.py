"""One joint distribution of a chain's answers: a network's reading of the picture times what answers go together.

    P(answers | picture, given) ~ P(answers) prod_s U_s(a_s | picture) L_s(given_s | a_s)

- P(answers) is learned from training labels: tree-augmented naive Bayes (Friedman, Geiger and Goldszmidt, 1997), in
  which each step depends on the last one and on one other.
- L_s is what was given: 1 for a certain answer, r and (1 - r) / (n - 1) for one of reliability r (virtual evidence,
  Pearl 1988).
- U_s comes from the network's calibrated distributions P_s of a pass without given answers. Steps are read from the
  same picture, so that prod_s P_s(a_s) / P(a_s) would count it several times. Without given answers U is the one under
  which each step has the distribution P_s: of all joint distributions with these marginals the one nearest to
  P(answers) (iterative proportional fitting, Csiszar 1975). Given answers tell which of the picture's readings were
  wrong; from one certain answer on U_s = [P_s(a_s) / P(a_s)]^w_s, with weights fitted on validation cases that have
  random answers given. In between the logarithms of both are mixed by the information in the given answers.

Inference is exact: belief propagation in the tree, for each answer of the last step.

The network also reads given answers itself, N_s, each written back to it. Its reading and that of the joint model, J_s,
are pooled: P_s ~ (N_s^a J_s^b)^(k^r) beside k answers to other steps, with exponents for each step fitted on validation
cases (logarithmic pool, Genest and Zidek 1986).
"""

import dataclasses
import functools
import itertools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from jaxtyping import Float, Float64, Int

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.calibration import Divisor, Mixture, mix_temperatures
from stepcot_jax.evaluation.predictions import SplitPredictions, softmax
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load, save
from stepcot_jax.host.ranges import Number

_SMOOTHING = 2.0  # cases that each row of a table has in addition, spread as the row without the other step
_TINY = np.finfo(np.float64).tiny
_LEAST_SHARE, _TOLERANCE = 1e-30, 1e-6  # of a stored table: products of smaller shares underflow

Weight = Annotated[float, msgspec.Meta(ge=0, le=2)]
Growth = Annotated[float, msgspec.Meta(ge=-1, le=1)]

Split = TypeVar("Split", bound=SplitPredictions)

Pairs = list[Float64[np.ndarray, "case answer last"]]
"""For each step, P(its answer, the last step's answer); the last step's own has its distribution on the diagonal."""


@dataclasses.dataclass(frozen=True)
class AnswerTree:
    """What answers go together: P(last) prod_s P(answer of s | answer of its parent, last).

    Attributes:
      last: float64 [last answer], the last step's distribution.
      parents: for each step before the last the step that it depends on; None for the root, which comes first in
        `order`.
      tables: for each step before the last float64 [last answer, parent's answer, answer]; one parent's answer for the
        root.
    """

    last: Float64[np.ndarray, "last"]
    parents: tuple[int | None, ...]
    tables: tuple[Float64[np.ndarray, "last parent answer"], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of answers of each step."""
        return (*(table.shape[2] for table in self.tables), len(self.last))

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether it is a tree of steps with these numbers of answers, whose rows are shares that sum to 1."""
        *before, num_last = sizes
        if len(self.parents) != len(before) or sorted(self.order) != list(range(len(before))):
            return False
        shapes = [
            (num_last, 1 if parent is None else before[parent], size)
            for parent, size in zip(self.parents, before, strict=True)
        ]
        return [table.shape for table in (self.last, *self.tables)] == [(num_last,), *shapes] and all(
            (table >= _LEAST_SHARE).all() and (np.abs(table.sum(axis=-1) - 1) < _TOLERANCE).all()
            for table in (self.last, *self.tables)
        )

    @functools.cached_property
    def order(self) -> tuple[int, ...]:
        """The steps before the last, each after its parent; fewer if the parents are no tree."""
        order = [step for step, parent in enumerate(self.parents) if parent is None][:1]
        for known in order:  # grows
            order.extend(step for step, parent in enumerate(self.parents) if parent == known)
        return tuple(order)

    @functools.cached_property
    def marginals(self) -> tuple[Float64[np.ndarray, "answer"], ...]:
        """Each step's distribution without any evidence."""
        pairs, _ = infer(self, [np.zeros((1, size)) for size in self.sizes])
        return tuple(pair[0].sum(axis=1) for pair in pairs)


def learn_tree(labels: Int[np.ndarray, "case step"], sizes: Sequence[int]) -> AnswerTree:
    """Learn from training labels what answers go together; a missing label enters no count."""
    last = count_answers(labels, sizes, [len(sizes) - 1]) + 1
    parents, tables = list[int | None]([None] * (len(sizes) - 1)), []
    for above, child in _span(labels, sizes):
        parents[child] = above
    for step, parent in enumerate(parents):
        of_last = condition_answers(
            labels, sizes, [len(sizes) - 1, step], last[:, None] * 0 + _share(labels, sizes, step)
        )
        table = of_last[:, None]
        if parent is not None:
            table = condition_answers(labels, sizes, [len(sizes) - 1, parent, step], table)
        tables.append(table)
    return AnswerTree(last / last.sum(), tuple(parents), tuple(tables))


def count_answers(
    labels: Int[np.ndarray, "case step"], sizes: Sequence[int], steps: list[int]
) -> Float64[np.ndarray, "..."]:
    """Count the cases with each combination of answers to some steps, among those with all of them."""
    known = labels[(labels[:, steps] != NOT_ANNOTATED).all(axis=1)]
    counts = np.zeros([sizes[step] for step in steps])
    np.add.at(counts, tuple(known[:, step] for step in steps), 1)
    return counts


def _share(labels: Int[np.ndarray, "case step"], sizes: Sequence[int], step: int) -> Float64[np.ndarray, "answer"]:
    counts = count_answers(labels, sizes, [step]) + 1
    return counts / counts.sum()


def condition_answers(
    labels: Int[np.ndarray, "case step"], sizes: Sequence[int], steps: list[int], base: Float64[np.ndarray, "..."]
) -> Float64[np.ndarray, "..."]:
    """Return P(answer of the last of some steps | answers of the others), smoothed towards `base`."""
    counts = count_answers(labels, sizes, steps)
    return (counts + _SMOOTHING * base) / (counts.sum(axis=-1, keepdims=True) + _SMOOTHING)


def _span(labels: Int[np.ndarray, "case step"], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (parent, child) of the tree of most mutual information given the last step (Prim's algorithm)."""
    steps = range(len(sizes) - 1)
    worth = {
        pair: measure_information(count_answers(labels, sizes, [len(sizes) - 1, *pair]))
        for pair in itertools.combinations(steps, 2)
    }
    inside, edges = [0][: len(steps)], list[tuple[int, int]]()
    while len(inside) < len(steps):
        outside = [step for step in steps if step not in inside]
        edge = max(itertools.product(inside, outside), key=lambda edge: worth[min(edge), max(edge)])
        edges.append(edge)
        inside.append(edge[1])
    return edges


def measure_information(counts: Float64[np.ndarray, "last answer other"]) -> float:
    """Return the information that two steps' answers have of each other, given the last step's, in nats times cases."""
    totals = counts.sum(axis=(1, 2), keepdims=True)
    independent = counts.sum(axis=1, keepdims=True) * counts.sum(axis=2, keepdims=True)
    ratio = np.divide(counts * totals, independent, out=np.ones_like(counts), where=independent > 0)
    return float((counts * np.log(np.where(counts > 0, ratio, 1.0))).sum())


Evidence = Sequence[Float64[np.ndarray, "case answer"]]
"""For each step, the logarithm of what is known of its answer."""


def infer(tree: AnswerTree, evidence: Evidence) -> tuple[Pairs, Float64[np.ndarray, "case"]]:
    """Return the pairs of each step and the last one, and the logarithm of the evidence's probability.

    Messages go from the leaves to the root for each answer of the last step, and joint distributions back.
    """
    tops = [logs.max(axis=1) for logs in evidence]
    *of_steps, of_last = (np.exp(logs - top[:, None]) for logs, top in zip(evidence, tops, strict=True))
    beliefs = [np.broadcast_to(known, (len(tree.last), *known.shape)) for known in of_steps]
    prior, total = tree.last[:, None, None] * of_last.T[:, :, None], sum(tops)
    messages = dict[int, Float64[np.ndarray, "last case parent"]]()
    for step in reversed(tree.order):  # arrays are [last answer, case, answer]
        message = beliefs[step] @ tree.tables[step].transpose(0, 2, 1)
        scale = np.maximum(message.max(axis=(0, 2)), _TINY)
        messages[step], total = message / scale[:, None], total + np.log(scale)
        parent = tree.parents[step]
        if parent is not None:
            beliefs[parent] = beliefs[parent] * messages[step]
    posterior = prior * messages[tree.order[0]] if tree.order else prior
    scale = np.maximum(posterior.sum(axis=(0, 2)), _TINY)
    posterior, total = posterior / scale[:, None], total + np.log(scale)
    joints = dict[int, Float64[np.ndarray, "last case answer"]]()
    for step in tree.order:
        parent = tree.parents[step]
        above = posterior if parent is None else joints[parent]
        joints[step] = (above / np.maximum(messages[step], _TINY)) @ tree.tables[step] * beliefs[step]
        joints[step] /= np.maximum(joints[step].sum(axis=(0, 2)), _TINY)[:, None]
    pairs = [joints[step].transpose(1, 2, 0) for step in range(len(of_steps))]
    return [*pairs, posterior.transpose(1, 2, 0) * np.eye(len(tree.last))], total


@dataclasses.dataclass(frozen=True)
class JointModel:
    """What answers go together, and how much a network's reading counts beside given answers.

    Attributes:
      temperatures: divisors of each step's logits.
      weights: for each step w_s of the module's formula.
      exponents: for each step a, b and r of the module's formula; () for the joint model alone.
      conflict_limit: readings with a larger `measure_conflict` are warned of; None for never.
      mixtures: for each step two temperatures and the share of the second, of the pass without given answers; () if
        `temperatures` serve that too.
    """

    tree: AnswerTree
    temperatures: tuple[Divisor, ...]
    weights: tuple[Weight, ...]
    exponents: tuple[tuple[Weight, Weight, Growth], ...] = ()
    conflict_limit: Number | None = None
    mixtures: tuple[Mixture, ...] = ()

    def fits(self, sizes: Sequence[int]) -> bool:
        """Whether it has the steps and answers of a chain."""
        return (
            self.tree.fits(sizes)
            and len(self.temperatures) == len(self.weights) == len(sizes)
            and {len(self.exponents), len(self.mixtures)} <= {0, len(sizes)}
        )

    def calibrate(self, logits: Float[np.ndarray, "case step answer"]) -> Evidence:
        """Return the logarithms of the network's distributions P_s without given answers."""
        mixtures = self.mixtures or tuple((temperature, temperature, 0.0) for temperature in self.temperatures)
        own = [logits[:, step, :size].astype(np.float64) for step, size in enumerate(self.tree.sizes)]
        return [np.maximum(mix_temperatures(*columns), _LEAST_LOG) for columns in zip(own, mixtures, strict=True)]

    def scale(self, logits: Float[np.ndarray, "case step answer"]) -> Evidence:
        """Return the logarithms of the network's distributions N_s with given answers written back."""
        return dataclasses.replace(self, mixtures=()).calibrate(logits)

    def weigh(self, own: Evidence) -> Evidence:
        """Return the picture's evidence log U_s beside a certain answer."""
        shares = zip(own, self.tree.marginals, self.weights, strict=True)
        return [weight * (logs - np.log(marginal)) for logs, marginal, weight in shares]

    def join(
        self, logits: Float[np.ndarray, "case step answer"], read: "ReadLogits | None" = None
    ) -> "JointReader | PooledReader":
        """Return the reader of cases from logits of a pass without given answers.

        Args:
          read: the network with given answers written back to it, for the same cases; without it the reader, if the
            model has exponents, takes no given answers.
        """
        own = self.calibrate(logits)
        joined = JointReader(self.tree, own, self.weigh(own))
        return PooledReader(self, joined, read) if self.exponents else joined

    def measure_conflict(
        self, logits: Float[np.ndarray, "case step answer"], given: Float[np.ndarray, "case step answer"]
    ) -> Float64[np.ndarray, "case"]:
        """Return how much less probable picture and given answers are together than each by itself, in nats.

        It is the conflict measure log prod P(e_i) / P(e) (Jensen et al., 1991) of what the picture and a person say of
        the steps, of a pass without given answers; above 0 they rather contradict each other.
        """
        evidence, apart = [], np.zeros(len(logits))
        for step, (own, marginal) in enumerate(zip(self.calibrate(logits), self.tree.marginals, strict=True)):
            known = own - np.log(marginal) + log_likelihood(given[:, step, : own.shape[1]])
            evidence.append(known)
            apart += log_sum_exp(known + np.log(marginal))
        return apart - infer(self.tree, evidence)[1]


@dataclasses.dataclass(frozen=True)
class _Joints:
    models: Mapping[str, JointModel]  # by network


def write_joints(path: str | os.PathLike[str], joints: Mapping[str, JointModel]) -> None:
    """Write the joint models of a run's networks, atomically."""
    save(path, _Joints(joints))


def read_joint(path: str | os.PathLike[str], chain: Chain, *, model: str) -> JointModel | None:
    """Read a network's joint model; None if there is no such file, or it has none of this network."""
    joint = load(path, _Joints).models.get(model) if pathlib.Path(path).exists() else None
    if joint is not None and not joint.fits(chain.answers_per_step):
        raise BadInput(f"{path}, {model!r}: not a joint model of this chain")
    return joint


_LEAST_LOG = -25.0  # of a network's probability, so that no given answer is impossible beside it
_MOST_SWEEPS, _CLOSE = 50, 1e-3


def match_marginals(tree: AnswerTree, own: Evidence, *, start: Evidence) -> Evidence:
    """Return the evidence under which each step's distribution is its own one, up to `_CLOSE` in total variation.

    Steps take turns (iterative proportional fitting); the last step comes last, whose distribution is exact. A case
    stops when it is close, so that its evidence does not depend on the other cases.
    """
    evidence, left = [logs.copy() for logs in start], np.arange(len(own[0]))
    for _ in range(_MOST_SWEEPS):
        tried, largest = [logs[left] for logs in evidence], np.zeros(len(left))
        for step, logs in enumerate(own):
            found = infer(tree, tried)[0][step].sum(axis=2)
            largest = np.maximum(largest, np.abs(found - np.exp(logs[left])).sum(axis=1) / 2)
            tried[step] = tried[step] + logs[left] - np.log(np.maximum(found, _TINY))
        for logs, changed in zip(evidence, tried, strict=True):
            logs[left] = changed
        left = left[largest >= _CLOSE]
        if not len(left):
            break
    return evidence


@dataclasses.dataclass(frozen=True)
class JointReader:
    """Reads cases, whose pictures a network has read, under given answers.

    Attributes:
      own: log P_s, each step's distribution where nothing is given to the other steps.
      beside: log U_s beside certain answers.
    """

    tree: AnswerTree
    own: Evidence
    beside: Evidence

    @functools.cached_property
    def alone(self) -> Evidence:
        """Log U_s without given answers, of up to 50 inferences for each step."""
        return match_marginals(self.tree, self.own, start=self.beside)

    @functools.cached_property
    def _left(self) -> Evidence:
        """What `alone` leaves of log P_s, so that an answer that says nearly nothing changes nearly nothing."""
        found = infer(self.tree, self.alone)[0]
        return [own - np.log(np.maximum(pair.sum(axis=2), _TINY)) for own, pair in zip(self.own, found, strict=True)]

    def __call__(
        self, given: Float[np.ndarray, "variant case step answer"]
    ) -> Float64[np.ndarray, "variant case step answer"]:
        """Return each step's distribution given the answers to the other steps; 0 beyond a step's own answers."""
        return np.stack([self._read(of_variant) for of_variant in given])

    def look_ahead(self, given: Float[np.ndarray, "case step answer"]) -> Pairs:
        """Return P(answer) of each step as it is read now, times P(last step's answer) as it is read with that answer.

        From one certain answer on this is the joint distribution of both.
        """
        now = self._condition(given, np.arange(len(given)))
        following = infer(self.tree, self._add(given, np.arange(len(given)), np.ones((len(given), 1))))[0]
        return [
            of_step[..., None] * ahead / np.maximum(ahead.sum(axis=2, keepdims=True), _TINY)
            for of_step, ahead in zip(now, following, strict=True)
        ]

    def _read(self, given: Float[np.ndarray, "case step answer"]) -> Float64[np.ndarray, "case step answer"]:
        read = np.zeros(given.shape)
        for step, found in enumerate(self._condition(given, np.arange(len(given)))):
            read[:, step, : found.shape[1]] = found
            told = np.flatnonzero(given[:, step].any(axis=1))
            if len(told):
                without = given[told]
                without[:, step] = 0
                read[told, step, : found.shape[1]] = self._condition(without, told)[step]
        return read

    def _condition(self, given: Float[np.ndarray, "case step answer"], cases: Int[np.ndarray, "case"]) -> Evidence:
        """Return each step's distribution of some cases, given the answers to all steps."""
        share = np.minimum(count_given(given, self.tree.sizes), 1.0)[:, None]
        own = [np.exp(logs[cases]) for logs in self.own]
        if not share.any():
            return own
        found = [pair.sum(axis=2) for pair in infer(self.tree, self._add(given, cases, share))[0]]
        if not _is_between(share):
            return [np.where(share == 0, one, other) for one, other in zip(own, found, strict=True)]
        left = [(1 - share) * logs[cases] for logs in self._left]
        mended = [softmax(np.log(np.maximum(one, _TINY)) + logs, axis=1) for one, logs in zip(found, left, strict=True)]
        return [np.where(share == 0, one, other) for one, other in zip(own, mended, strict=True)]

    def _add(
        self,
        given: Float[np.ndarray, "case step answer"],
        cases: Int[np.ndarray, "case"],
        share: Float64[np.ndarray, "case 1"],
    ) -> Evidence:
        """Return the evidence of picture and given answers; `share` of the picture's is that beside answers."""
        evidence = []
        for step, beside in enumerate(self.beside):
            picture = beside[cases]
            if _is_between(share):
                picture = (1 - share) * self.alone[step][cases] + share * picture
            evidence.append(picture + log_likelihood(given[:, step, : beside.shape[1]]))
        return evidence


def _is_between(share: Float64[np.ndarray, "case 1"]) -> bool:
    """Return whether the evidence of any case is mixed; of cases without an answer `own` is read instead."""
    return bool(((share > 0) & (share < 1)).any())


def log_likelihood(given: Float[np.ndarray, "case answer"]) -> Float64[np.ndarray, "case answer"]:
    """Return the logarithm of a step's given answers, 0 where none is given."""
    told = given.astype(np.float64)
    with np.errstate(divide="ignore"):
        return np.where(told.any(axis=1, keepdims=True), np.log(told), 0.0)


ReadLogits = Callable[[Any], Any]
"""Given answers [variant, case, step, answer], written back to a network -> its logits, of the same shape."""

_LEAST_SHARE = 1e-12
_UNINFORMED = 1e-9  # weight up to which a given answer says nothing, and short of 1 from which it is certain


@dataclasses.dataclass(frozen=True)
class PooledReader:
    """Reads cases under given answers by the pool of a network's reading and of the joint model's."""

    model: JointModel
    joined: JointReader
    read: ReadLogits | None

    def __call__(
        self, given: Float[np.ndarray, "variant case step answer"]
    ) -> Float64[np.ndarray, "variant case step answer"]:
        """Return each step's distribution given the answers to the other steps; 0 beyond a step's own answers."""
        joined = self.joined(given)
        says = [weigh_given(of_variant, self.model.tree.sizes) for of_variant in given]
        if not np.any(says):
            return joined
        written = self._read_network(given, np.stack(says))
        for read, logits, weights in zip(joined, written, says, strict=True):
            for step, logs in enumerate(self.model.scale(logits)):
                of_others = weights.sum(axis=1) - weights[:, step]
                share, of_joint = np.minimum(of_others, 1.0)[:, None], log_shares(read[:, step, : logs.shape[1]])
                pooled = pool(logs, of_joint, self.model.exponents[step], of_others)
                mixed = (1 - share) * of_joint + share * pooled
                read[:, step, : logs.shape[1]] = softmax(mixed, axis=1)
        return joined

    def _read_network(
        self, given: Float[np.ndarray, "variant case step answer"], says: Float64[np.ndarray, "variant case step"]
    ) -> Float[np.ndarray, "variant case step answer"]:
        """Return the network's logits with the given answers written back to it, uncertain ones after the certain."""
        if self.read is None:
            raise TypeError("given answers need the network that they are written back to")
        certain = says > 1 - _UNINFORMED
        written = np.where(certain[..., None], given, 0.0).astype(np.float32)
        logits = np.asarray(self.read(written))
        uncertain = (says > _UNINFORMED) & ~certain
        if not uncertain.any():
            return logits
        again = written.copy()
        for of_variant in zip(again, logits, given, says, uncertain, strict=True):
            self._write_uncertain(*of_variant)
        return np.asarray(self.read(again))

    def _write_uncertain(self, written: Any, logits: Any, given: Any, says: Any, uncertain: Any) -> None:
        """Set what is written of uncertain answers: the network's distribution times what was given of the step.

        The less an answer says, the more it is what the network would write itself, which is not calibrated.
        """
        for step, (size, temperature) in enumerate(zip(self.model.tree.sizes, self.model.temperatures, strict=True)):
            cases = uncertain[:, step]
            share = np.sqrt(says[cases, step])[:, None]
            own = logits[cases, step, :size].astype(np.float64) * (1 - share + share / temperature)
            written[cases, step, :size] = softmax(own + log_likelihood(given[cases, step, :size]), axis=1)

    def look_ahead(self, given: Float[np.ndarray, "case step answer"]) -> Pairs:
        """Return P(answer) of each step as it is read now, times P(last step's answer) if it is given that answer.

        What the answer would change in the last step is taken from the joint model: no further pass of the network.
        """
        now = self(given[None])[0]
        last = log_shares(now[:, -1, : self.model.tree.sizes[-1]])
        pairs = []
        for step, pair in enumerate(self.joined.look_ahead(given)):
            before, after = pair.sum(axis=1, keepdims=True), pair / np.maximum(pair.sum(axis=2, keepdims=True), _TINY)
            ahead = softmax(last[:, None] + log_shares(after) - log_shares(before), axis=2)
            pairs.append(now[:, step, : pair.shape[1], None] * ahead)
        return pairs


def pool(
    network: Float64[np.ndarray, "case answer"],
    joint: Float64[np.ndarray, "case answer"],
    exponents: Sequence[float],
    num_given: Float64[np.ndarray, "case"],
) -> Float64[np.ndarray, "case answer"]:
    """Return the logarithm of (N^a J^b)^(k^r), not normalised; k is the number of given answers, at least 1."""
    of_network, of_joint, growth = exponents
    return (of_network * network + of_joint * joint) * (np.maximum(num_given, 1.0) ** growth)[:, None]


def log_sum_exp(logs: Float64[np.ndarray, "case answer"]) -> Float64[np.ndarray, "case"]:
    """Return the logarithm of the sum of exponentials."""
    top = logs.max(axis=1)
    return top + np.log(np.exp(logs - top[:, None]).sum(axis=1))


def log_shares(shares: Float64[np.ndarray, "..."]) -> Float64[np.ndarray, "..."]:
    """Return the logarithms of shares, of 1e-12 for smaller ones."""
    return np.log(np.maximum(shares, _LEAST_SHARE))


def count_given(given: Float[np.ndarray, "case step answer"], sizes: Sequence[int]) -> Float64[np.ndarray, "case"]:
    """Return the number of given answers, as `weigh_given` counts them."""
    return weigh_given(given, sizes).sum(axis=1)


def weigh_given(given: Float[np.ndarray, "case step answer"], sizes: Sequence[int]) -> Float64[np.ndarray, "case step"]:
    """Return how much each given answer says: with the entropy H of n options 1 - H / log n, 0 without an answer."""
    weights = np.zeros(given.shape[:2])
    for step, size in enumerate(sizes):
        told = given[:, step, :size].astype(np.float64)
        entropy = -(told * np.log(np.where(told > 0, told, 1.0))).sum(axis=1)
        weights[:, step] = np.where(told.any(axis=1), np.maximum(1 - entropy / np.log(max(size, 2)), 0.0), 0.0)
    return weights


def name_joined(model: str) -> str:
    """Return the name under which calibration and operating points of a network's joint reading are kept."""
    return f"{model}, joined"


def add_joined(split: Split, joints: Mapping[str, JointModel]) -> Split:
    """Return the split with the joint readings of its networks, as log-probabilities, beside their logits."""
    logits = dict(split.predictions.logits)
    for model, joint in joints.items():
        own = split.predictions.logits[model]
        nothing = np.zeros((1, *own.shape[:2], max(joint.tree.sizes)))
        logits[name_joined(model)] = np.log(np.maximum(joint.join(own)(nothing)[0], 1e-30)).astype(np.float32)
    return split.change(logits=logits)


def as_evidence(
    labels: Int[np.ndarray, "... step"], sizes: Sequence[int], *, reliability: float = 1.0
) -> Float64[np.ndarray, "... step answer"]:
    """Return labels as given answers: r for the label, (1 - r) / (n - 1) for each other; zeros without a label."""
    answers, counts = np.arange(max(sizes)), np.asarray(sizes)[:, None]
    others = (1 - reliability) / np.maximum(counts - 1, 1) * (answers < counts)
    given = np.where(labels[..., None] == answers, reliability, others)
    return np.where(labels[..., None] < 0, 0.0, given)
