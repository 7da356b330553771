"""How networks of finished cells follow given answers: the last step, calibration, contradictions, rules."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation.calibration import Calibration, calibration_figures, read_calibration
from stepcot_jax.evaluation.comparison import INTERVALS, AnswerComparison, join
from stepcot_jax.evaluation.consistency import (
    PairRatios,
    Rules,
    count_answers,
    count_pairs,
    fit_pair_ratios,
    make_rules,
    share_inconsistent,
    true_prefixes,
)
from stepcot_jax.evaluation.interventions import ReadGiven, as_distributions, as_probabilities, exchange
from stepcot_jax.evaluation.statistics import (
    bootstrap,
    count_once,
    mean_of_seeds,
    summarise,
    weighted_mean,
)
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.pages.sheets import Column, Interval, columns
from stepcot_jax.run.inputs import Inputs
from stepcot_jax.run.stored_reading import CALIBRATION_FILE
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import Plan

NETWORKS = ("teacher", "student")
PAIRS = " and pairs"
"""Suffix of a network whose logits get the log-ratios of pairs of answers."""
NOISE, CERTAINTY = (0.1, 0.2), 0.7
"""Shares of wrong answers of careless readers, and the probability that a hesitant one gives the true answer."""
DESCRIBE_COUNTED = (
    "Counting: naive Bayes on the training labels, without the picture; where a network's figure is no higher, its "
    "picture adds nothing to the given answers."
)

COUNTED = ("no picture", "counting")
"""Training and network of the baseline: naive Bayes on the training labels, which sees no picture."""

KINDS = ("none given", "all true", "all true at 70 %", "one in ten wrong", "one in five wrong", "another case's")
"""Answers to the steps before the last, in the order of `Following.right`."""


@dataclasses.dataclass(frozen=True)
class Readers:
    """The networks of a finished cell as functions from given answers, on the test split."""

    read: Mapping[str, ReadGiven]  # by network; those with the suffix " and pairs" add log-ratios
    counted: ReadGiven  # the baseline that sees no picture
    labels: npt.NDArray[np.int32]
    patients: npt.NDArray[np.str_]
    rules: Rules


@dataclasses.dataclass(frozen=True)
class Weighed:
    """Statistics of pairs of answers, from training and validation cases."""

    pairs: Mapping[str, PairRatios]  # by network, the log-ratios with their weights
    counted: ReadGiven  # log-probabilities of answers by naive Bayes, which sees no picture
    rules: Rules


def weigh_pairs(
    dataset: Dataset,
    validation: Mapping[str, tuple[ReadGiven, npt.NDArray[np.int32]]],
    calibration: Calibration,
    chain: Chain,
) -> Weighed:
    """Count pairs of answers among training cases and weigh them on validation cases."""
    training_labels = dataset.labels[np.asarray(dataset.splits.train, int)]
    counts = count_pairs(training_labels, chain)
    pairs = {
        name: fit_pair_ratios(
            read(true_prefixes(labels, chain)),
            counts=counts,
            labels=labels,
            temperatures=calibration.temperatures[name],
            chain=chain,
        )
        for name, (read, labels) in validation.items()
    }
    return Weighed(pairs, as_probabilities(count_answers(training_labels, chain)), make_rules(chain, counts=counts))


def read_networks(plan: Plan, cell: Cell, chain: Chain) -> Readers:
    """Return the networks of a finished cell, with and without the log-ratios of pairs."""
    from stepcot_jax.run.inputs import load_inputs
    from stepcot_jax.systems.networks import make_read_given
    from stepcot_jax.tools.tables.cell_networks import load_weights, read_features

    folder = plan.cells.folder(cell)
    view, held_out = load_inputs(plan.cells.share_features(cell.settings), folder, Terminal()).hold_out()
    weights = load_weights(folder, NETWORKS)
    calibration = read_calibration(folder / CALIBRATION_FILE, chain)

    def read_split(name: str, inputs: Inputs, split: str) -> tuple[ReadGiven, npt.NDArray, npt.NDArray]:
        features, labels, patients = read_features(weights, name, inputs, split)
        of_network = weights.networks, name, weights.params[name]
        return make_read_given(*of_network, features, weights.text_features), labels, patients

    weighed = weigh_pairs(
        view.dataset, {name: read_split(name, view, "val")[:2] for name in NETWORKS}, calibration, chain
    )
    opened, read = held_out.open_test(), dict[str, ReadGiven]()
    for name in NETWORKS:
        alone, labels, patients = read_split(name, opened, "test")
        temperatures = calibration.temperatures[name]
        read[name] = as_probabilities(alone, temperatures)
        read[f"{name}{PAIRS}"] = as_probabilities(weighed.pairs[name].follow(alone), temperatures)
    return Readers(read, weighed.counted, labels, patients, weighed.rules)


@dataclasses.dataclass(frozen=True)
class Following:
    """How a network follows given answers."""

    right: npt.NDArray[np.float64]  # [kind, case], 1 where the last step is answered rightly, by `KINDS`
    shares: Mapping[str, float]  # figures of the test split by name, 0 to 1


def follow(read: ReadGiven, labels: npt.NDArray[np.int32], chain: Chain, rules: Rules, *, seed: int) -> Following:
    """Return how a network follows true, hesitant, careless and foreign answers to all steps but the last."""
    rng, counts = np.random.default_rng(seed), np.asarray(chain.answers_per_step)
    others = (labels + rng.integers(1, np.maximum(counts, 2), labels.shape)) % counts
    errs = rng.random(labels.shape)
    careless = [np.where((errs < noise) & (labels >= 0), others, labels) for noise in NOISE]
    foreign = exchange(labels, rng)
    before_last = np.arange(chain.num_steps) < chain.num_steps - 1
    true = as_distributions(np.where(before_last, labels, -1), chain)
    rest = (1 - CERTAINTY) / np.maximum(counts - 1, 1)[:, None] * (np.arange(true.shape[-1]) < counts[:, None])
    hesitant = np.where(true > 0, CERTAINTY, rest) * true.any(axis=-1, keepdims=True)
    wrong_ones = [as_distributions(np.where(before_last, given, -1), chain) for given in (*careless, foreign)]
    probabilities = read(np.stack([np.zeros_like(true), true, hesitant.astype(np.float32), *wrong_ones]))
    answers, counted = probabilities.argmax(axis=-1), labels[:, -1] >= 0
    annotated = (labels >= 0) & (foreign >= 0) & before_last
    wrong = annotated & (foreign != labels)
    corrected = np.where(before_last & (labels >= 0), labels, answers[1])
    calibrated = calibration_figures(
        count_once(len(labels)), probabilities=probabilities[1, :, -1], labels=labels[:, -1]
    )
    shares = {
        "calibration error, all true": calibrated["ece"][0],
        "contradicts true answers": np.mean(answers[1] != labels, where=annotated) if annotated.any() else np.nan,
        "contradicts wrong answers": np.mean(answers[-1] != foreign, where=wrong) if wrong.any() else np.nan,
        "breaks rules, none given": share_inconsistent(answers[0], rules),
        "breaks rules, all true": share_inconsistent(corrected, rules),
        "breaks rules, true chains": share_inconsistent(labels, rules),
    }
    right = np.where(counted, answers[:, :, -1] == labels[:, -1], np.nan)
    return Following(right, {name: float(value) for name, value in shares.items()})


def share_figures(
    right: Sequence[npt.NDArray[np.float64]], patients: npt.NDArray, num_resamples: int
) -> list[Interval]:
    """Return the means over cases of values [seed][row, case] by row, with intervals by patient; NaN is left out."""
    by_seed = [
        bootstrap(
            lambda weights, values=of_seed.T: {"": weighted_mean(weights, values=values, counted=~np.isnan(values))},
            patients,
            num_resamples=num_resamples,
        )[""]
        for of_seed in right
    ]
    return [summarise(of_seeds) for of_seeds in zip(*by_seed, strict=True)]


def tabulate_following(
    plan: Plan,
    chain: Chain,
    cells: Mapping[str, Sequence[Cell]],
    followed: Mapping[tuple[str, str], Sequence[Following]],
    patients: npt.NDArray[np.str_],
) -> tuple[tuple[Column, ...], tuple[tuple[Any, ...], ...]]:
    """Return columns and rows: accuracy without given answers, with true ones and with wrong ones, by training."""
    splits = []
    for of_seed in zip(*cells.values(), strict=True):
        by_training = {training: plan.cells.predictions(cell) for training, cell in zip(cells, of_seed, strict=True)}
        parts = {f"{name} {training}": (split, name) for training, split in by_training.items() for name in NETWORKS}
        splits.append(join(parts))
    comparison, base, rows = AnswerComparison(splits, plan.num_resamples, chain=chain), next(iter(cells)), []
    for (training, network), of_seeds in followed.items():
        alone = network in NETWORKS  # neither pairs without given answers nor counting are a reading of the picture
        model, of_base = f"{network} {training}", f"{network} {base}"
        rows.append(
            (
                training,
                network,
                comparison.figure(model, "mean_accuracy") if alone else None,
                comparison.difference(model, of_base, "mean_accuracy") if alone and training != base else None,
                *share_figures([following.right for following in of_seeds], patients, plan.num_resamples),
                *(mean_of_seeds([following.shares[name] for following in of_seeds]) for name in of_seeds[0].shares),
            )
        )
    last = chain.steps[-1].name
    heads = (
        *columns("text", "training", "network"),
        *columns("percent", "mean step accuracy, own answers"),
        *columns("points", f"difference from {base!r}"),
        *columns("percent", *(f"{last}, {kind}" for kind in KINDS), *followed[next(iter(followed))][0].shares),
    )
    return heads, tuple(rows)


def describe_following(plan: Plan) -> tuple[str, ...]:
    """Return the notes of a table of `tabulate_following`."""
    return (
        f"Test split, seeds {list(plan.seeds)}. Given are the answers to all steps but the last.",
        INTERVALS,
        "At 70 %: the true answer with that probability, the rest spread evenly. One in ten, one in five wrong: "
        "another answer of the same step. Another case's: all answers of one other test case.",
        "Contradicts: share of the given answers (of another case's that are wrong) that are not the network's own "
        "most probable answer to that step, which it still reports.",
        "Breaks rules: share of the chains with a pair of answers that the rules of the training chains forbid; given "
        "answers stand in place of the network's.",
        "And pairs: log-ratios of pairs of answers, counted in the training labels and weighted on the validation "
        "split, are added to the network's logits.",
        DESCRIBE_COUNTED,
    )
