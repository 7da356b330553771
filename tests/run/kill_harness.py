"""Kill a run with SIGKILL at random moments until it finishes, and compare it with a run that was never killed.

python tests/run/kill_harness.py --kills 100 [--job distill|baseline|grpo] [--seed 0] [--workers 0] [--folder DIR]

Each start is a child process, forked after all imports and before JAX starts threads. A quarter of the kills fall at a
uniform moment before training: drawing data, tracing, compiling or loading programs, restoring. The others fall at a
uniform moment after training begins: training, validation, saving, results; of a run with rollouts half of these wait
for the next rollout. Preparing takes most of a start, so moments
uniform over a whole start would seldom meet a save, and runs would hardly progress between kills.

Half of the kills meet the run's own process. With workers, a quarter meet its whole process group, and a quarter one
worker, after which the run must stop by itself; without workers the other half meets the group.
"""

import argparse
import collections
import contextlib
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
from collections.abc import Callable
from typing import Any

HERE = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]

import fast_compile
from run import small_policy_run
from run.small_run import LinearEncoder, small_settings

from stepcot_jax.run import inputs, training_run
from stepcot_jax.systems.grpo import Rollouts
from stepcot_jax.training.checkpoints import restore_params

LONG = {
    "training__joint_epochs": 10,
    "baseline__epochs": 11,
    "training__log_every": 1,
    "training__checkpoint_minutes": 0.005,
}
"""Eleven short epochs and a checkpoint every 0.3 s, so that many kills hit a save."""

FEWER = {"training__joint_epochs": 2, "baseline__epochs": 3}
"""With workers, which every reading of a split starts anew."""

LONG_POLICY = {"grpo__epochs": 6, "training__log_every": 1}
"""Two epochs of fine-tuning and six of GRPO, with a checkpoint after every update."""

MAX_TRIES = 8
"""A run gets this many starts that may be killed, then one that is not: so every run finishes."""

SHARE_BEFORE_TRAINING = 0.25
MOST_AFTER_ROLLOUT = 0.03
WORKER_DIED = "worker processes that read images died"
"""What a run says that stops because of it."""

KINDS = {False: ("run", "group"), True: ("run", "run", "group", "worker")}
"""What a kill meets, by whether there are workers, each as often as it stands here."""


@dataclasses.dataclass(frozen=True)
class Moment:
    """When to kill a start, and what of it: seconds after the start, or after its training begins."""

    seconds: float
    in_training: bool
    kind: str
    after_rollout: float | None = None
    """Wait for the next rollout from then on, and for this many seconds after its start; None for no wait."""


@dataclasses.dataclass
class Ended:
    """How a start ended, and its seconds before training and from then on."""

    how: str
    before_training: float
    training: float


def make_run(job: str, workdir: pathlib.Path, num_workers: int) -> training_run.Run:
    if job == "grpo":
        Rollouts.reward_all = small_policy_run.reward_tokens
        Rollouts.__call__ = marked(Rollouts.__call__, marker_of(workdir))
        return training_run.Run(small_policy_run.small_settings(**LONG_POLICY), workdir)
    inputs.make_resnet = lambda name: LinearEncoder()
    changes = LONG | (FEWER if num_workers else {})
    return training_run.Run(small_settings(job=job, **changes, data__num_workers=num_workers), workdir)


def marker_of(workdir: pathlib.Path) -> pathlib.Path:
    """The file that exists while a run samples and rewards replies."""
    return workdir.with_name(f"{workdir.name}_rollout")


def marked(collect: Callable[..., Any], marker: pathlib.Path) -> Callable[..., Any]:

    def wrapped(*arguments: Any) -> Any:
        marker.touch()
        batch = collect(*arguments)
        marker.unlink()
        return batch

    return wrapped


def start(job: str, workdir: pathlib.Path, log: pathlib.Path, num_workers: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.setpgid(0, 0)
        del sys.modules["__main__"].__file__  # spawned workers would import all of this file's imports
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
    """Start a run once; it ends "finished", "failed" or by what was killed during what."""
    facts = workdir / "settings.json"  # written last before training, by every start
    earlier = facts.stat().st_ino if facts.exists() else None
    begin, begun = time.monotonic(), math.inf
    size = log.stat().st_size if log.exists() else 0
    child, how, victim = start(job, workdir, log, num_workers), "", 0
    while not how:
        now = time.monotonic()
        if begun == math.inf and facts.exists() and facts.stat().st_ino != earlier:
            begun = now
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            how = "finished" if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0 else "failed"
            if victim and how == "failed" and WORKER_DIED in read_from(log, size):
                how = "worker killed"
        elif kill_at is not None and not victim and is_time(kill_at, now, begin, begun, workdir):
            time.sleep(kill_at.after_rollout or 0)
            victim = find_victim(child, kill_at.kind)
            if victim:
                how = kill(child, victim, workdir, kill_at.kind)
        time.sleep(0.002)
    end = time.monotonic()
    ended = Ended(how, min(begun, end) - begin, max(end - begun, 0.0))
    print(
        f"{workdir.name}: {how} after {ended.before_training:.1f} + {ended.training:.1f} s", file=sys.stderr, flush=True
    )
    return ended


def is_time(kill_at: Moment, now: float, begin: float, begun: float, workdir: pathlib.Path) -> bool:
    has_come = now >= (begun if kill_at.in_training else begin) + kill_at.seconds
    return has_come and (kill_at.after_rollout is None or marker_of(workdir).exists())


def find_victim(child: int, kind: str) -> int:
    """Return the process to kill; 0 while the run has no worker of that kind."""
    if kind != "worker":
        return child
    workers = []
    for path in pathlib.Path(f"/proc/{child}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # a thread or process that just ended
            children = map(int, path.read_text().split())
            workers += [each for each in children if is_worker(each)]
    return min(workers, default=0)


def is_worker(process: int) -> bool:
    return b"spawn_main" in pathlib.Path(f"/proc/{process}/cmdline").read_bytes()


def kill(child: int, victim: int, workdir: pathlib.Path, kind: str) -> str:
    """Kill a process or its group; return how the run ended, "" if it has to end by itself."""
    if kind == "worker":
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        return ""
    (os.killpg if kind == "group" else os.kill)(child, signal.SIGKILL)
    os.waitpid(child, 0)
    half = list((workdir / "checkpoints").glob("*tmp*")) if (workdir / "checkpoints").is_dir() else []
    marker = marker_of(workdir)
    rolling = marker.exists()
    marker.unlink(missing_ok=True)
    return f"{kind} killed{' while saving' if half else ' during a rollout' if rolling else ''}"


def read_from(log: pathlib.Path, size: int) -> str:
    with log.open("rb") as opened:
        opened.seek(size)
        return opened.read().decode(errors="replace")


def draw_moment(moments: random.Random, whole: Ended, kinds: tuple[str, ...], *, has_rollouts: bool) -> Moment:
    """A random moment before training, or in a half of the whole run's training time: a resumed run has less left.

    Half of those in the training of a run with rollouts, which take little of its time, wait for one.
    """
    in_training = moments.random() >= SHARE_BEFORE_TRAINING
    seconds = moments.uniform(0, whole.training / 2 if in_training else whole.before_training)
    waits = has_rollouts and in_training and moments.random() < 0.5
    after = moments.uniform(0, MOST_AFTER_ROLLOUT) if waits else None
    return Moment(seconds, in_training, moments.choice(kinds), after)


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--job", choices=("distill", "baseline", "grpo"), default="distill")
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
    while counts.total() - counts["finished"] < options.kills:
        for tries in range(MAX_TRIES + 1):
            kinds, rolls = KINDS[options.workers > 0], options.job == "grpo"
            kill_at = draw_moment(moments, whole, kinds, has_rollouts=rolls) if tries < MAX_TRIES else None
            how = run_once(options.job, folder / f"run_{num_runs}", log, options.workers, kill_at=kill_at).how
            counts[how] += 1
            if how == "failed":
                print(log.read_text()[-3000:], file=sys.stderr)
                return 1
            if how == "finished":
                break
        num_runs += 1
    differing = compare(folder, num_runs)
    whole_seconds = whole.before_training + whole.training
    times = {"seconds_of_a_whole_run": round(whole_seconds, 1), "seconds": round(time.monotonic() - begin, 1)}
    print(json.dumps({"runs": num_runs, **dict(sorted(counts.items())), "runs_that_differ": len(differing), **times}))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
