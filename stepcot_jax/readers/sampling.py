"""Draw a sample of cases for readers: for each reader a folder with a form and images, and the key.

A form is a CSV for any spreadsheet, or an offline HTML page that saves the same CSV.
"""

import collections
import hashlib
import io
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from PIL import Image

from stepcot_jax.annotate.spreadsheets import encode_rows
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.host.pages import make_environment, render_page
from stepcot_jax.readers.key import IMAGE_FOLDER, FormRow, Key, KeyCase, KeyReader, check_names, list_rows, write_key
from stepcot_jax.readers.reader_cases import CaseSource

Format = Literal["html", "csv"]

COLUMNS = (*FormRow._fields, "answer")

_HERE = Path(__file__).parent
_MARK = "\ufeff"


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
    """Write the readers' folders and then the key; a folder without a key is no sample.

    Args:
      with_undiagnosed: draw cases whose last step is unannotated too, as a stratum of their own.
    """
    check_names(readers)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder} is not empty; expected a new or empty folder")
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
    key = Key(source=source.name, seed=seed, steps=source.chain.steps, cases=cases, readers=())
    key = msgspec.structs.replace(key, readers=tuple(_write_form(key, folder, name, form) for name in readers))
    write_key(folder, key)
    return key


def encode_picture(picture: Image.Image) -> bytes:
    """Encode a picture as a PNG with its pixels alone: no date, no name, no text of its source file."""
    plain = Image.frombytes(picture.mode, picture.size, picture.tobytes())
    content = io.BytesIO()
    plain.save(content, format="PNG")
    return content.getvalue()


def _write_case(source: CaseSource, place: int, number: int, *, folders: Sequence[Path]) -> KeyCase:
    content, case = encode_picture(source.picture(place)), source.cases[place]
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


def choose_stratified(names: Sequence[str], strata: Sequence[int], *, num_cases: int, seed: int) -> tuple[int, ...]:
    """Choose cases in proportion to their strata, by the method of largest remainders.

    Args:
      names: unique names of the cases; the choice depends on them and not on their order.

    Returns:
      Indices of the chosen cases, in an order that depends on the seed and the names alone and not on the strata.

    >>> sorted(choose_stratified(["a", "b", "c", "d"], [0, 0, 0, 1], num_cases=3, seed=0))[-1]
    3
    """
    if not 1 <= num_cases <= len(names):
        raise BadInput(f"--num-cases={num_cases} is not 1 to {len(names)}, the number of cases")
    members: dict[int, list[int]] = collections.defaultdict(list)
    for index in shuffle(range(len(names)), names, seed=f"{seed}:cases"):
        members[strata[index]].append(index)
    quotas = share_out({stratum: len(indices) for stratum, indices in members.items()}, num_cases)
    chosen = [index for stratum, indices in members.items() for index in indices[: quotas[stratum]]]
    return tuple(shuffle(chosen, names, seed=f"{seed}:numbers"))


def share_out(sizes: Mapping[int, int], total: int) -> dict[int, int]:
    """Divide `total` in proportion to sizes; what rounding leaves goes to the largest remainders.

    Of equal remainders the larger stratum's comes first, then the smaller label's.

    >>> share_out({0: 6, 1: 3, 2: 1}, 5)
    {0: 3, 1: 2, 2: 0}
    """
    whole = sum(sizes.values())
    parts = {stratum: size * total // whole for stratum, size in sizes.items()}
    order = sorted(sizes, key=lambda stratum: (-(sizes[stratum] * total % whole), -sizes[stratum], stratum))
    for stratum in order[: total - sum(parts.values())]:
        parts[stratum] += 1
    return parts


def shuffle(indices: Iterable[int], names: Sequence[str], *, seed: Hashable) -> list[int]:
    """Shuffle indices by a hash of each name, independently of any library's random generator."""

    def rank(index: int) -> bytes:
        return hashlib.sha256(f"{seed}:{names[index]}".encode("utf-8", "surrogatepass")).digest()

    return sorted(indices, key=rank)


def encode_csv_form(key: Key, *, name: str, order: Sequence[int]) -> bytes:
    """Encode a reader's form as a CSV with one row per question and an empty last column for the answer."""
    return encode_rows([COLUMNS, *([*row, ""] for row in list_rows(key, name=name, order=order))])


def encode_html_form(key: Key, *, name: str, order: Sequence[int]) -> bytes:
    """Encode a reader's form as one HTML page that shows the images and saves the filled form of `encode_csv_form`.

    Its content security policy allows images of its folder and its own script and style, named by digest.
    """
    rows = list(list_rows(key, name=name, order=order))
    style, script = ((_HERE / part).read_text(encoding="utf-8") for part in ("form.css", "form.js"))
    page = render_page(
        make_environment(_HERE).get_template("form.html.j2"),
        style=style,
        script=script,
        images="'self' file:",
        title=f"Reading form of {name}",
        data=_describe(key, rows, name),
        cases=[key.cases[number - 1] for number in order],
        steps=key.steps,
        folder=IMAGE_FOLDER,
        name_question=_name_question,
    )
    return page.encode()


def _describe(key: Key, rows: Sequence[FormRow], name: str) -> dict[str, object]:
    """The data of the page's script: each question with the start of its CSV row, up to the answer."""
    steps = key.steps
    letters = [[step.written(label) for label in range(step.num_answers)] for step in steps]
    names = [_name_question(row.case, row.step) for row in rows]
    starts = [encode_rows([[*row, ""]]).decode().removeprefix(_MARK).removesuffix("\r\n") for row in rows]
    return {
        "id": rows[0].form,
        "file": f"{name} answers.csv",
        "header": ",".join(COLUMNS),
        "rows": [
            {"name": name, "start": start, "answers": letters[place % len(steps)]}
            for place, (name, start) in enumerate(zip(names, starts, strict=True))
        ],
        "cases": [names[place : place + len(steps)] for place in range(0, len(names), len(steps))],
    }


def _name_question(case: str, step: str) -> str:
    return f"case {case}, {step}"
