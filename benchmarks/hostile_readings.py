"""Every command that reads a file, with the hostile files of the kinds that it reads: a product for `hostile_files`."""

import functools
from pathlib import Path

from benchmarks.hostile_bases import base
from benchmarks.hostile_commands import Reading, reads
from benchmarks.hostile_inputs import MAKERS, Command
from benchmarks.hostile_kinds import fill_folder

PRELOADED = (
    "stepcot_jax.tools.explain.drawing",
    "stepcot_jax.export.folder",
    "stepcot_jax.reading.image_reader",
    "stepcot_jax.reading.policy_reader",
)
"""Modules that import what most commands need, among it JAX, without starting it."""

FILES: dict[str, str] = {}
"""By the name in `MAKERS`: name of the hostile file, which a message must have."""


_RUN_FILES = ("settings.json", "reading/chain.json", "calibration.json", "points.json")
_EXPORT_FILES = ("export.json", "labels.json", "preprocessing.json", "settings.json", "student.safetensors")
_OUT = "--out={root}/out"
_GUESSED = ("gemex.json", "a.jsonl")
"""Files of a source that its records reveal; of foreign ones a message names the folder."""

READINGS: list[Reading] = [
    *reads("run", "report {root}/run", *_RUN_FILES, "report.json", "metrics.jsonl", "predictions/test.npz"),
    *reads(
        "policy",
        "report {root}/policy",
        "settings.json",
        "report.json",
        "statistics.json",
        "metrics.jsonl",
        "records/test.jsonl",
        "replies/sft_test.jsonl",
    ),
    *reads(
        "run", "predict {root}/run/good.png --checkpoint={root}/run", *_RUN_FILES, "reading/shapes.json", "gate.npz"
    ),
    *reads("run", "predict {root}/run/good.png --checkpoint={root}/run", "statistics.json", "pairs.json", "joint.json"),
    Reading("predict {root}/good.png --checkpoint={run} --given={file}", "given.json"),
    Reading("explain {root}/good.png --checkpoint={run} --given={file} " + _OUT, "given.json"),
    *reads("run", "explain {root}/run/good.png --checkpoint={root}/run " + _OUT, "normal_picture.npz"),
    *reads("run", "explain {root}/run/good.png --checkpoint={root}/run " + _OUT, *_RUN_FILES[:3]),
    *reads("export", "predict {run}/good.png --checkpoint={root}/export", *_EXPORT_FILES),
    *reads("export", "predict {run}/good.png --checkpoint={root}/export", "SHA256SUMS", like=".txt"),
    *reads("export", "sc.load {root}/export", "export.json", "student.safetensors"),
    *reads("export", "load.py {root}/export", "check.safetensors", *_EXPORT_FILES[:3], "student.safetensors"),
    *reads("export", "load.py {root}/export", "SHA256SUMS", like=".txt"),
    *reads("export", "export push {root}/export a/b", "SHA256SUMS", "README.md", like=".txt"),
    *reads(
        "run", "export --checkpoint={root}/run --model=student " + _OUT, *_RUN_FILES, "report.json", "converted.json"
    ),
    *reads("policy", "export --checkpoint={root}/policy " + _OUT, "settings.json"),
    *reads(
        "policy",
        "answer {run}/good.png What --checkpoint={root}/policy",
        "settings.json",
        "policy.json",
        "vocabulary.json",
    ),
    Reading("answer {file} What --checkpoint={policy}", "picture.png", like=".txt"),
    Reading("explain score --checkpoint={run} --data={phantoms} --boxes={file}", "boxes.csv"),
    *reads("cases", "explain score --checkpoint={run} --data={root}/cases", "cases.csv"),
    *reads("run", "demo --checkpoint={root}/run", "settings.json"),
    Reading("demo.upload {file} {run}", "picture.png", like=".txt", named="image"),
    Reading("tables diagnosis --config=quickstart --workdir={root}/out --constrained={file}", "constrained.json"),
    *reads("cases", "constrain {root}/cases --local={root}/qwen " + _OUT, "cases.csv"),
    *reads(
        "run", "constrain --workdir={root}/run --local={root}/qwen " + _OUT, "settings.json", "predictions/test.npz"
    ),
    Reading("constrain {phantoms} --local={root}/qwen " + _OUT, "qwen/config.json"),
    Reading("annotate {file} " + _OUT, "input.csv"),
    Reading("annotate {file} " + _OUT, "input.jsonl"),
    Reading("annotate {file} --shard=0/2 " + _OUT, "part.csv"),
    Reading("annotate {cases}/cases.csv --chain={file} " + _OUT, "data.json"),
    *reads("shard", "annotate merge {root}/shard " + _OUT, "shard.json", "data.json", "set_aside.jsonl"),
    *reads("shard", "annotate agree {root}/shard {root}/shard", "data.json"),
    *reads("shard", "annotate review-out {root}/shard --out={root}/form.csv", "data.json"),
    *reads("shard", "annotate review-in {file} {root}/shard --reviewer=a " + _OUT, "form.csv"),
    *reads("questions", "annotate review-out {root}/questions --out={root}/form.csv", "records.jsonl"),
    *reads("questions", "annotate review-in {file} {root}/questions --reviewer=a " + _OUT, "form.csv"),
    *(
        Reading(command, f"source/{name}", named="source" if name in _GUESSED else "")
        for command in ("annotate vqa {root}/source --task=lvkc " + _OUT, "data vqa {root}/out --source={root}/source")
        for name in ("records.jsonl", "BBox_List_2017.csv", "grounded_reports.json", "train.csv", *_GUESSED)
    ),
    *reads("questions", "evaluate_replies {root}/questions {file} --split=all " + _OUT, "replies.jsonl"),
    *reads("questions", "evaluate_replies {root}/questions {root}/a.jsonl --split=all " + _OUT, "records.jsonl"),
    *reads("questions", "evaluate_replies prompts {root}/questions --split=all --out={root}/a.jsonl", "records.jsonl"),
    *reads("questions", "evaluate_replies perturb {root}/questions --split=all " + _OUT, "records.jsonl"),
    *reads("cases", "readers sample {root}/cases --readers=A " + _OUT, "cases.csv"),
    *reads("run", "readers sample --workdir={root}/run --readers=A " + _OUT, "settings.json", "predictions/test.npz"),
    *reads("sample", "readers score {root}/sample {root}/sample/A/form.csv " + _OUT, "key.json", "A/form.csv"),
    *reads("cases", "data stats {root}/cases " + _OUT, "cases.csv"),
    *reads("questions", "data stats {root}/questions " + _OUT, "records.jsonl"),
    *reads("questions", "data check {root}/questions", "records.jsonl"),
    *reads("cases", "data check {root}/cases", "chain.json"),
    Reading("convert {file} {root}/b.safetensors --to=torch", "a.safetensors"),
    Reading("convert {file} {root}/b.safetensors --to=jax", "a.pt"),
    Reading("conformance {file}", "golden.npz"),
    *reads("phantoms", "features {file} --root={root}/phantoms --store={root}/out", "a.npz"),
    *reads("run", "main --config=quickstart --workdir={root}/run", "settings.json"),
]
"""Commands and the files that they read."""

for _reading in READINGS:
    for _kind, _write in _reading.kinds.items():
        _name = f"{_reading.name}: {_kind}"
        MAKERS[_name] = functools.partial(_reading.make, _write)
        FILES[_name] = _reading.named or Path(_reading.file).name


def _pictures(command: str) -> None:
    def make(root: Path, factor: float) -> Command:
        fill_folder(root / "pictures", factor)
        bases = {name: base(name) for name in ("run",) if f"{{{name}}}" in command}
        return [word.format(root=root, **bases) for word in command.split()]

    name = f"{command.split()[0]}, pictures: all in a folder"
    MAKERS[name], FILES[name] = make, "0.png"


for _command in (
    "predict {root}/pictures --checkpoint={run}",
    "explain {root}/pictures --checkpoint={run} --out={root}/out",
):
    _pictures(_command)


def sample() -> set[str]:
    """Return one hostile file of each reading, its kind by turns, and the folders of pictures."""
    chosen = {name for name in FILES if name.endswith("all in a folder")}
    for number, reading in enumerate(READINGS):
        kinds = list(reading.kinds)
        chosen.add(f"{reading.name}: {kinds[number % len(kinds)]}")
    return chosen
