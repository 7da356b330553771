import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
ROOMS = sorted(path for path in (ROOT / "stepcot_jax").glob("*/__init__.py"))


def test_the_map_is_what_the_imports_draw():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import draw_house
    finally:
        sys.path.pop(0)
    assert draw_house.PAGE.read_text(encoding="utf-8") == draw_house.write_page(), "run python docs/draw_house.py"


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: path.parent.name)
def test_a_room_says_what_belongs_in_it_what_does_not_and_what_to_read_first(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert 3 <= len(text.splitlines()) <= 4
    assert "Read `" in text or path.parent.name == "tools"
