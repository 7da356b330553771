"""Writers of a run beside its log: opened by name from the extras, guarded, resumed by the ids in `loggers.json`."""

import contextlib
import dataclasses
import importlib.util
import json
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.extras import find_extra
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.host.text import install_extra, one_line
from stepcot_jax.run.sections import LoggerSettings
from stepcot_jax.run.settings import PLACES, Settings
from stepcot_jax.training.log import Logger

IDS_FILE = "loggers.json"
"""The id of the run of each logger, by the logger's name."""

_PRIVATE = frozenset({*PLACES, "rewards.judge_url"})  # an address may have a password
_PASSWORD = re.compile(r"//[^/@\s]*@")  # of an address, which libraries quote in their errors


def check_loggers(settings: LoggerSettings) -> None:
    """Refuse loggers whose packages are missing, before anything is loaded."""
    for name in settings.names:
        if importlib.util.find_spec(find_extra("writer", name, packages=name).package) is None:
            raise BadInput(f"config.loggers.names: {name!r} is not installed: {install_extra(name)}")


def open_loggers(
    workdir: pathlib.Path, settings: Settings, *, name: str = "", say: Callable[[str], None]
) -> list[Logger]:
    """Open the loggers of the settings; one that fails is named and left out."""
    path, found = workdir / IDS_FILE, list[Logger]()
    ids = read_json(path, dict[str, str], accepted="expected the ids of a run's loggers") if path.is_file() else {}
    own = settings.loggers
    title = own.run or name or workdir.resolve().name
    for logger in own.names:
        guarded = _Guarded(logger, say)
        with guarded.guard("cannot be opened"):
            guarded.logger = find_extra("writer", logger, packages=logger)(
                workdir,
                project=own.project,
                title=title,
                is_offline=own.mode == "offline",
                run_id=ids.get(logger),
                settings=describe_settings(settings),
            )
            ids[logger] = guarded.logger.id
            write_whole(path, (json.dumps(ids) + "\n").encode())
            say(f"{logger}: {guarded.logger.place}")
            found.append(guarded)
    return found


def describe_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings by full name without "config.", leaving out paths and addresses."""
    found: dict[str, Any] = {}

    def walk(tree: Mapping[str, Any], prefix: str) -> None:
        for name, value in tree.items():
            if isinstance(value, Mapping):
                walk(value, f"{prefix}{name}.")
            elif f"{prefix}{name}" not in _PRIVATE:
                found[f"{prefix}{name}"] = value

    walk(dataclasses.asdict(settings), "")
    return found


class _Guarded:
    """A logger that stops at its first failure, says so once, and never stops the run."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self.logger: Any = None
        self._name, self._say = name, say

    def write(self, numbers: Mapping[str, float], *, step: int) -> None:
        """Write numbers, if nothing has failed yet."""
        if self.logger is not None:
            with self.guard("no longer gets numbers"):
                self.logger.write(numbers, step=step)

    def close(self) -> None:
        """End the logger's run."""
        logger, self.logger = self.logger, None
        if logger is not None:
            with self.guard("could not be closed"):
                logger.close()

    @contextlib.contextmanager
    def guard(self, what: str) -> Iterator[None]:
        """Say what failed, and drop the logger."""
        try:
            yield
        except Exception as error:  # of the network, the server, the disk: each library has its own kinds
            self.logger = None
            reason = _PASSWORD.sub("//", one_line(error))
            self._say(
                f"warning: {self._name} {what} ({type(error).__name__}: {reason}); training goes on, and metrics.jsonl "
                "has every number"
            )
