"""Measure what the settings of uncertain answers do: `python -m benchmarks.uncertain [--seeds 0 1 2]`.

Draws phantoms at 32 px, marks a share of the training answers uncertain, and trains the tables' teacher and
student with each `config.data.uncertain`, and once with all answers right and certain. The image features are the
standardised pixels, so that a run is short. An uncertain answer is a finding, and a share of them is wrong: the truth
is the step's negative option. Prints the accuracy of the last weights on test cases, whose answers are all right and
certain, with 95 % intervals by patient.
"""

import argparse
import dataclasses

import jax
import numpy as np
from jaxtyping import Float, Int

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.batches import training_batches
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.evaluation.chains import bootstrap
from stepcot_jax.evaluation.predictions import Predictions, SplitPredictions
from stepcot_jax.host.errors import run_tool
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.build import make_system
from stepcot_jax.run.inputs import encode_prompts, load_cases
from stepcot_jax.run.settings import Settings, load_settings

CLEAN = "all certain and right"
NETWORKS = ("teacher", "student")
SIZE = 32


def main(arguments: list[str] | None = None) -> int:
    """Train with every setting and print the table as Markdown, a row a run."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.uncertain", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--num-cases", type=int, default=2000, help="phantoms (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=15, help="joint epochs (default: %(default)s)")
    parser.add_argument("--uncertain", type=float, default=0.2, help="share of the answers (default: %(default)s)")
    parser.add_argument("--wrong", type=float, default=0.3, help="share of the uncertain ones (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the networks (default: 0)")
    options = parser.parse_args(arguments)
    terminal = Terminal()
    overrides = {
        "phantom.num_cases": options.num_cases,
        "phantom.image_size": SIZE,
        "image_encoder.image_size": SIZE,
        "training.teacher_epochs": 1,
        "training.joint_epochs": options.epochs,
        "data.split_fractions": (0.7, 0.15, 0.15),
    }
    settings = load_settings("tables_phantom", **overrides)
    clean = load_cases("tables_phantom", **overrides)
    pixels = [clean.pixels[index] for index in terminal.watch(range(options.num_cases), "drawing the phantom")]
    clean = dataclasses.replace(clean, features=standardise(np.stack(pixels), clean.splits.train))
    marked, numbers = mark(clean, share=options.uncertain, wrong=options.wrong)
    terminal.say(numbers)
    datasets = {name: dataclasses.replace(marked, uncertain=name) for name in ("ignore", "negative", "positive")}
    datasets[CLEAN] = clean
    print("| `config.data.uncertain` | seed | teacher (%) | student (%) |\n|---|---|---|---|", flush=True)
    for seed in options.seeds:
        for name, dataset in datasets.items():
            figures = train(dataset, settings, seed=seed, terminal=terminal)
            print(f"| {name} | {seed} | {' | '.join(figures)} |", flush=True)
    return 0


def standardise(
    pixels: Int[np.ndarray, "case height width 3"], train: tuple[int, ...]
) -> Float[np.ndarray, "case width"]:
    """Return the grey values of each case, each pixel with mean 0 and deviation 1 over the training cases."""
    grey = pixels[..., 0].reshape(len(pixels), -1).astype(np.float32)
    own = grey[list(train)]
    return (grey - own.mean(axis=0)) / (own.std(axis=0) + 1)


def mark(clean: Dataset, *, share: float, wrong: float) -> tuple[Dataset, str]:
    """Return the dataset with a share of its training answers uncertain, and their numbers in words.

    At each step wrong ones are drawn from the cases whose true answer is the negative option, at most all of them, and
    right ones from the others. A wrong one is a finding drawn uniformly.
    """
    generator, labels = np.random.default_rng(0), clean.labels
    certain, uncertain = labels.copy(), np.full_like(labels, NOT_ANNOTATED)
    for place, step in enumerate(clean.chain.steps):
        members = np.asarray(clean.splits.train)
        denied = labels[members, place] == step.negative
        findings = [label for label in range(step.num_answers) if label != step.negative]
        false = choose(members[denied], round(share * wrong * len(members)), generator)
        true = choose(members[~denied], round(share * (1 - wrong) * len(members)), generator)
        uncertain[true, place] = labels[true, place]
        uncertain[false, place] = generator.choice(findings, len(false))
        certain[np.concatenate([true, false]), place] = NOT_ANNOTATED
    doubtful = uncertain >= 0
    is_wrong = doubtful & (uncertain != labels)
    of = len(clean.splits.train) * clean.chain.num_steps
    words = f"{doubtful.sum()} of {of} training answers are uncertain, {is_wrong.sum()} of these are wrong"
    return dataclasses.replace(clean, cases=clean.cases.with_labels(certain, uncertain)), words


def choose(members: Int[np.ndarray, " case"], number: int, generator: np.random.Generator) -> Int[np.ndarray, " case"]:
    """Return a number of members at random, or all if there are fewer."""
    return generator.permutation(members)[:number]


def train(dataset: Dataset, settings: Settings, *, seed: int, terminal: Terminal) -> list[str]:
    """Train both networks and return the mean step accuracy of each on the test split, with its interval."""
    batch_size = settings.training.batch_size
    length = len(dataset.splits.train) // batch_size
    system = make_system(settings, dataset, None, batches_per_epoch=length)
    text = encode_prompts(settings, Terminal(silent=True), dataset.chain)
    shared = {"text_features": jax.device_put(text)}
    batches = training_batches(dataset, batch_size=batch_size, seed=seed)
    names = ("image_features", "labels")
    read = lambda number: {name: rows for name, rows in batches[number].items() if name in names} | shared  # noqa: E731
    state, number = system.init(jax.random.key(seed), read(0)), 0
    for phase in system.phases():
        update = jax.jit(phase.update)
        num_updates = phase.num_epochs * max(1, len(dataset.splits.train) // batch_size)
        for _ in terminal.watch(range(num_updates), f"{dataset.uncertain}, seed {seed}: {phase.name}"):
            state, _ = update(state, read(number))
            number += 1
    test = list(dataset.splits.test)
    batch = {"image_features": np.asarray(dataset.features[test]), **shared}
    logits = {name: np.asarray(own) for name, own in jax.jit(system.predict)(state.params, batch).items()}
    patients = np.array([dataset.cases.patient_ids[index] for index in test])
    predictions = Predictions(np.arange(len(test), dtype=np.int32), dataset.labels[test], logits)
    found = bootstrap(SplitPredictions(predictions, {"patient_id": patients}), dataset.chain)
    means = [found[name].mean_accuracy for name in NETWORKS]
    return [f"{100 * own.value:.1f} ({100 * own.low:.1f} to {100 * own.high:.1f})" for own in means]


if __name__ == "__main__":
    run_tool(main)
