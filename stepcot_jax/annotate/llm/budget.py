"""The spending cap: each request reserves its upper bound first, so that spending never exceeds the cap."""

import asyncio
from pathlib import Path

import msgspec

from stepcot_jax.host.errors import BadInput, RunStopped


class Budget:
    """Tokens of all models of a run, including those of earlier runs into the same folder.

    Args:
      cap: most tokens in total; None for no cap.
      num_spent: tokens already spent.
    """

    def __init__(self, cap: int | None, *, num_spent: int = 0) -> None:
        self.cap = cap
        self.num_spent = num_spent
        self._num_reserved = 0
        self._changed = asyncio.Condition()
        self._stopped: RunStopped | BadInput | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether new requests are refused."""
        return self._stopped is not None

    async def stop(self, why: RunStopped | BadInput) -> None:
        """Refuse new requests for this reason; requests in flight finish."""
        async with self._changed:
            self._stopped = self._stopped or why
            self._changed.notify_all()

    async def reserve(self, num_tokens: int) -> None:
        """Reserve tokens, waiting while requests in flight may still release enough.

        Args:
          num_tokens: upper bound of the cost of a request.

        Raises:
          RunStopped: the rest of the cap does not suffice, or the run was stopped.
          BadInput: the run was stopped by this error.
        """
        async with self._changed:
            while self.cap is not None and self.num_spent + self._num_reserved + num_tokens > self.cap:
                if not self._num_reserved:
                    raise RunStopped(
                        f"--max-tokens: {self.num_spent} of {self.cap} tokens are spent and the next request may take "
                        f"{num_tokens}; every answer is in the ledger, rerun with a larger --max-tokens to resume"
                    )
                await self._changed.wait()
            if self._stopped is not None:
                raise type(self._stopped)(str(self._stopped))
            self._num_reserved += num_tokens

    async def settle(self, reserved: int, *, num_spent: int) -> None:
        """Replace a reservation by the actual cost."""
        async with self._changed:
            self._num_reserved -= reserved
            self.num_spent += num_spent
            self._changed.notify_all()


class _Cost(msgspec.Struct):
    """The cost in a line of a ledger; the header has none."""

    prompt_tokens: int = 0
    answer_tokens: int = 0


def count_spent(ledger: Path) -> int:
    """Return the tokens spent on a ledger of another model, prompt or setting.

    Raises:
      BadInput: the ledger cannot be read, or is damaged before its last line, so that its cost is unknown.
    """
    num_tokens, torn = 0, 0
    try:
        with ledger.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if torn:
                    raise BadInput(f"{ledger}, line {torn} is not a ledger entry; --max-tokens needs an intact ledger")
                try:
                    cost = msgspec.json.decode(line, type=_Cost)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    torn = number
                    continue
                num_tokens += cost.prompt_tokens + cost.answer_tokens
    except OSError as error:
        raise BadInput(f"{ledger} cannot be read ({error.strerror}); --max-tokens needs an intact ledger") from None
    return num_tokens
