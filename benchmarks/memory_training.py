"""Whether a teacher would use its memory if what is written there were worth reading.

`python -m benchmarks.memory_training WORKDIR [--epochs 30] [--seeds 0 1 2]` trains new teachers of the run's sizes on
the image features of its encoder, by cross-entropy alone: one that writes its own predictions to memory, as published,
and one that is given the true answers to write (teacher forcing). Prints a Markdown table: accuracy on the test split
by what was written in training and in reading.

If the given answers raise the accuracy, the graph attention lets answers through to the later steps, and a teacher that
ignores its memory lacks a reason to read it; if not, what is written does not arrive.
"""

import argparse
import functools
import pathlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.memory_use import OF_ANOTHER, OWN, TRUE, make_answers, read_split
from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.errors import run_tool
from stepcot_jax.evaluation.evaluator import Predictions, evaluate
from stepcot_jax.experiments.weights import Weights, load_weights
from stepcot_jax.inputs import load_inputs
from stepcot_jax.losses.hard_label import hard_label_loss
from stepcot_jax.terminal import Terminal
from stepcot_jax.training.optimizers import make_optimizer

Split = tuple[np.ndarray, np.ndarray]
"""Image features [case, width] and labels [case, step]."""


def train(weights: Weights, split: Split, given: np.ndarray, *, num_epochs: int, seed: int) -> Any:
    """Parameters of a new teacher after training with these answers given, `NOT_GIVEN` for its own."""
    teacher, settings = weights.networks.teacher, weights.settings.training
    features, labels, given = (jnp.asarray(part) for part in (*split, given))
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
    """Rows of each batch; those that fill none wait for another epoch."""
    generator = np.random.default_rng(seed)
    for _ in range(num_epochs):
        yield from generator.permutation(num_cases)[: num_cases // batch_size * batch_size].reshape(-1, batch_size)


def compare(
    weights: Weights, *, training: Split, test: Split, num_epochs: int, seed: int
) -> dict[tuple[str, str], np.ndarray]:
    """Accuracy [step] on the test cases by what was written in training and in reading."""
    features, labels = test
    read = jax.jit(
        functools.partial(weights.networks.teacher.apply, text_features=weights.text_features, deterministic=True)
    )
    to_train, to_read = (make_answers(known, weights.chain, seed=seed) for known in (training[1], labels))
    found = {}
    for trained_with in (OWN, TRUE):
        params = train(weights, training, to_train[trained_with], num_epochs=num_epochs, seed=seed)
        for read_with in (OWN, TRUE, OF_ANOTHER):
            given = jnp.asarray(to_read[read_with])
            logits = read({"params": params}, image_features=jnp.asarray(features), given_answers=given).logits
            predictions = Predictions(np.arange(len(labels), dtype=np.int32), labels, {"": np.asarray(logits)})
            steps = evaluate(predictions, weights.chain)[""].steps
            found[trained_with, read_with] = np.array([step.accuracy for step in steps])
        print(f"seed {seed}: trained with {trained_with} answers", file=sys.stderr)
    return found


def format_table(found: Sequence[dict[tuple[str, str], np.ndarray]], chain: Chain) -> str:
    """The Markdown table: means in percent, with the sample deviation over two seeds or more."""
    rows = [["written in training", "written in reading", *(step.name for step in chain.steps)]]
    rows += [["---", "---", *["---:"] * chain.num_steps]]
    for names in found[0]:
        values = 100 * np.stack([one[names] for one in found])
        cells = [f"{mean:.1f}" for mean in values.mean(axis=0)]
        if len(values) > 1:
            cells = [f"{cell} ± {own:.1f}" for cell, own in zip(cells, values.std(axis=0, ddof=1), strict=True)]
        rows.append([*names, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: list[str] | None = None) -> None:
    """Print the table of a run."""
    parser = argparse.ArgumentParser(prog="benchmarks.memory_training", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workdir", type=pathlib.Path, help="of a run that trained a teacher and its image encoder")
    parser.add_argument("--epochs", type=int, default=30, help="of each training, default 30")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the trainings, default 0 1 2")
    options = parser.parse_args(arguments)
    weights = load_weights(options.workdir, ("teacher",))
    inputs = load_inputs(weights.settings, options.workdir, Terminal())
    training, test = (read_split(weights, inputs, split) for split in ("train", "test"))
    found = [
        compare(weights, training=training, test=test, num_epochs=options.epochs, seed=seed) for seed in options.seeds
    ]
    print(f"{len(training[1])} cases, {options.epochs} epochs, seeds {options.seeds}\n")
    print(format_table(found, weights.chain))


if __name__ == "__main__":
    run_tool(main)
