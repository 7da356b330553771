"""Folders that are good but for one file, which `hostile_commands` replaces: runs, exports, shards, samples.

Tests write the runs, without training. Each folder is made once in a process, by a fork of it, as JAX must not have
started where hostile files are tried.
"""

import contextlib
import functools
import importlib
import json
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from stepcot_jax.__main__ import find_commands

_ROOT = Path(__file__).resolve().parent.parent
_MADE = tempfile.TemporaryDirectory(prefix="stepcot-jax-hostile-")
_CSV = "id,report,image,label\n1,The lungs are clear.,1.png,Normal\n2,The heart is large.,2.png,Mass\n"


@functools.cache
def base(name: str) -> Path:
    """Return a folder by the name of its maker; it must not be changed."""
    folder = Path(_MADE.name, name)
    if folder.exists():  # made for another one
        return folder
    child = os.fork()
    if not child:
        code = 1
        try:
            with contextlib.redirect_stdout(sys.stderr):
                sys.path[:0] = [str(_ROOT), str(_ROOT / "tests")]
                _MAKERS[name](folder)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        raise RuntimeError(f"{name}: cannot be made")
    return folder


def copy_base(name: str, folder: Path) -> None:
    """Copy a folder, of which a command may change its own."""
    shutil.copytree(base(name), folder, symlinks=True)


def _call(command: str, *arguments: str) -> None:
    importlib.import_module(find_commands()[command]).main(list(arguments))


def _run(folder: Path) -> None:
    """A run of a teacher and a student, with predictions."""
    import trained_workdir  # type: ignore[import-not-found]
    from PIL import Image
    from report.finished_workdir import make_finished_workdir  # type: ignore[import-not-found]

    from stepcot_jax.encoders.resnet import make_resnet

    trained_workdir.TINY = make_resnet("resnet_small")
    make_finished_workdir(folder)
    report = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps({**report, "test": {}}))
    (folder / "digests.sha256").unlink()  # which would refuse every other content
    Image.new("L", (64, 64)).save(folder / "good.png")


def _policy(folder: Path) -> None:
    from policies.policy_workdir import make_policy_workdir  # type: ignore[import-not-found]

    make_policy_workdir(folder)


def _export(folder: Path) -> None:
    _call("export", f"--checkpoint={base('run')}", f"--out={folder}", "--model=student")


def _cases(folder: Path) -> None:
    folder.mkdir()
    (folder / "cases.csv").write_text(_CSV)


def _phantoms(folder: Path) -> None:
    _call("data", "phantom", str(folder), "--num-cases=6", "--size=32")


def _questions(folder: Path) -> None:
    _call("data", "vqa", str(folder), "--num-cases=6")


def _shard(folder: Path) -> None:
    _call("annotate", str(base("cases") / "cases.csv"), f"--out={folder}", "--shard=0/1", "--images=none")


def _sample(folder: Path) -> None:
    source = str(base("phantoms"))
    _call("readers", "sample", source, "--readers=A", f"--out={folder}", "--num-cases=2")


def _perturbed(folder: Path) -> None:
    _call("evaluate_replies", "perturb", str(base("questions")), f"--out={folder}", "--split=all", "--rounds=1")


_MAKERS: dict[str, Callable[[Path], None]] = {
    "run": _run,
    "policy": _policy,
    "export": _export,
    "cases": _cases,
    "phantoms": _phantoms,
    "questions": _questions,
    "shard": _shard,
    "sample": _sample,
    "perturbed": _perturbed,
}
