"""Does a teacher use its memory if it is trained with true answers in it?

`python -m benchmarks.memory_training WORKDIR [--epochs 30] [--seeds 0 1 2]` trains new teachers of the run's sizes on
the image features of its encoder, by cross-entropy only. One writes its own predictions to memory, as published; the
other receives the true answers to write (teacher forcing). Prints a Markdown table of the accuracy on the test split,
by the answers written in training and at test time, and the similarity of the nodes.

If true answers help the teacher that was trained with them, the memory reaches the later steps, and a teacher that
ignores its memory had no reason to use it.
"""

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.memory_use import (
    OF_ANOTHER,
    OWN,
    TRUE,
    MemoryUse,
    load_with_memory,
    make_answers,
    measure,
    read_split,
)
from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.losses.hard_label import hard_label_loss
from stepcot_jax.tables.cell_networks import Weights
from stepcot_jax.training.optimizers import make_optimizer

Split = tuple[np.ndarray, np.ndarray]
"""Image features [case, width] and labels [case, step]."""


def train(weights: Weights, split: Split, given: np.ndarray, *, num_epochs: int, seed: int) -> Any:
    """Train a new teacher and return its parameters; `given` are the answers to write, `NOT_GIVEN` for its own."""
    teacher, settings = weights.networks.teacher, weights.settings.training
    features, labels, given = (jnp.asarray(part) for part in (*split, given))
    if len(labels) < settings.batch_size:
        raise BadInput(f"train split: {len(labels)} cases are fewer than one batch of {settings.batch_size}")
    optimizer = make_optimizer(learning_rate=settings.teacher_learning_rate)

    def loss(params: Any, rows: jax.Array, key: jax.Array) -> jax.Array:
        logits = teacher.apply(
            {"params": params},
            image_features=features[rows],
            text_features=weights.text_features,
            given_answers=given[rows],
            deterministic=False,
            rngs={"dropout": key},
        ).logits
        return sum(
            hard_label_loss(logits=logits[:, step], labels=own, annotated=own != NOT_ANNOTATED)
            for step, own in enumerate(labels[rows].T)
        )

    @jax.jit
    def update(params: Any, state: Any, rows: jax.Array, key: jax.Array) -> tuple[Any, Any]:
        changes, state = optimizer.update(jax.grad(loss)(params, rows, key), state, params)
        return optax.apply_updates(params, changes), state

    start, dropout = jax.random.split(jax.random.key(seed))
    one = {"image_features": features[:1], "text_features": weights.text_features}
    params = teacher.init(start, **one, deterministic=True)["params"]
    state = optimizer.init(params)
    for number, rows in enumerate(_draw(len(labels), settings.batch_size, num_epochs=num_epochs, seed=seed)):
        params, state = update(params, state, jnp.asarray(rows), jax.random.fold_in(dropout, number))
    return params


def _draw(num_cases: int, batch_size: int, *, num_epochs: int, seed: int) -> Iterator[np.ndarray]:
    """Return the rows of each batch; rows that fill no batch are left out of the epoch."""
    generator = np.random.default_rng(seed)
    for _ in range(num_epochs):
        yield from generator.permutation(num_cases)[: num_cases // batch_size * batch_size].reshape(-1, batch_size)


def compare(weights: Weights, *, training: Split, test: Split, num_epochs: int, seed: int) -> dict[str, MemoryUse]:
    """Return accuracy and node similarity on the test cases, by the answers written in training."""
    features, labels = test
    answers = make_answers(training[1], weights.chain, seed=seed)
    found = {}
    for name in (OWN, TRUE):
        params = train(weights, training, answers[name], num_epochs=num_epochs, seed=seed)
        trained = dataclasses.replace(weights, params={"teacher": {"teacher": params}})
        found[name] = measure(trained, features=features, labels=labels, seed=seed)
        print(f"seed {seed}: trained with {name} answers", file=sys.stderr)
    return found


def format_table(found: Sequence[dict[str, MemoryUse]], chain: Chain) -> str:
    """Return the Markdown table: means in percent, with the sample standard deviation over two seeds or more."""
    rows = [["written in training", "written at test time", *(step.name for step in chain.steps)]]
    rows += [["---", "---", *["---:"] * chain.num_steps]]
    for trained_with in (OWN, TRUE):
        for read_with in (OWN, TRUE, OF_ANOTHER):
            values = np.array([uses[trained_with].accuracy[read_with] for uses in found])
            rows.append([trained_with, read_with, *(_format(100 * own, 1) for own in values.T)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def format_cosines(found: Sequence[dict[str, MemoryUse]]) -> str:
    """Describe the mean cosine between nodes after the graph attention, averaged over the steps from the second on."""
    cosines = {name: [float(np.mean(uses[name].cosine_after[1:])) for uses in found] for name in (OWN, TRUE)}
    shown = ", ".join(f"{_format(values, 4)} ({name})" for name, values in cosines.items())
    return f"Mean cosine between nodes after the graph attention, by what was written in training: {shown}."


def _format(values: Sequence[float], digits: int) -> str:
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {np.std(values, ddof=1):.{digits}f}"


def main(arguments: list[str] | None = None) -> None:
    """Print the table of a run."""
    parser = argparse.ArgumentParser(prog="benchmarks.memory_training", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workdir", type=pathlib.Path, help="run with a trained teacher and image encoder")
    parser.add_argument("--epochs", type=int, default=30, help="epochs of each training (default 30)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds (default 0 1 2)")
    options = parser.parse_args(arguments)
    if options.epochs < 1:
        raise BadInput(f"--epochs: {options.epochs} is not 1 or more")
    weights, inputs = load_with_memory(options.workdir)
    training, test = (read_split(weights, inputs, split) for split in ("train", "test"))
    found = [
        compare(weights, training=training, test=test, num_epochs=options.epochs, seed=seed) for seed in options.seeds
    ]
    print(f"{len(training[1])} cases, {options.epochs} epochs, seeds {options.seeds}\n")
    print(format_table(found, weights.chain), format_cosines(found), sep="\n\n")


if __name__ == "__main__":
    run_tool(main)
