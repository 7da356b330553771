"""One joint distribution of a chain's answers: a network's reading of the picture times what answers go together.

    P(answers | picture, given) ~ P(answers) prod_s [P_s(a_s | picture)^t_s / P(a_s)]^f L_s(given_s | a_s)

P(answers) is learned from training labels: a mixture of the chains as they occur and of a tree, the maximum spanning
tree of the pairwise counts (Chow and Liu, 1968). P_s are the network's distributions of an unassisted pass, t_s their
temperatures and f one factor, fitted on validation cases; dividing by P(answer_s) keeps the prior from counting twice.
L_s is what was given: 1 for a certain answer, r and (1 - r) / (n - 1) for one of reliability r (virtual evidence).
Inference is exact: a sum over the chains that occur, and belief propagation in the tree.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64, Int
from scipy.special import log_softmax, logsumexp

from stepcot_jax.chain import NOT_ANNOTATED

_PSEUDO_COUNT = 5.0
"""Added to the table of each pair of steps, spread over its cells."""

_TINY = np.finfo(np.float64).tiny
_SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
_FACTORS = (0.2, 0.3, 0.45, 0.6, 0.8, 1.0)
_TEMPERATURES = np.linspace(0.1, 3.0, 59)


@dataclasses.dataclass(frozen=True)
class ChainPrior:
    """What answers go together, from training labels.

    Attributes:
      sizes: number of answers of each step.
      chains: int [chain, step], the complete chains that occur.
      log_counts: float64 [chain], log share of each.
      log_marginals: for each step float64 [answer].
      edges: (parent, child, ratio [parent's answer, child's answer]) from the last step downwards, parents first;
        ratio is P(child's | parent's) / P(child's).
      share: weight of the chains that occur; the rest is the tree's.
    """

    sizes: tuple[int, ...]
    chains: Int[np.ndarray, "chain step"]
    log_counts: Float64[np.ndarray, " chain"]
    log_marginals: tuple[Float64[np.ndarray, " answer"], ...]
    edges: tuple[tuple[int, int, Float64[np.ndarray, "answer other"]], ...]
    share: float = 0.5


def learn_prior(labels: Int[np.ndarray, "case step"], sizes: Sequence[int]) -> ChainPrior:
    """Learn a prior from training labels; a label that is missing enters no count."""
    marginals = []
    for step, size in enumerate(sizes):
        known = labels[labels[:, step] != NOT_ANNOTATED, step]
        marginals.append(np.log((np.bincount(known, minlength=size) + 1) / (len(known) + size)))
    edges = [
        (parent, child, _count_pairs(labels, sizes, parent, child) / np.exp(marginals[child]))
        for parent, child in _span(labels, sizes)
    ]
    complete = labels[(labels != NOT_ANNOTATED).all(axis=1)]
    chains, counts = np.unique(complete, axis=0, return_counts=True)
    log_counts = np.log(counts / max(counts.sum(), 1))
    share = 0.5 if len(chains) else 0.0
    return ChainPrior(tuple(sizes), chains.reshape(-1, len(sizes)), log_counts, tuple(marginals), tuple(edges), share)


def _count_pairs(
    labels: Int[np.ndarray, "case step"], sizes: Sequence[int], first: int, second: int
) -> Float64[np.ndarray, "answer other"]:
    """Return P(answer of the second step | answer of the first), from cases with both."""
    counts = _smoothed_counts(labels, sizes, first, second)
    return counts / counts.sum(axis=1, keepdims=True)


def _smoothed_counts(
    labels: Int[np.ndarray, "case step"], sizes: Sequence[int], first: int, second: int
) -> Float64[np.ndarray, "answer other"]:
    known = labels[(labels[:, [first, second]] != NOT_ANNOTATED).all(axis=1)]
    counts = np.full((sizes[first], sizes[second]), _PSEUDO_COUNT / (sizes[first] * sizes[second]))
    np.add.at(counts, (known[:, first], known[:, second]), 1)
    return counts


def _information(shares: Float64[np.ndarray, "answer other"]) -> float:
    independent = shares.sum(axis=1, keepdims=True) * shares.sum(axis=0)
    return float((shares * np.log(shares / independent)).sum())


def _span(labels: Int[np.ndarray, "case step"], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Return the edges of the tree of most mutual information, from the last step downwards (Prim's algorithm)."""
    num_steps = len(sizes)
    worth = np.full((num_steps, num_steps), -np.inf)
    for one, other in itertools.combinations(range(num_steps), 2):
        counts = _smoothed_counts(labels, sizes, one, other)
        worth[one, other] = worth[other, one] = _information(counts / counts.sum())
    inside, edges = [num_steps - 1], list[tuple[int, int]]()
    while len(inside) < num_steps:
        outside = [step for step in range(num_steps) if step not in inside]
        edge = max(itertools.product(inside, outside), key=lambda edge: worth[edge])
        edges.append(edge)
        inside.append(edge[1])
    return edges


Evidence = Sequence[Float64[np.ndarray, "case answer"]]
"""For each step, the logarithm of what is known of its answer, up to a constant of each case."""


def infer_pairs(prior: ChainPrior, evidence: Evidence) -> list[Float64[np.ndarray, "case answer other"]]:
    """Return for each step P(its answer, the last step's answer | evidence) [case, answer, last answer].

    The last step's own entry has its probabilities on the diagonal.
    """
    scaled = [logs - logs.max(axis=1, keepdims=True) for logs in evidence]
    tree, log_tree = _infer_tree(prior, scaled)
    if prior.share == 0 or not len(prior.chains):
        return tree
    seen, log_seen = _infer_seen(prior, scaled)
    logs = np.stack([np.log(prior.share) + log_seen, np.log1p(-prior.share) + log_tree])
    weights = np.exp(logs - logsumexp(logs, axis=0))
    return [
        weights[0][:, None, None] * one + weights[1][:, None, None] * other
        for one, other in zip(seen, tree, strict=True)
    ]


def _infer_seen(
    prior: ChainPrior, evidence: Evidence
) -> tuple[list[Float64[np.ndarray, "case answer other"]], Float64[np.ndarray, " case"]]:
    """Return the pairs under the chains that occur, and the log of the evidence's probability."""
    logs = prior.log_counts + sum(logs[:, prior.chains[:, step]] for step, logs in enumerate(evidence))
    total = logsumexp(logs, axis=1)
    shares = np.exp(logs - np.where(np.isfinite(total), total, 0.0)[:, None])  # no chain agrees with what was given: 0
    last, pairs = prior.chains[:, -1], []
    for step, size in enumerate(prior.sizes):
        cells = np.zeros((len(prior.chains), size, prior.sizes[-1]))
        cells[np.arange(len(cells)), prior.chains[:, step], last] = 1
        pairs.append((shares @ cells.reshape(len(cells), -1)).reshape(-1, size, prior.sizes[-1]))
    return pairs, total


def _infer_tree(
    prior: ChainPrior, evidence: Evidence
) -> tuple[list[Float64[np.ndarray, "case answer other"]], Float64[np.ndarray, " case"]]:
    """Return the same under the tree: messages towards the last step, then joint distributions away from it."""
    beliefs = [np.exp(logs + marginal) for logs, marginal in zip(evidence, prior.log_marginals, strict=True)]
    messages, total = {}, np.zeros(len(beliefs[0]))
    for parent, child, ratio in reversed(prior.edges):
        message = beliefs[child] @ ratio.T
        scale = message.max(axis=1, keepdims=True)
        messages[child] = message / scale
        total += np.log(scale[:, 0])
        beliefs[parent] = beliefs[parent] * messages[child]
    root = len(prior.sizes) - 1
    last = beliefs[root].sum(axis=1)
    total += np.log(last)
    pairs: list[Float64[np.ndarray, "case answer other"]] = [np.empty(0)] * len(prior.sizes)
    pairs[root] = (beliefs[root] / last[:, None])[:, :, None] * np.eye(prior.sizes[-1])
    for parent, child, ratio in prior.edges:
        without = pairs[parent] / np.maximum(messages[child], _TINY)[:, :, None]
        joint = np.einsum("npl,pc,nc->ncl", without, ratio, beliefs[child])
        pairs[child] = joint / joint.sum(axis=(1, 2), keepdims=True)
    return pairs, total


@dataclasses.dataclass(frozen=True)
class JointModel:
    """A prior and the scales of a network's readings.

    Attributes:
      temperatures: exponent of each step's distribution.
      factor: exponent of all of them together, against the prior.
    """

    prior: ChainPrior
    temperatures: tuple[float, ...]
    factor: float

    def read(
        self, log_probs: Float[np.ndarray, "case step answer"], given: Float[np.ndarray, "case step answer"]
    ) -> list[Float64[np.ndarray, "case answer other"]]:
        """Return for each step P(its answer, the last step's | picture, given) [case, answer, last answer].

        Args:
          log_probs: logarithms of the network's distributions in a pass without given answers; padding is ignored.
          given: distributions of given answers, zeros where none is given.
        """
        evidence = []
        for step, (size, marginal) in enumerate(zip(self.prior.sizes, self.prior.log_marginals, strict=True)):
            own = log_softmax(self.temperatures[step] * log_probs[:, step, :size].astype(np.float64), axis=1)
            told = given[:, step, :size].astype(np.float64)
            is_given = told.any(axis=1, keepdims=True)
            with np.errstate(divide="ignore"):
                likelihood = np.where(is_given, np.log(told), 0.0)
            evidence.append(self.factor * (own - marginal) + likelihood)
        return infer_pairs(self.prior, evidence)


def virtual_evidence(
    labels: Int[np.ndarray, "case step"], sizes: Sequence[int], *, reliability: float = 1.0
) -> Float64[np.ndarray, "case step answer"]:
    """Return given answers as likelihoods: r for the label, (1 - r) / (n - 1) for each other; zeros without a label."""
    given = np.zeros((*labels.shape, max(sizes)))
    for step, size in enumerate(sizes):
        known = labels[:, step] != NOT_ANNOTATED
        given[known, step, :size] = (1 - reliability) / max(size - 1, 1)
        given[known, step, labels[known, step]] = reliability
    return given


def marginals(pairs: Sequence[Float64[np.ndarray, "case answer other"]]) -> list[Float64[np.ndarray, "case answer"]]:
    """Return each step's distribution."""
    return [pair.sum(axis=2) for pair in pairs]


def fit_joint(
    prior: ChainPrior,
    log_probs: Float[np.ndarray, "case step answer"],
    labels: Int[np.ndarray, "case step"],
    *,
    seed: int = 0,
) -> JointModel:
    """Fit the scales on validation cases: temperatures alone, then factor and share with random answers given.

    The score is the mean log-probability of the answers that are not given; of each case a random number of steps is
    given, from none to all but one.
    """
    temperatures = tuple(
        _fit_temperature(log_probs[:, step, :size], labels[:, step]) for step, size in enumerate(prior.sizes)
    )
    draw = np.random.default_rng(seed)
    num_given = draw.integers(len(prior.sizes), size=len(labels))
    order = draw.permuted(np.tile(np.arange(len(prior.sizes)), (len(labels), 1)), axis=1)
    told = np.where(order < num_given[:, None], labels, NOT_ANNOTATED)
    given = virtual_evidence(told, prior.sizes)
    free = (told == NOT_ANNOTATED) & (labels != NOT_ANNOTATED)

    def score(model: JointModel) -> float:
        steps = marginals(model.read(log_probs, given))
        chosen = [_pick(step, labels[:, number])[free[:, number]] for number, step in enumerate(steps)]
        return float(np.log(np.maximum(np.concatenate(chosen), _TINY)).mean())

    candidates = [
        JointModel(dataclasses.replace(prior, share=share), temperatures, factor)
        for share in (_SHARES if len(prior.chains) else (0.0,))
        for factor in _FACTORS
    ]
    return max(candidates, key=score)


def _pick(shares: Float64[np.ndarray, "case answer"], labels: Int[np.ndarray, " case"]) -> Float64[np.ndarray, " case"]:
    return shares[np.arange(len(labels)), np.maximum(labels, 0)]


def _fit_temperature(log_probs: Float[np.ndarray, "case answer"], labels: Int[np.ndarray, " case"]) -> float:
    known = labels != NOT_ANNOTATED
    if not known.any():
        return 1.0

    def score(temperature: float) -> float:
        own = log_softmax(temperature * log_probs[known].astype(np.float64), axis=1)
        return float(own[np.arange(len(own)), labels[known]].mean())

    return float(max(_TEMPERATURES, key=score))


def ask_gains(
    pairs: Sequence[Float64[np.ndarray, "case answer other"]],
    asked: Int[np.ndarray, "case step"],
    *,
    reliability: float = 1.0,
) -> tuple[Float64[np.ndarray, "case step"], Float64[np.ndarray, "case step"]]:
    """Return what asking each step is worth for the last one: expected accuracy and information gained (nats).

    Args:
      asked: nonzero where a step has an answer already; its gains, and those of the last step, are -inf.
    """
    last = pairs[-1].sum(axis=2)
    best, entropy = last.max(axis=1), _entropy(last, axis=1)
    accuracy, information = np.full(asked.shape, -np.inf), np.full(asked.shape, -np.inf)
    for step, pair in enumerate(pairs[:-1]):
        size = pair.shape[1]
        told = np.full((size, size), (1 - reliability) / max(size - 1, 1))
        np.fill_diagonal(told, reliability)
        joint = np.einsum("at,ntl->nal", told, pair)
        accuracy[:, step] = joint.max(axis=2).sum(axis=1) - best
        shares = joint.sum(axis=2)
        of_answer = joint / np.maximum(shares, _TINY)[:, :, None]
        information[:, step] = entropy - (shares * _entropy(of_answer, axis=2)).sum(axis=1)
    return np.where(asked, -np.inf, accuracy), np.where(asked, -np.inf, information)


def _entropy(shares: Float64[np.ndarray, "..."], *, axis: int) -> Float64[np.ndarray, "..."]:
    return -(shares * np.log(np.maximum(shares, _TINY))).sum(axis=axis)
