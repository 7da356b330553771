"""Time and memory of `data check` on many records: `python -m benchmarks.records FOLDER [--records 1000000]`.

Records are phantom chains in the published layout, about 5 kB each, three of two patients, one in a thousand without an
image path. They are checked twice, with split tables and with splits made. Memory is the process's peak, as
the system reports it.
"""

import argparse
import csv
import json
import os
import pathlib
import sys
import time
from collections.abc import Sequence

from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.answers import draw_answers

_REPORT_LENGTH = 3100
_NUM_DRAWN = 1000
SPLITS = ("train",) * 7 + ("val",) + ("test",) * 2


def write_records(folder: pathlib.Path, num_records: int) -> None:
    """Write `data.json` and three tables with as many records; an existing folder stays as it is."""
    folder.mkdir(parents=True)
    chains = [_write_chain(draw_answers(index, seed=0, prevalence="flat")) for index in range(_NUM_DRAWN)]
    tables = {name: (folder / f"{name}.csv").open("w", newline="") for name in ("train", "val", "test")}
    writers = {name: csv.writer(file) for name, file in tables.items()}
    for writer in writers.values():
        writer.writerow(("patient_id", "image_path"))
    with (folder / "data.json").open("w") as file:
        for index in range(num_records):
            patient, path = f"p{index * 2 // 3:07d}", f"images/{index:07d}.png"
            record = {"patient_id": patient, "origin": ("a", "b", "c")[index % 3], "report": "x" * _REPORT_LENGTH}
            if index % 1000:
                record["image_path"] = path
                writers[SPLITS[index * 2 // 3 % len(SPLITS)]].writerow((patient, path))
            file.write(("[" if not index else ",") + json.dumps(record)[:-1] + chains[index % _NUM_DRAWN])
        file.write("]")
    for table in tables.values():
        table.close()


def _write_chain(labels: Sequence[int]) -> str:
    """The end of a record: a published chain."""
    chain = [
        {
            "step": f"Step {place + 1}",
            "question": step.question,
            "options": list(step.lettered_options),
            "answer": step.lettered_options[label],
            "reasoning": f"The {step.name.lower()} is {step.options[label].lower()}.",
        }
        for place, (step, label) in enumerate(zip(DEFAULT_CHAIN.steps, labels, strict=True))
    ]
    return f', "vqa_chain": {json.dumps(chain)}}}'


def measure(folder: pathlib.Path) -> dict[str, float]:
    """Return wall and CPU seconds and the peak memory in MiB of a check of the folder.

    Linux counts the memory of this process, from which the check is started, into its peak: call it from a small one.
    """
    command = ["-m", "stepcot_jax", "data", "check", str(folder), "--images=none", "--on-bad-record=skip"]
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    start = time.monotonic()
    process = os.posix_spawn(sys.executable, [sys.executable, *command], os.environ, file_actions=quiet)
    _, status, usage = os.wait4(process, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 1):
        raise RuntimeError(f"data check {folder} ended with status {status}")
    cpu = usage.ru_utime + usage.ru_stime
    return {"wall": time.monotonic() - start, "cpu": cpu, "peak MiB": usage.ru_maxrss / 1024}


def main() -> None:
    """Write the records that are missing, check them twice and print the figures."""
    parser = argparse.ArgumentParser(prog="benchmarks.records", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="for the records, 5 GB for a million")
    parser.add_argument("--records", type=int, default=1_000_000)
    options = parser.parse_args()
    if not options.folder.exists():
        write_records(options.folder, options.records)
    print(f"{options.records} records, {(options.folder / 'data.json').stat().st_size / 1e9:.1f} GB", flush=True)
    tables = [options.folder / f"{name}.csv" for name in ("train", "val", "test")]
    hidden = [path.with_suffix(".hidden") for path in tables]
    print("tables:", {name: round(value, 1) for name, value in measure(options.folder).items()}, flush=True)
    for path, other in zip(tables, hidden, strict=True):
        path.rename(other)
    try:
        print("made:", {name: round(value, 1) for name, value in measure(options.folder).items()})
    finally:
        for path, other in zip(tables, hidden, strict=True):
            other.rename(path)


if __name__ == "__main__":
    main()
