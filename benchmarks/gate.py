"""Measure the gate of a run: `python -m benchmarks.gate WORKDIR [--model teacher] [--others NAME=FOLDER]...`.

Prints how many of the run's test images the gate flags, and for images that the run never saw how well the gate's score
tells them from the test images (AUROC) and how many it flags at its limit; beside it a gate fitted alike on the 64
numbers of an 8 x 8 thumbnail. The data of the run must still be where its settings say.
"""

import argparse
import pathlib
from collections.abc import Iterator

import numpy as np
from sklearn.metrics import roc_auc_score

from benchmarks.odd_images import CHANGES, draw_others
from benchmarks.small_rivals import shrink
from stepcot_jax.data.images.preprocessing import repeat_grey, resize_image
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.evaluation.gate import fit_gate
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.reading.programs import Reader
from stepcot_jax.reading.radiographs import find_images, read_picture, to_input
from stepcot_jax.reading.trained_model import Trained, load_trained, read_default_model
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.networks import trained_preprocessing
from stepcot_jax.run.results import NUM_IMAGES
from stepcot_jax.tools.options import add_network

BATCH_SIZE = 32


def main(arguments: list[str] | None = None) -> int:
    """Print the table of one run as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workdir", type=pathlib.Path)
    add_network(parser)
    parser.add_argument("--others", action="append", default=[], metavar="NAME=FOLDER", help="may be repeated")
    parser.add_argument("--num-images", type=int, default=100, help="of each kind (default: %(default)s)")
    options = parser.parse_args(arguments)
    trained = load_trained(options.workdir)
    model = options.model or read_default_model(options.workdir)
    reader = Reader(trained, model=model, batch_size=BATCH_SIZE)
    gate = trained.gate(model)
    if gate is None:
        raise BadInput(f"{options.workdir}: no gate stored for the {model}")
    train, val, test = _load_splits(trained)
    small = fit_gate(_shrink(train[:NUM_IMAGES]), _shrink(val[:NUM_IMAGES]), false_alarms=gate.false_alarms)
    assert small is not None  # noqa: S101  # the run's own gate has a limit
    tests, rivals = _score(reader, test), small.scores(_shrink(test))
    print(f"{options.workdir} ({model}), trained on: {trained.trained_on}")
    print(f"fitted on {gate.num_fitted[0]} training and {gate.num_fitted[1]} validation images")
    for name, scores in {"gate": tests, "thumbnail's gate": rivals}.items():
        print(f"test images flagged by the {name}: {(scores > 1).sum()} of {len(scores)}")
    print("\n| images | number | AUROC | flagged | thumbnail: AUROC | flagged |\n|---|---|---|---|---|---|")
    for name, pictures in _draw_kinds(trained, test[: options.num_images], options.others).items():
        cells = []
        for known, odd in ((tests, _score(reader, pictures)), (rivals, small.scores(_shrink(pictures)))):
            auroc = roc_auc_score(np.repeat([0, 1], [len(known), len(odd)]), np.concatenate([known, odd]))
            cells += [f"{auroc:.3f}", f"{100 * (odd > 1).mean():.0f} %"]
        print(f"| {name} | {len(pictures)} | {' | '.join(cells)} |", flush=True)
    return 0


def _shrink(pictures: list[np.ndarray]) -> np.ndarray:
    return np.stack([shrink(picture) for picture in pictures])


def _draw_kinds(trained: Trained, test: list[np.ndarray], others: list[str]) -> dict[str, list[np.ndarray]]:
    """Return pictures at the encoder's size by name, as many of each as of the test pictures that are altered."""
    size, random, num_images = trained.preprocessing.size, np.random.default_rng(0), len(test)
    grey = [picture if picture.ndim == 2 else picture[..., 0] for picture in test]
    kinds = {name: [change(picture, random) for picture in grey] for name, change in CHANGES.items()}
    kinds |= draw_others(size, num_images, random)
    if trained.run.settings.data.source != "phantom":
        drawn = (draw_case(index, seed=99, size=size, prevalence="flat").image for index in range(num_images))
        kinds["phantoms"] = [resize_image(picture, trained.preprocessing) for picture in drawn]
    for name, _, folder in (other.partition("=") for other in others):
        paths = find_images([pathlib.Path(folder)], refuse=print)[:num_images]
        kinds[name] = [read_picture(path, trained.preprocessing) for path in paths]
    return kinds


def _load_splits(trained: Trained) -> Iterator[list[np.ndarray]]:
    """Yield the training, validation and test images as the encoder takes them, before normalisation."""
    preprocessing = trained_preprocessing(trained.run.settings)
    dataset = load_dataset(trained.run.settings, preprocessing=preprocessing)
    for split in dataset.splits.by_name().values():
        yield [dataset.pixels[index] for index in split]


def _score(reader: Reader, pictures: list[np.ndarray]) -> np.ndarray:
    coloured = [repeat_grey(picture) if picture.ndim == 2 else picture for picture in pictures]
    scores = reader.gate_scores(to_input(coloured, reader.trained.preprocessing))
    assert scores is not None  # noqa: S101  # the caller has the gate
    return scores


if __name__ == "__main__":
    run_tool(main)
