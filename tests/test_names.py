import builtins
import pathlib
import symtable

FOLDER = pathlib.Path(__file__).parents[1]
FILES = sorted(
    path for name in ("stepcot_jax", "benchmarks", "configs", "tests") for path in (FOLDER / name).rglob("*.py")
)
OF_MODULES = {"__file__", "__name__", "__doc__", "__package__", "__spec__"}


def find_undefined(source, path):
    module = symtable.symtable(source, str(path), "exec")
    defined = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    known = defined | set(dir(builtins)) | OF_MODULES

    def walk(table):
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if symbol.is_referenced() and symbol.is_global() and name not in known:
                yield name
        for child in table.get_children():
            yield from walk(child)

    found = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_referenced()} - known
    return sorted(found | set(walk(module)))


def test_every_name_is_defined():
    assert len(FILES) > 300
    missing = {str(path.relative_to(FOLDER)): find_undefined(path.read_text(), path) for path in FILES}
    assert {path: names for path, names in missing.items() if names} == {}
