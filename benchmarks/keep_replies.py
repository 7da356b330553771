"""Keep the replies of finished policies with their questions: `python -m benchmarks.keep_replies OUT RUN...`.

RUN is a workdir, such as a cell of `stepcot tables` (`WORKDIR/cells/*`). Files are compressed JSON lines that
`stepcot evaluate_replies` reads; equal questions are written once. The same replies give the same bytes.
"""

import argparse
import gzip
import hashlib
import pathlib
from collections.abc import Sequence

from stepcot_jax.evaluation.replies import encode
from stepcot_jax.host.errors import run_tool
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.run.settings import read_settings
from stepcot_jax.run.stored import TEST_RECORDS

INDEX = "files.jsonl"
"""File that says for each file of replies which records, run, seed, questions and dialect it is of."""


def keep_replies(out: pathlib.Path, runs: Sequence[pathlib.Path]) -> list[str]:
    """Write the replies of each run to its test questions, and to perturbed ones; return the names of the files."""
    written: dict[str, str] = {}
    index = []

    def write(source: pathlib.Path, name: str) -> str:
        content = source.read_bytes()
        first = written.setdefault(hashlib.sha256(content).hexdigest(), f"{name}.jsonl.gz")
        if first == f"{name}.jsonl.gz":
            write_whole(out / first, gzip.compress(content, mtime=0))
        return first

    make_workdir(out)
    for run in runs:
        settings = read_settings(run / "settings.json")
        asked = {"test": (run / TEST_RECORDS, run / settings.trains.replies)}
        for replies in sorted((run / "perturbed").glob("replies_*.jsonl")):
            asked[replies.stem.replace("replies_", "round-")] = (
                replies.with_name(f"records_{replies.stem[8:]}.jsonl"),
                replies,
            )
        for condition, (records, replies) in asked.items():
            name = f"{run.name}_{condition}"
            index.append(
                {
                    "replies": write(replies, name),
                    "records": write(records, f"records_{name}"),
                    "run": run.name,
                    "job": settings.job,
                    "seed": settings.seed,
                    "condition": condition,
                    "dialect": settings.vqa.dialect,
                    "with_thinking": settings.vqa.with_thinking,
                }
            )
    write_whole(out / INDEX, b"".join(map(encode, index)))
    return [*written.values(), INDEX]


def main() -> None:
    """Keep the replies of the runs that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keep_replies", description=__doc__)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("runs", type=pathlib.Path, nargs="+", metavar="RUN")
    options = parser.parse_args()
    print(f"written to {options.out}: {', '.join(keep_replies(options.out, options.runs))}")


if __name__ == "__main__":
    run_tool(main)
