import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[1]


def test_the_map_is_what_the_imports_draw():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import draw_house
    finally:
        sys.path.pop(0)
    assert draw_house.PAGE.read_text(encoding="utf-8") == draw_house.write_page(), "run python docs/draw_house.py"
