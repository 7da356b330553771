"""Make the reader of drawn chests that the package ships: `python -m benchmarks.make_reader`.

Trains the quickstart with seed 0, or takes its finished run, and writes one of its networks to the package: the best on
validation of those that keep the wheel below 3.5 MB. The folder is an export without programs, with weights in float16.
Its card has figures of chests that no run drew, beside dumber readers. `--renew` writes the settings again after a
setting came or left; weights and figures stay.
"""

import argparse
import dataclasses
import pathlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from benchmarks.small_rivals import shrink
from stepcot_jax.chain import Chain
from stepcot_jax.data.phantom.phantom import PATIENT_BLOCK, PhantomCase, draw_case
from stepcot_jax.evaluation.chains import most_frequent
from stepcot_jax.evaluation.counting import PriorReader
from stepcot_jax.evaluation.gate import Gate
from stepcot_jax.evaluation.interventions import ReadGiven, correct_in_turn
from stepcot_jax.evaluation.joint import learn_tree
from stepcot_jax.evaluation.linear_heads import fit_linear_heads
from stepcot_jax.evaluation.predictions import read_predictions
from stepcot_jax.evaluation.statistics import bootstrap_means
from stepcot_jax.export.folder import export_model, save_tensors
from stepcot_jax.host.download import PHANTOM, find_checkpoint
from stepcot_jax.host.errors import run_tool
from stepcot_jax.host.exported_files import MANIFEST_FILE, read_weights, write_sums
from stepcot_jax.host.files import read_json
from stepcot_jax.host.own_folder import save, save_arrays
from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.sheets import Column, Table, columns, list_markdown_rows
from stepcot_jax.reading.exported_model import ENCODER, GATE
from stepcot_jax.reading.programs import Reader
from stepcot_jax.reading.radiographs import read_picture, to_input
from stepcot_jax.reading.trained_model import Trained, load_trained
from stepcot_jax.run.inputs import load_cases
from stepcot_jax.run.results import rank_networks
from stepcot_jax.run.settings import load_settings, write_settings
from stepcot_jax.run.stored import GATE_FILE, SETTINGS_FILE
from stepcot_jax.run.task import REPORT
from stepcot_jax.run.training_run import Run

COMMAND = "python -m benchmarks.make_reader"
CONFIG, SEED = "quickstart", 0
NUM_CHESTS = 1000
"""Chests of the card's figures, the first beyond the last patients of the run."""

MOST_PARAMETERS = 700_000
"""Of the shipped network with its image encoder: 1.4 MB of weights that no wheel compresses."""

LARGE = 224
"""Pixels of other drawings of the same chests, which the reader shrinks; its training drew chests at its own size."""

_PROGRAMS = ("*.stablehlo", "load.py", "exported_files.py", "check.safetensors")
_CARD = pathlib.Path(__file__).parent / "reader_card.txt"

# Figures of unseen chests, all of the joint reading, which is what a reader prints.


def draw_unseen(settings: Any, **changes: int) -> list[PhantomCase]:
    """Return chests of patients that the run has not drawn."""
    phantom = settings.phantom
    first = -(-phantom.num_cases // PATIENT_BLOCK) * PATIENT_BLOCK
    return [draw_case(index, **phantom.drawing | changes) for index in range(first, first + NUM_CHESTS)]


def measure(
    shares: Float[np.ndarray, "case step answer"],
    after_two: Float[np.ndarray, "case answer"] | None,
    drawn: Sequence[PhantomCase],
) -> dict[str, Interval]:
    """Return the figures of a reader's distributions, and of the last step's after two true answers."""
    labels, answers = np.array([chest.case.answers for chest in drawn]), shares.argmax(axis=-1)
    right, normal = answers == labels, labels[:, -1] == 0
    unknown = np.full(len(labels), np.nan)
    values = {
        "steps": right.mean(axis=1),
        "diagnosis": right[:, -1],
        "whole chains": right.all(axis=1),
        "normal called abnormal": np.where(normal, answers[:, -1] != 0, np.nan),
        "detection and diagnosis contradict": (answers[:, 0] == 0) != (answers[:, -1] == 0),
        "diagnosis after two answers": unknown if after_two is None else after_two.argmax(axis=-1) == labels[:, -1],
    }
    return bootstrap_means(values, np.array([chest.case.patient for chest in drawn]))


def measure_corrected(read: ReadGiven, drawn: Sequence[PhantomCase], chain: Chain) -> dict[str, Interval]:
    """Return the figures of a reader that asks for true answers one by one."""
    labels = np.array([chest.case.answers for chest in drawn])
    readings, _ = correct_in_turn("expected gain", read, labels, chain)
    return measure(readings[0], readings[2, :, -1], drawn)


def read_chests(trained: Trained, model: str, drawn: Sequence[PhantomCase]) -> ReadGiven:
    """Return the joint reading of chests by a network, from given answers to distributions."""
    pictures = [read_picture(chest.image, trained.preprocessing) for chest in drawn]
    reader = Reader(trained, model=model, batch_size=250, with_attention=False)
    return reader.given_reader(to_input(pictures, trained.preprocessing))


def describe_rounding(half: ReadGiven, full: ReadGiven, num_cases: int, chain: Chain) -> str:
    """Return what float16 changes of the answers that nothing was given to."""
    nothing = np.zeros((1, num_cases, chain.num_steps, max(chain.answers_per_step)), np.float32)
    one, other = half(nothing)[0], full(nothing)[0]
    changed = int((one.argmax(axis=-1) != other.argmax(axis=-1)).sum())
    most = np.abs(one - other).max()
    return f"{changed} of {num_cases * chain.num_steps:,} answers change, and no probability by more than {most:.4f}"


def measure_rivals(drawn: Sequence[PhantomCase]) -> dict[str, dict[str, Interval]]:
    """Return the figures of readers that see less: thumbnails of 8 x 8, or no picture."""
    dataset = load_cases(CONFIG, seed=SEED)
    chain, splits = dataset.chain, {"train": dataset.splits.train, "val": dataset.splits.val}
    labels = {name: dataset.labels[np.asarray(rows)] for name, rows in splits.items()}
    small = {name: np.stack([shrink(dataset.pixels[index]) for index in rows]) for name, rows in splits.items()}
    heads = fit_linear_heads(small, labels, chain.answers_per_step)
    logits = heads.read(np.stack([shrink(chest.image) for chest in drawn]))
    absent = np.arange(logits.shape[-1]) >= np.array(chain.answers_per_step)[:, None]
    frequent = np.tile(np.eye(logits.shape[-1])[most_frequent(labels["train"])], (len(drawn), 1, 1))
    counted = PriorReader(learn_tree(labels["train"], chain.answers_per_step))
    return {
        "linear heads on 8 x 8 thumbnails": measure(np.where(absent, -np.inf, logits), None, drawn),
        "joint model without the picture": measure_corrected(counted, drawn, chain),
        "most frequent answers": measure(frequent, None, drawn),
    }


def tabulate(figures: Mapping[str, Mapping[str, Interval]]) -> Table:
    """Return figures as a table, a row for each reader."""
    names = next(iter(figures.values()))
    rows = tuple((name, *own.values()) for name, own in figures.items())
    return Table("", "", (Column("reader"), *columns("percent", *names)), rows)


# The shipped folder.


def rank(workdir: pathlib.Path, trained: Trained) -> dict[str, str]:
    """Return what the run's networks have on validation, best first, in words."""
    predictions = read_predictions(workdir / "predictions" / "val.npz", trained.chain).predictions
    ranked = rank_networks(predictions, trained.chain)
    return {name: f"{name} {100 * share:.1f} % ({count(trained, name):,} parameters)" for name, share in ranked.items()}


def count(trained: Trained, name: str) -> int:
    """Return the parameters of a network and its image encoder."""
    tree = trained.params[name]
    return sum(leaf.size for part in (name, ENCODER) for leaf in jax.tree.leaves(tree[part]))


def round_weights(trained: Trained) -> Trained:
    """Return a trained run with weights that float16 holds exactly."""
    half = jax.tree.map(lambda leaf: np.asarray(leaf, np.float16).astype(np.float32), trained.params)
    return dataclasses.replace(trained, params=half)


def write_reader(trained: Trained, model: str, out: pathlib.Path) -> None:
    """Write the export of one network without programs, its weights as float16."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary) / "export"
        export_model(trained, folder, models=[model])
        weights = folder / f"{model}.safetensors"
        tensors = read_weights(folder, [weights.name])
        halves = {key: array.astype(np.float16) for key, array in tensors.items() if not key.startswith(f"{GATE}/")}
        save_tensors(weights, halves)
        for pattern in _PROGRAMS:
            for path in folder.glob(pattern):
                path.unlink()
        manifest = read_json(folder / MANIFEST_FILE, dict[str, Any], accepted="expected an export")
        for key in ("platforms", "made_with"):
            del manifest[key]
        del manifest["models"][model]["program"]
        save(folder / MANIFEST_FILE, manifest)
        if (gate := trained.gate(model)) is not None:
            save_arrays(folder / GATE_FILE, {model: make_triangular(gate)})
        write_sums(folder)
        if out.exists():
            shutil.rmtree(out)
        shutil.copytree(folder, out)


def make_triangular(gate: Gate) -> Gate:
    """Return a gate of the same distances whose whitening is half zeros, which a wheel compresses."""
    if not np.triu(gate.whitening, 1).any():
        return gate
    whitening = gate.whitening.astype(np.float64)
    triangle = np.linalg.cholesky(whitening @ whitening.T)
    return dataclasses.replace(gate, whitening=triangle.astype(np.float32))


def renew_settings(folder: pathlib.Path) -> None:
    """Write the settings of the config again, and the digests."""
    write_settings(folder / SETTINGS_FILE, load_settings(CONFIG, seed=SEED))
    write_sums(folder)


def describe_machine() -> str:
    """Return processor and JAX in a few words."""
    lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, jax {jax.__version__}"


def name_commit() -> str:
    """Return the commit of the checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603


def main(arguments: list[str] | None = None) -> int:
    """Train, export, measure and write the card."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/phantom_reader"), metavar="RUN")
    commit = "commit that trained RUN (default: the checkout's)"
    parser.add_argument("--commit", default=None, help=commit)
    parser.add_argument("--renew", action="store_true", help="write the settings again, without training")
    options = parser.parse_args(arguments)
    out = find_checkpoint(PHANTOM)
    if options.renew:
        renew_settings(out)
        return 0
    if not (options.workdir / REPORT).is_file():
        Run(CONFIG, workdir=options.workdir, seed=SEED).execute()
    trained = load_trained(options.workdir)
    ranked = rank(options.workdir, trained)
    model = next(name for name in ranked if count(trained, name) <= MOST_PARAMETERS)
    write_reader(round_weights(dataclasses.replace(trained, params={model: trained.params[model]})), model, out)
    drawn = draw_unseen(trained.run.settings)
    chain, half = trained.chain, read_chests(load_trained(out), model, drawn)
    full = {name: read_chests(trained, name, drawn) for name in trained.params}
    figures = {f"{model}, this reader": measure_corrected(half, drawn, chain)}
    large = draw_unseen(trained.run.settings, size=LARGE)
    read_large = read_chests(load_trained(out), model, large)
    figures[f"the same, chests drawn at {LARGE} pixels"] = measure_corrected(read_large, large, chain)
    for name, read in full.items():
        if name != model:
            figures[f"{name} of the same run"] = measure_corrected(read, drawn, chain)
    table = list_markdown_rows(tabulate(figures | measure_rivals(drawn)))
    card = _CARD.read_text(encoding="utf-8").format(
        model=model,
        size=f"{count(trained, model):,}",
        ranked=", ".join(ranked.values()),
        num_chests=f"{NUM_CHESTS:,}",
        figures="\n".join(table),
        rounding=describe_rounding(half, full[model], len(drawn), chain),
        commit=options.commit or name_commit(),
        command=COMMAND,
        machine=describe_machine(),
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    renew_settings(out)
    return 0


if __name__ == "__main__":
    run_tool(main)
