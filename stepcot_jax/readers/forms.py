"""Reading forms: a CSV for any spreadsheet, or an offline HTML page that saves the same CSV."""

from collections.abc import Sequence
from pathlib import Path

from stepcot_jax.annotate.spreadsheets import encode_rows
from stepcot_jax.host.pages import make_environment, render_page
from stepcot_jax.readers.key import IMAGE_FOLDER, FormRow, Key, list_rows

FIXED_COLUMNS = ("form", "case", "image", "step", "question", "options")
COLUMNS = (*FIXED_COLUMNS, "answer")

_HERE = Path(__file__).parent
_MARK = "\ufeff"


def encode_csv_form(key: Key, *, name: str, order: Sequence[int]) -> bytes:
    """Encode a reader's form as a CSV with one row per question and an empty last column for the answer."""
    return encode_rows([COLUMNS, *(_cells(row, "") for row in list_rows(key, name=name, order=order))])


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
        steps=key.chain.steps,
        folder=IMAGE_FOLDER,
        name_question=_name_question,
    )
    return page.encode()


def _describe(key: Key, rows: Sequence[FormRow], name: str) -> dict[str, object]:
    """The data of the page's script: each question with the start of its CSV row, up to the answer."""
    steps = key.chain.steps
    letters = [[step.written(label) for label in range(step.num_answers)] for step in steps]
    names = [_name_question(row.case, row.step) for row in rows]
    starts = [encode_rows([_cells(row, "")]).decode().removeprefix(_MARK).removesuffix("\r\n") for row in rows]
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


def _cells(row: FormRow, answer: str) -> list[str]:
    return [*(getattr(row, column) for column in FIXED_COLUMNS), answer]


def _name_question(case: str, step: str) -> str:
    return f"case {case}, {step}"
