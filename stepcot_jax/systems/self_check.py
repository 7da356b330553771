"""Self-check in GRPO: a wrong first attempt is checked by the policy and tried again (MEDSAGE: Eq. 8 to 12)."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from stepcot_jax.policies.policy import AnyPolicy, policy_params
from stepcot_jax.policies.records import CheckMarks
from stepcot_jax.policies.sampling import Replies, Sampling, generate, rollout_keys
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
        self._check = self._make_sampler(after_check, _AFTER_CHECK)
        self._second = self._make_sampler(self.longest, _AFTER_FIRST)

    def _make_sampler(self, longest: int, stream: int) -> Any:
        more = self.tokenizer.more_stops
        sampling = Sampling(longest=longest, stop=self.stop, more_stops=more, temperature=self.temperature)

        def sample(params: Any, rows: Mapping[str, Array], key: Array) -> Replies:
            return generate(
                self.policy,
                params,
                jax.numpy.repeat(self.normalise(rows["images"]), self.group_size, axis=0),
                rows["prompts"].reshape(-1, rows["prompts"].shape[-1]),
                rows["lengths"].reshape(-1),
                sampling=sampling,
                keys=second_keys(key, stream=stream, number=rows["lengths"].size),
                skipped=rows["skipped"].reshape(-1),
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
        sampled = self._sample(self._check, state, batch, contexts, ~wrong)
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
        sampled = self._sample(self._second, state, batch, contexts, ~np.array(closed))
        for row, has_closed, tokens, log_probs in zip(rows, closed, *sampled, strict=True):
            if has_closed:
                row.add(SECOND, tokens, log_probs)

    def _sample(
        self, sampler: Any, state: TrainState, batch: Batch, contexts: list[np.ndarray], skipped: np.ndarray
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the sampled tokens of each of this process's rollouts, and their log-probabilities."""
        number, group = len(batch["lengths"]), self.group_size
        marks = len(self.marks.opens) + len(self.marks.closes)
        padded = np.full((len(contexts), batch["prompts"].shape[1] + self.longest + 1 + marks), self.stop, np.int32)
        for row, context in zip(padded, contexts, strict=True):
            row[: len(context)] = context
        lengths = np.array([len(context) for context in contexts], np.int32)
        rows = {
            "images": batch["images"],
            "prompts": padded.reshape(number, group, -1),
            "lengths": lengths.reshape(number, group),
            "skipped": skipped.reshape(number, group),
        }
        replies: Replies = jax.device_get(
            sampler(policy_params(state.params, POLICY), self.devices.put_rows(rows), state.key_of_update())
        )
        local = slice(jax.process_index() * number * group, (jax.process_index() + 1) * number * group)
        counted = replies.counted[local]
        tokens = [row[kept] for row, kept in zip(replies.tokens[local], counted, strict=True)]
        return tokens, [row[kept] for row, kept in zip(replies.log_probs[local], counted, strict=True)]

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


def second_keys(key: Array, *, stream: int, number: int) -> UInt32[Array, "rollout 2"]:
    """Return keys of second samples, folded from those of the rollouts: the same on any number of devices."""

    def fold(rollout_key: Array) -> Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(rollout_key), stream))

    return jax.vmap(fold)(rollout_keys(key, first=0, number=number))


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
