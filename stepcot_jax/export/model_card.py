"""Write the model card of an export: training data, figures, calibration, operating points, limits, and its use."""

import json
import math
import operator
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jaxlib
import msgspec

from stepcot_jax import __version__
from stepcot_jax.evaluation.chains import ModelIntervals, ModelMetrics, bootstrap, evaluate
from stepcot_jax.evaluation.operating_points import FIGURES
from stepcot_jax.evaluation.predictions import read_predictions
from stepcot_jax.evaluation.statistics import Interval
from stepcot_jax.export.carried_files import name_encoder, read_kept_statistics
from stepcot_jax.export.program import Program
from stepcot_jax.host.exported_files import SUMS
from stepcot_jax.host.files import read_json
from stepcot_jax.host.text import escape_markdown as plain
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.run.stored_reading import (
    CALIBRATION_FILE,
    CONVERTED_FILE,
    GATE_FILE,
    JOINT_FILE,
    NORMAL_FILE,
    PAIRS_FILE,
    POINTS_FILE,
    STATISTICS_FILE,
)

_HERE = pathlib.Path(__file__).parent

_COLUMNS = {"accuracy": "accuracy", "auc": "AUC", "sensitivity": "sensitivity", "specificity": "specificity"}


def write_lifetime() -> str:
    """Return the section of a card on the versions of JAX that read the programs."""
    return (
        f"## Lifetime\n\njax {jax.__version__} with jaxlib {jaxlib.__version__} wrote the programs (`*.stablehlo`). "
        "[JAX promises](https://docs.jax.dev/en/latest/export/export.html#compatibility-guarantees) to read them with "
        "every jaxlib released up to six months after that one, or three weeks before it. For another, export again "
        "from the run: `stepcot export --checkpoint=RUN --out=DIR`.\n"
    )


def require_readable(trained: Trained) -> None:
    """Read the files of a run that an export uses last, so that damaged files are refused before the work."""
    _read_report(trained.workdir)
    _read_conversion(trained.workdir)
    read_kept_statistics(trained.workdir)


def write_model_card(trained: Trained, programs: Sequence[Program]) -> str:
    """Return the card as Markdown."""
    report = _read_report(trained.workdir)
    sizes = {program.name: sum(int(array.size) for array in program.tensors.values()) for program in programs}
    numbers = "; ".join(f"{name} {size:,}" for name, size in sizes.items())
    return (
        (_HERE / "card.txt")
        .read_text(encoding="utf-8")
        .format(
            networks=" and ".join(sizes),
            gate=_describe_gate(trained, list(sizes)),
            version=__version__,
            numbers=numbers,
            training=_describe_training(trained, report),
            figures=_describe_figures(trained, list(sizes), report),
            calibration=_describe_calibration(trained, list(sizes)),
            operating=_describe_points(trained, list(sizes)),
        )
    )


class _Report(msgspec.Struct):
    num_cases: dict[str, int]
    test: dict[str, dict[str, Any]]


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


def _describe_training(trained: Trained, report: _Report | None) -> str:
    run, lines = trained.run, ["## Training data", "", f"- Source: {trained.run.data_source}."]
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


def _read_report(workdir: pathlib.Path) -> "_Report | None":
    path = workdir / "report.json"
    return read_json(path, _Report, accepted="expected the report of a run") if path.exists() else None


def _read_conversion(workdir: pathlib.Path) -> "_Converted | None":
    path = workdir / CONVERTED_FILE
    return read_json(path, _Converted, accepted="expected what convert wrote") if path.exists() else None


def _describe_figures(trained: Trained, names: Sequence[str], report: _Report | None) -> str:
    path = trained.workdir / "predictions" / "test.npz"
    split = read_predictions(path, trained.chain) if path.exists() else None
    intervals = {} if split is None else bootstrap(split, trained.chain)
    metrics = {} if split is None else evaluate(split.predictions, trained.chain)
    lines = ["## Figures on the test cases", ""]
    if report is None and not intervals:
        return "\n".join([*lines, "None: the run had measured nothing when it was exported."])
    if intervals:
        lines += ["In percent, with 95 % intervals from a bootstrap over patients.", ""]
    else:
        lines += ["In percent; without intervals, as the run kept no predictions.", ""]
    for name in names:
        reported = {} if report is None else report.test.get(name, {})
        figures = intervals.get(name, reported)
        lines += _table(name, figures, metrics.get(name, reported)) if figures else [f"{name}: not measured.", ""]
    return "\n".join(lines).rstrip()


def _table(
    name: str, figures: ModelIntervals | Mapping[str, Any], metrics: ModelMetrics | Mapping[str, Any]
) -> list[str]:
    """Return a model's figures as a table, from intervals or a report; `metrics` has the frequent answers'."""
    get: Callable[[Any, str], Any] = getattr if isinstance(figures, ModelIntervals) else operator.getitem
    lines = [f"| {name} | cases | {' | '.join(_COLUMNS.values())} |", f"|---|---|{'---|' * len(_COLUMNS)}"]
    for step in get(figures, "steps"):
        cells = [plain(get(step, "name")), str(get(step, "num_cases")), *(_show(get(step, key)) for key in _COLUMNS)]
        lines.append(f"| {' | '.join(cells)} |")
    mean, chain = (_show(get(figures, figure)) for figure in ("mean_accuracy", "chain_accuracy"))
    majority, constant = (
        _show(metrics.get(figure) if isinstance(metrics, Mapping) else getattr(metrics, figure))
        for figure in ("mean_majority_accuracy", "majority_chain_accuracy")
    )
    text = (
        f"Mean over the steps: accuracy {mean} (most frequent answers: {majority}); all steps right: {chain} (most "
        f"frequent answers: {constant}). Steps at which all cases have the same answer are not in the mean."
    )
    return [*lines, "", text, ""]


def _show(figure: Interval | float | None) -> str:
    if isinstance(figure, Interval):
        value = _show(figure.value)
        return (
            value if math.isnan(figure.low + figure.high) else f"{value} ({_show(figure.low)} to {_show(figure.high)})"
        )
    return "-" if figure is None or math.isnan(figure) else f"{100 * figure:.1f}"


def _describe_calibration(trained: Trained, names: Sequence[str]) -> str:
    lines = ["## Calibration", ""]
    calibration = trained.calibration
    if calibration is None:
        return "\n".join([*lines, "None: the probabilities are the softmax of the logits."])
    lines += ["Logits are divided by these temperatures, fitted on the validation cases, before the softmax.", ""]
    header = [plain(step.name) for step in trained.chain.steps]
    lines += [f"| | {' | '.join(header)} |", f"|---|{'---|' * len(header)}"]
    for name in names:
        temperatures = calibration.temperatures.get(name)
        cells = ["-"] * len(header) if temperatures is None else [f"{temperature:.2f}" for temperature in temperatures]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _describe_points(trained: Trained, names: Sequence[str]) -> str:
    lines, points = ["## Operating points", ""], trained.operating_points
    if points is None:
        return "\n".join([*lines, "None: the run chose none."])
    lines += [
        "An answer lies above its operating point if its calibrated probability is the threshold or more. Thresholds: "
        f"{points.rule.describe()}. Figures: of the test cases, in percent, with 95 % intervals from a bootstrap over "
        "patients, exact ones where all cases agree; cases: those of the test split that have the answer. PPV and NPV "
        "depend on its prevalence there.",
        "",
    ]
    for name in names:
        lines += [
            f"| {name} | answer | cases | threshold | sensitivity | specificity | PPV | NPV |",
            f"|---|{'---|' * 7}",
        ]
        for (model, step, answer), point in points.points.items():
            if model == name:
                threshold = "never" if math.isinf(point.threshold.value) else _show(point.threshold)
                cells = [plain(step), plain(answer), str(point.test[0]), threshold]
                cells += [_show(getattr(point, figure)) for figure in FIGURES]
                lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines).rstrip()


# How to use an export, with a table of its files.


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
    "exported_programs.py": "reads programs for the loader",
}

_OF_ALL = {
    "torch_names.safetensors": "parameters under the authors' PyTorch names",
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


def write_instructions(trained: Trained, manifest: Mapping[str, Any], folder: pathlib.Path) -> str:
    """Return the part of the README on the use of the files in a folder."""
    models = manifest["models"]
    gates = {name: model["gate"] for name, model in models.items() if model.get("gate")}
    described = {
        **{model["program"]: f"the {name}, image encoder included" for name, model in models.items()},
        **dict.fromkeys(sorted({file for model in models.values() for file in model["tensors"]}), "parameters"),
        **{gate["program"]: f"the gate of the {name}: `gate_scores`" for name, gate in gates.items()},
        **{gate["tensors"]: f"parameters of the {name}'s gate" for name, gate in gates.items()},
    }
    first, *others = models  # the loader's default first
    template = (_HERE / "readme.txt").read_text(encoding="utf-8")
    return template.format(
        argument=f', "{first}"' if others else "",
        step=json.dumps(trained.chain.steps[-1].name, ensure_ascii=False),
        size=trained.preprocessing.size,
        resize=_RESIZE[trained.preprocessing.fit],
        files=list_files(folder, described),
        platforms=", ".join(manifest["platforms"]),
    )
