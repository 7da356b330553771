"""Annotating processes that are killed: run by `test_killed.py` in a process of its own, which has no threads.

Forking here is cheap, so that many kills take seconds. Prints a JSON object with what the ledger had after each kill.
"""

import importlib
import json
import os
import pathlib
import random
import signal
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from annotate.answer_files import read_entries
from annotate.misbehaving_server import REPORT

from stepcot_jax.annotate.llm import answers, client
from stepcot_jax.tools.annotate.command import main

IU = "stepcot_jax.data.sources.iu_xray"
# What a run imports late is imported before forking, once for all.
for late in ("openai.resources.chat", "anyio._backends._asyncio", "httpcore2", "stepcot_jax.annotate.runner", IU):
    importlib.import_module(late)

client._make_tls_context()

NUM_REPORTS, CONCURRENCY = 12, 4


def annotate(folder, base_url, *, die_at=None):
    """A child that annotates; `die_at` (when, count) dies at that write of the ledger."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if die_at is not None:
            _die_at_write(*die_at)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        llm = ["--annotator=llm", "--model=m", f"--base-url={base_url}", f"--concurrency={CONCURRENCY}"]
        main([str(folder / "reports.jsonl"), f"--out={folder / 'out'}", "--overwrite", *llm])
        code = 0
    finally:
        os._exit(code)


def _die_at_write(when, count):
    append, calls = answers.Ledger.append, iter(range(1, count + 1))

    def dying_append(ledger, entry):
        is_last = next(calls) == count
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        if is_last and when == "midway":  # pages are in the file, but not committed
            ledger._answers._db.execute("PRAGMA cache_size = 1")
            ledger._answers._db.execute("BEGIN")
        append(ledger, entry)
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    answers.Ledger.append = dying_append


def read_answered(folder):
    """Ids of the reports whose answer is in the ledger."""
    return [entry["report"] for entry in read_entries(folder / "out")]


def run_until_done(base, name, base_url, plans):
    """Start again after each kill; the last start is left alone."""
    folder, kills, done = base / name, [], False
    folder.mkdir()
    texts = [(str(number), REPORT.format(f"{name} {number}")) for number in range(NUM_REPORTS)]
    lines = [json.dumps({"id": number, "report": text, "image": f"{number}.png"}) for number, text in texts]
    (folder / "reports.jsonl").write_text("\n".join(lines))
    for kill_after, die_at in [*plans, (None, None)]:
        if done:
            break
        child = annotate(folder, base_url, die_at=die_at)
        if kill_after is not None:
            time.sleep(kill_after)
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            kills.append({"time": time.monotonic(), "answered": read_answered(folder)})
        elif os.WEXITSTATUS(status):
            raise SystemExit(f"a process that was not killed failed: {(folder / 'stderr').read_text()}")
        else:
            done = True
    return {"name": name, "kills": kills, "answered": read_answered(folder), "folder": str(folder / "out")}


if __name__ == "__main__":
    base, base_url = pathlib.Path(sys.argv[1]), sys.argv[2]
    randomness = random.Random(0)  # noqa: S311
    plans = {f"random{n}": [(randomness.uniform(0.05, 0.25), None) for _ in range(3)] for n in range(2)}
    plans |= {when: [(None, (when, count)) for count in (1, 5)] for when in ("before", "midway", "after")}
    print(json.dumps([run_until_done(base, name, base_url, kills) for name, kills in plans.items()]))
