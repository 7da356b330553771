"""`stepcot data`: check a folder of cases or reasoning records, count it, draw phantoms.

Each command imports what it needs when it runs, so that `--help` is fast.
"""

import argparse
import json
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES
from stepcot_jax.data.sources.layouts import AUTO, CASES, QUESTIONS
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.download import download
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import make_workdir, write_whole, writing_folder, writing_for
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.text import make_printable
from stepcot_jax.tools.data.vqa import add_vqa, name_option
from stepcot_jax.tools.options import ReadStepNames, local_path

EXIT_WOULD_STOP = 1

_WITHOUT_IMAGES = "checks the records alone"
_RECORDS = (
    "A folder with records.jsonl and no data.json is read as reasoning records; of a folder with both, data.json is "
    "read, and ROOT=FOLDER/records.jsonl names the records."
)


def main(arguments: list[str] | None = None) -> int | None:
    """Run a command; return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["tfds"]:
        _prepare_tfds(arguments[1:])
        return 0
    parser = argparse.ArgumentParser(prog="stepcot data", description="Work with folders of cases.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_check, _add_stats, _add_phantom, add_vqa, add_fetch):
        add(commands)
    options = parser.parse_args(arguments)
    for name in ("max_megapixels", "num_threads"):
        if hasattr(options, name) and not 0 < getattr(options, name) < math.inf:
            raise BadInput(f"--{name.replace('_', '-')} must be above 0; got {getattr(options, name)}")
    if hasattr(options, "root"):
        from stepcot_jax.host.download import find_path

        options.root = find_path(options.root, "ROOT")
    code: int | None = options.run(options)
    return code


def _add_check(commands: Any) -> None:
    from stepcot_jax.reasoning.dialects import DIALECTS

    parser = commands.add_parser(
        "check",
        help="show what a folder holds and whether a run can use it",
        description="Shows what a folder of cases or reasoning records holds, reading it as a run does. Exit code 0: a "
        f"run can use it; 1: something would stop a run; 2: it cannot be read at all. {_RECORDS}",
    )
    _add_reading_options(parser)
    json = "also write the facts as JSON; - prints JSON instead of tables"
    parser.add_argument("--json", type=local_path, metavar="FILE", help=json)
    parser.add_argument(
        "--images",
        choices=("decode", "exists", "none"),
        default="decode",
        help="decode each image, test only that it exists, or skip images (imported features); default decode",
    )
    _add_image_options(parser)
    parser.add_argument("--split-seed", type=int, default=0, help="of splits drawn without split tables, default 0")
    parser.add_argument(
        "--uncertain",
        choices=("ignore", "negative", "positive"),
        default="ignore",
        help="config.data.uncertain of the run: what training makes of uncertain answers; default ignore",
    )
    dialect = "config.vqa.dialect of a run on reasoning records; default: that of the config that is meant for them"
    parser.add_argument("--dialect", choices=(AUTO, *DIALECTS), default=AUTO, help=dialect)
    without = "the run has config.vqa.with_thinking=False"
    parser.add_argument("--without-thinking", dest="with_thinking", action="store_false", help=without)
    parser.set_defaults(run=_check)


def _check(options: argparse.Namespace) -> int:
    from stepcot_jax.data.check import CheckOptions, check_root

    check_options = CheckOptions(
        **_reading_arguments(options),
        images=options.images,
        max_pixels=int(options.max_megapixels * 1e6),
        split_seed=options.split_seed,
        num_threads=options.num_threads,
        uncertain=options.uncertain,
        dialect=options.dialect,
        with_thinking=options.with_thinking,
    )
    try:
        facts = check_root(options.root, check_options, terminal=Terminal())
    except BadInput as error:
        raise BadInput(name_option(str(error), purpose=_WITHOUT_IMAGES)) from None
    facts["stops"] = [name_option(stop, purpose=_WITHOUT_IMAGES) for stop in facts["stops"]]
    if str(options.json) == "-":
        sys.stdout.write(write_facts(facts))
    else:
        if options.json:
            with writing_for("--json", options.json):
                write_whole(options.json, write_facts(facts).encode())
        print_facts(facts)
    return EXIT_WOULD_STOP if facts["stops"] else 0


def _add_stats(commands: Any) -> None:
    parser = commands.add_parser(
        "stats",
        help="count a folder's origins, answers, reasoning and splits, and draw them",
        description="Counts origins and diagnoses, answers, lengths of reasoning, the flow of answers and splits (the "
        "paper's Figure 2 and Table 7): CSV and Markdown tables, PNG and SVG pictures. Of reasoning records: kinds, "
        f"boxes, stages, lengths, the majority answer of each topic, and examples with their boxes. {_RECORDS}",
    )
    _add_reading_options(parser)
    out = "folder for tables and pictures"
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help=out)
    parser.add_argument("--split-seed", type=int, default=0, help="of splits drawn without split tables, default 0")
    parser.set_defaults(run=_write_statistics)


def _write_statistics(options: argparse.Namespace) -> None:
    from stepcot_jax.data.sources.loading import holds_questions

    if holds_questions(options.root, options.layout):
        _write_vqa_statistics(options)
        return
    from stepcot_jax.data.sources.loading import read_source
    from stepcot_jax.data.splits.making import make_splits
    from stepcot_jax.data.splits.split_resolver import read_splits
    from stepcot_jax.data.statistics import compute_statistics
    from stepcot_jax.host.text import make_printable
    from stepcot_jax.tools.data.pictures import write_pictures
    from stepcot_jax.tools.data.statistics import write_tables

    collection = read_source(options.root, require_images=False, **_reading_arguments(options))
    splits = read_splits(collection.root, collection.cases, set_aside=collection.set_aside)
    source = "read from tables or the records"
    if splits is None:
        splits = make_splits(collection.cases, seed=options.split_seed)
        source = f"made from seed {options.split_seed}, there being no tables"
    make_workdir(options.out)
    if collection.chain.is_tree:
        from stepcot_jax.tools.data.statistics import write_form_statistics

        names = write_form_statistics(options.out, collection, splits)
        print(make_printable(f"{len(collection.cases):,} cases in {options.out}: {', '.join(names)}"))
        return
    statistics = compute_statistics(collection.cases, collection.chain, splits, splits_source=source)
    tables = write_tables(options.out, statistics)
    pictures, missing = write_pictures(options.out, statistics)
    if collection.set_aside:
        print(f"{len(collection.set_aside)} records are set aside; `check` shows why")
    if "reasoning_length.png" not in pictures:
        print("no case has reasoning: reasoning_length is not drawn")
    if missing:
        print(f"no installed font has {make_printable(missing[:40])}: boxes in the .png, text in the .svg")
    print(make_printable(f"{statistics.num_cases:,} cases in {options.out}: {', '.join((*tables, *pictures))}"))


def _write_vqa_statistics(options: argparse.Namespace) -> None:
    from stepcot_jax.data.sources.loading import read_question_records
    from stepcot_jax.host.text import make_printable
    from stepcot_jax.tools.data.statistics import write_vqa_statistics

    how: Any = {"on_bad_record": options.on_bad_record, "layout": options.layout, "require_images": False}
    how["box_size"] = options.box_size and tuple(options.box_size)
    collection = read_question_records(options.root, **how)
    make_workdir(options.out)
    names, num_missing = write_vqa_statistics(options.out, collection)
    if collection.set_aside:
        print(f"{len(collection.set_aside)} {collection.unit}s are set aside; `check` shows why")
    if num_missing:
        print(f"{num_missing} images of the examples cannot be read: drawn as empty")
    print(make_printable(f"{len(collection.records):,} records in {options.out}: {', '.join(names)}"))


def _add_phantom(commands: Any) -> None:
    parser = commands.add_parser("phantom", help="draw chest phantoms with all seven answers, boxes and masks")
    parser.add_argument("folder", type=local_path, metavar="DIR", help="new or empty folder")
    parser.add_argument("--num-cases", type=int, default=1000, help="default 1000")
    parser.add_argument("--size", type=int, default=256, help="height and width in pixels, default 256")
    parser.add_argument("--prevalence", choices=("published", "flat"), default="published", help="of the diagnoses")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    parser.set_defaults(run=_draw_phantom)


def _draw_phantom(options: argparse.Namespace) -> None:
    from stepcot_jax.data.phantom.phantom import export_phantom

    with writing_folder(options.folder) as partial:
        export_phantom(
            partial,
            num_cases=options.num_cases,
            seed=options.seed,
            size=options.size,
            prevalence=options.prevalence,
            progress=lambda indices: Terminal().watch(indices, "drawing the phantom"),
        )
    print(f"{options.num_cases} cases in {options.folder}")


def _add_reading_options(parser: argparse.ArgumentParser) -> None:
    """Add ROOT and the options that `config.data` has for reading it."""
    root = "folder or file in any layout, or a folder on gs://, which is downloaded"
    parser.add_argument("root", metavar="ROOT", help=root)
    parser.add_argument(
        "--layout",
        choices=(AUTO, *dict.fromkeys((*CASES, *QUESTIONS))),
        default=AUTO,
        help="default: detected from the files",
    )
    size = "pixels of the picture that boxes refer to: required for GEMeX (config.vqa.box_size)"
    parser.add_argument("--box-size", type=int, nargs=2, metavar=("W", "H"), help=size)
    names = "of the chain's steps, in order (config.data.step_names); default: the seven of the paper"
    parser.add_argument(
        "--step-names", nargs="+", action=ReadStepNames, default=PUBLISHED_STEP_NAMES, metavar="NAME", help=names
    )
    bad = "stop at a bad record, or set it aside with its reason (config.data.on_bad_record); default stop"
    parser.add_argument("--on-bad-record", choices=("stop", "skip"), default="stop", help=bad)
    parser.add_argument(
        "--several-labels",
        dest="single_label",
        action="store_false",
        help="keep images with several findings (a run's data.single_label=False), in layouts with lists of findings",
    )
    table = "table that ChestX-ray8's labels come from (config.data.labels_from); default auto"
    parser.add_argument("--labels-from", choices=("auto", "boxes", "entries"), default="auto", help=table)


def _reading_arguments(options: argparse.Namespace) -> dict[str, Any]:
    names = ("layout", "on_bad_record", "single_label", "labels_from")
    return {"step_names": tuple(options.step_names)} | {name: getattr(options, name) for name in names}


def _add_image_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--max-megapixels", type=float, default=64.0, help="largest accepted image, default 64")
    parser.add_argument("--num-threads", type=int, default=2, help="images decoded at a time, default 2")


def add_fetch(commands: Any) -> None:
    """Add the command to the parser of `stepcot data`."""
    parser = commands.add_parser(
        "fetch",
        help="copy a folder from gs:// to this machine",
        description="Copies a folder of cases, a run or anything else from a store. An interrupted copy "
        "resumes: files that are here with the size of the object are not copied again, and none is overwritten. "
        "stepcot sync DIR ADDRESS sends a folder.",
    )
    parser.add_argument("address", metavar="ADDRESS", help="gs://BUCKET/FOLDER (extra gcs)")
    parser.add_argument("out", type=local_path, metavar="DIR", help="folder of this machine")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    download(options.address, options.out)
    print(f"{options.address} is in {options.out}")
    return 0


_WIDTH = 120
_MOST_REASONS = 20
_SPLITS_FROM = {"made": "drawn by patient, without split tables", "tables": "from split tables"}
_SPLITS_FROM["records"] = "named by the records"
_SUMMARY = (
    *("records", "cases", "patients", "set_aside", "records_with_other_options", "records_with_other_wordings"),
    *("records_that_repeat_an_image", "images_found", "images_missing", "images_unreadable"),
    *("images_with_equal_pixels", "pictures_in_several_splits", "boxes", "images_with_boxes"),
    *("images_with_one_box_label", "patients_in_several_splits", "cases_in_no_split"),
)

Table = tuple[str, Sequence[str], list[list[str]]]  # title, head and rows


def write_facts(facts: dict[str, Any]) -> str:
    """Return the facts as JSON in ASCII."""
    return json.dumps(facts, indent=1) + "\n"


def print_facts(facts: dict[str, Any], file: TextIO | None = None) -> None:
    """Print the facts as tables, with rules on a terminal alone."""
    file = file or sys.stdout
    tables = _list_tables_of_questions(facts) if "formats" in facts else list_tables(facts)
    from rich.console import Console

    on_screen = file.isatty()
    to = getattr(file, "unescaped", file) if on_screen else file
    console = Console(file=to, force_terminal=on_screen, width=None if on_screen else _WIDTH)
    for table in tables:
        _print_table(console, table)
    for word, lines in (("note", facts["notes"]), ("stops a run", facts["stops"])):
        for line in lines:
            print(f"{word}: {make_printable(line)}", file=file)
    print("a run would stop" if facts["stops"] else "a run can use it", file=file)


def list_tables(facts: dict[str, Any]) -> list[Table]:
    """Return the facts as tables of printable cells; shares of answers refer to annotated cases."""
    has_uncertain = any(step["uncertain"] for step in facts["steps"])
    numbers = ("annotated", *(["uncertain", "trained"] if has_uncertain else []), "wordings")
    tables: list[Table] = [
        (
            f"{facts['root']}: {facts['layout']} ({facts['file']})",
            ("", "number"),
            [[key.replace("_", " "), _number(facts[key])] for key in _SUMMARY],
        ),
        (
            "Parts of the form (a patient counts once; --json has every step)",
            ("part", "questions", "several right", "asked", "patients with no to everything"),
            [
                [part["name"], _number(part["questions"]), _number(part["several_right"]), *_by_split(part)]
                for part in facts.get("parts", ())
            ],
        ),
        (
            "Steps",
            ("step", *numbers, "answers"),
            [
                [step["name"], *(_number(step[key]) for key in numbers), _list_answers(step)]
                for step in (() if "parts" in facts else facts["steps"])
            ],
        ),
        (
            f"Splits ({_SPLITS_FROM.get(facts['splits_from'], facts['splits_from'])})",
            ("split", "cases", "patients", "rows in table", "table"),
            [
                [split["name"], *(_number(split[key]) for key in ("cases", "patients", "rows")), split["file"]]
                for split in facts["splits"]
            ],
        ),
        (
            "Origins",
            ("origin", "cases"),
            [[name or "(none)", _number(count)] for name, count in facts["origins"].items()],
        ),
        list_reasons(facts),
        (
            "Pictures in several splits",
            ("image", "patient", "split"),
            [
                [image["image_path"], image["patient_id"], ", ".join(image["splits"])]
                for group in facts["leaks"] or ()
                for image in group
            ],
        ),
    ]
    return make_tables_printable(tables)


def make_tables_printable(tables: Sequence[Table]) -> list[Table]:
    """Return the tables that have rows, with cells that cannot control the terminal."""
    return [
        (make_printable(title), head, [[make_printable(cell) for cell in row] for row in rows])
        for title, head, rows in tables
        if rows
    ]


def list_reasons(facts: dict[str, Any]) -> Table:
    """Return the table of records set aside, by reason."""
    reasons = facts["set_aside_reasons"]
    num_further = sum(reason["count"] for reason in reasons[_MOST_REASONS:])
    rows = [[_number(reason["count"]), reason["reason"], _list_examples(reason)] for reason in reasons[:_MOST_REASONS]]
    rows += [[_number(num_further), "further reasons", "all in --json"]] if num_further else []
    return "Set aside", ("records", "reason", "examples"), rows


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _by_split(part: dict[str, Any]) -> tuple[str, str]:
    asked = ", ".join(f"{name} {number:,}" for name, number in part["asked"].items())
    only_no = part["only_no"].items()
    shares = [f"{name} {number:,} ({number / max(part['patients'][name], 1):.1%})" for name, number in only_no]
    return asked, ", ".join(shares)


def _list_answers(step: dict[str, Any]) -> str:
    total = step["annotated"]
    shares = {name: f"{count:,} ({count / total:.1%})" if count else "0" for name, count in step["answers"].items()}
    return ", ".join(f"{name} {share}" for name, share in shares.items())


def _list_examples(reason: dict[str, Any]) -> str:
    return ", ".join(
        f"{example['record']} ({example['image_path'][:60]})" if example["image_path"] else str(example["record"])
        for example in reason["examples"]
    )


def _print_table(console: Any, table: Table) -> None:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    title, head, rows = table
    shown = RichTable(box=box.HEAVY_HEAD if console.is_terminal else None, pad_edge=console.is_terminal)
    for name, cells in zip(head, zip(*rows, strict=True), strict=True):
        is_number = all(cell.replace(",", "").isdigit() or cell == "-" for cell in cells)
        shown.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    console.print(Text(title), soft_wrap=True)
    console.print(shown, Text())


def _list_tables_of_questions(facts: dict[str, Any]) -> list[Table]:
    names = ("records", "set_aside", "patients", "pictures", "boxes", "with_thinking", "with_stages")
    spread = ("texts", "percentile_5", "median", "percentile_95", "longest")
    splits = [name for name in (*SPLIT_NAMES, "") if facts["splits"].get(name)]
    return make_tables_printable(
        [
            (
                f"{facts['root']}: {facts['layout']} ({facts['file']})",
                ("", "number"),
                [[name.replace("_", " "), f"{facts[name]:,}"] for name in names],
            ),
            (
                "Records by kind and split",
                ("kind", *(name or "(none)" for name in splits), "all"),
                [
                    [kind, *(f"{counts.get(name, 0):,}" for name in splits), f"{sum(counts.values()):,}"]
                    for kind, counts in facts["kinds"].items()
                ],
            ),
            (
                "Boxes of a record",
                ("boxes", "records"),
                [[number, f"{count:,}"] for number, count in facts["boxes_of_records"].items()],
            ),
            (
                "Lengths (words)",
                ("text", *(name.replace("_", " ") for name in spread)),
                [[name, *(f"{words.get(key, 0):,.0f}" for key in spread)] for name, words in facts["lengths"].items()],
            ),
            (
                "Formats",
                ("dialect", "written", "read back"),
                [[row["dialect"], f"{row['written']:,}", f"{row['read_back']:,}"] for row in facts["formats"]],
            ),
            list_reasons(facts),
        ]
    )


def _prepare_tfds(arguments: list[str]) -> None:
    """Prepare a folder as a dataset of tensorflow_datasets and print the numbers of cases."""
    parser = argparse.ArgumentParser(
        prog="stepcot data tfds",
        description="Prepare a folder in any layout of cases as the dataset `step_cot` of tensorflow_datasets, "
        "without tensorflow.",
    )
    parser.add_argument("root", metavar="ROOT", help="folder with cases and images (docs/sources.md); or gs://")
    data_dir = "where datasets are kept"
    parser.add_argument("data_dir", type=local_path, metavar="DIR", help=data_dir)
    parser.add_argument("--on-bad-record", choices=("stop", "skip"), default="stop", help="default stop")
    parser.add_argument("--split-seed", type=int, default=0, help="of splits that are made; default 0")
    parser.add_argument(
        "--near-duplicate-radius", type=int, default=0, help="in bits, for splits that are made; default 0, for none"
    )
    options = vars(parser.parse_args(arguments))
    root, data_dir = options.pop("root"), options.pop("data_dir")
    from stepcot_jax.data.tfds.source import Reading, import_tfds

    import_tfds()
    from stepcot_jax.host.download import find_path

    root = find_path(root, "ROOT")
    from stepcot_jax.data.sources.layouts import detect_layout

    detect_layout(root)  # before tensorflow_datasets says that it begins
    from stepcot_jax.data.tfds.builder import prepare  # imports tensorflow_datasets

    folder = prepare(root, data_dir, Reading(**options))
    lines = _describe_prepared(folder)
    print("\n".join(lines))


def _describe_prepared(folder: pathlib.Path) -> list[str]:
    from stepcot_jax.data.tfds.source import QUARANTINE_NAME, open_prepared

    prepared = open_prepared(folder)
    counts = ", ".join(f"{len(indices)} {name}" for name, indices in prepared.splits.by_name().items())
    lines = [f"{len(prepared.collection.cases)} cases in {folder}: {counts} ({prepared.splits_source})"]
    if prepared.collection.set_aside:
        num_aside = len(prepared.collection.set_aside)
        lines.append(f"{num_aside} records are set aside, each with its reason in {folder / QUARANTINE_NAME}")
    return lines


if __name__ == "__main__":
    run_tool(main)
