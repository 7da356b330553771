"""Fit the gate of each network at the end of a run, on features of its training and validation images."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from stepcot_jax.evaluation.gate import Gate, fit_gate
from stepcot_jax.run.feed import Feed
from stepcot_jax.systems.networks import Networks, read_moments

NUM_IMAGES = 2000
"""Most images of a split that a gate is fitted on."""


def fit_gates(
    feed: Feed, networks: Networks, names: Sequence[str], params_of: Callable[[str], Any], *, false_alarms: float
) -> dict[str, Gate]:
    """Return the gate of each network; none where the validation images are too few for its limit.

    Args:
      names: of the networks; each has an encoder of its own best update, unless the encoder is frozen.
    """
    gates: dict[str, Gate | None] = {}
    for name in reversed(names):  # the last was restored last
        if networks.image_encoder is None and gates:
            gates[name] = next(iter(gates.values()))
            continue
        params = jax.device_get(params_of(name)) if networks.image_encoder is not None else {}
        features = {split: _read_split(feed, networks, params, split) for split in ("train", "val")}
        gates[name] = fit_gate(features["train"], features["val"], false_alarms=false_alarms)
    return {name: gate for name in names if (gate := gates[name]) is not None}


def _read_split(feed: Feed, networks: Networks, params: Any, split: str) -> np.ndarray:
    own = {name: params[name] for name in ("image_encoder",) if name in params}
    parts, size = [], 0
    for batch in feed.sample_batches(split, NUM_IMAGES):
        name = "images" if "images" in batch else "image_features"
        rows = batch[name]
        num_rows, size = len(rows), max(size, len(rows))  # the last batch is padded to the others' size
        rows = np.concatenate([rows, np.zeros((size - num_rows, *rows.shape[1:]), rows.dtype)])
        parts.append(np.asarray(read_moments(own, {name: rows}, networks=networks))[:num_rows])
    return np.concatenate(parts)
