"""Does the chain help? Teacher and student beside a plain network, over sets: `python -m benchmarks.does_it_help`.

A *set* s is a run whose phantoms, split and training have the seed s. `train` trains for each set the config and its
rivals, reads chests that no run drew, and keeps labels, answers and logits in one file; finished networks and sets are
not made again. `show` recomputes every figure from these files alone. Nothing is chosen on the unseen chests.

Rivals: *plain* (`--config=plain`: the same encoder, drawings, batches, rate, schedule, epochs and choice by validation,
one linear head a step), and *plain with answers*, a second plain network that has the known answers as one-hot inputs
beside the image features of its encoder, in a hidden layer beside its heads. In training its answers are drawn with
`training.given_rate`, varied where `training.given_answers` is "varied", without noise (and also where that is "none",
so that ours have none); it learns the others. Both plain networks are chosen by their validation accuracy without
answers, teacher and student by the mean of that without and that with true earlier answers.
Both have the joint model of answers that our networks have, fitted on the same validation cases.
"""

import argparse
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from benchmarks.correction_ways import Cases
from benchmarks.corrections import fit
from benchmarks.help_figures import KEPT, Kept, name_set, read_kept, show, write_kept
from stepcot_jax.chain import Chain
from stepcot_jax.data.batches import batches_per_epoch
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.phantom.phantom import PATIENT_BLOCK, draw_case
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.evaluation.chains import evaluate
from stepcot_jax.evaluation.counting import NaiveBayes, PriorReader
from stepcot_jax.evaluation.interventions import correct_in_turn
from stepcot_jax.evaluation.joint import AnswerTree, learn_tree
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.losses.step_cot import batch_totals, teacher_objective
from stepcot_jax.models.form_reader import LinearHeads
from stepcot_jax.models.layers import given_distributions
from stepcot_jax.reading.radiographs import read_picture, to_input
from stepcot_jax.run.fit import fit as fit_system
from stepcot_jax.run.inputs import load_cases
from stepcot_jax.run.networks import trained_preprocessing
from stepcot_jax.run.settings import Settings, changed_keys, load_settings, read_settings
from stepcot_jax.run.training_run import Run
from stepcot_jax.systems.networks import encode_in_parts, make_read_given
from stepcot_jax.systems.updates import AnswerSchedule
from stepcot_jax.tools.tables.cell_networks import load_weights
from stepcot_jax.training.checkpoints import read_best, restore_params
from stepcot_jax.training.devices import ONE_DEVICE, GlobalBatch, differentiate
from stepcot_jax.training.optimizers import make_optimizer, make_rate
from stepcot_jax.training.state import TrainState, apply_gradients
from stepcot_jax.training.system import Batch, Phase, System

TOLD = "plain with answers"
FEWER = {"evaluation.num_resamples": 0, "evaluation.gate_false_alarms": 0.0}
"""What a cell of this comparison need not measure."""

WORKDIR = pathlib.Path("runs/does_it_help")
_UNEQUAL = ("joint_epochs", "teacher_epochs", "teacher_learning_rate", "batch_size", "schedule", "weight_decay")
OURS_ALONE = {
    *(f"training.{name}" for name in (*_UNEQUAL, "updates_per_epoch")),
    *("data.num_train", "data.withhold_chains", "data.withhold_answers"),
}
"""Settings that `--set` refuses: not all rivals would have them."""

# The second plain network: answers are inputs.


class ToldNetwork(nn.Module):
    """A plain network, and a hidden layer of its features and the known answers (one-hot), which changes its logits."""

    encoder: nn.Module
    answers_per_step: Sequence[int]
    hidden: int = 512

    def setup(self) -> None:
        """Declare the layers beside the encoder."""
        self.hidden_layer = nn.Dense(self.hidden)
        self.heads, self.changes = LinearHeads(self.answers_per_step), LinearHeads(self.answers_per_step)

    def __call__(
        self, images: Float[Array, "case height width 3"], given: Float[Array, "case step answer"]
    ) -> Float[Array, "case step answer"]:
        """Return padded logits."""
        return self.answer(self.encoder(images), given)

    def answer(
        self, features: Float[Array, "case width"], given: Float[Array, "case step answer"]
    ) -> Float[Array, "case step answer"]:
        """Return padded logits of image features: those of the plain network, and what the known answers change."""
        inputs = jnp.concatenate([features, given.reshape(len(given), -1)], axis=1)
        logits: Array = self.heads(features) + self.changes(nn.relu(self.hidden_layer(inputs)))
        return logits


class ToldSystem(System):
    """`ToldNetwork` and its optimiser; answers are given at random, as to the teacher, and the others are learnt."""

    names, score_name = (TOLD,), "mean_accuracy"

    def __init__(
        self,
        chain: Chain,
        network: ToldNetwork,
        optimizer: optax.GradientTransformation,
        *,
        num_epochs: int,
        given: AnswerSchedule,
    ) -> None:
        self.chain, self.network, self.optimizer = chain, network, optimizer
        self.num_epochs, self.given = num_epochs, given

    def init(self, key: Array, example: Batch) -> TrainState:
        """Return random parameters."""
        init_key, run_key = jax.random.split(key)
        images = jnp.zeros_like(example["images"][:1])
        nothing = jnp.zeros((1, self.chain.num_steps, max(self.chain.answers_per_step)))
        params = {TOLD: self.network.init(init_key, images, nothing)["params"]}
        return TrainState(
            jnp.zeros((), jnp.int32), params, {TOLD: self.optimizer.init(params)}, jax.random.key_data(run_key)
        )

    def phases(self) -> Sequence[Phase]:
        """Return the one phase of the run."""
        return [Phase(TOLD, self.num_epochs, self.update)]

    def update(
        self, state: TrainState, batch: Batch, global_batch: GlobalBatch = ONE_DEVICE
    ) -> tuple[TrainState, dict[str, Array]]:
        """Return the state after one device's update, and the sum of the steps' cross-entropies."""
        answers = self.given.draw(
            state.key_of_update(),
            labels=batch["labels"],
            answers_per_step=self.chain.answers_per_step,
            first_case=global_batch.first_case(len(batch["labels"])),
        )

        # A given answer stands among the inputs: to repeat it teaches nothing.
        asked = jnp.where(answers >= 0, -1, batch["labels"])
        totals = global_batch.add_up(batch_totals(asked))

        def loss(params: Any, rows: Batch) -> tuple[Array, Array]:
            logits = self._read(params, rows["images"], rows["answers"])
            total = teacher_objective(logits=logits, labels=rows["labels"], totals=totals).total
            return total, total

        rows = {"images": batch["images"], "labels": asked, "answers": answers}
        total, gradients = differentiate(loss, state.params, rows, global_batch)
        state = apply_gradients(state, TOLD, self.optimizer, gradients)
        return state.replace(step=state.step + 1), {"loss": total}

    def _read(self, params: Any, images: Array, answers: Int[Array, "case step"]) -> Array:
        given = given_distributions(answers, num_answers=max(self.chain.answers_per_step))
        assert given is not None  # noqa: S101 - for the type checker
        return self.network.apply({"params": params[TOLD]}, images, jnp.swapaxes(given, 0, 1))

    def predict(self, params: Any, batch: Batch) -> dict[str, Array]:
        """Return padded logits [case, step, answer] without answers."""
        return {TOLD: self._read(params, batch["images"], jnp.full((len(batch["images"]), self.chain.num_steps), -1))}

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Return the mean accuracy over the steps."""
        return {TOLD: evaluate(predictions, self.chain)[TOLD].mean_accuracy}


def make_told(settings: Settings, dataset: Dataset) -> ToldSystem:
    """Return the second plain network with the teacher's optimiser and the run's number of updates."""
    training, chain = settings.training, dataset.chain
    num_epochs = training.teacher_epochs + training.joint_epochs
    num_updates = num_epochs * batches_per_epoch(dataset, training.batch_size)
    optimizer = make_optimizer(
        learning_rate=make_rate(training.teacher_learning_rate, training.schedule, num_updates),
        weight_decay=training.weight_decay,
        epsilon=training.adam_epsilon,
        clip_norm=training.clip_norm,
    )
    network = ToldNetwork(make_resnet(settings.image_encoder.name), chain.answers_per_step)
    given = AnswerSchedule(training.given_rate, varied=training.given_answers == "varied")
    return ToldSystem(chain, network, optimizer, num_epochs=num_epochs, given=given)


# A set: train, read unseen chests, keep.


def of_set(number: int) -> dict[str, int]:
    """Return the settings of a set."""
    return {"seed": number, "phantom.seed": number, "data.split_seed": number}


def read_networks(
    config: str, number: int, workdir: pathlib.Path, changes: Mapping[str, Any], images: Mapping[str, Any]
) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Train the networks of a set where they are not, and return by network and part their reading and logits."""
    overrides = {**changes, **of_set(number)}
    settings = load_settings(config, **overrides)
    found: dict[str, dict[str, tuple[Any, Any]]] = {}
    runs = {"ours": config, "plain": f"plain:{config}"}
    for name, of_run in runs.items():
        folder = workdir / f"{config}_{number}" / name
        kept = {key: value for key, value in overrides.items() if name == "ours" or not _is_ours(key)}
        if not (folder / "report.json").is_file():
            Run(of_run, workdir=folder, **{**kept, **FEWER}).execute()
        elif changed := changed_keys(read_settings(folder / "settings.json"), load_settings(of_run, **kept)):
            raise BadInput(f"{folder}: finished with other settings ({', '.join(changed)}); expected another --workdir")
        names = read_settings(folder / "settings.json").trains.names
        weights = load_weights(folder, names)
        for network in names:
            shown = {"ours/plain": "plain heads of the teacher"}.get(f"{name}/{network}", network)
            found[shown] = {}
            for part, pixels in images.items():
                features = encode_in_parts(weights.networks, weights.params[network], {"images": pixels})
                read = make_read_given(
                    weights.networks, network, weights.params[network], features, weights.text_features
                )
                found[shown][part] = _read_alone(read, len(pixels), weights.chain)
    folder = workdir / f"{config}_{number}" / "told"
    dataset = load_cases(config, **overrides)
    system = make_told(settings, dataset)
    if not (folder / "report.json").is_file():
        fit_system(system, dataset, workdir=folder, batch_size=settings.training.batch_size, seed=number)
    params = restore_params(folder / "checkpoints", read_best(folder / "checkpoints")[1][TOLD].step)
    found[TOLD] = {part: _read_told(system, params, pixels) for part, pixels in images.items()}
    return found


def _is_ours(key: str) -> bool:
    return key.startswith(("teacher.", "student.", "loss.", "training.given"))


def _read_alone(read: Any, num_cases: int, chain: Chain) -> tuple[Any, Any]:
    nothing = np.zeros((1, num_cases, chain.num_steps, max(chain.answers_per_step)), np.float32)
    return read, np.asarray(read(nothing))[0]


def _read_told(system: ToldSystem, params: Any, pixels: Any) -> tuple[Any, Any]:
    """Return the function from given answers to logits, with the encoder's features computed once."""
    tree, network = params[TOLD], system.network
    encode = jax.jit(lambda images: network.encoder.apply({"params": tree["encoder"]}, images))
    features = np.concatenate([np.asarray(encode(pixels[start : start + 250])) for start in range(0, len(pixels), 250)])
    head = jax.jit(lambda features, given: network.apply({"params": tree}, features, given, method="answer"))

    def read(given: Any) -> Any:
        return np.stack([np.asarray(head(features, np.asarray(variant, np.float32))) for variant in given])

    return _read_alone(read, len(pixels), system.chain)


def measure_set(config: str, number: int, workdir: pathlib.Path, changes: Mapping[str, Any], num_cases: int) -> Kept:
    """Return what is kept of a set: labels, answers and logits of unseen chests, and what corrections are worth."""
    terminal = Terminal()
    settings = load_settings(config, **{**changes, **of_set(number)})
    phantom, preprocessing = settings.phantom, trained_preprocessing(settings)
    dataset = load_cases(config, **{**changes, **of_set(number)})
    first = -(-phantom.num_cases // PATIENT_BLOCK) * PATIENT_BLOCK
    drawn = [
        draw_case(index, **phantom.drawing)
        for index in terminal.watch(range(first, first + num_cases), f"set {number}: drawing unseen chests")
    ]
    validation = [dataset.pixels.compact(index) for index in dataset.splits.val]
    images = {
        part: to_input([read_picture(picture, preprocessing) for picture in pictures], preprocessing)
        for part, pictures in (("val", validation), ("unseen", [case.image for case in drawn]))
    }
    labels = {
        "val": dataset.labels[np.asarray(dataset.splits.val)],
        "unseen": np.array([case.case.answers for case in drawn]),
    }
    training = dataset.labels[np.asarray(dataset.splits.train)]
    tree = learn_tree(training, dataset.chain.answers_per_step)
    found = read_networks(config, number, workdir, changes, images)
    kept = Kept(labels["unseen"], dataset.chain.answers_per_step)
    for network, parts in found.items():
        val, unseen = (Cases(*parts[part], labels[part], np.arange(len(labels[part]))) for part in ("val", "unseen"))
        kept.add_network(network, unseen.logits)
        _add_readings(kept, network, tree, training, val, unseen, dataset.chain)
    counted = PriorReader(tree)
    kept.add_reading("joint model without the picture", *_ask(counted, labels["unseen"], dataset.chain))
    return kept


def _add_readings(
    kept: Kept, network: str, tree: AnswerTree, training: Any, val: Cases, unseen: Cases, chain: Chain
) -> None:
    joint = fit(tree, val, chain)
    joined = joint.join(unseen.logits, unseen.read)
    kept.add_reading(network, *_ask(joined, unseen.labels, chain))
    kept.add_reading(f"{network}, random questions", *_ask(joined, unseen.labels, chain, policy="random"))
    bayes = NaiveBayes(training, chain).beside(np.exp(joint.calibrate(unseen.logits)[-1]))
    kept.add_reading(f"{network} x naive Bayes", *_ask(bayes, unseen.labels, chain))


def _ask(read: Any, labels: Any, chain: Chain, policy: Any = "expected gain") -> tuple[Any, Any]:
    """Return whether the diagnosis is right after 0, 1, ... answers, and its distributions after two."""
    readings, _ = correct_in_turn(policy, read, labels, chain)
    last = readings[:, :, -1, : chain.answers_per_step[-1]]
    return last.argmax(axis=-1) == labels[:, -1], last[2]


def read_changes(entries: Sequence[str], workdir: pathlib.Path, keep: pathlib.Path) -> dict[str, Any]:
    """Return the settings of `--set`, which need folders of their own and may not change ours alone."""
    changes: dict[str, Any] = {}
    for entry in entries:
        key, _, value = entry.partition("=")
        try:
            changes[key] = json.loads(value)
        except ValueError:
            raise BadInput(f"--set: {entry!r} is not KEY=VALUE with VALUE in JSON") from None
    if refused := [key for key in changes if key in OURS_ALONE]:
        raise BadInput(f"--set: {', '.join(refused)} would change teacher and student and not every rival")
    if refused := [key for key in changes if key in of_set(0)]:
        raise BadInput(f"--set: {', '.join(refused)} is the number of the set (--sets)")
    if changes and (workdir == WORKDIR or keep == KEPT):
        raise BadInput(f"--set: expected a --workdir and a --keep of their own, not {WORKDIR} and {KEPT}")
    return changes


def is_kept(path: pathlib.Path, changes: Mapping[str, Any], num_cases: int) -> bool:
    """Return whether a set is kept; refuse one of other settings or another number of chests."""
    if not path.is_file():
        return False
    kept = read_kept(path)
    if (kept.changes, len(kept.labels)) != (changes, num_cases):
        raise BadInput(
            f"{path}: kept with --set {kept.changes} and {len(kept.labels):,} chests, not {dict(changes)} and "
            f"{num_cases:,}; expected another --keep"
        )
    return True


def main(arguments: list[str] | None = None) -> int:
    """Train and keep sets, or print what is kept."""
    about = (__doc__ or "").partition(":")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.does_it_help", description=about)
    parser.add_argument("what", choices=("train", "show"))
    parser.add_argument("--config", default="quickstart", help="quickstart (default) or phantom")
    parser.add_argument("--sets", type=int, nargs="+", default=[*range(1, 11)], help="(default: 1 to 10)")
    parser.add_argument("--num-cases", type=int, default=4000, help="unseen chests of a set (default: %(default)s)")
    parser.add_argument(
        "--set", dest="changes", nargs="*", default=[], metavar="KEY=VALUE", help="settings, VALUE in JSON"
    )
    parser.add_argument("--workdir", type=pathlib.Path, default=WORKDIR, help="(default: %(default)s)")
    parser.add_argument("--keep", type=pathlib.Path, default=KEPT, help="folder of kept files (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.what == "show":
        print(show(options.keep, options.config))
        return 0
    changes = read_changes(options.changes, options.workdir, options.keep)
    for number in options.sets:
        path = options.keep / name_set(options.config, number)
        if not is_kept(path, changes, options.num_cases):
            kept = measure_set(options.config, number, options.workdir, changes, options.num_cases)
            write_kept(path, kept, about={"config": options.config, "set": number, "changes": changes})
    return 0


if __name__ == "__main__":
    run_tool(main)
