import json
import pathlib
import sys

import pytest

DOCS = pathlib.Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def drawing():
    sys.path.insert(0, str(DOCS))
    try:
        import draw_pictures
    finally:
        sys.path.pop(0)
    return draw_pictures


def test_pictures_are_of_todays_quickstart_chests_and_pages(drawing):
    made = json.loads(drawing.MADE.read_text(encoding="utf-8"))
    assert set(made) == {path.stem for path in drawing.PICTURES.glob("*.png")}
    stale = [name for name, digest in made.items() if digest != drawing.digest(name)]
    assert not stale, (
        f"run python docs/draw_pictures.py {' '.join(stale)} --checkpoint=RUN, with a run of the quickstart"
    )


def test_digests_cover_what_draws_the_pictures(drawing, monkeypatch):
    folder = DOCS.parent / "stepcot_jax" / "tools" / "report"
    of_page = {f"tools/report/{path.name}" for path in folder.iterdir() if path.is_file()}
    of_page -= {f"tools/report/{name}" for name in ("__init__.py", "replies.py")}  # a policy's page is not drawn
    assert of_page | {"evaluation/reply_page.py"} <= set(drawing.SHOWN["report"])
    assert {"tools/explain/drawing.py", "reading/explain.py"} <= set(drawing.SHOWN["explanation"])
    before = drawing.digest("correction")
    monkeypatch.setattr(drawing, "draw_correction", drawing.photograph)
    assert drawing.digest("correction") != before


@pytest.mark.slow
def test_the_table_of_grounded_replies_is_what_its_commands_print(drawing, tmp_path):
    assert drawing.run_example(tmp_path) == drawing.printed_table(), "run python docs/draw_pictures.py table"
