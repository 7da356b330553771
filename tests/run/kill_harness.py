"""Kill a run with SIGKILL at random moments until it finishes, and compare it with a run that was never killed.

python tests/run/kill_harness.py --kills 100 [--job distill|grpo] [--seed 0] [--workers 0] [--folder DIR]

Each start is a child process, forked after all imports and before JAX starts threads. A quarter of the kills fall at a
uniform moment before training: drawing data, tracing, compiling or loading programs, restoring. The others fall at a
uniform moment after training begins: training, validation, saving, results. Preparing takes most of a start, so moments
uniform over a whole start would seldom meet a save, and runs would hardly progress between kills.
"""

import argparse
import collections
import dataclasses
import json
import math
import os
import pathlib
import random
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

HERE = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]

import fast_compile
from run import small_policy_run
from run.small_run import LinearEncoder, small_settings

from stepcot_jax.features import inputs
from stepcot_jax.run import training_run
from stepcot_jax.systems.grpo_rollouts import Rollouts
from stepcot_jax.training.stored_params import restore_params

LONG = {"training__joint_epochs": 10, "training__log_every": 1, "training__checkpoint_minutes": 0.005}
"""Eleven short epochs and a checkpoint every 0.3 s, so that many kills hit a save."""

LONG_POLICY = {"grpo__epochs": 6, "training__log_every": 1}
"""Two epochs of fine-tuning and six of GRPO, with a checkpoint after every update."""

MAX_TRIES = 8
"""A run gets this many starts that may be killed, then one that is not: so every run finishes."""

SHARE_BEFORE_TRAINING = 0.25


@dataclasses.dataclass(frozen=True)
class Moment:
    """When to kill a start: seconds after the start, or after its training begins."""

    seconds: float
    in_training: bool


@dataclasses.dataclass
class Ended:
    """How a start ended, and its seconds before training and from then on."""

    how: str
    before_training: float
    training: float


def make_run(job: str, workdir: pathlib.Path, num_workers: int) -> training_run.Run:
    """Load a run of the job, in a child."""
    if job == "grpo":
        Rollouts.reward_all = small_policy_run.reward_tokens
        return training_run.Run(small_policy_run.small_settings(**LONG_POLICY), workdir)
    inputs.make_resnet = lambda name: LinearEncoder()
    return training_run.Run(small_settings(**LONG, data__num_workers=num_workers), workdir)


def start(job: str, workdir: pathlib.Path, log: pathlib.Path, num_workers: int) -> int:
    """Fork a child that trains; return its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        make_run(job, workdir, num_workers).execute()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    finally:
        os._exit(code)


def run_once(
    job: str, workdir: pathlib.Path, log: pathlib.Path, num_workers: int, *, kill_at: Moment | None = None
) -> Ended:
    """Start a run once; it ends "finished", "killed", "killed while saving" or "failed"."""
    facts = workdir / "settings.json"  # written last before training, by every start
    earlier = facts.stat().st_ino if facts.exists() else None
    begin, begun = time.monotonic(), math.inf
    child, how = start(job, workdir, log, num_workers), ""
    while not how:
        now = time.monotonic()
        if begun == math.inf and facts.exists() and facts.stat().st_ino != earlier:
            begun = now
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            how = "finished" if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else "failed"
        elif kill_at is not None and now >= (begun if kill_at.in_training else begin) + kill_at.seconds:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            half = list((workdir / "checkpoints").glob("*tmp*")) if (workdir / "checkpoints").is_dir() else []
            how = "killed while saving" if half else "killed"
        time.sleep(0.002)
    end = time.monotonic()
    ended = Ended(how, min(begun, end) - begin, max(end - begun, 0.0))
    print(
        f"{workdir.name}: {how} after {ended.before_training:.1f} + {ended.training:.1f} s", file=sys.stderr, flush=True
    )
    return ended


def draw_moment(moments: random.Random, whole: Ended) -> Moment:
    """A random moment before training, or in a half of the whole run's training time: a resumed run has less left."""
    in_training = moments.random() >= SHARE_BEFORE_TRAINING
    return Moment(moments.uniform(0, whole.training / 2 if in_training else whole.before_training), in_training)


def final(workdir: pathlib.Path) -> tuple[Any, ...]:
    """Parameters of the last checkpoint, entries of the log without their speed, the report's figures, replies."""
    folder = workdir / "checkpoints"
    last = max(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    import jax

    params = [leaf.tobytes() for leaf in jax.tree.leaves(restore_params(folder, last))]
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    entries = [{key: value for key, value in line.items() if key != "cases_per_second"} for line in lines]
    report = json.loads((workdir / "report.json").read_text())
    replies = {path.name: path.read_bytes() for path in sorted((workdir / "replies").glob("*"))}
    # As text: an entry may say NaN, which is unlike itself.
    return params, json.dumps([entries, report["test"], report["best"]]), replies


def compare(folder: pathlib.Path, num_runs: int) -> list[str]:
    """Return the names of the runs that differ from `whole`; in a child, since JAX's threads must not be forked."""
    found = folder / "differing.json"
    child = os.fork()
    if not child:
        try:
            expected = final(folder / "whole")
            names = [f"run_{number}" for number in range(num_runs)]
            found.write_text(json.dumps([name for name in names if final(folder / name) != expected]))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return json.loads(found.read_text())


def main() -> int:
    """Print the counts as JSON; return 0 if every run equals the undisturbed one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--job", choices=("distill", "grpo"), default="distill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="worker processes of a run; each takes seconds to start")
    parser.add_argument("--folder", type=pathlib.Path, default=None)
    options = parser.parse_args()
    fast_compile.set_flags()
    folder = options.folder or pathlib.Path(tempfile.mkdtemp(prefix="stepcot-kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log"
    begin = time.monotonic()
    whole = run_once(options.job, folder / "whole", log, options.workers)
    assert whole.how == "finished", log.read_text()[-2000:]
    moments = random.Random(options.seed)  # noqa: S311 - not for secrets
    counts: collections.Counter[str] = collections.Counter()
    num_runs = 0
    while counts["killed"] + counts["killed while saving"] < options.kills:
        for tries in range(MAX_TRIES + 1):
            kill_at = draw_moment(moments, whole) if tries < MAX_TRIES else None
            how = run_once(options.job, folder / f"run_{num_runs}", log, options.workers, kill_at=kill_at).how
            counts[how] += 1
            if how == "failed":
                print(log.read_text()[-3000:], file=sys.stderr)
                return 1
            if how == "finished":
                break
        num_runs += 1
    differing = compare(folder, num_runs)
    counted = {name: counts[name] for name in ("finished", "killed", "killed while saving", "failed")}
    whole_seconds = whole.before_training + whole.training
    times = {"seconds_of_a_whole_run": round(whole_seconds, 1), "seconds": round(time.monotonic() - begin, 1)}
    print(json.dumps({"runs": num_runs, **counted, "runs_that_differ": len(differing), **times}))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
