"""Linear heads on the features of a finished run's encoder, beside its networks."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from stepcot_jax.evaluation.linear_heads import FittedHeads, Rival, compare_with_heads, fit_linear_heads
from stepcot_jax.evaluation.predictions import SplitPredictions
from stepcot_jax.run.feed import Feed
from stepcot_jax.run.plain_network import name_plain_command
from stepcot_jax.systems.networks import encode_in_parts
from stepcot_jax.systems.step_cot import StepCoT
from stepcot_jax.training.processes import is_first
from stepcot_jax.training.system import System

NUM_ROWS = 10_000
"""Largest number of images of training and validation that linear heads are fitted on, spread evenly over the split."""


def read_features(
    feed: Feed, system: StepCoT, params: Any, split: str, num_cases: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield image features [case, width] and labels [case, step] of the rows of `Feed.sample_batches`."""
    for rows in feed.sample_batches(split, num_cases):
        yield encode_in_parts(system.networks, params, rows), rows["labels"]


def fit_heads(feed: Feed, system: StepCoT, params: Any) -> tuple[FittedHeads, int]:
    """Return linear heads on the features that `params` give, and the number of training cases."""
    features, labels, dataset = {}, {}, feed.inputs.dataset
    for split in ("train", "val"):
        parts = zip(*read_features(feed, system, params, split, NUM_ROWS), strict=True)
        features[split], labels[split] = map(np.concatenate, parts)
    labels["train"] = dataset.training_targets[feed.sample("train", NUM_ROWS)]  # as of the networks
    return fit_linear_heads(features, labels, dataset.chain.answers_per_step), len(labels["train"])


def fit_rival(
    feed: Feed, system: System, params_of: Callable[[str], Any]
) -> Callable[[Feed, SplitPredictions], Rival] | None:
    """Return a function that measures linear heads on the test split; None in a run without a teacher."""
    if type(system) is not StepCoT:
        return None
    params = {name: tree for name, tree in params_of("teacher").items() if name == "image_encoder"}
    if not is_first():  # the others wait for the report
        return None
    params, settings, chain = jax.device_get(params), feed.settings, feed.inputs.dataset.chain
    name, note = "heads on the frozen encoder", "read the same frozen features as the networks"
    if params:
        trainer = "the teacher and the plain heads" if "plain" in system.names else "the teacher"
        name, note = "heads on the teacher's encoder", f"are the weaker rival: {trainer} trained the encoder. "
        note += f"A verdict needs the plain network: {name_plain_command(settings)}"
    heads, num_cases = fit_heads(feed, system, params)
    penalties = dict(zip((step.name for step in chain.steps), heads.penalties, strict=True))

    def measure(opened: Feed, test: SplitPredictions) -> Rival:
        parts = read_features(opened, system, params, "test", len(test.predictions.index))
        logits = np.concatenate([heads.read(features) for features, _ in parts])
        figures = compare_with_heads(test, logits, chain, name=name, num_resamples=settings.evaluation.num_resamples)
        return Rival(name, num_cases, penalties, chain.steps[-1].name, figures, note)

    return measure
