"""Time of making and scoring grounded records: `python -m benchmarks.grounded FOLDER [--cases 2000] [--rounds 3]`.

Phantoms are drawn and asked four questions each, and as many replies are scored: three in four as a record would have
it, the others with another answer, a moved box or a broken tag. Both commands are timed in turn with matrix products of
the same machine, because shared machines change speed.
"""

import argparse
import contextlib
import io
import json
import pathlib
import shutil

import msgspec
import numpy as np

from benchmarks.measure import make_sgemm, time_in_turn
from stepcot_jax.box import Box
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.reasoning.dialects import write_reply
from stepcot_jax.record import Record
from stepcot_jax.tools.data.command import main as run_data
from stepcot_jax.tools.evaluate_replies.command import main as evaluate_replies


def write_replies(folder: pathlib.Path, path: pathlib.Path, *, seed: int = 0) -> int:
    """Write a reply to every record of a folder; return their number."""
    rng = np.random.default_rng(seed)
    records = read_vqa_records(folder).records
    kinds = rng.integers(0, 12, len(records))
    with path.open("w", encoding="utf-8") as file:
        for record, kind in zip(records, kinds.tolist(), strict=True):
            file.write(json.dumps({"id": record.id, "reply": _reply(record, kind)}) + "\n")
    return len(records)


def _reply(record: Record, kind: int) -> str:
    if kind == 0:
        return write_reply(record, "gemex").replace("</answer>", "")
    if kind == 1:
        others = {"open": "something else", "closed": "No" if record.answer == "Yes" else "Yes"}
        answer: str | tuple[str, ...] = others.get(record.kind, "A" if record.answer != "A" else "B")
        record = msgspec.structs.replace(record, answer=(answer,) if record.kind == "multi" else answer)
    elif kind == 2:
        width, height = record.image_size
        moved = tuple(Box(own.label, (0.0, 0.0, width / 2, height / 2)) for own in record.references)
        record = msgspec.structs.replace(record, references=moved)
    return write_reply(record, "gemex")


def main() -> None:
    """Time both commands and print wall seconds and their multiples of a matrix product."""
    parser = argparse.ArgumentParser(prog="benchmarks.grounded", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="for records and results; it must not exist")
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.folder.mkdir()
    made, scored, replies = (options.folder / name for name in ("made", "scored", "replies.jsonl"))

    def make() -> None:
        shutil.rmtree(made, ignore_errors=True)
        with contextlib.redirect_stdout(io.StringIO()):
            run_data(["vqa", str(made), f"--num-cases={options.cases}"])

    def score() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            evaluate_replies([str(made), str(replies), "--out", str(scored), "--split=all"])

    make()
    num_replies = write_replies(made, replies)
    timings = time_in_turn({"make": make, "score": score, "sgemm": make_sgemm()}, rounds=options.rounds)
    for name, what in (("make", f"{options.cases} phantoms"), ("score", f"{num_replies} replies")):
        found = timings[name]
        ratio = found.median / timings["sgemm"].median
        print(f"{name}, {what}: {found.median:.1f} s (± {found.spread:.0%}), {ratio:.0f} matrix products")


if __name__ == "__main__":
    main()
