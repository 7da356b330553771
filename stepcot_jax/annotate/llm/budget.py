"""The spending cap: each request reserves its upper bound first, so that spending never exceeds the cap."""

import asyncio

from stepcot_jax.host.errors import BadInput, RunStopped


class Budget:
    """Tokens of all models of a run and of earlier runs into the same folder, at most `cap` (None: no cap)."""

    def __init__(self, cap: int | None) -> None:
        self.cap = cap
        self.num_spent = self._num_reserved = 0
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
        """Reserve the upper bound of a request's cost, waiting while requests in flight may still release enough."""
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
