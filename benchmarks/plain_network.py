"""Compare the quickstart with a plain network: `python -m benchmarks.plain_network [--workdir runs/plain_network]`.

For each seed it trains the quickstart, as its command does, and a network of the same encoder with one linear layer a
step: no teacher, memory, prompts, distillation or given answers. Its loss is the sum of the steps' cross-entropies.
Drawings, splits, order of the batches, optimiser, rate, schedule and number of updates are the quickstart's, and so is
the choice of the best epoch by the accuracy on validation. Nothing is chosen on the test cases.

Prints figures on the test split and paired differences with intervals by patient; runs that the workdir has are kept.
"""

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jaxtyping import Array, Float

from stepcot_jax.chain import Chain
from stepcot_jax.data.batches import batches_per_epoch
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.evaluation.chains import FIGURES, evaluate, prepare_metrics
from stepcot_jax.evaluation.predictions import Predictions, SplitPredictions, join_models, read_predictions
from stepcot_jax.evaluation.statistics import Weights, bootstrap, summarise
from stepcot_jax.host.errors import run_tool
from stepcot_jax.host.ranges import Interval
from stepcot_jax.losses.step_cot import batch_totals, teacher_objective
from stepcot_jax.models.student import pad_answers
from stepcot_jax.run.fit import fit
from stepcot_jax.run.inputs import load_cases
from stepcot_jax.run.settings import Settings, load_settings
from stepcot_jax.run.training_run import Run
from stepcot_jax.training.devices import ONE_DEVICE, GlobalBatch, differentiate
from stepcot_jax.training.optimizers import make_optimizer, make_rate
from stepcot_jax.training.state import TrainState, apply_gradients
from stepcot_jax.training.system import Batch, Phase, System

NAME, RIVALS = "plain", ("teacher", "student")
SHOWN = FIGURES[:4]  # means over the steps


class PlainNetwork(nn.Module):
    """An image encoder and one linear layer a step."""

    encoder: nn.Module
    answers_per_step: Sequence[int]

    @nn.compact
    def __call__(self, images: Float[Array, "case height width 3"]) -> Float[Array, "case step answer"]:
        """Return padded logits."""
        features, most = self.encoder(images), max(self.answers_per_step)
        return jnp.stack([pad_answers(nn.Dense(size)(features), most) for size in self.answers_per_step], axis=1)


class PlainSystem(System):
    """The plain network and its optimiser."""

    names, score_name = (NAME,), "mean_accuracy"

    def __init__(
        self, chain: Chain, network: PlainNetwork, optimizer: optax.GradientTransformation, *, num_epochs: int
    ) -> None:
        self.chain, self.network, self.optimizer, self.num_epochs = chain, network, optimizer, num_epochs

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return random parameters."""
        init_key, run_key = jax.random.split(key)
        params = {NAME: self.network.init(init_key, jnp.zeros_like(example["images"][:1]))["params"]}
        optimizers = {NAME: self.optimizer.init(params)}
        return TrainState(jnp.zeros((), jnp.int32), params, optimizers, jax.random.key_data(run_key))

    def phases(self) -> Sequence[Phase]:
        """Return the one phase of the run."""
        return [Phase(NAME, self.num_epochs, self.update)]

    def update(
        self, state: TrainState, batch: Batch, global_batch: GlobalBatch = ONE_DEVICE
    ) -> tuple[TrainState, dict[str, Array]]:
        """Return the state after one device's update, and the sum of the steps' cross-entropies."""
        totals = global_batch.add_up(batch_totals(batch["labels"]))

        def loss(params: Any, rows: Batch) -> tuple[Array, Array]:
            logits = self.predict(params, rows)[NAME]
            total = teacher_objective(logits=logits, labels=rows["labels"], totals=totals).total
            return total, total

        total, gradients = differentiate(loss, state.params, batch, global_batch)
        state = apply_gradients(state, NAME, self.optimizer, gradients)
        return state.replace(step=state.step + 1), {"loss": total}

    def predict(self, params: Any, batch: Batch) -> dict[str, Array]:
        """Return padded logits [case, step, answer]."""
        return {NAME: self.network.apply({"params": params[NAME]}, batch["images"])}

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Return the mean accuracy over the steps, 0 to 1."""
        return {NAME: evaluate(predictions, self.chain)[NAME].mean_accuracy}


def make_plain(settings: Settings, dataset: Dataset) -> PlainSystem:
    """Return the plain network of a run's encoder, with the teacher's optimiser and the run's number of updates."""
    training, chain = settings.training, dataset.chain
    num_epochs = training.teacher_epochs + training.joint_epochs
    num_updates = num_epochs * batches_per_epoch(dataset, training.batch_size)
    optimizer = make_optimizer(
        learning_rate=make_rate(training.teacher_learning_rate, training.schedule, num_updates),
        weight_decay=training.weight_decay,
        epsilon=training.adam_epsilon,
        clip_norm=training.clip_norm,
    )
    network = PlainNetwork(make_resnet(settings.image_encoder.name), chain.answers_per_step)
    return PlainSystem(chain, network, optimizer, num_epochs=num_epochs)


def train(dataset: Dataset, overrides: dict[str, Any], workdir: pathlib.Path, seed: int) -> SplitPredictions:
    """Train both with one seed, where the workdir has not, and return their predictions on the test split."""
    settings = load_settings("quickstart", **overrides)
    quickstart, plain = workdir / f"quickstart_{seed}", workdir / f"plain_{seed}"
    if not (quickstart / "report.json").is_file():
        Run("quickstart", workdir=quickstart, seed=seed, **overrides).execute()
    if not (plain / "report.json").is_file():
        system = make_plain(settings, dataset)
        fit(system, dataset, workdir=plain, batch_size=settings.training.batch_size, seed=seed)
    tests = [read_predictions(run / "predictions" / "test.npz", dataset.chain) for run in (plain, quickstart)]
    return join_models({NAME: (tests[0], NAME)} | {name: (tests[1], name) for name in RIVALS})


def mean_figures(split: SplitPredictions, chain: Chain) -> dict[str, list[Any]]:
    """Return the intervals of `SHOWN` by model, means over the steps, and of the plain network's less each rival's."""
    measure = prepare_metrics(split, chain)

    def compute(weights: Weights) -> dict[str, npt.NDArray[np.float64]]:
        figures = measure(weights)
        means = {name: figures[name, "steps"][:, :, : len(SHOWN)].mean(axis=1) for name in (NAME, *RIVALS)}
        return means | {f"{NAME} less {rival}": means[NAME] - means[rival] for rival in RIVALS}

    return bootstrap(compute, split.facts["patient_id"])


def main(arguments: list[str] | None = None) -> int:
    """Train and print two tables as Markdown: by seed, and of all seeds."""
    about = (__doc__ or "").partition(":")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_network", description=about)
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/plain_network"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the networks (default: 0 1 2)")
    parser.add_argument("--num-cases", type=int, help="phantoms (default: the quickstart's)")
    parser.add_argument("--epochs", type=int, help="(default: the quickstart's)")
    options = parser.parse_args(arguments)
    given = {"phantom.num_cases": options.num_cases, "training.joint_epochs": options.epochs}
    overrides = {name: value for name, value in given.items() if value is not None}
    dataset = load_cases("quickstart", **overrides)
    splits = {seed: train(dataset, overrides, options.workdir, seed) for seed in options.seeds}
    found = {seed: mean_figures(split, dataset.chain) for seed, split in splits.items()}
    header = f"{' | '.join(f'{name} (%)' for name in SHOWN)} |\n|---|---|{'---|' * len(SHOWN)}"
    print(f"\n| seed | network | {header}")
    for seed, figures in found.items():
        for name, row in figures.items():
            print(f"| {seed} | {name} | {' | '.join(map(show, row))} |")
    print(f"\n| seeds {' '.join(map(str, found))} | network | {header}")
    for name in next(iter(found.values())):
        columns = list(zip(*(figures[name] for figures in found.values()), strict=True))
        values = [sorted(100 * interval.value for interval in column) for column in columns]
        print(f"| lowest to highest | {name} | {' | '.join(f'{own[0]:.1f} to {own[-1]:.1f}' for own in values)} |")
        print(f"| mean | {name} | {' | '.join(show(summarise(column)) for column in columns)} |")
    return 0


def show(interval: Interval) -> str:
    """Return a figure in per cent with its interval."""
    return f"{100 * interval.value:.1f} [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


if __name__ == "__main__":
    run_tool(main)
