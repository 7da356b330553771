"""Kill a run with SIGKILL at random moments until it has ended, and compare it with one that was never killed.

python tests/run/kill_harness.py --kills 100 [--seed 0] [--workers 0] [--folder DIR]

A child process is forked for each start, once everything is imported and before jax has made its threads, so that a
start takes a second or two. The moments are drawn over the whole of a start: while data are made, while the program is
compiled or found compiled, while it trains, validates and saves.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]

from run.small_run import LinearEncoder, small_settings

from stepcot_jax.features import inputs
from stepcot_jax.run import training_run
from stepcot_jax.training.stored_params import restore_params

LONG = {"training__joint_epochs": 10, "training__log_every": 1, "training__checkpoint_minutes": 0.005}
"""Many short epochs and a checkpoint every 0.3 s, so that much of the time is a save."""


def start(workdir: pathlib.Path, log: pathlib.Path, num_workers: int) -> int:
    """Fork a child that trains; its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        inputs.make_resnet = lambda name: LinearEncoder()
        training_run.Run(small_settings(**LONG, data__num_workers=num_workers), workdir).execute()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(code)


def run_once(workdir: pathlib.Path, log: pathlib.Path, num_workers: int, *, kill_after: float | None) -> str:
    """How a start ended: "finished", "killed", "killed while saving" or "failed"."""
    child, deadline = start(workdir, log, num_workers), None if kill_after is None else time.monotonic() + kill_after
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return "finished" if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else "failed"
        if deadline is not None and time.monotonic() >= deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            half = list((workdir / "checkpoints").glob("*tmp*")) if (workdir / "checkpoints").is_dir() else []
            return "killed while saving" if half else "killed"
        time.sleep(0.002)


def final(workdir: pathlib.Path) -> tuple[list[bytes], list[dict], dict]:
    """Parameters of the last step, entries of the log without their speed, and the figures of the report."""
    folder = workdir / "checkpoints"
    last = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    import jax

    params = [leaf.tobytes() for leaf in jax.tree.leaves(restore_params(folder, last))]
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    entries = [{key: value for key, value in line.items() if key != "cases_per_second"} for line in lines]
    report = json.loads((workdir / "report.json").read_text())
    return params, entries, {"test": report["test"], "best": report["best"]}


def main() -> int:
    """Print what was tried as JSON; 0 if nothing was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes that read; each takes seconds to start")
    parser.add_argument("--folder", type=pathlib.Path, default=None)
    options = parser.parse_args()
    folder = options.folder or pathlib.Path(tempfile.mkdtemp(prefix="stepcot-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    moments = random.Random(options.seed)  # noqa: S311 - not for secrets
    log = folder / "log"
    begin = time.monotonic()
    assert run_once(folder / "whole", log, options.workers, kill_after=None) == "finished", log.read_text()[-2000:]
    longest = time.monotonic() - begin
    counts: dict[str, int] = {"finished": 0, "killed": 0, "killed while saving": 0, "failed": 0}
    runs, lost = 0, []
    while counts["killed"] + counts["killed while saving"] < options.kills:
        workdir, ended, tries = folder / f"run_{runs}", "", 0
        while ended != "finished":
            # A run that is killed too early every time would never end: later starts get more time.
            tries += 1
            seconds = moments.uniform(0, longest) if tries % 8 else None
            ended = run_once(workdir, log, options.workers, kill_after=seconds)
            counts[ended] += 1
            if ended == "failed":
                print(log.read_text()[-3000:], file=sys.stderr)
                return 1
        runs += 1
        compare = folder / f"run_{runs - 1}"
        lost.append(compare.name)
    child = os.fork()  # comparing needs jax, whose threads must not be there when the next start is forked
    if not child:
        expected = final(folder / "whole")
        differing = [name for name in lost if final(folder / name) != expected]
        (folder / "differing.json").write_text(json.dumps(differing))
        os._exit(0)
    os.waitpid(child, 0)
    differing = json.loads((folder / "differing.json").read_text())
    summary = {"runs": runs, **counts, "runs_that_differ": len(differing), "seconds_of_a_whole_run": round(longest, 1)}
    print(json.dumps(summary))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
