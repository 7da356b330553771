"""A sample of cases for readers: a folder for each of them with a form and images, and the key beside."""

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from stepcot_jax.host.errors import BadInput, make_workdir
from stepcot_jax.host.files import write_whole
from stepcot_jax.readers.forms import encode_csv_form, encode_html_form
from stepcot_jax.readers.key import (
    IMAGE_FOLDER,
    Key,
    KeyCase,
    KeyReader,
    KeyStep,
    check_names,
    write_key,
)
from stepcot_jax.readers.reader_cases import CaseSource
from stepcot_jax.readers.selection import choose_stratified, shuffle

Format = Literal["html", "csv"]


def write_sample(
    folder: Path,
    source: CaseSource,
    *,
    readers: Sequence[str],
    num_cases: int,
    seed: int = 0,
    form: Format = "html",
    with_undiagnosed: bool = False,
    progress: Callable[[Iterable[Any]], Iterable[Any]] = iter,
) -> Key:
    """Write the readers' folders and the key; the key comes last, and without it there is no sample.

    Args:
      folder: new or empty.
      source: the cases.
      readers: names of the readers.
      num_cases: how many cases are drawn, in proportion by diagnosis.
      seed: of the draw, of the numbers and of each reader's order.
      form: what the readers fill.
      with_undiagnosed: whether cases whose last step nobody annotated are drawn too, as a diagnosis of their own.
      progress: wraps the cases whose images are written, so as to show a bar.

    Returns:
      The key.

    Raises:
      BadInput: the folder is not empty, a name cannot be used, there are too few cases, or an image is unreadable.
    """
    check_names(readers)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: found something there, accepted is a folder that is new or empty")
    places = range(len(source.cases)) if with_undiagnosed else source.diagnosed
    paths = [source.cases[place].image_path for place in places]
    diagnoses = [source.cases[place].labels[-1] for place in places]
    chosen = choose_stratified(paths, diagnoses, num_cases=num_cases, seed=seed)
    make_workdir(folder)
    for name in readers:
        make_workdir(folder / name / IMAGE_FOLDER)
    cases = tuple(
        _write_case(source, places[index], number, folders=[folder / name for name in readers])
        for number, index in progress(list(enumerate(chosen, start=1)))
    )
    steps = tuple(KeyStep(name=step.name, question=step.question, options=step.options) for step in source.chain.steps)
    unassigned = Key(source=source.name, seed=seed, steps=steps, cases=cases, readers=())
    assigned = tuple(_write_form(unassigned, folder, name, form) for name in readers)
    key = Key(source=source.name, seed=seed, steps=steps, cases=cases, readers=assigned)
    write_key(folder, key)
    return key


def encode_picture(picture: Image.Image) -> bytes:
    """A picture as a PNG that holds its pixels and nothing else: no date, no name, no text of the file it was in."""
    plain = Image.frombytes(picture.mode, picture.size, picture.tobytes())
    content = io.BytesIO()
    plain.save(content, format="PNG")
    return content.getvalue()


def _write_case(source: CaseSource, place: int, number: int, *, folders: Sequence[Path]) -> KeyCase:
    content = encode_picture(source.picture(place))
    case = source.cases[place]
    entry = KeyCase(
        number=number,
        image_path=case.image_path,
        patient_id=case.patient_id,
        labels=case.labels,
        sha256=hashlib.sha256(content).hexdigest(),
    )
    for folder in folders:
        (folder / IMAGE_FOLDER / entry.image).write_bytes(content)
    return entry


def _write_form(key: Key, folder: Path, name: str, form: Format) -> KeyReader:
    order = [case.number for case in key.cases]
    order = [order[place] for place in shuffle(range(len(order)), list(map(str, order)), seed=f"{key.seed}:{name}")]
    content = (encode_html_form if form == "html" else encode_csv_form)(key, name=name, order=order)
    file = f"form.{form}"
    write_whole(folder / name / file, content)
    return KeyReader(name=name, file=file, sha256=hashlib.sha256(content).hexdigest(), order=tuple(order))
