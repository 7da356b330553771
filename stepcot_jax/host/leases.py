"""One run at a time in a folder on a store: an object that its holder renews.

A store has no lock that ends with its process. The object is created only if there is none; one that is not renewed for
`LAPSE_SECONDS` was left by a process that was killed, and is replaced. No clocks of machines are compared.
"""

import contextlib
import os
import pathlib
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator

import msgspec

from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.stores import StoreError, StoreFolder

LEASE_FILE = "run.lock"

RENEW_SECONDS = 20.0
LAPSE_SECONDS = 120.0
SLOW_SECONDS = 1.0
_LOOK_SECONDS = 5.0


class _Holder(msgspec.Struct, frozen=True):
    """Content of the object."""

    host: str
    machine: str
    process: int
    token: str
    count: int = 0


class Lease:
    """The right to write to a folder on a store, of one process.

    It is no lock: see "Workdirs on a store" in docs/reliability.md for what may still happen.
    """

    def __init__(self, store: StoreFolder, *, say: Callable[[str], None]) -> None:
        self._store, self._say = store, say
        self._own = _Holder(socket.gethostname(), _describe_machine(), os.getpid(), secrets.token_hex(16))
        self._lost_to: _Holder | None = None
        self._slow_seconds, self._renewed = 0.0, 0.0

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lease within the context, renewed by a thread."""
        self._acquire()
        self._renewed = time.monotonic()
        with contextlib.ExitStack() as stack:
            stack.callback(self._release)
            if self._store.compares:
                self._renew(0)  # a server without conditional writes is refused here, not when the lease has lapsed
            ended = threading.Event()
            thread = threading.Thread(target=self._keep_renewing, args=(ended,), daemon=True, name="lease")
            thread.start()
            stack.callback(thread.join)
            stack.callback(ended.set)
            yield

    def _release(self) -> None:
        with contextlib.suppress(StoreError):  # it lapses
            if not self._slow_seconds and self._is_own(self._read()):
                self._store.remove([LEASE_FILE])

    def check(self) -> None:
        """Refuse to go on after another run has taken the lease."""
        if self._slow_seconds:
            raise RunStopped(
                f"{self._store.address}: a renewal of this run's lease took {self._slow_seconds:.0f} s, within which "
                "another run may have taken it; this run writes nothing more there"
            )
        found = self._lost_to or self._read()
        if not self._is_own(found):
            holder = "nobody" if found is None else f"process {found.process} of {found.host}"
            raise RunStopped(
                f"{self._store.address}: the lease of this run is held by {holder}; this run writes nothing more there "
                f"(it did not renew the lease for {LAPSE_SECONDS:.0f} s, or {LEASE_FILE} was removed)"
            )

    def _acquire(self) -> None:
        while not self._store.create(LEASE_FILE, msgspec.json.encode(self._own)):
            found = self._read()
            if self._is_own(found):  # the answer to the first request was lost, and it was repeated
                return
            if found is None or not (_has_ended(found) or self._lapses(found)):
                continue
            tag, now = self._store.tag(LEASE_FILE), self._read()
            if tag is None or now != found:
                continue
            if not self._store.compares:
                self._store.remove([LEASE_FILE])
            elif self._store.replace(LEASE_FILE, msgspec.json.encode(self._own), tag):
                return

    def _lapses(self, found: _Holder) -> bool:
        """Watch a lease; return True if nobody renews it, False if it is removed."""
        self._say(
            f"{self._store.address}: process {found.process} of {found.host} holds or left {LEASE_FILE}; waiting up to "
            f"{LAPSE_SECONDS:.0f} s to see whether it is renewed"
        )
        end = time.monotonic() + LAPSE_SECONDS
        while time.monotonic() < end:
            time.sleep(min(_LOOK_SECONDS, LAPSE_SECONDS / 10))
            now = self._read()
            if now is None:
                return False
            if now != found:
                raise BadInput(
                    f"{self._store.address}: in use by process {now.process} of {now.host} (one run at a time per "
                    "folder)"
                )
        return True

    def _keep_renewing(self, ended: threading.Event) -> None:
        count = 0
        while not ended.wait(RENEW_SECONDS) and self._lost_to is None and not self._slow_seconds:
            count += 1
            with contextlib.suppress(StoreError):  # tried again; `check` tells whether another took it meanwhile
                self._renew(count)

    def _renew(self, count: int) -> None:
        """Renew the lease if it is this process's own; another's is never overwritten knowingly.

        The tag is of the content that is read, or of an earlier one, which `replace` refuses then. Where the store
        cannot compare and write in one step, a slow request that ends after the lease has lapsed may have replaced
        another's.
        """
        tag, found = self._store.tag(LEASE_FILE), self._read()
        if tag is None or found is None:
            return
        if not self._is_own(found):
            self._lost_to = found
            return
        begun = time.monotonic()
        try:
            self._store.replace(LEASE_FILE, msgspec.json.encode(msgspec.structs.replace(self._own, count=count)), tag)
        finally:
            ended = time.monotonic()
            has_lapsed = ended - self._renewed > LAPSE_SECONDS
            if has_lapsed and ended - begun > SLOW_SECONDS and not self._store.compares:
                self._slow_seconds = ended - begun
        self._renewed = begun

    def _read(self) -> _Holder | None:
        content = self._store.read(LEASE_FILE)
        if content is None:
            return None
        try:
            return msgspec.json.decode(content, type=_Holder)
        except msgspec.DecodeError:
            raise StoreError(
                f"{self._store.address}/{LEASE_FILE}: not the lease of a run; expected a file that a run wrote, or none"
            ) from None

    def _is_own(self, found: _Holder | None) -> bool:
        return found is not None and found.token == self._own.token


def _describe_machine() -> str:
    """Return a name of this machine since its start, and of the container whose process numbers count."""
    try:
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {pathlib.Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _has_ended(holder: _Holder) -> bool:
    """Return whether the holder was a process of this machine that has ended: nobody needs to wait then."""
    if not holder.machine or holder.machine != _describe_machine():
        return False
    try:
        os.kill(holder.process, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
