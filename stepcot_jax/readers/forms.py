"""Reading forms: a CSV for any spreadsheet, or an offline HTML page that saves the same CSV."""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from stepcot_jax.annotate.spreadsheets import encode_rows
from stepcot_jax.chain import Step
from stepcot_jax.readers.key import IMAGE_FOLDER, FormRow, Key, list_rows
from stepcot_jax.report.markup import Html, embed_json, join, tag

FIXED_COLUMNS = ("form", "case", "image", "step", "question", "options")
COLUMNS = (*FIXED_COLUMNS, "answer")

_HERE = Path(__file__).parent
_MARK = "\ufeff"


def encode_csv_form(key: Key, *, name: str, order: Sequence[int]) -> bytes:
    """Encode a reader's form as a CSV with one row per question and an empty last column for the answer."""
    return encode_rows([COLUMNS, *(_cells(row, "") for row in list_rows(key, name=name, order=order))])


def encode_html_form(key: Key, *, name: str, order: Sequence[int]) -> bytes:
    """Encode a reader's form as one HTML page that shows the images and saves the filled form of `encode_csv_form`.

    Its content security policy allows the images and its own script and style, named by digest, and nothing else.
    """
    rows = list(list_rows(key, name=name, order=order))
    style, script = ((_HERE / part).read_text(encoding="utf-8") for part in ("form.css", "form.js"))
    policy = (
        f"default-src 'none'; img-src 'self' file:; style-src {_digest(style)}; script-src {_digest(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    title = f"Reading form of {name}"
    head = join(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name_="referrer", content="no-referrer"),
        tag("title", title),
    )
    body = join(
        embed_json(_describe(key, rows, name), name="form"),
        tag(
            "header",
            tag("h1", title),
            tag("span", id="progress"),
            tag("button", "Previous", type="button", id="previous"),
            tag("select", *_list_cases(order), id="case", aria_label="Case"),
            tag("button", "Next", type="button", id="next"),
            tag("button", "Next open question", type="button", id="open-question"),
            tag("button", "Save answers", type="button", id="save"),
            tag("p", id="message", role="status"),
        ),
        tag(
            "main",
            tag("noscript", tag("p", "This form needs JavaScript, which it runs in this browser alone.")),
            tag(
                "details",
                tag("summary", "How to fill this form"),
                "Choose one answer to every question. Save the answers to a file, also when you pause; a saved file "
                "can be opened here to go on. When all is answered, send the file back as it is. Brightness and "
                "contrast change how the pictures look here and nothing else; a click opens a picture by itself.",
                open=True,
            ),
            _write_tools(),
            *_write_cases(key, order),
        ),
    )
    page = f'<!DOCTYPE html>\n<html lang="en"><head>{head}<style>{style}</style></head>\n<body>{body}\n'
    return f"{page}<script>{script}</script></body></html>\n".encode()


def _write_tools() -> Html:
    """Display controls, and the button that opens a saved file."""
    return tag(
        "div",
        tag("label", "Brightness ", tag("input", type="range", id="brightness", min=20, max=300, value=100)),
        tag("label", "Contrast ", tag("input", type="range", id="contrast", min=20, max=300, value=100)),
        tag("button", "As it was", type="button", id="reset"),
        tag("label", "Open saved answers ", tag("input", type="file", id="load", accept=".csv,text/csv")),
        class_="tools",
    )


def _list_cases(order: Sequence[int]) -> Iterator[Html]:
    for place, number in enumerate(order):
        yield tag("option", f"Case {number} ({place + 1} of {len(order)})", value=place)


def _write_cases(key: Key, order: Sequence[int]) -> Iterator[Html]:
    steps = key.chain.steps
    for number in order:
        source = f"{IMAGE_FOLDER}/{key.cases[number - 1].image}"
        image = tag("img", src=source, alt=f"Radiograph of case {number}", loading="lazy")
        yield tag(
            "section",
            tag("h2", f"Case {number}"),
            tag("div", tag("a", image, href=source, target="_blank", rel="noopener"), class_="picture"),
            tag("div", *(_write_question(number, place, step) for place, step in enumerate(steps, start=1))),
            class_="case",
            hidden=True,
        )


def _write_question(number: int, place: int, step: Step) -> Html:
    name = _name_question(str(number), f"Step {place}")
    options = (
        tag("label", tag("input", type="radio", name_=name, value=step.written(label)), f" {option}", class_="option")
        for label, option in enumerate(step.lettered_options)
    )
    return tag("fieldset", tag("legend", f"{place}. {step.question}"), *options, data_name=name)


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


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
