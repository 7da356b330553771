"""Self-check in GRPO: a wrong first attempt is checked by the policy and tried again (MEDSAGE: Eq. 8 to 12)."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from stepcot_jax.policies.policy import AnyPolicy, policy_params
from stepcot_jax.policies.records import CheckMarks
from stepcot_jax.policies.sampling import Replies, Sampling, generate
from stepcot_jax.policies.tokenizers import Tokenizer
from stepcot_jax.systems.options import SelfCheckOptions
from stepcot_jax.systems.sft import POLICY, Batch, Normalise
from stepcot_jax.training.devices import Devices
from stepcot_jax.training.state import TrainState

# Completions with a self-check: the kinds of their tokens and their advantages (MEDSAGE: Eq. 8 to 12).


NOTHING, FIRST, GIVEN, CHECK, CLOSE, SECOND = range(6)
"""Kinds of the tokens of a completion: padding, first attempt, not sampled, check, </CHECK>, second attempt."""


class Attempts(NamedTuple):
    """Completions with checks, of the prompts of this process; `last` is the last attempt alone, empty without one."""

    tokens: Int[np.ndarray, "row rollout token"]
    log_probs: Float[np.ndarray, "row rollout token"]
    kinds: Int[np.ndarray, "row rollout token"]
    last: Int[np.ndarray, "row rollout attempt_token"]
    ended: Bool[np.ndarray, "row rollout"]

    @property
    def counted(self) -> Bool[np.ndarray, "row rollout token"]:
        """Sampled tokens."""
        return (self.kinds != NOTHING) & (self.kinds != GIVEN)

    @property
    def checks(self) -> Bool[np.ndarray, "row rollout token"]:
        """Tokens of the self-check, m of Eq. 12."""
        return (self.kinds == CHECK) | (self.kinds == CLOSE)


def token_advantages(
    relative: Float[np.ndarray, "row rollout"],
    *,
    kinds: Int[np.ndarray, "row rollout token"],
    wrong: Bool[np.ndarray, "row rollout"],
    settings: SelfCheckOptions,
) -> Float[np.ndarray, "row rollout token"]:
    """Return the outcome advantage of each token, float32.

    Second attempts have it, and first attempts that are right; with `first_attempt="outcome"` all first attempts.
    Other tokens have 0.
    """
    keeps = np.ones_like(wrong) if settings.first_attempt == "outcome" else ~wrong
    has_advantage = (kinds == SECOND) | ((kinds == FIRST) & keeps[..., None])
    return np.where(has_advantage, relative[..., None], 0).astype(np.float32)


def describe_checks(
    *,
    wrong: Bool[np.ndarray, "prompt rollout"],
    success: Bool[np.ndarray, "prompt rollout"],
    first: Float[np.ndarray, "prompt rollout"],
) -> dict[str, float]:
    """Return the numbers of all processes' checks for the log."""
    scored = first[np.isfinite(first)]
    return {
        "rollouts/self_check_rate": float(wrong.mean()),
        "rollouts/self_check_success": float(success.sum() / wrong.sum()) if wrong.any() else float("nan"),
        "rollouts/first_answer": float(scored.mean()) if scored.size else float("nan"),
    }


_AFTER_CHECK, _AFTER_FIRST = 2**31 - 2, 2**31 - 3  # folded into a rollout's key; no token position is as large


@dataclasses.dataclass
class SelfCheck:
    """Samples checks and second attempts."""

    policy: AnyPolicy
    normalise: Normalise
    tokenizer: Tokenizer
    devices: Devices
    settings: SelfCheckOptions
    group_size: int
    temperature: float
    longest: int
    longest_check: int

    def __post_init__(self) -> None:
        self.marks = CheckMarks.of(self.tokenizer)
        self.stop = int(self.tokenizer.stop)
        self.stops = (self.stop, *self.tokenizer.more_stops)
        self.hides_check = self.settings.context == "first"
        of_check = self.longest_check + len(self.marks.closes)
        self.length = self.longest + 1 + len(self.marks.opens) + of_check + self.longest
        after_check = of_check if self.hides_check else of_check + self.longest
        lengths = {_AFTER_CHECK: after_check, _AFTER_FIRST: self.longest}
        self._samplers = {stream: self._make_sampler(length, stream) for stream, length in lengths.items()}
        self._plans = dict[int, tuple[Any, int]]()  # compiled samplers, and the rows of a process that each takes

        def embed(params: Any, images: Array) -> Any:
            return self.policy.apply({"params": params}, self.normalise(images), method="embed_images")

        # Once a prompt; the rows of a chunk take theirs, whatever device has them.
        self._embed = jax.jit(embed, out_shardings=self.devices.replicated)

    def _make_sampler(self, longest: int, stream: int) -> Any:
        more = self.tokenizer.more_stops
        sampling = Sampling(longest=longest, stop=self.stop, more_stops=more, temperature=self.temperature)

        def sample(params: Any, images: Any, rows: Mapping[str, Array], key: Array) -> Replies:
            return generate(
                self.policy,
                params,
                jax.tree.map(lambda vectors: vectors[rows["rollouts"] // self.group_size], images),
                rows["prompts"],
                rows["lengths"],
                sampling=sampling,
                keys=second_keys(key, stream=stream, rollouts=rows["rollouts"]),
                skipped=rows["skipped"],
            )

        return jax.jit(sample, out_shardings=self.devices.replicated)

    def try_again(
        self, state: TrainState, batch: Batch, replies: Replies, wrong: Bool[np.ndarray, "row rollout"]
    ) -> Attempts:
        """Return the completions of this process's prompts, with checks and second attempts after wrong first ones."""
        tokens, log_probs, counted = (np.asarray(values) for values in replies)
        rows = [
            _Row(tokens[index][counted[index]], log_probs[index][counted[index]]) for index in np.ndindex(wrong.shape)
        ]
        if self.devices.gather_rows({"wrong": wrong})["wrong"].any():
            prompts = [row[:length] for row, length in zip(batch["prompts"], batch["lengths"], strict=True)]
            contexts = [np.repeat(np.arange(len(prompts)), self.group_size), wrong.ravel()]
            self._add_checks(state, batch, prompts, rows, contexts)
        return self._stack(rows, wrong.shape)

    def _add_checks(
        self, state: TrainState, batch: Batch, prompts: list[np.ndarray], rows: list["_Row"], which: list[np.ndarray]
    ) -> None:
        of_prompt, wrong = which
        opens, closes = (np.array(marks, np.int32) for marks in (self.marks.opens, self.marks.closes))
        for row, again in zip(rows, wrong, strict=True):
            if again:
                row.add_given(np.concatenate([[] if row.has_ended(self.stops) else [self.stop], opens]))
        contexts = [np.concatenate([prompts[index], row.tokens]) for index, row in zip(of_prompt, rows, strict=True)]
        params = policy_params(state.params, POLICY)
        images = self._embed(params, self.devices.put_rows({"images": batch["images"]})["images"])
        width = batch["prompts"].shape[1] + self.longest + 1 + len(opens) + len(closes)
        given = _Given(params, images, state.key_of_update(), width)
        sampled = self._sample(_AFTER_CHECK, given, contexts, wrong)
        closed = []
        for row, again, tokens, log_probs in zip(rows, wrong, *sampled, strict=True):
            close = self.marks.find_close(tokens.tolist()) if again else -1
            closed.append(close >= 0)
            if not again:
                continue
            end = len(tokens) if close < 0 else close
            row.add(CHECK, tokens[:end], log_probs[:end])
            if close >= 0:
                after = end + len(closes)
                row.add(CLOSE, tokens[end:after], log_probs[end:after])
                if not self.hides_check:
                    row.add(SECOND, tokens[after:], log_probs[after:])
        if not self.hides_check or not self.devices.gather_rows({"closed": np.array(closed)})["closed"].any():
            return
        contexts = [
            np.concatenate([context, closes]) if has_closed else context
            for context, has_closed in zip(contexts, closed, strict=True)
        ]
        sampled = self._sample(_AFTER_FIRST, given, contexts, np.array(closed))
        for row, has_closed, tokens, log_probs in zip(rows, closed, *sampled, strict=True):
            if has_closed:
                row.add(SECOND, tokens, log_probs)

    def _sample(
        self, stream: int, given: "_Given", contexts: list[np.ndarray], chosen: np.ndarray
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return sampled tokens and log-probabilities of this process's rollouts; none of those that are not chosen."""
        program, size = self._plan(stream, given, len(contexts))
        rest, first = np.flatnonzero(chosen), jax.process_index() * size
        most = self.devices.gather_rows({"number": np.array([len(rest)])})["number"].max()
        tokens, log_probs = ([np.zeros(0, dtype)] * len(contexts) for dtype in (np.int32, np.float32))
        for start in range(0, int(most), size):
            places = rest[start : start + size]
            rows = self._put_chunk(contexts, places, size, given.width)
            replies: Replies = jax.device_get(program(given.params, given.images, rows, given.key))
            for row, place in enumerate(places, start=first):
                kept = replies.counted[row]
                tokens[place], log_probs[place] = replies.tokens[row][kept], replies.log_probs[row][kept]
        return tokens, log_probs

    def _plan(self, stream: int, given: "_Given", number: int) -> tuple[Any, int]:
        """Return the compiled sampler and the rows of a process that it takes: as many as memory has room for."""
        if stream in self._plans:
            return self._plans[stream]
        free = self.devices.gather_rows({"free": np.array([_free_bytes()], np.float32)})["free"].min()
        shares, unit = self.devices.num_shares, self.devices.num_shares // jax.process_count()
        size = min(-(-self.settings.chunk // shares) * unit or number, number)
        while True:
            rows = self._put_chunk([], np.zeros(0, int), size, given.width)
            program = self._samplers[stream].lower(given.params, given.images, rows, given.key).compile()
            needed = program.memory_analysis().temp_size_in_bytes
            if self.settings.chunk or needed <= free or size == unit:
                break
            size = max(min(int(size * free / needed), size - unit) // unit * unit, unit)
        self._plans[stream] = program, size
        return program, size

    def _put_chunk(self, contexts: list[np.ndarray], places: np.ndarray, size: int, width: int) -> dict[str, Array]:
        """Put some of this process's contexts on the devices, filled up with rows that are skipped."""
        rows = {
            "prompts": np.full((size, width), self.stop, np.int32),
            "lengths": np.ones(size, np.int32),
            "rollouts": np.zeros(size, np.int32),
            "skipped": np.arange(size) >= len(places),
        }
        for row, place in enumerate(places):
            rows["lengths"][row] = length = len(contexts[place])
            rows["prompts"][row, :length] = contexts[place]
            rows["rollouts"][row] = jax.process_index() * len(contexts) + place
        return self.devices.put_rows(rows)

    def _stack(self, rows: list["_Row"], shape: tuple[int, ...]) -> Attempts:
        tokens, kinds = (
            np.full((len(rows), self.length), self.stop, np.int32),
            np.zeros((len(rows), self.length), np.int8),
        )
        log_probs = np.zeros((len(rows), self.length), np.float32)
        last, ended = np.full((len(rows), self.length), self.stop, np.int32), np.zeros(len(rows), bool)
        for index, row in enumerate(rows):
            end = len(row.tokens)
            tokens[index, :end], kinds[index, :end], log_probs[index, :end] = row.tokens, row.kinds, row.log_probs
            attempt = row.tokens[row.kinds == (SECOND if (row.kinds == GIVEN).any() else FIRST)]
            last[index, : len(attempt)] = attempt
            ended[index] = row.has_ended(self.stops)
        return Attempts(*(array.reshape(*shape, *array.shape[1:]) for array in (tokens, log_probs, kinds, last, ended)))


def _free_bytes() -> float:
    """Return nine tenths of what is free on the fullest device of this process; infinite where unknown, as on CPUs."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    return 0.9 * min(one["bytes_limit"] - one["bytes_in_use"] if "bytes_limit" in one else math.inf for one in stats)


def second_keys(key: Array, *, stream: int, rollouts: Int[Array, "rollout"]) -> UInt32[Array, "rollout 2"]:
    """Return keys of second samples, folded from those of the rollouts: the same in any chunk, on any device."""

    def fold(rollout: Array) -> Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.fold_in(key, rollout), stream))

    return jax.vmap(fold)(rollouts)


class _Given(NamedTuple):
    """What all chunks of an update share: parameters, the prompts' images as vectors, key, tokens of a context."""

    params: Any
    images: Any
    key: Array
    width: int


class _Row:
    """A completion that grows."""

    def __init__(self, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        self.tokens, self.log_probs = np.zeros(0, np.int32), np.zeros(0, np.float32)
        self.kinds = np.zeros(0, np.int8)
        self.add(FIRST, tokens, log_probs)

    def add(self, kind: int, tokens: np.ndarray, log_probs: np.ndarray) -> None:
        self.tokens = np.concatenate([self.tokens, tokens]).astype(np.int32)
        self.log_probs = np.concatenate([self.log_probs, log_probs]).astype(np.float32)
        self.kinds = np.concatenate([self.kinds, np.full(len(tokens), kind, np.int8)])

    def add_given(self, tokens: np.ndarray) -> None:
        """Add tokens that were not sampled."""
        self.add(GIVEN, tokens, np.zeros(len(tokens), np.float32))

    def has_ended(self, stops: tuple[int, ...]) -> bool:
        """Return whether the last token is a stop token."""
        return bool(len(self.tokens) and self.tokens[-1] in stops)
