"""Write docs/house.md, the map of the package, from its sources: `python docs/draw_house.py`."""

import ast
import collections
import pathlib

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "stepcot_jax"
PAGE = ROOT / "docs" / "house.md"
GROUND = ("host", "chain", "record", "box")

_HEAD = """# The house

Drawn by `python docs/draw_house.py`; `tests/test_house.py` fails where it is stale. A room imports only rooms below its
own. The last column leaves out the ground ({ground}) and what a named room imports already.

| room | what belongs there | imports |
|---|---|---|
"""


def room_of(module: str) -> str:
    """Return the room of a module: the first part of its name below the package."""
    return module.split(".")[1] if "." in module else ""


def read_imports() -> tuple[dict[str, set[str]], dict[str, list[pathlib.Path]]]:
    """Return the rooms that each room imports, and its files."""
    imports, files = collections.defaultdict(set), collections.defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        own = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if own.startswith("__"):
            continue
        files[own].append(path)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module] if node.module != "stepcot_jax" else [f"stepcot_jax.{a.name}" for a in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            imports[own] |= {room_of(name) for name in names if name.startswith("stepcot_jax.")} - {own, ""}
    return {own: {room for room in found if room in files} for own, found in imports.items()}, files


def order(imports: dict[str, set[str]], rooms: list[str]) -> list[str]:
    """Return the rooms, each above those that it imports."""
    placed: list[str] = []
    while len(placed) < len(rooms):
        free = [room for room in rooms if room not in placed and imports.get(room, set()) <= set(placed)]
        if not free:
            raise ValueError(f"a circle among {sorted(set(rooms) - set(placed))}")
        placed += free
    return placed[::-1]


def draw_arrows(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the rooms that each room imports, without those that another of them reaches."""

    def reach(room: str) -> set[str]:
        return {room}.union(*map(reach, imports.get(room, ())))

    return {
        room: {each for each in found if not any(each in reach(other) for other in found - {each})}
        for room, found in imports.items()
    }


def describe(files: list[pathlib.Path]) -> str:
    """Return the first line of a room's docstring."""
    path = next((path for path in files if path.name == "__init__.py"), files[0])
    first = min((p for p in files if p.name == path.name), key=lambda p: len(p.parts))
    return (ast.get_docstring(ast.parse(first.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def write_page() -> str:
    """Return the page."""
    imports, files = read_imports()
    arrows, lines = draw_arrows(imports), []
    for room in order(imports, sorted(files)):
        shown = ", ".join(sorted(arrows.get(room, set()).difference(GROUND))) or "-"
        lines.append(f"| `{room}` | {describe(files[room])} | {shown} |")
    return _HEAD.format(ground=", ".join(f"`{name}`" for name in GROUND)) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(write_page(), encoding="utf-8")
