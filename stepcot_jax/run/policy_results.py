"""Results of a policy's run: replies, figures with intervals beside the baseline, and examples with boxes drawn."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from PIL import Image

from stepcot_jax.data.images.boxed_pictures import PREDICTED, TRUE, DrawnBox, draw_named_boxes
from stepcot_jax.evaluation.replies import BASELINE, ReplyScore, Results, ScoringSettings, encode, summarise, to_json
from stepcot_jax.evaluation.vqa_metrics import Key
from stepcot_jax.host.files import write_whole, writing_whole
from stepcot_jax.reasoning.record import KINDS, VqaRecord
from stepcot_jax.run.results import REPORT
from stepcot_jax.run.scored_baseline import score_baseline
from stepcot_jax.run.task import Outcome

REPLIES_FOLDER = "replies"
EXAMPLES_FOLDER = "examples"
STATISTICS_FILE = "statistics.json"

_NUM_EXAMPLES = 12
_TILE = 256  # pixels
_SHOWN: tuple[tuple[str, Key], ...] = (
    ("A", ("a_score", "mean")),
    *((f"A {kind}", ("a_score", kind)) for kind in KINDS),
    ("V", ("v_score", "all")),
    ("V findings", ("v_score", "findings")),
    ("V regions", ("v_score", "regions")),
    ("passed", ("grounding", "all")),
    ("well formed", ("format", "all")),
)


@dataclasses.dataclass(frozen=True)
class Answered:
    """Questions with replies."""

    records: Sequence[VqaRecord]
    texts: Sequence[str]
    scores: Sequence[ReplyScore]


def write_policy_results(
    workdir: pathlib.Path,
    answered: Mapping[str, Answered],
    *,
    train: Sequence[VqaRecord],
    scoring: ScoringSettings,
    outcome: Outcome,
    num_resamples: int,
    end_of_sft: int = 0,
) -> dict[str, Any]:
    """Write the test replies of each phase, `statistics.json` and `report.json`, print the figures, return the report.

    Args:
      end_of_sft: last update of fine-tuning, from whose weights GRPO began; 0 if this run had not both phases.
    """
    for phase, found in answered.items():
        write_replies(workdir / REPLIES_FOLDER / f"{phase}_test.jsonl", found)
    records = next(iter(answered.values())).records
    baseline, remark = score_baseline([*train, *records], records, scoring)
    results = summarise(
        records,
        {phase: found.scores for phase, found in answered.items()},
        scoring,
        baseline=baseline,
        num_resamples=max(num_resamples, 1),
        notes=[remark],
    )
    write_whole(workdir / STATISTICS_FILE, encode(to_json(results)))
    notes = [_note_start(outcome.best["sft"].step, end_of_sft)] if end_of_sft and "sft" in outcome.best else []
    notes = [note for note in notes if note]
    report = {
        "num_questions": results.num_records,
        "num_patients": results.num_patients,
        "wall_seconds": outcome.seconds(),
        "best": {name: {"step": best.step, "validation_score": best.score} for name, best in outcome.best.items()},
        "baseline": _figures(results, BASELINE),
        "test": {phase: _figures(results, phase) for phase in answered},
        "notes": notes,
    }
    write_whole(workdir / REPORT, msgspec.json.format(encode(report), indent=2) + b"\n")
    print("\n".join(describe_results(results, with_intervals=num_resamples > 0) + notes))
    print(f"\n{report['wall_seconds']:.0f} s; written to {workdir / REPORT}")
    return report


def _note_start(best: int, end_of_sft: int) -> str:
    """Return what to know of "GRPO less SFT" if the row of SFT is not where GRPO began; "" if it is."""
    if best == end_of_sft:
        return ""
    return (
        f"GRPO began at the last weights of SFT (update {end_of_sft}); the row of SFT is of its best (update {best}): "
        "a part of GRPO less SFT is fine-tuning."
    )


def _figures(results: Results, row: str) -> dict[str, float]:
    figures = results.figures[row]
    return {name.replace(" ", "_"): figures[key].value for name, key in _SHOWN if key in figures}


def describe_results(results: Results, *, with_intervals: bool = True) -> list[str]:
    """Return the figures of every row in %, and what GRPO changed, as lines of text."""
    names = [name for name, key in _SHOWN if any(key in row for row in results.figures.values())]
    width = max(map(len, results.figures))
    lines = [f"{'test split, %':{width}}  " + "  ".join(f"{name:>11}" for name in names)]
    keys = dict(_SHOWN)
    for row, figures in results.figures.items():
        cells = [f"{100 * figures[keys[name]].value:11.1f}" if keys[name] in figures else " " * 11 for name in names]
        lines.append(f"{row:{width}}  " + "  ".join(cells))
    for row, figures in results.differences.items() if with_intervals else ():
        if row == BASELINE:
            continue
        shown = [
            f"{name} {100 * found.value:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
            for name in ("A", "V", "V findings")
            if (found := figures.get(keys[name])) is not None
        ]
        lines.append(f"{row} less {next(iter(results.counts.keys() - {BASELINE, row}), 'sft')}: " + ", ".join(shown))
    return lines


def write_replies(path: pathlib.Path, answered: Answered) -> None:
    """Write replies as JSON lines with `id` and `reply`, as `evaluate_replies` reads them, atomically."""
    path.parent.mkdir(exist_ok=True)
    with writing_whole(path) as file:
        for record, text in zip(answered.records, answered.texts, strict=True):
            file.write(msgspec.json.encode({"id": record.id, "reply": text}) + b"\n")


def write_examples(
    workdir: pathlib.Path, answered: Answered, *, step: int, load_image: Callable[[VqaRecord], np.ndarray]
) -> None:
    """Write a dozen replies, spread over the questions, as JSON lines and as a picture with boxes drawn.

    In the picture each pair shows the true boxes on the left and those of the reply on the right.

    Args:
      load_image: record -> uint8 [height, width, 3].
    """
    folder = workdir / EXAMPLES_FOLDER
    folder.mkdir(exist_ok=True)
    number = len(answered.records)
    chosen = np.unique(np.linspace(0, number - 1, min(_NUM_EXAMPLES, number)).astype(int)).tolist()
    lines, tiles = [], []
    for place in chosen:
        record, score = answered.records[place], answered.scores[place]
        lines.append(
            {
                "id": record.id,
                "question": record.question,
                "choices": record.choices,
                "answer": record.answer,
                "reply": answered.texts[place],
                "a_score": score.a_score,
                "v_score": score.v_score,
            }
        )
        pixels = load_image(record)
        true = [DrawnBox(each.box, each.label, TRUE) for each in record.references]
        told = [DrawnBox(each.box, each.name, PREDICTED) for each in score.boxes]
        drawn = (draw_named_boxes(pixels, boxes, least_side=_TILE) for boxes in (true, told))
        tiles += [Image.fromarray(tile) for tile in drawn]
    write_whole(folder / f"{step:06}.jsonl", b"".join(encode(line) for line in lines))
    sheet = Image.new("RGB", (4 * tiles[0].width, -(-len(tiles) // 4) * tiles[0].height))
    for place, tile in enumerate(tiles):
        sheet.paste(tile, (place % 4 * tile.width, place // 4 * tile.height))
    sheet.save(folder / f"{step:06}.png")
