"""Ways to join a picture and given answers that the package does not use, for `benchmarks.corrections`.

Each is fitted on validation cases and gives a `ReadGiven`. docs/results/joint_reading.md has what they are worth.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax, logsumexp

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.evaluation.consistency import count_pairs
from stepcot_jax.evaluation.counting import NaiveBayes
from stepcot_jax.evaluation.interventions import as_distributions, as_probabilities
from stepcot_jax.evaluation.joint import AnswerTree, JointModel, JointReader, as_evidence
from stepcot_jax.evaluation.joint_fit import draw_given, score_answers

Labels = Int[np.ndarray, "case step"]
ReadLogits = Callable[[Any], Any]
"""Given answers [variant, case, step, answer] -> a network's logits with each answer written back to it."""

_TINY = np.finfo(np.float64).tiny


@dataclasses.dataclass(frozen=True)
class Cases:
    """Cases that a network has read."""

    read: ReadLogits
    logits: Float[np.ndarray, "case step answer"]  # of a pass without given answers
    labels: Labels
    patients: Int[np.ndarray, "case"]

    def take(self, rows: Int[np.ndarray, "case"]) -> "Cases":
        """Return some of the cases; a row may be another case's picture."""

        def read(given: Any) -> Any:
            spread = np.zeros((len(given), *self.logits.shape), np.float32)
            spread[:, rows] = given
            return np.asarray(self.read(spread))[:, rows]

        return Cases(read, self.logits[rows], self.labels[rows], self.patients[rows])


# Counted pairs: log-ratios of pairs of answers are added to the logits of later steps (the package until version 3).


@dataclasses.dataclass(frozen=True)
class PairRatios:
    """Log-ratios [step, answer, step, answer] of pairs of answers, with the weight that each later step gives them."""

    ratios: Float64[np.ndarray, "step answer step answer"]
    weights: tuple[float, ...]

    def follow(self, read: ReadLogits) -> ReadLogits:
        """Return a function that adds what given answers say of later steps."""
        return lambda given: (
            np.asarray(read(given), np.float64)
            + np.tensordot(given.astype(np.float64), self.ratios, axes=2) * np.asarray(self.weights)[:, None]
        )


def fit_pairs(training: Labels, cases: Cases, chain: Chain, temperatures: Sequence[float]) -> PairRatios:
    """Choose each step's weight by the likelihood of validation answers, given the true earlier ones."""
    most = max(chain.answers_per_step)
    ratios = np.zeros((chain.num_steps, most, chain.num_steps, most))
    for (known, asked), counts in count_pairs(training, chain).items():
        shares = (counts.sum(axis=0) + 1) / (counts.sum() + counts.shape[1])
        given = (counts + 2 * shares) / (counts.sum(axis=1, keepdims=True) + 2)
        ratios[known, : counts.shape[0], asked, : counts.shape[1]] = np.log(given / shares)
    truth = as_distributions(cases.labels, chain)
    prefixes = np.stack([truth * (np.arange(chain.num_steps) < count)[:, None] for count in range(chain.num_steps)])
    logits, added = cases.read(prefixes), np.tensordot(prefixes.astype(np.float64), ratios, axes=2)
    weights = [0.0]
    for later in range(1, chain.num_steps):
        known = cases.labels[:, later] != NOT_ANNOTATED
        answers = cases.labels[known, later]

        def loss(weight: float, later: int = later, known: Any = known, answers: Any = answers) -> float:
            summed = (logits[1 : later + 1, :, later] + weight * added[1 : later + 1, :, later]) / temperatures[later]
            return float(-log_softmax(summed, axis=-1)[:, known][:, np.arange(len(answers)), answers].mean())

        bounds = (0.0, 2 * temperatures[later])
        weights.append(float(minimize_scalar(loss, bounds=bounds, method="bounded").x))
    return PairRatios(ratios, tuple(weights))


# The trial's method: the picture's distribution of the diagnosis in place of naive Bayes' prior.


class TrialReader:
    """The last step's own distribution times naive Bayes; other steps by `SeenAndTree` with one weight."""

    def __init__(self, own: Float64[np.ndarray, "case answer"], counted: NaiveBayes, others: JointReader) -> None:
        self._own, self._counted, self._others = own, counted, others

    def __call__(self, given: Any) -> Any:
        """Return probabilities of given answers."""
        read = self._others(given)
        size, nothing = self._own.shape[1], np.zeros((1, 1, *given.shape[2:]))
        prior = self._counted(nothing)[0, 0, -1, :size]
        last = self._counted(given)[:, :, -1, :size] / prior * self._own
        read[:, :, -1, :size] = last / last.sum(axis=-1, keepdims=True)
        return read

    def look_ahead(self, given: Any) -> Any:
        """Return the pairs of each step and the last one."""
        last = self(given[None])[0, :, -1, : self._own.shape[1]]
        tables = self._counted.tables_of(given.shape[1] - 1)
        return [last[:, None] * table.T for table in tables]


# A prior of whole chains: those that occur in training, mixed with the tree of pairwise counts (Chow and Liu, 1968).


@dataclasses.dataclass(frozen=True)
class SeenAndTree:
    """A mixture of the chains that occur and of a tree of pairwise counts; `share` is the weight of the former."""

    sizes: tuple[int, ...]
    chains: Int[np.ndarray, "chain step"]
    log_counts: Float64[np.ndarray, "chain"]
    log_marginals: tuple[Float64[np.ndarray, "answer"], ...]
    edges: tuple[tuple[int, int, Float64[np.ndarray, "answer other"]], ...]
    share: float = 0.5

    @property
    def marginals(self) -> list[Float64[np.ndarray, "answer"]]:
        """Each step's distribution."""
        return [np.exp(logs) for logs in self.log_marginals]

    def infer(self, evidence: Any) -> Any:
        """Return the pairs of each step and the last one, as `joint.infer`."""
        scaled = [logs - logs.max(axis=1, keepdims=True) for logs in evidence]
        tree, log_tree = self._infer_tree(scaled)
        if not self.share:
            return tree
        seen, log_seen = self._infer_seen(scaled)
        logs = np.stack([np.log(self.share) + log_seen, np.log1p(-self.share) + log_tree])
        weights = np.exp(logs - logsumexp(logs, axis=0))[:, :, None, None]
        return [weights[0] * one + weights[1] * other for one, other in zip(seen, tree, strict=True)]

    def _infer_seen(self, evidence: Any) -> Any:
        logs = self.log_counts + sum(logs[:, self.chains[:, step]] for step, logs in enumerate(evidence))
        total = logsumexp(logs, axis=1)
        shares = np.exp(logs - np.where(np.isfinite(total), total, 0.0)[:, None])
        last, pairs = self.chains[:, -1], []
        for step, size in enumerate(self.sizes):
            cells = np.zeros((len(self.chains), size, self.sizes[-1]))
            cells[np.arange(len(cells)), self.chains[:, step], last] = 1
            pairs.append((shares @ cells.reshape(len(cells), -1)).reshape(-1, size, self.sizes[-1]))
        return pairs, total

    def _infer_tree(self, evidence: Any) -> Any:
        beliefs = [np.exp(logs + marginal) for logs, marginal in zip(evidence, self.log_marginals, strict=True)]
        messages, total = {}, np.zeros(len(beliefs[0]))
        for parent, child, ratio in reversed(self.edges):
            message = beliefs[child] @ ratio.T
            scale = message.max(axis=1, keepdims=True)
            messages[child] = message / scale
            total += np.log(scale[:, 0])
            beliefs[parent] = beliefs[parent] * messages[child]
        root = len(self.sizes) - 1
        last = beliefs[root].sum(axis=1)
        pairs = [np.empty(0)] * len(self.sizes)
        pairs[root] = (beliefs[root] / last[:, None])[:, :, None] * np.eye(self.sizes[-1])
        for parent, child, ratio in self.edges:
            without = pairs[parent] / np.maximum(messages[child], _TINY)[:, :, None]
            joint = np.einsum("npl,pc,nc->ncl", without, ratio, beliefs[child])
            pairs[child] = joint / joint.sum(axis=(1, 2), keepdims=True)
        return pairs, total + np.log(last)


def learn_chains(labels: Labels, sizes: Sequence[int], *, share: float) -> SeenAndTree:
    """Learn the prior of whole chains from training labels."""
    marginals = []
    for step, size in enumerate(sizes):
        known = labels[labels[:, step] != NOT_ANNOTATED, step]
        marginals.append(np.log((np.bincount(known, minlength=size) + 1) / (len(known) + size)))

    def count(first: int, second: int) -> Any:
        known = labels[(labels[:, [first, second]] != NOT_ANNOTATED).all(axis=1)]
        counts = np.full((sizes[first], sizes[second]), 5 / (sizes[first] * sizes[second]))
        np.add.at(counts, (known[:, first], known[:, second]), 1)
        return counts

    def inform(first: int, second: int) -> float:
        shares = count(first, second)
        shares = shares / shares.sum()
        return float((shares * np.log(shares / (shares.sum(axis=1, keepdims=True) * shares.sum(axis=0)))).sum())

    worth = {pair: inform(*pair) for pair in itertools.combinations(range(len(sizes)), 2)}
    inside, edges = [len(sizes) - 1], []
    while len(inside) < len(sizes):
        outside = [step for step in range(len(sizes)) if step not in inside]
        parent, child = max(itertools.product(inside, outside), key=lambda edge: worth[min(edge), max(edge)])
        counts = count(parent, child)
        edges.append((parent, child, counts / counts.sum(axis=1, keepdims=True) / np.exp(marginals[child])))
        inside.append(child)
    complete = labels[(labels != NOT_ANNOTATED).all(axis=1)]
    chains, counts = np.unique(complete, axis=0, return_counts=True)
    return SeenAndTree(tuple(sizes), chains, np.log(counts / counts.sum()), tuple(marginals), tuple(edges), share)


class ChainReader:
    """Reads with one weight for all steps under a prior of whole chains."""

    def __init__(self, prior: SeenAndTree, own: Any, weight: float) -> None:
        self._prior = prior
        self._seen = [weight * (logs - known) for logs, known in zip(own, prior.log_marginals, strict=True)]

    def __call__(self, given: Any) -> Any:
        """Return probabilities of given answers; those of a given step are its answer."""
        read = np.zeros(given.shape)
        for variant, told in enumerate(given):
            for step, pair in enumerate(self.look_ahead(told)):
                read[variant, :, step, : pair.shape[1]] = pair.sum(axis=2)
        return read

    def look_ahead(self, given: Any) -> Any:
        """Return the pairs of each step and the last one."""
        evidence = []
        for step, seen in enumerate(self._seen):
            told = given[:, step, : seen.shape[1]].astype(np.float64)
            with np.errstate(divide="ignore"):
                evidence.append(seen + np.where(told.any(axis=1, keepdims=True), np.log(told), 0.0))
        return self._prior.infer(evidence)


def fit_chains(prior: SeenAndTree, model: JointModel, cases: Cases, *, shares: Sequence[float]) -> Any:
    """Choose one weight and the share of chains that occur on validation cases; return a function to readers."""
    told = draw_given(cases.labels, seed=0)
    free = (told == NOT_ANNOTATED) & (cases.labels != NOT_ANNOTATED)
    given, own = as_evidence(told, prior.sizes), model.calibrate(cases.logits)

    def score(choice: tuple[float, float]) -> float:
        reader = ChainReader(dataclasses.replace(prior, share=choice[0]), own, choice[1])
        return score_answers([pair.sum(axis=2) for pair in reader.look_ahead(given)], cases.labels, free)

    share, weight = max(itertools.product(shares, (0.2, 0.3, 0.45, 0.7, 1.0)), key=score)
    chosen = dataclasses.replace(prior, share=share)
    return lambda fresh: ChainReader(chosen, model.calibrate(fresh.logits), weight)


# Logits of a pass with the answers written back, with potentials on top.


class WrittenBackReader:
    """The package's joint model on the logits of a pass that was given the same answers."""

    def __init__(self, model: JointModel, cases: Cases) -> None:
        self._model, self._cases = model, cases
        self._own = model.calibrate(cases.logits)

    def __call__(self, given: Any) -> Any:
        """Return probabilities of given answers."""
        return np.stack([self._join(told)(told[None])[0] for told in given])

    def look_ahead(self, given: Any) -> Any:
        """Return the pairs of each step and the last one."""
        return self._join(given).look_ahead(given)

    def _join(self, given: Any) -> JointReader:
        logits = np.asarray(self._cases.read(given[None].astype(np.float32)))[0]
        return JointReader(self._model.tree, self._own, self._model.weigh(self._model.scale(logits)))


def fit_written_back(tree: AnswerTree, model: JointModel, cases: Cases) -> Any:
    """Fit the weights on logits that hold the given answers; return a function to readers."""
    told = draw_given(cases.labels, seed=0)
    free = (told == NOT_ANNOTATED) & (cases.labels != NOT_ANNOTATED) & (told != NOT_ANNOTATED).any(1, keepdims=True)
    given = as_evidence(told, tree.sizes)
    own = model.scale(np.asarray(cases.read(given[None].astype(np.float32)))[0])

    def loss(weights: Any) -> float:
        weighed = dataclasses.replace(model, weights=tuple(weights.tolist())).weigh(own)
        pairs = JointReader(tree, own, weighed).look_ahead(given)
        return -score_answers([pair.sum(axis=2) for pair in pairs], cases.labels, free)

    found = minimize(loss, np.full(len(tree.sizes), 0.5), method="L-BFGS-B", bounds=[(0.0, 2.0)] * len(tree.sizes)).x
    fitted = dataclasses.replace(model, weights=tuple(found.tolist()))
    return functools.partial(WrittenBackReader, fitted)


def as_published(cases: Cases, temperatures: Sequence[float]) -> Any:
    """Return the network itself, each given answer written back to it."""
    return as_probabilities(cases.read, temperatures)
