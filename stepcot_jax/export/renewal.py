"""Write the programs of an export anew with the installed JAX, from the tensors that it carries."""

import contextlib
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.export

from stepcot_jax import __version__
from stepcot_jax.export import exported_files, loader, policy_loader
from stepcot_jax.export.exported_files import RefusedExport
from stepcot_jax.export.folder import copy_loader, require_equal, write_json, write_sums, writing_folder
from stepcot_jax.export.lifetime import describe_lifetime, replace_lifetime
from stepcot_jax.export.policy_folder import copy_policy_loader
from stepcot_jax.export.policy_program import export_policy_programs, make_policy_programs
from stepcot_jax.export.program import PLATFORMS, export_program, make_gate_program, make_program
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import read_file
from stepcot_jax.predict.trained_model import load_trained
from stepcot_jax.predict.trained_policy import load_policy
from stepcot_jax.training.exported_weights import MANIFEST_FILE, is_export

TOLERANCE = 1e-4
"""Largest difference from the logits and gate scores that the export's first machine computed, absolute or relative."""

_CARD = "README.md"
_MOST_CARD_BYTES = 2**22


def renew_export(
    folder: str | pathlib.Path, out: str | pathlib.Path | None = None, *, say: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Write the programs, the loader and the card's lifetime anew; tensors, labels and figures stay as they are.

    The new folder takes its name after its loader computed the stored logits, or a policy's stored tokens.
    """
    folder = pathlib.Path(folder).resolve()
    if not is_export(folder):
        raise BadInput(
            f"{folder}: not an export (no {MANIFEST_FILE}); expected what python -m stepcot_jax.export wrote"
        )
    try:
        files = exported_files.Files(folder)
        with files.expecting(MANIFEST_FILE, "what python -m stepcot_jax.export wrote"):
            manifest = files.read_json(MANIFEST_FILE)
            is_policy = manifest.get("kind") == policy_loader.KIND
    except RefusedExport as error:
        raise BadInput(str(error)) from None
    say("writing the programs")
    programs = _export_policy(folder) if is_policy else _export_networks(folder, manifest)
    lifetime = describe_lifetime()
    with _replacing(folder) if out is None else writing_folder(pathlib.Path(out)) as partial:
        shutil.copytree(folder, partial, dirs_exist_ok=True)
        for name, program in programs.items():
            (partial / name).write_bytes(program.serialize())
        (copy_policy_loader if is_policy else _copy_loader)(partial)
        made = {"made_with": {"stepcot_jax": __version__}, "lifetime": lifetime, "platforms": list(PLATFORMS)}
        write_json(partial / MANIFEST_FILE, manifest | made)
        card = read_file(partial / _CARD, max_bytes=_MOST_CARD_BYTES, accepted="a card").decode()
        (partial / _CARD).write_text(replace_lifetime(card, lifetime), encoding="utf-8")
        write_sums(partial)
        say("reading it back")
        _check(partial, is_policy=is_policy)
    before, written = manifest.get("lifetime"), str(folder if out is None else out)
    return {"folder": written, "renewed": sorted(programs), "lifetime": lifetime, "lifetime_before": before}


def _export_networks(folder: pathlib.Path, manifest: Mapping[str, Any]) -> dict[str, jax.export.Exported]:
    trained = load_trained(folder)
    found = {}
    for name, facts in manifest["models"].items():
        for program in (make_program(trained, name), make_gate_program(trained, name) if facts.get("gate") else None):
            if program is not None:
                found[f"{program.name}.stablehlo"] = export_program(program)
        named = {facts["program"], *([facts["gate"]["program"]] if facts.get("gate") else [])}
        if not named <= found.keys():  # never a path that the folder's author chose
            raise BadInput(f"{folder / MANIFEST_FILE}: programs of {name} must be named as stepcot_jax.export does")
    return found


def _export_policy(folder: pathlib.Path) -> dict[str, jax.export.Exported]:
    exported = export_policy_programs(make_policy_programs(load_policy(folder)))
    return {f"{name}.stablehlo": program for name, program in exported.items()}


def _copy_loader(folder: pathlib.Path) -> None:
    copy_loader(folder, loader.__file__)


def _check(folder: pathlib.Path, *, is_policy: bool) -> None:
    """Compare with the stored numbers of the first export."""
    if is_policy:
        share = policy_loader.check(folder)["same_tokens"]
        if share < 1:
            raise RunStopped(f"{folder.name}: the new programs give {share:.0%} of the stored tokens; nothing changed")
        return
    require_equal(loader.check(folder, tolerance=TOLERANCE), tolerance=TOLERANCE, outcome="nothing changed")


@contextlib.contextmanager
def _replacing(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Give a temporary folder that replaces another when the block ends; if the block fails, nothing changes."""
    partial = pathlib.Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.absolute().parent))
    try:
        yield partial
        _exchange(folder, partial)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _exchange(folder: pathlib.Path, new: pathlib.Path) -> None:
    """Give the new folder the old one's name."""
    new.chmod(folder.stat().st_mode & 0o777)
    old = new.with_suffix(".old")
    folder.rename(old)
    try:
        new.rename(folder)
    except OSError:
        old.rename(folder)
        raise
    shutil.rmtree(old)
