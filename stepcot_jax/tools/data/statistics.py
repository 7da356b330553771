"""Write the counts of cases, structured reports and questions as CSV and Markdown, and draw examples of questions.

The csv module writes the tables: pandas would turn the integers of columns with empty cells into floats.
"""

import io
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int64
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.data.images.image_decoding import MAX_PIXELS, decode_picture, most_bytes
from stepcot_jax.data.images.image_files import read_picture
from stepcot_jax.data.questions.record_files import VqaCollection
from stepcot_jax.data.record_table import RecordTable
from stepcot_jax.data.records.records import Collection
from stepcot_jax.data.splits.making import make_splits
from stepcot_jax.data.splits.split_resolver import read_splits
from stepcot_jax.data.splits.splits import SPLIT_NAMES, Splits
from stepcot_jax.data.statistics import (
    LENGTHS,
    FormPart,
    Statistics,
    answer_in_words,
    compute_statistics,
    count_form,
    count_lengths,
    count_lengths_of,
    count_records,
    find_majorities,
    list_ranges,
)
from stepcot_jax.evaluation.structured_reports import format_scores, score_reports
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, removing_half, write_whole
from stepcot_jax.host.text import escape_markdown, make_printable, plain_text_style, write_csv
from stepcot_jax.record import KINDS, Record
from stepcot_jax.tools.data.pictures import PALETTE, STYLE, write_pictures

Row = Sequence[str | int | float]

UNCERTAIN_NAME = "(uncertain, of those not annotated)"
_PERCENTILES = (5, 25, 50, 75, 95)
_SPREAD = ("mean_words", *(f"percentile_{percentile}" for percentile in _PERCENTILES))


def _write_csv(path: Path, rows: Iterable[Row]) -> None:
    text = io.StringIO()
    write_csv(text, rows)
    write_whole(path, text.getvalue().encode("utf-8", "backslashreplace"))


def write_case_statistics(folder: Path, collection: Collection, *, split_seed: int) -> tuple[list[str], list[str]]:
    """Write tables and pictures of cases into a folder; return the names of the files, and notes."""
    splits = read_splits(collection.root, collection.cases, set_aside=collection.set_aside)
    source = "read from tables or the records"
    if splits is None:
        splits = make_splits(collection.cases, seed=split_seed)
        source = f"made from seed {split_seed}, there being no tables"
    make_workdir(folder)
    if collection.chain.is_tree:
        return write_form_statistics(folder, collection, splits), []
    statistics = compute_statistics(collection.cases, collection.chain, splits, splits_source=source)
    tables = write_tables(folder, statistics)
    pictures, missing = write_pictures(folder, statistics)
    notes = ["no case has reasoning: its lengths are not drawn"] * ("reasoning_length_by_diagnosis.png" not in pictures)
    notes += [f"no installed font has {missing[:40]}: boxes in the .png, text in the .svg"] * bool(missing)
    return [*tables, *pictures], notes


def write_tables(folder: Path, statistics: Statistics) -> list[str]:
    """Write all tables into a folder; return the names of the files."""
    diagnoses = statistics.answer_names(-1)
    tables: dict[str, Iterable[Row]] = {
        "origins_diagnoses.csv": _with_totals("diagnosis", diagnoses, statistics.origins, statistics.diagnoses),
        "answers.csv": _answers(statistics),
        "reasoning_length.csv": _reasoning_length(statistics),
        "reasoning_length_by_diagnosis.csv": _reasoning_by_diagnosis(statistics),
        "answer_flow.csv": _answer_flow(statistics),
        "splits.csv": list_splits(statistics),
        "splits_by_origin.csv": list_origin_splits(statistics),
    }
    for name, rows in tables.items():
        _write_csv(folder / name, rows)
    pages = [_to_markdown(_with_shares(table(statistics))) for table in (list_splits, list_origin_splits)]
    source = f"Splits: {escape_markdown(make_printable(statistics.splits_source))}.\n"
    write_whole(folder / "splits.md", "\n".join([*pages, source]).encode())
    return [*tables, "splits.md"]


def _with_totals(
    what: str, names: Sequence[str], columns: Sequence[str], counts: Int64[np.ndarray, "name column"]
) -> list[Row]:
    rows = [[name, *row, sum(row)] for name, row in zip(names, counts.tolist(), strict=True)]
    totals = counts.sum(axis=0).tolist()
    return [[what, *columns, "total"], *rows, ["total", *totals, sum(totals)]]


def _answers(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "answer", "cases", "share_of_annotated"]]
    for number, (step, counts) in enumerate(zip(statistics.chain.steps, statistics.answers, strict=True)):
        *given, missing = counts.tolist()
        shares = [*(round(count / max(sum(given), 1), 6) for count in given), ""]
        answers = zip(statistics.answer_names(number), [*given, missing], shares, strict=True)
        rows += [[step.name, *answer] for answer in answers]
        if number_uncertain := int(statistics.uncertain[number]):
            rows.append([step.name, UNCERTAIN_NAME, number_uncertain, ""])
    return rows


def _reasoning_length(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "origin", "reasonings", *_SPREAD]]
    for step, by_origin in zip(statistics.chain.steps, statistics.words, strict=True):
        rows += ([step.name, *_spread(*texts)] for texts in zip(statistics.origins, by_origin, strict=True))
    return rows


def _reasoning_by_diagnosis(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "diagnosis", "reasonings", *_SPREAD, *(f"{name} words" for name in list_ranges())]]
    for step, by_answer in zip(statistics.chain.steps, statistics.diagnosis_words, strict=True):
        for name, words in zip(statistics.answer_names(-1), by_answer, strict=True):
            rows.append([step.name, *_spread(name, words), *count_lengths(words).tolist()])
    return rows


def _spread(name: str, words: Int64[np.ndarray, " reasoning"]) -> list[str | int | float]:
    """Return name, number, mean and percentiles; without reasonings the last two are empty."""
    if not words.size:
        return [name, 0, *[""] * (1 + len(_PERCENTILES))]
    spread = (words.mean(), *np.percentile(words, _PERCENTILES))
    return [name, words.size, *(round(float(number), 3) for number in spread)]


def _answer_flow(statistics: Statistics) -> list[Row]:
    rows: list[Row] = [["step", "answer", "next_step", "next_answer", "cases"]]
    steps = statistics.chain.steps
    for number, counts in enumerate(statistics.flows):
        names, next_names = statistics.answer_names(number), statistics.answer_names(number + 1)
        for row, column in np.argwhere(counts).tolist():
            answers = steps[number].name, names[row], steps[number + 1].name, next_names[column]
            rows.append([*answers, int(counts[row, column])])
    return rows


def list_splits(statistics: Statistics) -> list[Row]:
    """Return head, a row for each diagnosis, and the totals; "(not annotated)" only if there are such cases."""
    rows = _with_totals("diagnosis", statistics.answer_names(-1), SPLIT_NAMES, statistics.splits)
    return rows if rows[-2][-1] else [*rows[:-2], rows[-1]]


def list_origin_splits(statistics: Statistics) -> list[Row]:
    """Return head, a row for each origin, the most frequent first, and the totals."""
    return _with_totals("origin", statistics.origins, SPLIT_NAMES, statistics.origin_splits)


def _with_shares(table: Sequence[Row]) -> list[Row]:
    """Return a table of counts with each split's share of the row after the total."""
    head, *rows = table
    names = [*map(str, head), *(f"{name} (%)" for name in head[1:-1])]
    made: list[Row] = [[name.capitalize() for name in names]]
    for name, *counts, total in rows:
        shares = [f"{100 * int(count) / int(total):.1f}" if total else "-" for count in counts]
        made.append([name, *(f"{count:,}" for count in (*counts, total)), *shares])
    return made


def _to_markdown(table: Iterable[Row]) -> str:
    head, *rows = [[escape_markdown(make_printable(str(cell))) for cell in row] for row in table]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


# Structured reports: counts of a form's answers, and the figures of the constant that says no to everything.


def write_form_statistics(folder: Path, collection: Collection, splits: Splits) -> list[str]:
    """Write questions.csv and reports.md; return their names. The constant is scored on one image a report."""
    table, chain = collection.cases, collection.chain
    members = {}
    for name, indices in splits.by_name().items():
        members[name] = np.zeros(len(table), bool)
        members[name][list(indices)] = True
    head = ["question", "wording", "part", "asked if", "answer", *members]
    _write_csv(folder / "questions.csv", [head, *_list_answers(chain, table, members)])
    lines = ["# Structured reports", "", _to_markdown(_list_parts(count_form(table, chain, members))).rstrip()]
    patients = np.array(list(table.patient_ids))
    for name, chosen in members.items():
        rows = np.flatnonzero(chosen)
        first = rows[np.unique(patients[rows], return_index=True)[1]]
        scores, differences = score_reports({}, table.labels[first].astype(int), chain, patients=patients[first])
        lines += ["", f"## No to everything: {name}, {len(first):,} reports", "", format_scores(scores, differences)]
    write_whole(folder / "reports.md", ("\n".join(lines) + "\n").encode())
    return ["questions.csv", "reports.md"]


def _list_answers(chain: Chain, table: RecordTable, members: dict[str, np.ndarray]) -> Iterator[Row]:
    for position, step in enumerate(chain.steps):
        opened = ""
        if step.asked_if is not None:
            asking = chain.steps[step.asked_if[0]]
            opened = f"{asking.name}: {asking.options[step.asked_if[1]]}"
        for label, option in [*enumerate(step.options), (NOT_ANNOTATED, "(not asked)")]:
            counts = [int((table.labels[chosen, position] == label).sum()) for chosen in members.values()]
            yield [step.name, step.question, step.part, opened, option, *counts]


def _list_parts(parts: list[FormPart]) -> Iterator[Row]:
    splits = list(parts[0].asked)
    heads = [f"{what}, {name}" for name in splits for what in ("asked", "only no")]
    yield ["part", "questions", "several right", *heads]
    for part in parts:
        counts = []
        for name in splits:
            share = part.only_no[name] / max(part.patients[name], 1)
            counts += [f"{part.asked[name]:,}", f"{part.only_no[name]:,} ({share:.1%})"]
        yield [part.name, f"{part.questions:,}", f"{part.several_right:,}", *counts]


# Questions: counts of reasoning records, and examples with their boxes.

EXAMPLES = "examples.png"

_NUM_COLUMNS = 4
_PER_KIND = 3
_DPI = 120
_SIDE, _GAP, _LINE = 4.2, 0.1, 0.15  # inches: of a picture, around it, and of a line of its title
_UNREAD = "0.15"  # dark, so that labels are as readable as on a radiograph


def write_vqa_statistics(folder: Path, collection: VqaCollection) -> tuple[list[str], list[str]]:
    """Write tables and a page of examples of questions into a folder; return the names of the files, and notes."""
    tables = list_tables_of_records(collection.records)
    for name, rows in tables.items():
        _write_csv(folder / f"{name}.csv", rows)
    pages = [f"## {name.replace('_', ' ').capitalize()}\n\n{_to_markdown(rows)}" for name, rows in tables.items()]
    write_whole(folder / "records.md", "\n".join(pages).encode("utf-8", "backslashreplace"))
    figure, num_missing = draw_examples(collection)
    with removing_half(folder / EXAMPLES):
        figure.savefig(folder / EXAMPLES, dpi=_DPI)
    notes = [f"{num_missing} images of the examples cannot be read: drawn as empty"] * bool(num_missing)
    return [*(f"{name}.csv" for name in tables), "records.md", EXAMPLES], notes


def list_tables_of_records(records: Sequence[Record]) -> dict[str, list[Row]]:
    """Return the tables of records by name, each with its head."""
    counts = count_records(records)
    splits = [name for name in (*SPLIT_NAMES, "") if counts["splits"].get(name)]
    kinds: list[Row] = [["kind", *(name or "none" for name in splits), "total"]]
    kinds += [[kind, *(of.get(name, 0) for name in splits), sum(of.values())] for kind, of in counts["kinds"].items()]
    boxes: list[Row] = [["kind", "boxes", "records"]]
    for kind in counts["kinds"]:
        of_kind = count_records([record for record in records if record.kind == kind])["boxes_of_records"]
        boxes += [[kind, int(number), count] for number, count in of_kind.items()]
    lengths: list[Row] = [["text", "texts", *_SPREAD]]
    words_of = {name: count_lengths_of(records, name) for name in LENGTHS}
    lengths += [_spread(name, np.array(words)) for name, words in words_of.items() if words]
    majorities: list[Row] = [["kind", "topic", "records", "majority_answer", "records_with_it", "share"]]
    majorities += [[*majority, round(majority.share, 4)] for majority in find_majorities(records)]
    return {
        "records_by_kind": kinds,
        "boxes_per_record": boxes,
        "stages": [
            ["part", "records"],
            ["thinking", counts["with_thinking"]],
            ["all four stages", counts["with_stages"]],
        ],
        "lengths": lengths,
        "majority_answers": majorities,
    }


def draw_examples(collection: VqaCollection) -> tuple[Figure, int]:
    """Draw a page of records, the first of each kind with different images, with their boxes over the images."""
    chosen = choose_examples(collection.records)
    rows = [chosen[start : start + _NUM_COLUMNS] for start in range(0, len(chosen), _NUM_COLUMNS)]
    heights = [_SIDE + 2 * _GAP + _LINE * max(len(_list_lines(record)) for record in row) for row in rows]
    width, height = _NUM_COLUMNS * (_SIDE + 2 * _GAP), sum(heights)
    num_missing = 0
    with plain_text_style(**STYLE):
        figure = Figure(figsize=(width, height))
        FigureCanvasAgg(figure)
        for number, row in enumerate(rows):
            bottom = height - sum(heights[: number + 1]) + _GAP
            for column, record in enumerate(row):
                left = column * (_SIDE + 2 * _GAP) + _GAP
                axes = figure.add_axes((left / width, bottom / height, _SIDE / width, _SIDE / height))
                num_missing += not _draw_image(axes, collection.root, record)
                _draw_boxes(axes, record)
                axes.set_title("\n".join(_list_lines(record)), fontsize=8, loc="left")
    return figure, num_missing


def choose_examples(records: Sequence[Record]) -> list[Record]:
    """Return up to three records of each kind, of different images and topics as far as possible."""
    chosen: list[Record] = []
    for _ in range(_PER_KIND):
        for kind in KINDS:
            images, topics = {record.image for record in chosen}, {(record.kind, record.topic) for record in chosen}
            left = (record for record in records if record.kind == kind and record not in chosen)
            best = min(
                left, key=lambda record: ((record.kind, record.topic) in topics, record.image in images), default=None
            )
            chosen += [best] if best is not None else []
    return chosen


def _draw_image(axes: Axes, root: Path, record: Record) -> bool:
    """Draw an image to the scale of its boxes; return whether it can be read."""
    try:
        content = read_picture(root, record.image, max_bytes=most_bytes(MAX_PIXELS))
        picture = decode_picture(content, name=record.image, max_pixels=MAX_PIXELS)
    except BadInput:
        picture = None
    width, height = record.image_size if all(record.image_size) else picture.size if picture else (1, 1)
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal", xticks=[], yticks=[])
    if picture is None:
        axes.set_facecolor(_UNREAD)
        return False
    axes.imshow(np.asarray(picture), cmap="gray", vmin=0, vmax=255, extent=(0, width, height, 0))
    return True


def _draw_boxes(axes: Axes, record: Record) -> None:
    """Draw boxes with labels above them; below where an earlier label is near."""
    width, height = record.image_size
    above: list[tuple[float, float]] = []
    for number, reference in enumerate(record.references):
        x1, y1, x2, y2 = reference.corners
        colour = PALETTE[1:][number % (len(PALETTE) - 1)]
        axes.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=1.8))
        is_near = any(abs(x1 - x) < 0.2 * width and abs(y1 - y) < 0.05 * height for x, y in above)
        above += [] if is_near else [(x1, y1)]
        anchor = (x1, y2 + 0.01 * height) if is_near else (x1, y1 - 0.01 * height)
        name, behind = make_printable(reference.label)[:30], {"facecolor": "black", "alpha": 0.75, "lw": 0, "pad": 1.0}
        axes.text(*anchor, name, color=colour, fontsize=9, va="top" if is_near else "bottom", clip_on=True, bbox=behind)


def _list_lines(record: Record) -> list[str]:
    choices = "; ".join(f"{letter}: {text}" for letter, text in zip(record.letters, record.options, strict=True))
    given = ", ".join(record.answer) if record.options else ""
    answer = f"{given} ({answer_in_words(record)})" if given else answer_in_words(record)
    lines = [f"{record.kind}: {record.question}", *([choices] if choices else []), f"Answer: {answer}"]
    return [line for text in lines for line in textwrap.wrap(make_printable(text), 58, max_lines=3, placeholder=" …")]
