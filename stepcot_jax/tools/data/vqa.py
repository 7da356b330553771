"""`stepcot data vqa`: reasoning records from phantoms, a detection list or a release."""

import argparse
import functools
import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_folder
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.tools.options import add, local_path

if TYPE_CHECKING:
    from stepcot_jax.data.sources.listed import NumReaders
    from stepcot_jax.record import Record

_OF_PHANTOM: dict[str, Any] = {"num_cases": 2000, "size": 64, "prevalence": "flat"}
_OF_FOLDER = ("layout", "box_size", "on_bad_record", "with_normal", "readers", "images")


def add_vqa(commands: Any) -> None:
    """Add the command to the parsers of `stepcot data`."""
    from stepcot_jax.reasoning.dialects import WRITTEN

    parser = commands.add_parser(
        "vqa",
        help="make grounded questions with answers, boxes and reasoning, from phantoms, a detection list or a release",
        description="Writes records.jsonl, images and masks: a question of each of four kinds about each image, split "
        "by patient; or the questions of a release, with their splits.",
    )
    parser.add_argument("out", type=local_path, metavar="OUT", help="new or empty folder")
    source = "phantom, or a folder or file with boxes or questions in any layout of docs/sources.md"
    add(parser, "--source phantom|FOLDER", f"{source}, also on gs://; default phantom", "phantom")
    add(parser, "--num-cases", "phantoms to draw, default 2000", type=int)
    add(parser, "--size", "their height and width in pixels, default 64", type=int)
    add(parser, "--seed", "of phantoms, questions and splits, default 0", 0)
    flat = "of the phantoms' diagnoses; default flat, which asks for present and absent findings equally often"
    add(parser, "--prevalence", flat, choices=("published", "flat"))
    add(parser, "--dialect", "also write conversations.jsonl: prompts and replies in this dialect", choices=WRITTEN)
    add(parser, "--layout NAME", "layout of FOLDER; default: detected from the files")
    size = "pixels of the picture that boxes refer to: required for GEMeX"
    parser.add_argument("--box-size", type=int, nargs=2, metavar=("W", "H"), help=size)
    add(parser, "--on-bad-record", "of FOLDER, default stop", choices=("stop", "skip"))
    normal = "also ask about the images of FOLDER that have no box because the source denies findings"
    add(parser, "--with-normal", normal)
    agreeing = "VinBigData: readers who must agree on a box, default 2; PadChest-GR: all adds the second reader's boxes"
    add(parser, "--readers N|all", agreeing)
    copied = "whether to copy the images of FOLDER; none does without the files where sizes are known; default copy"
    add(parser, "--images", copied, choices=("copy", "none"))
    parser.set_defaults(run=_make_vqa)


def _make_vqa(options: argparse.Namespace) -> None:
    from stepcot_jax.data.questions.making import CONVERSATIONS, make_phantom_records, write_records

    is_phantom = options.source == "phantom"
    _refuse_other(options, _OF_FOLDER if is_phantom else _OF_PHANTOM, "phantom" if is_phantom else "FOLDER")
    if not is_phantom:
        options.source = find_path(options.source, "--source")
    with writing_folder(options.out) as partial:
        if is_phantom:
            watch = functools.partial(Terminal().watch, description="drawing the phantoms")
            given = {name: getattr(options, name) for name in _OF_PHANTOM}
            how = {name: _OF_PHANTOM[name] if value is None else value for name, value in given.items()}
            records = make_phantom_records(partial, seed=options.seed, progress=watch, **how)
        else:
            try:
                records = _read_vqa_source(options, partial)
            except BadInput as error:
                raise BadInput(name_option(str(error), purpose="makes records without the files")) from None
        number = write_records(partial, records, dialect=options.dialect)
    more = f", {number:,} in {CONVERSATIONS}" if options.dialect else ""
    print(f"{len(records):,} records in {options.out}{more}")


def _refuse_other(options: argparse.Namespace, names: Iterable[str], source: str) -> None:
    for name in names:
        if getattr(options, name) not in (None, False):
            raise BadInput(f"--{name.replace('_', '-')} has no effect on --source={source}; leave it out")


def _read_vqa_source(options: argparse.Namespace, out: pathlib.Path) -> "list[Record]":
    from stepcot_jax.data.questions.making import copy_images, make_folder_records
    from stepcot_jax.data.sources.layout_table import BOXED
    from stepcot_jax.data.sources.layouts import detect_vqa_layout, read_detections, read_vqa_source

    source = pathlib.Path(options.source)
    root = source.parent if source.is_file() else source
    layout = options.layout or detect_vqa_layout(source)
    box_size = options.box_size and tuple(options.box_size)
    with_images = options.images != "none"
    reading = {"on_bad_record": options.on_bad_record or "stop", "require_images": with_images}
    if layout in BOXED and box_size is None:
        readers = _read_readers(options.readers)
        images = read_detections(source, layout=layout, with_normal=options.with_normal, readers=readers, **reading)
        num_open = sum(not image.absent for image in images)
        if num_open:
            print(f"{num_open:,} of {len(images):,} images deny no label: no closed question is asked about them")
        watch = functools.partial(Terminal().watch, description="asking about the images")
        how: dict[str, Any] = {"seed": options.seed, "with_images": with_images, "progress": watch}
        return make_folder_records(out, images, root=root, **how)
    _refuse_other(options, ("with_normal", "readers"), f"FOLDER of layout {layout}")
    questions = read_vqa_source(source, layout=layout, box_size=box_size, **reading)
    records, set_aside = list(questions.records), questions.set_aside
    if set_aside:
        print(f"{len(set_aside):,} of {len(records) + len(set_aside):,} records set aside; first {set_aside[0].reason}")
    if not with_images:
        return records
    return copy_images(out, Terminal().watch(records, "copying the images"), root=questions.root)


def _read_readers(written: str | None) -> "NumReaders":
    if written is not None and written != "all" and not written.isdecimal():
        raise BadInput(f"--readers: {written[:40]!r} is not a number or all")
    return 2 if written is None else "all" if written == "all" else int(written)


def name_option(message: str, *, purpose: str) -> str:
    """Return a message, with the option `--images=none` named if the message is about a missing image.

    >>> name_option("row 2: no image 'a.png'", purpose="checks the records alone")
    "row 2: no image 'a.png'; --images=none checks the records alone"
    """
    from stepcot_jax.data.reasons import names_missing

    return f"{message}; --images=none {purpose}" if names_missing(message) else message
