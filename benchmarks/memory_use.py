"""How a trained teacher uses its memory: `python -m benchmarks.memory_use WORKDIR [--split=test] [--seed=0]`.

Prints a Markdown table with a row for each step: accuracy with the teacher's own and with other answers in memory, the
largest change of a probability with random answers, the similarity of the nodes before and after the step's graph
attention, and the share of the memory that differs between cases. A teacher that uses its memory is less accurate with
random answers than with true ones.
"""

import argparse
import contextlib
import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from stepcot_jax.chain import Chain
from stepcot_jax.data.batches import evaluation_batches, iterate
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.predictions import Predictions, probabilities_by_step
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.models.layers import GraphAttentionStack
from stepcot_jax.models.teacher import TeacherReading
from stepcot_jax.reading.corrections import NOT_GIVEN
from stepcot_jax.run.inputs import Inputs, load_inputs
from stepcot_jax.systems.networks import encode_images
from stepcot_jax.tools.tables.cell_networks import Weights, load_weights

OWN, TRUE, RANDOM, OF_ANOTHER = "own", "true", "random", "another case's"


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """How the memory is used; each attribute has one figure per step.

    Attributes:
      num_cases: cases of the split.
      accuracy: share of the annotated cases that are answered correctly, by the answers written to memory.
      largest_change: largest change of any probability from own to random answers, 0 to 1.
      cosine_before: mean cosine between two nodes of a case, before the step's graph attention.
      cosine_after: the same after it.
      share_read: deviation over the cases divided by the norm (both root mean squares) of the memory that the step
        reads, which is after its graph attention.
      share_written: the same after the step's write-back.
    """

    num_cases: int
    accuracy: dict[str, list[float]]
    largest_change: list[float]
    cosine_before: list[float]
    cosine_after: list[float]
    share_read: list[float]
    share_written: list[float]


def make_answers(labels: Int[np.ndarray, "case step"], chain: Chain, *, seed: int) -> dict[str, np.ndarray]:
    """Return the answers to write, by name: int32 [case, step], `NOT_GIVEN` for the teacher's own prediction.

    Args:
      labels: the true answers; missing ones become `NOT_GIVEN`.
      chain: the steps.
      seed: seed of the random answers and of the permutation that assigns each case the answers of another.
    """
    generator = np.random.default_rng(seed)
    true = np.where(labels >= 0, labels, NOT_GIVEN).astype(np.int32)
    order = generator.permutation(len(labels))
    another = np.empty_like(true)
    another[order] = true[np.roll(order, 1)]
    random = generator.integers(0, np.asarray(chain.answers_per_step), labels.shape).astype(np.int32)
    return {OWN: np.full_like(true, NOT_GIVEN), TRUE: true, RANDOM: random, OF_ANOTHER: another}


def load_with_memory(workdir: pathlib.Path) -> tuple[Weights, Inputs]:
    """Load a run's teacher, which must have a memory with write-back, and its data.

    Raises:
      BadInput: the teacher has no such memory, or the run cannot be used.
    """
    weights = load_weights(workdir, ("teacher",))
    teacher = weights.settings.teacher
    if not (teacher.memory and teacher.write_back):
        found = f"config.teacher.memory={teacher.memory} and write_back={teacher.write_back}"
        raise BadInput(f"{workdir}: the run has {found}; both must be True")
    return weights, load_inputs(weights.settings, workdir, Terminal())


def read_split(weights: Weights, inputs: Inputs, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return image features [case, width] and labels [case, step] of a split, in its order."""

    @jax.jit
    def encode(params: Any, batch: dict[str, Any]) -> jax.Array:
        return encode_images(weights.networks, params, batch)

    features, labels = [], []
    batches = evaluation_batches(inputs.dataset, split, batch_size=weights.settings.evaluation.batch_size)
    with contextlib.closing(iterate(batches, num_threads=weights.settings.data.batching_threads)) as read:
        for batch in read:
            present = np.asarray(batch["present"], bool)
            features.append(np.asarray(encode(weights.params["teacher"], inputs.prepare(batch)))[present])
            labels.append(np.asarray(batch["labels"])[present])
    return np.concatenate(features), np.concatenate(labels)


def record_nodes(read: Callable[[], TeacherReading]) -> tuple[TeacherReading, list[tuple[np.ndarray, np.ndarray]]]:
    """Read as a teacher whose `unroll` is True; also return each step's nodes before and after its graph attention."""
    passes: list[tuple[np.ndarray, np.ndarray]] = []

    def record(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        result = call(*args, **kwargs)
        is_pass = isinstance(context.module, GraphAttentionStack) and context.method_name == "__call__"
        # Flax traces modules to check the shapes of parameters; such a trace is not a pass.
        if is_pass and not isinstance(result[0], jax.core.Tracer):
            passes.append((np.asarray(args[0]), np.asarray(result[0])))
        return result

    # Without jit, a scan is a Python loop with concrete values.
    with jax.disable_jit(), nn.intercept_methods(record):
        reading = read()
    return reading, passes


def mean_cosine(nodes: Float[np.ndarray, "*case node width"]) -> float:
    """Return the mean cosine over all pairs of different nodes and all cases; a zero node has cosine 0 with any.

    >>> round(mean_cosine(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])), 4)
    0.4714
    """
    nodes = nodes.astype(np.float64)
    norms = np.linalg.norm(nodes, axis=-1, keepdims=True)
    units = np.divide(nodes, norms, out=np.zeros_like(nodes), where=norms > 0)
    cosines = units @ np.swapaxes(units, -1, -2)
    return float(cosines[..., *np.triu_indices(nodes.shape[-2], 1)].mean())


def own_share(memory: Float[np.ndarray, "*case width"]) -> float:
    """Return the root mean square distance of cases from their mean, divided by that of their norm; 0 for zeros.

    >>> own_share(np.array([[3.0, 4.0], [3.0, -4.0]]))
    0.8
    """
    rows = np.atleast_2d(memory.astype(np.float64))
    norm = np.linalg.norm(rows)
    return float(np.linalg.norm(rows - rows.mean(axis=0)) / norm) if norm else 0.0


def measure(weights: Weights, *, features: np.ndarray, labels: np.ndarray, seed: int) -> MemoryUse:
    """Measure how the memory is used for cases with these image features and labels."""
    params, text, images = weights.params["teacher"]["teacher"], weights.text_features, jnp.asarray(features)

    def read(images: jax.Array, given: jax.Array | None = None, *, unroll: bool = False) -> TeacherReading:
        return weights.networks.teacher.clone(unroll=unroll).apply(
            {"params": params}, image_features=images, text_features=text, given_answers=given, deterministic=True
        )

    compiled = jax.jit(lambda images, given: read(images, given).logits)
    answers = make_answers(labels, weights.chain, seed=seed)
    logits = {name: np.asarray(compiled(images, jnp.asarray(given))) for name, given in answers.items()}
    metrics = evaluate(Predictions(np.arange(len(labels), dtype=np.int32), labels, logits), weights.chain)
    own, random = (probabilities_by_step(logits[name], chain=weights.chain) for name in (OWN, RANDOM))
    reading, passes = record_nodes(lambda: read(images, unroll=True))
    written = np.moveaxis(np.asarray(reading.memory), 1, 0)
    return MemoryUse(
        num_cases=len(labels),
        accuracy={name: [step.accuracy for step in found.steps] for name, found in metrics.items()},
        largest_change=[float(np.abs(one - other).max()) for one, other in zip(own, random, strict=True)],
        cosine_before=[mean_cosine(before) for before, _ in passes],
        cosine_after=[mean_cosine(after) for _, after in passes],
        share_read=[own_share(after[..., -1, :]) for _, after in passes],
        share_written=[own_share(memory) for memory in written],
    )


def format_table(use: MemoryUse, chain: Chain) -> str:
    """Return the Markdown table, shares in percent."""
    headings = ["step", *(f"{name} answers (%)" for name in use.accuracy)]
    headings += ["largest change, own to random (points)", "cosine before", "cosine after"]
    headings += ["own share read (%)", "own share written (%)"]
    rows = [headings, ["---", *["---:"] * (len(headings) - 1)]]
    for place, step in enumerate(chain.steps):
        cells = [f"{100 * found[place]:.1f}" for found in use.accuracy.values()]
        cells += [f"{100 * use.largest_change[place]:.3f}"]
        cells += [f"{use.cosine_before[place]:.4f}", f"{use.cosine_after[place]:.4f}"]
        cells += [f"{100 * use.share_read[place]:.2f}", f"{100 * use.share_written[place]:.2f}"]
        rows.append([step.name, *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: list[str] | None = None) -> None:
    """Print the table of a run."""
    parser = argparse.ArgumentParser(prog="benchmarks.memory_use", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workdir", type=pathlib.Path, help="workdir of a run that trained a teacher")
    parser.add_argument("--split", default="test", choices=("train", "val", "test"))
    parser.add_argument("--seed", type=int, default=0, help="seed of the random answers (default 0)")
    options = parser.parse_args(arguments)
    weights, inputs = load_with_memory(options.workdir)
    features, labels = read_split(weights, inputs, options.split)
    use = measure(weights, features=features, labels=labels, seed=options.seed)
    print(f"{use.num_cases} cases of the split {options.split!r}, random answers of seed {options.seed}\n")
    print(format_table(use, weights.chain))


if __name__ == "__main__":
    run_tool(main)
