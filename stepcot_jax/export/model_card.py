"""Write the Markdown files of an export: model card and README."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from stepcot_jax import __version__
from stepcot_jax.evaluation.intervals import ModelIntervals, bootstrap
from stepcot_jax.evaluation.prediction_files import read_predictions
from stepcot_jax.export.program import Program
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.text import escape_markdown as plain
from stepcot_jax.predict.trained_model import Trained
from stepcot_jax.settings.run_settings import Settings

_INTENDED = """\
## Intended use

Research on stepwise reading of frontal chest radiographs: reproducing Step-CoT, comparing models, studying where a
chain of answers goes wrong, by people who can judge the answers themselves.

**Not a medical device.** It has not been cleared for use on patients, and its answers must not decide about one: not as
a diagnosis, a second reading or a worklist order.
"""

_LIMITS = """\
## Limits

- It answers every step for any image: a lateral view, a hand or noise is answered like a frontal chest radiograph.
- The figures above hold for images like those of the training data. They were not measured for other scanners,
  hospitals, age groups or prevalences.
- An answer is exactly one option of its step. It cannot report other findings, or several at once.
- A probability is the model's, not a risk; interpret it with the calibration above.
- Steps are answered one by one; a chain may contradict itself (no abnormality, and a diagnosis).
- It learned the errors of the reference answers too.
- It may fail more often for groups with few training cases; the run's report has figures by group.
"""

_HERE = pathlib.Path(__file__).parent

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

_COLUMNS = {"accuracy": "accuracy", "auc": "AUC", "sensitivity": "sensitivity", "specificity": "specificity"}


def write_model_card(trained: Trained, programs: Sequence[Program]) -> str:
    """Return the card as Markdown.

    Args:
      trained: the run; the figures come from its report.json and predictions/test.npz, if present.
      programs: the networks of the export.

    Raises:
      BadInput: the report or the predictions are damaged.
    """
    report = _read_report(trained.workdir / "report.json")
    sizes = {program.name: sum(int(array.size) for array in program.tensors.values()) for program in programs}
    numbers = "; ".join(f"{name} {size:,}" for name, size in sizes.items())
    parts = [
        f"# Model card: Step-CoT, {' and '.join(sizes)}",
        "Answers the questions of the chain about one frontal chest radiograph, one after another "
        "([Step-CoT, CVPR 2026](https://arxiv.org/abs/2603.13878)). Trained and exported with "
        f"stepcot-jax {__version__}. Parameters, image encoder included: {numbers}.",
        _INTENDED.strip(),
        _describe_training(trained, report),
        _describe_figures(trained, list(sizes), report),
        _describe_calibration(trained, list(sizes)),
        _LIMITS.strip(),
    ]
    return "\n\n".join(parts) + "\n"


def _read_report(path: pathlib.Path) -> Mapping[str, Any] | None:
    if not path.is_file():
        return None
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        return {"num_cases": report["num_cases"], "test": report["test"], "best": report.get("best", {})}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not the report of a run ({error!r})") from None


def _describe_training(trained: Trained, report: Mapping[str, Any] | None) -> str:
    settings, lines = trained.settings, ["## Training data", "", f"- Source: {_source(trained.settings)}."]
    if report is not None:
        counts = ", ".join(f"{plain(split)} {int(count):,}" for split, count in report["num_cases"].items())
        lines.append(
            f"- Cases: {counts}. Figures are of the test cases, which were not used for training or model selection."
        )
    else:
        lines.append("- Cases: unknown; the run had written no report when it was exported.")
    encoder = settings.image_encoder
    if trained.frozen_encoder is not None:
        name = plain(trained.frozen_encoder.name)
        lines.append(f"- Image encoder: {name}, pretrained and frozen; its own licence and data apply.")
    else:
        lines.append(f"- Image encoder: {plain(encoder.name)}, trained from scratch on these cases only.")
    prompts = {
        "pretrained": f"encoded by {plain(settings.prompts.weights)}",
        "hashed": "fixed random vectors",
    }
    if settings.teacher.text:
        text = prompts.get(settings.prompts.encoder, "encoded elsewhere")
        lines.append(f"- Prompts of the teacher: {text}; stored in the export, no text encoder is needed.")
    lines.append(f"- Training: job {settings.job}, seed {settings.seed}; best updates {_best_steps(trained)}.")
    return "\n".join(lines)


def _source(settings: Settings) -> str:
    if settings.data.source == "phantom":
        phantom = settings.phantom
        return (
            f"{phantom.num_cases:,} drawn chest phantoms, {phantom.prevalence} prevalence, seed {phantom.seed}: no "
            "patients, and no evidence about patients"
        )
    # Only the name: the full path would disclose the layout of a disk.
    return f"{settings.data.source} {plain(pathlib.PurePath(settings.data.root).name)!r}, layout {settings.data.layout}"


def _best_steps(trained: Trained) -> str:
    return ", ".join(f"{name} {step}" for name, step in trained.best_steps.items()) or "the last"


def _describe_figures(trained: Trained, names: Sequence[str], report: Mapping[str, Any] | None) -> str:
    intervals = _intervals(trained)
    lines = ["## Figures on the test cases", ""]
    if report is None and not intervals:
        return "\n".join([*lines, "None: the run had measured nothing when it was exported."])
    if intervals:
        lines += ["In percent, with 95 % intervals from a bootstrap over patients.", ""]
    else:
        lines += ["In percent; without intervals, as the run kept no predictions.", ""]
    for name in names:
        if name in intervals:
            lines += _interval_table(name, intervals[name])
        elif report is not None and name in report["test"]:
            lines += _report_table(name, report["test"][name])
        else:
            lines += [f"{name}: not measured.", ""]
    return "\n".join(lines).rstrip()


def _intervals(trained: Trained) -> Mapping[str, ModelIntervals]:
    path = trained.workdir / "predictions" / "test.npz"
    return bootstrap(read_predictions(path, trained.chain), trained.chain) if path.is_file() else {}


def _interval_table(name: str, found: ModelIntervals) -> list[str]:
    rows = [(step.name, step.num_cases, [getattr(step, column) for column in _COLUMNS]) for step in found.steps]
    cells = [(label, count, [_interval(interval) for interval in figures]) for label, count, figures in rows]
    chain = f"Mean over the steps: accuracy {_interval(found.mean_accuracy)}; all steps right: "
    return [*_table(name, cells), f"{chain}{_interval(found.chain_accuracy)}.", ""]


def _report_table(name: str, found: Mapping[str, Any]) -> list[str]:
    cells = [
        (step["name"], step["num_cases"], [_percent(step[column]) for column in _COLUMNS]) for step in found["steps"]
    ]
    chain = f"Mean over the steps: accuracy {_percent(found['mean_accuracy'])}; all steps right: "
    return [*_table(name, cells), f"{chain}{_percent(found['chain_accuracy'])}.", ""]


def _table(name: str, rows: Sequence[tuple[str, int, Sequence[str]]]) -> list[str]:
    lines = [f"| {name} | cases | {' | '.join(_COLUMNS.values())} |", f"|---|---|{'---|' * len(_COLUMNS)}"]
    return [
        *lines,
        *(f"| {plain(label)} | {count} | {' | '.join(cells)} |" for label, count, cells in rows),
        "",
    ]


def _interval(interval: Any) -> str:
    if interval is None or interval.value != interval.value:
        return "-"
    return f"{_percent(interval.value)} ({_percent(interval.low)} to {_percent(interval.high)})"


def _percent(share: float | None) -> str:
    return "-" if share is None or share != share else f"{100 * share:.1f}"


def _describe_calibration(trained: Trained, names: Sequence[str]) -> str:
    lines = ["## Calibration", ""]
    calibration = trained.calibration
    if calibration is None:
        return "\n".join([*lines, "None: the probabilities are the softmax of the logits."])
    lines += ["Logits are divided by these temperatures, fitted on the validation cases, before the softmax.", ""]
    header = [plain(step.name) for step in trained.chain.steps]
    lines += [f"| | {' | '.join(header)} |", f"|---|{'---|' * len(header)}"]
    for name in names:
        found = calibration.temperatures.get(name)
        lines.append(
            f"| {name} | {' | '.join(['-'] * len(header) if found is None else [f'{t:.2f}' for t in found])} |"
        )
    return "\n".join(lines)


def write_instructions(trained: Trained, manifest: Mapping[str, Any], *, torch_names: bool) -> str:
    """Return the README as Markdown.

    Args:
      trained: the run.
      manifest: content of export.json.
      torch_names: whether the export has a file with the authors' names.
    """
    models = manifest["models"]
    tensors = sorted({file for model in models.values() for file in model["tensors"]})
    files = {
        "load.py": "the loader",
        **{model["program"]: f"the {name}, image encoder included" for name, model in models.items()},
        **dict.fromkeys(tensors, "parameters"),
        **({"torch_names.safetensors": "parameters under the authors' PyTorch names"} if torch_names else {}),
        "labels.json": "questions and answers, in the order of the logits",
        "preprocessing.json": "from an image file to the model's input",
        "export.json": "the files of each model, temperatures, versions",
        "check.safetensors": "two images of noise and their logits, for `python load.py`",
        "SHA256SUMS": "digests of all files (`sha256sum -c SHA256SUMS`)",
    }
    others = list(models)[1:]
    return (
        (_HERE / "readme.txt")
        .read_text(encoding="utf-8")
        .format(
            argument="" if not others else f', "{next(iter(models))}"',
            step=json.dumps(trained.chain.steps[-1].name, ensure_ascii=False),
            size=trained.preprocessing.size,
            resize=_RESIZE[trained.preprocessing.fit],
            files="\n".join(f"| `{name}` | {what} |" for name, what in files.items()),
            jax=manifest["made_with"]["jax"],
            platforms=", ".join(manifest["platforms"]),
        )
    )
