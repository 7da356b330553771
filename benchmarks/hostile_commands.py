"""A command with a hostile file in the place of one that it reads; `hostile_readings` lists them."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path

from benchmarks.hostile_bases import base, copy_base
from benchmarks.hostile_inputs import Command
from benchmarks.hostile_kinds import KINDS, Write


@dataclasses.dataclass(frozen=True)
class Reading:
    """A command and the file that it reads.

    Attributes:
      command: {root} is the folder of the trial, {file} the hostile file; {NAME} is a base that does not change.
      file: below the folder, such as "run/report.json".
      base: copied to the first part of the file's path; "" for none.
      like: ending whose kinds of files are tried, if it is not the file's own.
      head: a known field of JSON, or the start of a table.
      named: what a message must have; "" for the file's name.
    """

    command: str
    file: str
    base: str = ""
    like: str = ""
    head: str = ""
    named: str = ""

    @property
    def name(self) -> str:
        """Of the command with the file, such as "report, run/report.json"."""
        words = [word for word in self.command.split() if "{" not in word and not word.startswith("-")]
        return f"{' '.join(words)}, {self.file}"

    @property
    def kinds(self) -> dict[str, Write]:
        """The hostile files by name."""
        return KINDS[self.like or Path(self.file).suffix]

    def make(self, write: Write, root: Path, factor: float) -> Command:
        """Write the hostile file and return the command."""
        path = root / self.file
        if self.base:
            copy_base(self.base, root / Path(self.file).parts[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        write(path, factor, (self.head or _HEADS.get(path.name, "a")).encode())
        if self.base == "export" and path.name != "SHA256SUMS" and path.is_file():
            _seal(path)
        bases = {name: base(name) for name in ("run", "policy", "export", *_SOURCES) if f"{{{name}}}" in self.command}
        return [word.format(root=root, file=path, **bases) for word in self.command.split()]


def _load(folder: str) -> None:
    import stepcot_jax as sc

    sc.load(folder)


def _run_loader(folder: str) -> int:
    """Run the program of an export, of which it has a copy."""
    from stepcot_jax.export import loader

    return loader.main([folder])


def _upload(path: str, checkpoint: str) -> None:
    """Read an upload as the demo does."""
    from stepcot_jax.extras.demo.guard import Uploads
    from stepcot_jax.reading.image_reader import load
    from stepcot_jax.reading.radiographs import read_unresized

    uploads = Uploads(Path(path).parent / "uploads")
    upload = uploads.folder / "request" / "picture.png"
    upload.parent.mkdir(parents=True)
    uploads.add(str(upload))
    Path(path).rename(upload)
    read_unresized(uploads.read_once(str(upload)), max_pixels=load(checkpoint).trained.run.max_pixels)


CALLS: dict[str, Callable[..., int | None]] = {
    "sc.load": _load,
    "load.py": _run_loader,
    "demo.upload": _upload,
}
"""What reads files beside the commands."""

_HEADS = {
    "statistics.json": "reliance",
    "points.json": "models",
    "shapes.json": "shapes",
    "report.json": "num_cases",
    "calibration.json": "temperatures",
    "pairs.json": "pairs",
    "joint.json": "models",
    "export.json": "models",
    "labels.json": "steps",
    "chain.json": "chain",
    "given.json": "steps",
    "shard.json": "settings",
    "key.json": "cases",
    "records.jsonl": "id",
    "replies.jsonl": "id",
    "boxes.csv": "Image Index,Finding Label,Bbox [x,y,w,h]\n",
    "BBox_List_2017.csv": "Image Index,Finding Label,Bbox [x,y,w,h]\n",
    "train.csv": "image_id,class_name,class_id,rad_id,x_min,y_min,x_max,y_max\n",
    "input.csv": "id,report,image\n",
    "cases.csv": "image,label\n",
}

_SOURCES = ("cases", "phantoms", "questions")


def _seal(path: Path) -> None:
    """Write the digest of a changed file to its export's SHA256SUMS, as an attacker would."""
    sums = path.with_name("SHA256SUMS")
    others = [line for line in sums.read_text().splitlines() if not line.endswith(f"  {path.name}")]
    with path.open("rb") as file:
        others.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}")
    sums.write_text("\n".join(others) + "\n")


def reads(base: str, command: str, *files: str, folder: str = "", like: str = "") -> list[Reading]:
    """Return a command with each of the files of a base, which lies in {root}/BASE or another folder."""
    return [Reading(command, f"{folder or base}/{name}", base=base, like=like) for name in files]
