"""Cached runs that tables are made from, keyed by the digest of their settings."""

import contextlib
import dataclasses
import functools
import gc
import hashlib
import io
import json
import operator
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.predictions import SplitPredictions, read_predictions
from stepcot_jax.host.download import find_path, is_address, name_source
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, try_lock
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.places import Place
from stepcot_jax.run.settings import MAY_CHANGE, Settings, load_settings
from stepcot_jax.run.stored import read_reading

UNIMPORTANT = tuple(sorted(key.removeprefix("config.") for key in MAY_CHANGE))
"""Keys that change the results of a run by rounding at most; cells that differ only in them are one cell."""

RECORDS_FILE = "records.sha256"
_POLL_SECONDS = 2.0
_OF_RECORDS = (".json", ".jsonl", ".csv", ".tsv", ".xlsx", ".parquet")


def vary(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return the settings with some keys changed, and validated."""
    return load_settings(dataclasses.asdict(settings), **changes)


@dataclasses.dataclass(frozen=True)
class Cell:
    """One run that tables are made from."""

    name: str
    settings: Settings  # of the run, including its seed
    prepare: Callable[[], None] | None = dataclasses.field(default=None, compare=False)  # makes inputs of the run
    files: tuple[str, ...] = ()  # that `further` makes
    # content of more files by name, from the folder of the finished run
    further: Callable[[pathlib.Path], Mapping[str, bytes]] | None = dataclasses.field(default=None, compare=False)


class Cells:
    """The cells below a workdir."""

    def __init__(self, workdir: pathlib.Path | str, terminal: Terminal) -> None:
        self._is_remote, self._terminal = is_address(workdir), terminal
        self.address = str(workdir).rstrip("/") if self._is_remote else str(workdir)
        self.workdir = self._open("cells").folder if self._is_remote else pathlib.Path(workdir)

    def digest(self, cell: Cell) -> str:
        """Return the digest of a cell's settings without the `UNIMPORTANT` ones."""
        settings = dataclasses.asdict(cell.settings)
        for key in UNIMPORTANT:
            *groups, name = key.split(".")
            functools.reduce(operator.getitem, groups, settings).pop(name)
        root = pathlib.PurePosixPath(name_source(self.address))
        for section, name in (("image_encoder", "weights"), ("policy", "start")):
            path = pathlib.PurePosixPath(name_source(settings[section][name]))
            if settings[section][name] and path.is_relative_to(root):
                # The workdir may be moved.
                settings[section][name] = f"in the workdir: {path.relative_to(root)}"
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    def folder(self, cell: Cell) -> pathlib.Path:
        """Return the folder of this machine with the files of a cell's run."""
        source = f"cells/{self.digest(cell)}"
        return self._open(source).folder if self._is_remote else self.workdir / source

    def source(self, cell: Cell) -> str:
        """Return the workdir of a cell's run, as settings name it."""
        return self.name(f"cells/{self.digest(cell)}")

    def name(self, part: str) -> str:
        """Return the path or the address of a part of the workdir, such as "features"."""
        return f"{self.address}/{part}" if self._is_remote else str(self.workdir / part)

    def _open(self, part: str) -> Place:
        return Place(self.name(part), say=self._terminal.say)

    def make_folder(self, name: str, make: Callable[[pathlib.Path], None]) -> None:
        """Make a folder that cells read, such as an encoder's, unless it is there."""
        place = self._open(name)
        place.bring()
        make(place.folder)
        place.finish()

    def is_finished(self, cell: Cell) -> bool:
        """Return whether the cell has its report and predictions, or replies."""
        folder = self.folder(cell)
        return all((folder / name).is_file() for name in ("report.json", *cell.settings.trains.files, *cell.files))

    def run(self, cells: Sequence[Cell]) -> None:
        """Run the unfinished cells in order, each once; interrupted ones resume.

        Several processes of one machine share the cells: each leaves those that another has begun, and comes back to
        them at the end, in case that process is killed.
        """
        by_digest = {self.digest(cell): cell for cell in reversed(cells)}  # of equal ones the first stays
        wanted = [cell for cell in cells if by_digest.get(self.digest(cell)) is cell]
        if self._is_remote:
            for cell in wanted:
                self._open(f"cells/{self.digest(cell)}").bring()
        waiting = [cell for cell in wanted if not self.is_finished(cell)]
        for cell in wanted:
            self._check_records(cell)
        self._terminal.say(f"{len(wanted)} cells, {len(wanted) - len(waiting)} of them finished")
        start, left, ran = time.monotonic(), list(waiting), 0
        while left:
            taken = []
            for cell in left:
                lock = self.workdir / "locks" / self.digest(cell)
                lock.parent.mkdir(parents=True, exist_ok=True)
                with try_lock(lock) as is_held:
                    if not is_held:
                        taken.append(cell)
                    elif not self.is_finished(cell):
                        minutes = (time.monotonic() - start) / 60 / max(ran, 1)
                        todo = sum(not self.is_finished(other) for other in waiting)
                        remaining = f", about {minutes * todo:.0f} min left" if ran else ""
                        number, name = waiting.index(cell) + 1, f"{cell.name}, seed {cell.settings.seed}"
                        self._terminal.say(f"cell {number} of {len(waiting)}{remaining}: {name}")
                        try:
                            self._run(cell)
                        except BadInput as error:
                            raise BadInput(f"cell {cell.name!r} in {self.source(cell)}: {error}") from None
                        ran += 1
            if taken == left:
                time.sleep(_POLL_SECONDS)
            left = taken

    def _check_records(self, cell: Cell) -> None:
        """Refuse a cell whose records have changed since it started: its settings hold only their path."""
        path, (_, root) = self.folder(cell) / RECORDS_FILE, _record_root(cell.settings)
        if root and path.is_file() and path.read_text("utf-8").strip() != digest_records(cell.settings):
            raise BadInput(
                f"cell {cell.name!r} in {self.source(cell)}: the records in {root} have changed since it ran; restore "
                "them or use a new --workdir"
            )

    def _run(self, cell: Cell) -> None:
        # Imported here: a table of finished cells needs no training.
        import jax

        from stepcot_jax.host.machine import release_freed_memory
        from stepcot_jax.run.training_run import Run

        if cell.prepare is not None:
            cell.prepare()
        records = digest_records(cell.settings)
        with contextlib.redirect_stdout(io.StringIO()):  # the tables have the same figures
            run = Run(vary(self.share_features(cell.settings), {"resume": True}), self.source(cell))
            if records:
                run.place.write(RECORDS_FILE, f"{records}\n".encode())
            run.execute()
            for name, content in cell.further(run.workdir).items() if cell.further is not None else ():
                run.place.write(name, content)
        if not self.is_finished(cell):
            raise RuntimeError(f"{self.source(cell)}: a run ended without its report, predictions or replies")
        gc.collect()
        jax.clear_caches()  # else the programs of every cell stay in memory
        release_freed_memory()

    def share_features(self, settings: Settings) -> Settings:
        """Return the settings with a folder of features that all cells share, unless they name one."""
        return vary(settings, {"features.folder": settings.features.folder or self.name("features")})

    def chain(self, cell: Cell) -> Chain:
        """Return the steps of a finished cell."""
        return read_reading(self.folder(cell)).chain

    def predictions(self, cell: Cell, split: str = "test") -> SplitPredictions:
        """Return the predictions of a finished cell on a split, of each network's best weights."""
        return read_predictions(self.folder(cell) / "predictions" / f"{split}.npz", self.chain(cell))


def _record_root(settings: Settings) -> tuple[str, str]:
    if settings.trains_policy:
        return "config.vqa.root", settings.vqa.root
    return "config.data.root", settings.data.root


def digest_records(settings: Settings) -> str:
    """Return the hex digest of names and content of the record files at the top of the data root; "" without one."""
    key, source = _record_root(settings)
    if not source:
        return ""
    digest, root = hashlib.sha256(), find_path(source, key)
    files = root.iterdir() if root.is_dir() else [root] * root.is_file()
    for path in sorted(path for path in files if path.name.casefold().removesuffix(".gz").endswith(_OF_RECORDS)):
        if path.name.startswith("~$"):  # Excel's lock
            continue
        digest.update(f"{path.name}\nfile:{digest_file(path)[1]}\n".encode())
    return digest.hexdigest()
