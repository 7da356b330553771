"""Draw the pictures of the documents, and print the table of docs/grounded.md again.

    .venv/bin/python docs/draw_pictures.py [NAME...] [--checkpoint=runs/quickstart]

NAME is correction, explanation, report, replies or table; all by default. The first three need a run of the quickstart;
report and replies need chromium and playwright. `pictures/made.json` has for each picture a digest of what it shows:
`tests/test_pictures.py` fails where a picture is of another quickstart, chest or page, or the table is another.
"""

import argparse
import hashlib
import inspect
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any

import stepcot_jax as sc

DOCS = pathlib.Path(__file__).parent
PICTURES, GROUNDED, MADE = DOCS / "pictures", DOCS / "grounded.md", DOCS / "pictures" / "made.json"
NUM_CHESTS, EXPLAINED = 100, 89  # of README's `data phantom`, and the one that it explains
CHESTS = {"seed": 2, "size": 64, "prevalence": "flat"}
PAGES = (
    *("pages/page.css", "pages/macros.html.j2", "pages/page.html.j2", "pages/report.html.j2", "pages/shell.py"),
    "evaluation/reply_page.py",  # words the verdicts of both pages
)
REPORT = ("command.py", "answers.py", "sections.py", "summary.html.j2", "cases.html.j2", "confusion.html.j2", "page.js")
SHOWN = {  # sources that shape what a picture shows
    "correction": ("reading/asking.py",),  # and `choose` and `draw_correction`
    "explanation": ("tools/explain/drawing.py", "tools/explain/scoring.py", "reading/explain.py"),
    "report": (*PAGES, "pages/pictures.py", "reading/explain.py", *(f"tools/report/{name}" for name in REPORT)),
    "replies": (*PAGES, "pages/replies.html.j2", "pages/browse.css", "pages/browse.js"),
}


def digest(name: str) -> str:
    """Return the digest of what a picture shows: settings of the quickstart, a drawn chest, and sources of a page."""
    config = (DOCS.parent / "configs" / "quickstart.py").read_text(encoding="utf-8")
    parts = [repr([] if name == "replies" else re.findall(r"^ +config\..*", config, re.MULTILINE)).encode()]
    parts.append(sc.draw_phantom(EXPLAINED, **CHESTS).image.tobytes())
    parts += [(DOCS.parent / "stepcot_jax" / source).read_bytes() for source in SHOWN[name]]
    if name == "correction":  # drawn here, by no command
        parts += [inspect.getsource(function).encode() for function in (choose, draw_correction)]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


# A correction.


def choose(reader: Any) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the first chest whose diagnosis one true answer mends, to the question that is asked, and counts."""
    first, counts = {}, {"read": NUM_CHESTS, "wrong": 0, "mended": 0}
    last = reader.chain.steps[-1].name
    for index in range(NUM_CHESTS):
        drawn = sc.draw_phantom(index, **CHESTS)
        truth = {
            step.name: step.options[label] for step, label in zip(reader.chain.steps, drawn.case.answers, strict=True)
        }
        before = reader.read(drawn.image)
        if before.answers[last] == truth[last]:
            continue
        counts["wrong"] += 1
        asked = reader.ask_next(before)
        after = before if asked is None else reader.correct(before, {asked.step.name: truth[asked.step.name]})
        if after.answers[last] != truth[last]:
            continue
        counts["mended"] += 1
        shown = {"picture": drawn.image, "truth": truth, "before": before, "asked": asked, "after": after}
        if not first and len(after.flipped) > 2:
            first = {"index": index, **shown}
    return first, counts


def draw_correction(found: dict[str, Any]) -> Any:
    """Draw a chest, its answers before and after one correction, and the step worth checking next."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from stepcot_jax.reading.readings import percent

    figure = Figure(figsize=(8.8, 3.5))
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.01, 0.06, 0.335, 0.83))
    axes.imshow(found["picture"], cmap="gray", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    board = figure.add_axes((0.36, 0.02, 0.63, 0.96))
    board.set(xlim=(0, 1), ylim=(0, 9.6))
    board.axis("off")
    blue, orange, purple = "#1f5f8b", "#b8470f", "#6b4fa0"
    for x, text in ((0.3, "as read"), (0.66, "after one correction")):
        board.text(x, 9.1, text, fontsize=9, color="#5c6570")
    rows = zip(found["before"].steps, found["after"].steps, strict=True)
    for place, (before, after) in enumerate(rows):
        y, name = 8.1 - 1.1 * place, before.step.name
        is_asked = name == found["asked"].step.name
        board.text(0, y, name, fontsize=9, fontweight="bold" if place == len(found["truth"]) - 1 else "normal")
        for x, answer in ((0.3, before), (0.66, after)):
            right = answer.answer == found["truth"][name]
            colour = blue if answer.given else orange if x > 0.5 and answer.answer != before.answer else "#1d2126"
            board.text(x - 0.035, y, "✓" if right else "✗", fontsize=9, color="#1c7a4a" if right else "#b3372b")
            how = "corrected" if answer.given else percent(answer.probability)
            weight = "normal" if colour == "#1d2126" else "bold"
            board.text(x, y, f"{answer.answer} ({how})", fontsize=9, color=colour, fontweight=weight)
        if is_asked:
            pill = {"boxstyle": "round,pad=0.2", "color": purple}
            board.text(0.305, y - 0.34, "worth checking next", fontsize=7.5, color="white", va="center", bbox=pill)
    for x, reading in ((0.3, found["before"]), (0.66, found["after"])):
        num_right = sum(reading.answers[name] == truth for name, truth in found["truth"].items())
        board.text(x, 0.2, f"{num_right} of {len(reading.steps)} right", fontsize=9, color="#5c6570")
    axes.set_title("A drawn chest (phantom)", fontsize=9, loc="left", color="#5c6570")
    return figure


# The pages, as a browser shows them.


def photograph(page: pathlib.Path, name: str, *, part: str, ready: str) -> None:
    """Write what a browser shows of a page, from a part on, as a picture of the documents."""
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
        tab.goto(f"file://{page.resolve()}#{part}")
        tab.wait_for_selector(ready)
        tab.screenshot(path=PICTURES / f"{name}.png")
        browser.close()


def run(*arguments: Any, folder: pathlib.Path | None = None) -> str:
    """Run Python with these arguments, in a folder; return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(DOCS.parent)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, check=True, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603


def run_example(folder: pathlib.Path) -> str:
    """Run the three commands of docs/grounded.md, and its script, in a folder; return the table that they print."""
    text = GROUNDED.read_text(encoding="utf-8")
    first, second, third = re.findall(r"^\.venv/bin/stepcot (.*)$", text, re.MULTILINE)[:3]
    for command in (first, second):
        run("-m", "stepcot_jax", *command.split(), folder=folder)
    run("-c", text.partition("```python\n")[2].partition("```")[0], folder=folder)
    printed = run("-m", "stepcot_jax", *third.split(), folder=folder)
    return printed[: printed.index("\n", printed.index("well formed (%)")) + 1]


def printed_table() -> str:
    """Return the table that docs/grounded.md shows."""
    return GROUNDED.read_text(encoding="utf-8").partition("offline:\n\n```\n")[2].partition("...\n```")[0]


def main() -> None:
    """Draw what the command line names."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the documents.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join((*SHOWN, 'table'))}; default: all")
    parser.add_argument("--checkpoint", default="runs/quickstart", help="a run of the quickstart")
    options = parser.parse_args()
    names = options.names or (*SHOWN, "table")
    made = json.loads(MADE.read_text()) if MADE.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        if "correction" in names:
            found, counts = choose(sc.load(options.checkpoint))
            draw_correction(found).savefig(PICTURES / "correction.png", dpi=200)
            print(f"chest {found['index']}, {found['asked'].step.name}: {counts}")
        if "explanation" in names:
            chests = [f"--{name}={value}" for name, value in CHESTS.items()]
            run("-m", "stepcot_jax", "data", "phantom", folder, f"--num-cases={NUM_CHESTS}", *chests)
            image = f"{folder}/images/phantom_{EXPLAINED:06d}.png"
            run("-m", "stepcot_jax", "explain", image, f"--checkpoint={options.checkpoint}", f"--out={folder}")
            shutil.copy(next(folder.glob("*.maps.png")), PICTURES / "explanation.png")
        if "report" in names:
            page = folder / "report.html"
            run("-m", "stepcot_jax", "report", options.checkpoint, "--num-cases=24", f"--out={page}")
            photograph(page, "report", part="", ready=".panels img")
        if {"replies", "table"} & set(names):
            text, table = GROUNDED.read_text(encoding="utf-8"), run_example(folder)
            GROUNDED.write_text(text.replace(printed_table(), table), encoding="utf-8")
        if "replies" in names:
            photograph(folder / "runs/scores/index.html", "replies", part="replies", ready="#gallery img")
    made |= {name: digest(name) for name in names if name in SHOWN}
    MADE.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
