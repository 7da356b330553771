"""A disk below a folder that is full, read-only or failing, for commands in this process."""

import builtins
import contextlib
import io
import os


class FailingDisk:
    """Lets the writes below a folder fail from a given one on; `failed` has the paths that they were for."""

    def __init__(self, folder, number, *, at="write", skip=0):
        self._folder, self._number, self._at, self._skip = os.path.realpath(folder), number, at, skip
        self.failed = []

    def _fails(self, path):
        if isinstance(path, int) or not os.path.realpath(os.fspath(path)).startswith(self._folder):
            return False
        self._skip -= 1
        if self._skip < 0:
            self.failed.append(os.fspath(path))
        return self._skip < 0

    def _error(self, *path):
        return OSError(self._number, os.strerror(self._number), *path)

    @contextlib.contextmanager
    def mounted(self):
        """Inside the context, the disk fails as a file is opened (`at` "open"), or behind half of what is written."""
        open_file, open_descriptor, disk = io.open, os.open, self

        class Failing(io.FileIO):
            def write(self, data, /):
                super().write(bytes(data)[: len(bytes(data)) // 2])
                raise disk._error()

        def opened(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *others, **named):
            is_unnamed = named.get("opener") is not None and self._at == "write"  # a probe of the folder
            if set(mode).isdisjoint("wax+") or is_unnamed or not self._fails(file):
                return open_file(file, mode, buffering, encoding, errors, newline, *others, **named)
            if self._at == "open":
                raise self._error(os.fspath(file))
            raw = Failing(file, mode.replace("b", "").replace("t", ""))
            binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, encoding, errors, newline)

        def opened_descriptor(path, flags, *others, **named):
            if self._at == "open" and flags & os.O_CREAT and self._fails(path):
                raise self._error(os.fspath(path))
            return open_descriptor(path, flags, *others, **named)

        builtins.open = io.open = opened
        os.open = opened_descriptor
        try:
            yield
        finally:
            builtins.open = io.open = open_file
            os.open = open_descriptor
