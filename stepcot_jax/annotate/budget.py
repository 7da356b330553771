"""The spending cap: tokens are set apart before a request and settled after it, so that the cap is never passed."""

import asyncio
from pathlib import Path

import msgspec

from stepcot_jax.host.errors import BadInput, RunStopped


class Budget:
    """Tokens that a run may spend, over all its models, with what earlier runs into the same folder have spent.

    Args:
      cap: tokens in all; None where there is no cap.
      num_spent: tokens spent before.
    """

    def __init__(self, cap: int | None, *, num_spent: int = 0) -> None:
        self.cap = cap
        self.num_spent = num_spent
        self._num_reserved = 0
        self._changed = asyncio.Condition()
        self._stopped: RunStopped | BadInput | None = None

    @property
    def is_stopped(self) -> bool:
        """Whether further requests are refused."""
        return self._stopped is not None

    async def stop(self, why: RunStopped | BadInput) -> None:
        """Refuse every further request for this reason; those under way end as they end."""
        async with self._changed:
            self._stopped = self._stopped or why
            self._changed.notify_all()

    async def reserve(self, num_tokens: int) -> None:
        """Set tokens apart, waiting while requests under way may still leave enough.

        Args:
          num_tokens: an upper bound of what a request costs.

        Raises:
          RunStopped: what is left of the cap does not suffice, or the run was stopped.
          BadInput: the run was stopped by such.
        """
        async with self._changed:
            while self.cap is not None and self.num_spent + self._num_reserved + num_tokens > self.cap:
                if not self._num_reserved:
                    raise RunStopped(
                        f"--max-tokens: {self.num_spent} of {self.cap} tokens are spent and the next request may take "
                        f"{num_tokens}; every answer is in the ledger, the same command with a larger --max-tokens "
                        "goes on from there"
                    )
                await self._changed.wait()
            if self._stopped is not None:
                raise type(self._stopped)(str(self._stopped))
            self._num_reserved += num_tokens

    async def settle(self, reserved: int, *, num_spent: int) -> None:
        """Replace what was set apart by what was spent."""
        async with self._changed:
            self._num_reserved -= reserved
            self.num_spent += num_spent
            self._changed.notify_all()


class _Cost(msgspec.Struct):
    """What a line of a ledger says of its cost; the header, which costs nothing, says nothing of it."""

    prompt_tokens: int = 0
    answer_tokens: int = 0


def count_spent(ledger: Path) -> int:
    """Tokens that a ledger which this run does not use has cost: another model's, prompt's or setting's.

    Raises:
      BadInput: it cannot be read, or is damaged before its last line, so that what is left of the cap is not known.
    """
    accepted = "accepted with --max-tokens is a ledger as it was written"
    num_tokens, torn = 0, 0
    try:
        with ledger.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if torn:
                    raise BadInput(f"{ledger}: line {torn}: found a line that is no entry of a ledger, {accepted}")
                try:
                    cost = msgspec.json.decode(line, type=_Cost)
                except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                    torn = number
                    continue
                num_tokens += cost.prompt_tokens + cost.answer_tokens
    except OSError as error:
        raise BadInput(f"{ledger}: cannot be read ({error.strerror}), {accepted}") from None
    return num_tokens
