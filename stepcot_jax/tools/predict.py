"""Read radiographs with a trained network: questions, answers with their probabilities, and a paragraph.

For research; not a medical device.
"""

import argparse
import functools
import json
import pathlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import writing_whole
from stepcot_jax.tools.options import OF_READER, add, add_network, local_path, prepare_reading

if TYPE_CHECKING:
    from stepcot_jax.reading.image_reader import Given, ImageReader
    from stepcot_jax.reading.radiographs import Complaints
    from stepcot_jax.reading.readings import ChainReading

EXIT_UNREADABLE = 1
_HARDLY_FOLLOWS = (
    "note: the run measured that this network's later answers hardly follow given ones, or did not measure it; a joint "
    "reading follows them: without --as-published (docs/corrections.md)"
)
BATCH_SIZE = 32
"""Images that the command reads at once."""


def main(arguments: list[str] | None = None) -> int:
    """Read the images that the command line names."""
    options = _parse(arguments)
    from stepcot_jax.host.download import find_checkpoint, find_path
    from stepcot_jax.reading.answer_sheet import is_sheet
    from stepcot_jax.reading.corrections import read_corrections
    from stepcot_jax.reading.image_reader import load_chain_reader
    from stepcot_jax.reading.radiographs import Complaints, find_images

    prepare_reading()
    given = read_corrections(options.given)
    if options.ask and (given or options.json):
        raise BadInput("--ask cannot be used with --given or --json")
    flag = "--ask" if options.ask else "--json" if options.json else ""
    has_rows = options.out is not None and is_sheet(pathlib.Path(options.out), flag=flag)
    complaints = Complaints()
    images = [find_path(image, "IMAGE") for image in options.images]
    paths = find_images(images, refuse=complaints.refuse, note=complaints.note)
    if not paths:
        return EXIT_UNREADABLE
    if options.ask and len(paths) > 1:
        raise BadInput(f"--ask: found {len(paths)} images, expected 1")
    reader = load_chain_reader(
        find_checkpoint(options.checkpoint),
        model=options.model,
        batch_size=min(BATCH_SIZE, len(paths)),
        as_published=options.as_published,
    )
    _read_and_write(options, reader, paths, complaints, given=given, has_rows=has_rows)
    return EXIT_UNREADABLE if complaints.num_refused else 0


def _read_and_write(
    options: argparse.Namespace,
    reader: "ImageReader",
    paths: list[pathlib.Path],
    complaints: "Complaints",
    *,
    given: "Given",
    has_rows: bool,
) -> None:
    from stepcot_jax.reading.answer_sheet import in_order, write_sheet

    if options.ask:
        reader.check_accepts_answers()
        if not reader.follows:
            print(_HARDLY_FOLLOWS)
        reading = ask_in_turn(reader, paths[0], answer=input, say=print)
        _write([f"\n{reading.describe(verbose=options.verbose)}"], options.out)
        return
    if has_rows:
        read = functools.partial(reader.read_files, paths, given=given)
        rows = in_order(paths, lambda note: read(refuse=note), refuse=complaints.refuse)
        write_sheet(options.out, rows, reader.chain)
        return
    readings = reader.read_files(paths, given=given, refuse=complaints.refuse)
    if options.json:
        _write((json.dumps(reading.as_dict()) for reading in readings), options.out)
    else:
        texts = (reading.describe(verbose=options.verbose) for reading in readings)
        _write(("\n" * bool(number) + text for number, text in enumerate(texts)), options.out)


def ask_in_turn(
    reader: "ImageReader", image: Any, *, answer: Callable[[str], str], say: Callable[[str], None]
) -> "ChainReading":
    """Ask the steps one by one, the most useful first, and show how the last step's answer changes."""
    from stepcot_jax.reading.readings import percent

    given: dict[str, str] = {}
    skipped: set[str] = set()
    reading = reader.read(image)
    say(_conclusion(reading))
    while (asked := reader.ask_next(reading, leave_out=skipped)) is not None:
        say(f"\n{asked.step.name}: {asked.step.question}")
        for outcome in asked.outcomes:
            option = asked.step.lettered_options[asked.step.options.index(outcome.answer)]
            last = f"{outcome.last_answer} {percent(outcome.last_probability)}"
            say(f"  {option} ({percent(outcome.probability)}) → {last}")
        try:
            typed = answer("letter or answer, Enter to skip, q to end: ").strip()
        except EOFError:
            break
        if typed.casefold() == "q":
            break
        if not typed:
            skipped.add(asked.step.name)
            continue
        try:
            reading = reader.read(image, given={**given, asked.step.name: typed})
        except BadInput as error:
            say(str(error))
            continue
        given[asked.step.name] = typed
        say(_conclusion(reading))
    else:
        if len(given) + len(skipped) < len(reading.steps) - 1:
            say("\nno further answer is worth asking for (config.evaluation.least_gain)")
    return reading


def _conclusion(reading: "ChainReading") -> str:
    from stepcot_jax.reading.readings import percent

    last = reading.steps[-1]
    return f"{last.step.name}: {last.answer} ({percent(last.probability)})"


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot predict",
        description="Read radiographs with a trained network. For research; not a medical device.",
        epilog="Exit code 0: every image was read; 1: some could not be read, stderr names them; 2: wrong input.",
    )
    images = "PNG, JPEG or DICOM files, or folders of them; also on gs://"
    parser.add_argument("images", nargs="+", metavar="IMAGE", help=images)
    add(parser, "--checkpoint WORKDIR", OF_READER, required=True)
    add_network(parser)
    given = (
        'an answer that other steps follow from, such as "Anatomical location=Lower lung zone", or "... 70 %%" '
        "if it is not certain; or a reading that the demo saved (FILE.json); may be repeated"
    )
    add(parser, "--given STEP=ANSWER", given, [], action="append")
    own = "the network's own answers, each given one written back to it, and not those of its joint model"
    add(parser, "--as-published", own)
    add(parser, "--verbose", "also say how answer sets were made, and the figures of the operating points")
    add(parser, "--ask", "ask for corrections at the terminal, for one image")
    add(parser, "--json", "write one JSON object a line and image")
    rows = "write to FILE instead of stdout; a .csv, .jsonl or .parquet file has one row an image"
    add(parser, "--out FILE", rows, type=local_path)
    return parser.parse_args(arguments)


def _write(texts: Iterable[str], out: pathlib.Path | None) -> None:
    if out is None:
        for text in texts:
            print(text, flush=True)
        return
    try:
        with writing_whole(out) as file:
            file.writelines(f"{text}\n".encode() for text in texts)
    except OSError as error:
        raise BadInput(f"--out: {out} cannot be written ({error.strerror})") from None


if __name__ == "__main__":
    run_tool(main)
