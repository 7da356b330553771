"""A chain of one's own beside a table: `chain.json`, a list of steps with name, question and options."""

from collections.abc import Set
from pathlib import Path

import msgspec

from stepcot_jax.chain import Chain, Step, read_options
from stepcot_jax.data.sources.delimited import fold_column
from stepcot_jax.host.errors import BadInput

CHAIN_NAME = "chain.json"

_MAX_BYTES = 1_000_000
_ACCEPTED = 'accepted is a JSON array of {"name": ..., "question": ..., "options": [...]} in UTF-8'


class _FileStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    question: str
    options: tuple[str, ...]


def read_chain(path: Path, *, reserved: Set[str] = frozenset()) -> Chain:
    """The chain of a `chain.json`; options with or without letters, "N/A" wherever it stands goes last.

    Args:
      path: the file.
      reserved: folded names that no step may have, since other columns have them.

    Raises:
      BadInput: the file is not such a list, a step's options cannot be used, or two steps have the same name.
    """
    if not path.is_file():
        raise BadInput(f"{path}: found no ordinary file; {_ACCEPTED}")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); {_ACCEPTED}") from error
    if len(content) > _MAX_BYTES:
        raise BadInput(f"{path}: found more than {_MAX_BYTES} bytes; {_ACCEPTED}")
    try:
        entries = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"), type=list[_FileStep])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: {error}; {_ACCEPTED}") from error
    try:
        chain = Chain(tuple(Step(entry.name, entry.question, read_options(entry.options)) for entry in entries))
    except BadInput as error:
        raise BadInput(f"{path}: {error}") from error
    names = [fold_column(step.name) for step in chain.steps]
    if len(set(names)) != len(names) or "" in names or not reserved.isdisjoint(names):
        found = [step.name[:80] for step in chain.steps]
        raise BadInput(f"{path}: found step names {found}, accepted are distinct ones that no other column has")
    return chain
