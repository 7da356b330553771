"""Write the card of an export: training data, figures, calibration, operating points, limits, files and their use."""

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jaxlib
import msgspec

from stepcot_jax import __version__
from stepcot_jax.evaluation.chains import bootstrap, evaluate
from stepcot_jax.evaluation.predictions import read_predictions
from stepcot_jax.export.carried_files import name_encoder
from stepcot_jax.host.exported_files import SUMS
from stepcot_jax.host.files import read_json
from stepcot_jax.host.own_folder import load
from stepcot_jax.host.text import escape_markdown as plain
from stepcot_jax.pages.sheets import Column, Entry, Table, columns, list_markdown_rows, show_entry
from stepcot_jax.reading.finished import Report, tabulate_points
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.run.stored import (
    CALIBRATION_FILE,
    CONVERTED_FILE,
    GATE_FILE,
    JOINT_FILE,
    NORMAL_FILE,
    PAIRS_FILE,
    POINTS_FILE,
    STATISTICS_FILE,
)
from stepcot_jax.run.task import REPORT

_HERE = pathlib.Path(__file__).parent

_FIGURES = ("accuracy", "auc", "sensitivity", "specificity")
_OF_A_STEP = columns("percent", "accuracy", "AUC", "sensitivity", "macro specificity")


def write_card(trained: Trained, sizes: Mapping[str, int], manifest: Mapping[str, Any], folder: pathlib.Path) -> str:
    """Return the card of an export in `folder` as Markdown; `sizes` are the networks' numbers of parameters."""
    models, names = manifest["models"], list(sizes)
    first, *others = names  # the loader's default first
    return (
        (_HERE / "card.txt")
        .read_text(encoding="utf-8")
        .format(
            networks=" and ".join(names),
            gate=_describe_gate(trained, names),
            version=__version__,
            numbers="; ".join(f"{name} {size:,}" for name, size in sizes.items()),
            training=_describe_training(trained),
            figures=_describe_figures(trained, names),
            calibration=_describe_calibration(trained, names),
            operating=_describe_points(trained, names),
            argument=f', "{first}"' if others else "",
            step=json.dumps(trained.chain.steps[-1].name, ensure_ascii=False),
            size=trained.preprocessing.size,
            resize=_RESIZE[trained.preprocessing.fit],
            files=list_files(folder, _describe_programs(models)),
            platforms=", ".join(manifest["platforms"]),
            jax=jax.__version__,
            jaxlib=jaxlib.__version__,
        )
    )


class _Converted(msgspec.Struct):
    source: str
    sha256: str


def _describe_gate(trained: Trained, names: Sequence[str]) -> str:
    if any(trained.gate(name) is None for name in names):
        return "No gate was fitted that would mark such images."
    return (
        "A gate marks images unlike the training images (`gate_scores` above 1 in load.py, a warning of stepcot-jax). "
        "It lets some pass, and marks some chest radiographs."
    )


def _describe_training(trained: Trained) -> str:
    run, lines = trained.run, ["## Training data", "", f"- Source: {trained.run.data_source}."]
    report = _read_report(trained.workdir)
    if report is not None:
        counts = ", ".join(f"{plain(split)} {int(count):,}" for split, count in report.num_cases.items())
        lines.append(
            f"- Cases: {counts}. Figures are of the test cases, which were not used for training or model selection."
        )
    else:
        lines.append("- Cases: unknown; the run had written no report when it was exported.")
    if trained.frozen_encoder is not None:
        name = plain(name_encoder(trained.frozen_encoder))
        lines.append(f"- Image encoder: {name}, pretrained and frozen; its own licence and data apply.")
    else:
        name = plain(run.settings.image_encoder.name)
        lines.append(f"- Image encoder: {name}, trained from scratch on these cases only.")
    if text := run.prompt_source:
        lines.append(f"- Prompts of the teacher: {text}; stored in the export, no text encoder is needed.")
    origin = _read_conversion(trained.workdir)
    if origin is not None:
        lines.append(f"- Training: elsewhere; converted from {plain(origin.source)} (SHA-256 {plain(origin.sha256)}).")
    else:
        best = ", ".join(f"{name} {step}" for name, step in trained.best_steps.items()) or "the last"
        lines.append(f"- Training: job {run.settings.trains}, seed {run.settings.seed}; best updates {best}.")
    return "\n".join(lines)


def _read_report(workdir: pathlib.Path) -> Report | None:
    return load(workdir / REPORT, Report) if (workdir / REPORT).exists() else None


def _read_conversion(workdir: pathlib.Path) -> _Converted | None:
    path = workdir / CONVERTED_FILE
    return read_json(path, _Converted, accepted="expected what convert wrote") if path.exists() else None


def _describe_figures(trained: Trained, names: Sequence[str]) -> str:
    path = trained.workdir / "predictions" / "test.npz"
    lines = ["## Figures on the test cases", ""]
    if not path.exists():
        return "\n".join([*lines, "None: the run had measured nothing when it was exported."])
    split, report = read_predictions(path, trained.chain), _read_report(trained.workdir)
    notes = () if report is None else report.notes
    intervals, metrics = bootstrap(split, trained.chain), evaluate(split.predictions, trained.chain)
    lines += ["With 95 % intervals from a bootstrap over patients.", ""]
    for name in names:
        if name not in intervals:
            lines += [f"{name}: not measured.", ""]
            continue
        found, constant = intervals[name], metrics[name]
        rows = [(step.name, step.num_cases, *(getattr(step, key) for key in _FIGURES)) for step in found.steps]
        lines += _tabulate((Column(name), Column("cases", "number"), *_OF_A_STEP), rows)
        mean, majority, chain, frequent = (
            show_entry(figure, Column("", "percent"))
            for figure in (
                found.mean_accuracy,
                constant.mean_majority_accuracy,
                found.chain_accuracy,
                constant.majority_chain_accuracy,
            )
        )
        lines.append(
            f"Mean over the steps: accuracy {mean} (most frequent answers: {majority}); all steps right: {chain} (most "
            f"frequent answers: {frequent}). Steps at which all cases have the same answer are not in the mean.\n"
        )
        lines += [f"{plain(line)}.\n" for line in notes if line.startswith(f"{name}: ")]
    if report is not None and report.heads is not None:
        lines.append(plain(". ".join(report.heads.describe())))
    return "\n".join(lines).rstrip()


def _tabulate(heads: Sequence[Column], rows: Iterable[tuple[Entry, ...]]) -> list[str]:
    return [*list_markdown_rows(Table("", "", tuple(heads), tuple(rows))), ""]


def _describe_calibration(trained: Trained, names: Sequence[str]) -> str:
    lines = ["## Calibration", ""]
    calibration = trained.calibration
    if calibration is None:
        return "\n".join([*lines, "None: the probabilities are the softmax of the logits."])
    lines += ["Logits are divided by these temperatures, fitted on the validation cases, before the softmax.", ""]
    none = ("-",) * trained.chain.num_steps
    rows = [(name, *calibration.temperatures.get(name, none)) for name in names]
    heads = (Column("network"), *columns("number", *(step.name for step in trained.chain.steps), digits=2))
    return "\n".join([*lines, *_tabulate(heads, rows)]).rstrip()


def _describe_points(trained: Trained, names: Sequence[str]) -> str:
    lines, points = ["## Operating points", ""], trained.operating_points
    if points is None:
        return "\n".join([*lines, "None: the run chose none."])
    lines += [
        "An answer lies above its operating point if its probability is the threshold or more. Thresholds: "
        f"{points.rule.describe()}. Figures: of the test cases, with 95 % intervals from a bootstrap over "
        "patients, exact ones where all cases agree; cases: those of the test split that have the answer. PPV and NPV "
        "depend on its prevalence there.",
        "",
    ]
    for name in names:
        lines += [f"**{name}**", "", *list_markdown_rows(tabulate_points(points, name)), ""]
    return "\n".join(lines).rstrip()


# Lines on the use of an export, and the table of its files.


_RESIZE = {
    "crop": """\
    longest = 4 * min(picture.size)
    if max(picture.size) > longest:
        left, top = (max(0, side - longest) // 2 for side in picture.size)
        width, height = (min(side, longest) for side in picture.size)
        picture = picture.crop((left, top, left + width, top + height))
    width, height = (SIZE * side // min(picture.size) for side in picture.size)
    picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - SIZE) // 2, (height - SIZE) // 2
    return np.array(picture.crop((left, top, left + SIZE, top + SIZE)))[None]""",
    "pad": """\
    width, height = (max(1, round(side * SIZE / max(picture.size))) for side in picture.size)
    padded = Image.new("L", (SIZE, SIZE))
    padded.paste(picture.resize((width, height), Image.Resampling.BICUBIC), ((SIZE - width) // 2, (SIZE - height) // 2))
    return np.array(padded)[None]""",
    "stretch": """\
    return np.array(picture.resize((SIZE, SIZE), Image.Resampling.BICUBIC))[None]""",
}

_OF_LOADERS = {
    "load.py": "the loader",
    "exported_files.py": "reads files for the loader",
}

_OF_ALL = {
    CALIBRATION_FILE: "temperatures and answer sets, fitted on the validation cases",
    POINTS_FILE: "operating points with their figures",
    STATISTICS_FILE: "how far answers follow given ones",
    JOINT_FILE: "shares of answers in the training labels, with which `sc.load` joins the steps",
    PAIRS_FILE: "counted pairs of answers, for warnings of `sc.load`",
    GATE_FILE: "the gates, for `sc.load`",
    NORMAL_FILE: "mean of the normal training pictures, for maps",
    CONVERTED_FILE: "the checkpoint that the run was converted from",
    "labels.json": "questions and answers, in the order of the logits",
    "settings.json": "the run's settings; with it `sc.load` reads this folder",
    "preprocessing.json": "from an image file to the model's input",
    "export.json": "the files of each model, versions",
    "check.safetensors": "two images of noise and their logits, for `python load.py`",
    SUMS: "digests of all files (`sha256sum -c SHA256SUMS`)",
}


def list_files(folder: pathlib.Path, described: Mapping[str, str]) -> str:
    """Return the table of an export's files for its card; `described` has the texts of its kind, which go first."""
    contents = {**_OF_LOADERS, **described, **_OF_ALL, **described}
    written = {path.name for path in folder.iterdir()} | {SUMS}
    if unknown := sorted(written - contents.keys()):
        raise ValueError(f"{folder}: no description of {', '.join(unknown)}")
    return "\n".join(f"| `{name}` | {content} |" for name, content in contents.items() if name in written)


def _describe_programs(models: Mapping[str, Any]) -> dict[str, str]:
    return {
        **{model["program"]: f"the {name}, with image encoder and gate" for name, model in models.items()},
        **dict.fromkeys(sorted({file for model in models.values() for file in model["tensors"]}), "parameters"),
    }
