"""Every command that reads a file, with the hostile files of the kinds it reads: a product for `hostile_files`."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path

from benchmarks.hostile_bases import base, copy_base
from benchmarks.hostile_inputs import MAKERS, Command
from benchmarks.hostile_kinds import KINDS, Write, fill_folder

PRELOADED = (
    "stepcot_jax.explain.drawing",
    "stepcot_jax.export.renewal",
    "stepcot_jax.predict.loading",
    "stepcot_jax.predict.policy_reader",
)
"""Modules that import what most commands need, among it JAX, without starting it."""

FILES: dict[str, str] = {}
"""By the name in `MAKERS`: name of the hostile file, which a message must have."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """A command and the file that it reads.

    Attributes:
      command: {root} is the folder of the trial, {file} the hostile file; {NAME} is a base that does not change.
      file: below the folder, such as "run/report.json".
      base: copied to the first part of the file's path; "" for none.
      like: ending whose kinds of files are tried, if it is not the file's own.
      head: a known field of JSON, or the start of a table.
    """

    command: str
    file: str
    base: str = ""
    like: str = ""
    head: str = ""

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
    from stepcot_jax.demo.sessions import read_upload
    from stepcot_jax.predict.loading import load
    from stepcot_jax.predict.radiographs import read_unresized

    reader = load(checkpoint)
    read_unresized(read_upload(path), max_pixels=reader.trained.max_pixels)


CALLS: dict[str, Callable[..., int | None]] = {"sc.load": _load, "load.py": _run_loader, "demo.upload": _upload}
"""What reads files beside the commands."""

_HEADS = {
    "statistics.json": "operating_points",
    "shapes.json": "shapes",
    "report.json": "num_cases",
    "calibration.json": "models",
    "pairs.json": "pairs",
    "export.json": "models",
    "labels.json": "steps",
    "chain.json": "steps",
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


def _of(base: str, command: str, *files: str, folder: str = "", like: str = "") -> list[Reading]:
    """Return a command with each of the files of a base, which lies in {root}/BASE or another folder."""
    return [Reading(command, f"{folder or base}/{name}", base=base, like=like) for name in files]


_RUN_FILES = ("settings.json", "reading/chain.json", "calibration.json", "statistics.json")
_EXPORT_FILES = ("export.json", "labels.json", "preprocessing.json", "settings.json", "student.safetensors")
_OUT = "--out={root}/out"

READINGS: list[Reading] = [
    *_of("run", "report {root}/run", *_RUN_FILES, "report.json", "metrics.jsonl", "predictions/test.npz"),
    *_of(
        "policy",
        "report {root}/policy",
        "settings.json",
        "report.json",
        "statistics.json",
        "metrics.jsonl",
        "records/test.jsonl",
        "replies/sft_test.jsonl",
    ),
    *_of("run", "predict {root}/run/good.png --checkpoint={root}/run", *_RUN_FILES, "reading/shapes.json", "gate.npz"),
    *_of("run", "predict {root}/run/good.png --checkpoint={root}/run --pairs", "pairs.json"),
    *_of("run", "predict {root}/run/good.png --checkpoint={root}/run --model=teacher", "reading/text_features.npy"),
    Reading("predict {root}/good.png --checkpoint={run} --given={file}", "given.json"),
    Reading("explain {root}/good.png --checkpoint={run} --given={file} " + _OUT, "given.json"),
    *_of("run", "explain {root}/run/good.png --checkpoint={root}/run " + _OUT, *_RUN_FILES),
    *_of("export", "predict {run}/good.png --checkpoint={root}/export", *_EXPORT_FILES),
    *_of("export", "predict {run}/good.png --checkpoint={root}/export", "SHA256SUMS", like=".txt"),
    *_of("export", "sc.load {root}/export", "export.json", "student.safetensors"),
    *_of("export", "load.py {root}/export", "check.safetensors", *_EXPORT_FILES[:3], "student.safetensors"),
    *_of("export", "load.py {root}/export", "SHA256SUMS", like=".txt"),
    *_of("export", "export renew {root}/export", "export.json", "settings.json", "student.safetensors"),
    *_of("export", "export renew {root}/export", "SHA256SUMS", like=".txt"),
    *_of("export", "export push {root}/export a/b", "SHA256SUMS", "README.md", like=".txt"),
    *_of("run", "export --checkpoint={root}/run --model=student " + _OUT, *_RUN_FILES, "report.json", "converted.json"),
    *_of("policy", "export --checkpoint={root}/policy " + _OUT, "settings.json", "policy.json", "vocabulary.json"),
    *_of(
        "policy",
        "answer {run}/good.png What --checkpoint={root}/policy",
        "settings.json",
        "policy.json",
        "vocabulary.json",
    ),
    Reading("answer {file} What --checkpoint={policy}", "picture.png", like=".txt"),
    Reading("explain score --checkpoint={run} --data={phantoms} --boxes={file}", "boxes.csv"),
    *_of("cases", "explain score --checkpoint={run} --data={root}/cases", "cases.csv"),
    *_of("run", "demo --checkpoint={root}/run", "settings.json"),
    Reading("demo.upload {file} {run}", "picture.png", like=".txt"),
    Reading("tables diagnosis --config=quickstart --workdir={root}/out --constrained={file}", "constrained.json"),
    *_of("cases", "constrain {root}/cases " + _OUT, "cases.csv"),
    *_of(
        "run", "constrain --workdir={root}/run " + _OUT, "settings.json", "reading/chain.json", "predictions/test.npz"
    ),
    Reading("constrain {phantoms} --local={root}/qwen " + _OUT, "qwen/config.json"),
    Reading("annotate {file} " + _OUT, "input.csv"),
    Reading("annotate {file} " + _OUT, "input.jsonl"),
    Reading("annotate {file} --shard=0/2 " + _OUT, "part.csv"),
    Reading("annotate {cases}/cases.csv --chain={file} " + _OUT, "data.json"),
    Reading("annotate requests {file} --model=a " + _OUT, "input.jsonl"),
    *_of(
        "batch", "annotate requests {cases}/cases.csv --model=a --images=none --out={root}/batch", "batch/journal.jsonl"
    ),
    *_of("batch", "annotate replies {root}/batch {file}", "replies.jsonl", "batch/journal.jsonl"),
    *_of("shard", "annotate merge {root}/shard " + _OUT, "shard.json", "data.json", "set_aside.jsonl"),
    *_of("shard", "annotate agree {root}/shard {root}/shard", "data.json"),
    *_of("questions", "annotate agree {root}/questions {root}/questions", "records.jsonl"),
    *_of("shard", "annotate review-out {root}/shard --out={root}/form.csv", "data.json"),
    *_of("shard", "annotate review-in {file} {root}/shard --reviewer=a " + _OUT, "form.csv"),
    *_of("questions", "annotate review-out {root}/questions --out={root}/form.csv", "records.jsonl"),
    *_of("questions", "annotate review-in {file} {root}/questions --reviewer=a " + _OUT, "form.csv"),
    *(
        Reading(f"{command} {_OUT}", f"source/{name}")
        for command in ("annotate vqa {root}/source --task=lvkc",)
        for name in (
            "records.jsonl",
            "BBox_List_2017.csv",
            "grounded_reports.json",
            "train.csv",
            "gemex.json",
            "a.jsonl",
        )
    ),
    *(
        Reading("data vqa {root}/out --source={root}/source", f"source/{name}")
        for name in (
            "records.jsonl",
            "BBox_List_2017.csv",
            "grounded_reports.json",
            "train.csv",
            "gemex.json",
            "a.jsonl",
        )
    ),
    *_of("questions", "evaluate_replies {root}/questions {file} --split=all " + _OUT, "replies.jsonl"),
    *_of("questions", "evaluate_replies {root}/questions {root}/a.jsonl --split=all " + _OUT, "records.jsonl"),
    *_of("questions", "evaluate_replies prompts {root}/questions --split=all --out={root}/a.jsonl", "records.jsonl"),
    *_of("questions", "evaluate_replies perturb {root}/questions --split=all " + _OUT, "records.jsonl"),
    *_of("cases", "readers sample {root}/cases --readers=A " + _OUT, "cases.csv"),
    *_of("run", "readers sample --workdir={root}/run --readers=A " + _OUT, "settings.json", "predictions/test.npz"),
    *_of("sample", "readers score {root}/sample {root}/sample/A/form.csv " + _OUT, "key.json", "A/form.csv"),
    *_of("cases", "data stats {root}/cases " + _OUT, "cases.csv"),
    *_of("questions", "data stats {root}/questions " + _OUT, "records.jsonl"),
    *_of("questions", "data check {root}/questions", "records.jsonl"),
    *_of("cases", "data check {root}/cases", "chain.json"),
    *_of("cases", "data shards {root}/cases " + _OUT, "cases.csv"),
    *_of("shards", "data shards {phantoms} --out={root}/shards", "image_shards.json"),
    Reading("convert {file} {root}/b.safetensors --to=torch", "a.safetensors"),
    Reading("convert {file} {root}/b.safetensors --to=jax", "a.pt"),
    Reading("convert {export}/student.safetensors {root}/out --to=jax --chain={file}", "chain.json"),
    Reading("conformance {file}", "golden.npz"),
    *_of("phantoms", "features {file} --root={root}/phantoms --store={root}/out", "a.npz"),
    *_of("run", "main --config=quickstart --workdir={root}/run", "settings.json"),
]
"""Commands and the files that they read."""

for _reading in READINGS:
    for _kind, _write in _reading.kinds.items():
        _name = f"{_reading.name}: {_kind}"
        MAKERS[_name] = functools.partial(_reading.make, _write)
        FILES[_name] = Path(_reading.file).name


def _pictures(command: str) -> None:
    def make(root: Path, factor: float) -> Command:
        fill_folder(root / "pictures", factor)
        bases = {name: base(name) for name in ("run",) if f"{{{name}}}" in command}
        return [word.format(root=root, **bases) for word in command.split()]

    name = f"{command.split()[0]}, pictures: all in a folder"
    MAKERS[name], FILES[name] = make, "zero.png"


for _command in (
    "predict {root}/pictures --checkpoint={run}",
    "explain {root}/pictures --checkpoint={run} --out={root}/out",
    "demo --checkpoint={run} --examples={root}/pictures",
):
    _pictures(_command)
