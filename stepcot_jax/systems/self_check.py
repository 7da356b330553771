"""Self-check in GRPO: a wrong first attempt is checked by the policy and tried again (MEDSAGE: Eq. 8 to 12).

`attempts` says who gets which advantage.
"""

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

# Completions with a self-check: the kinds of their tokens, and who gets which advantage (MEDSAGE: Eq. 8 to 12).


NOTHING, FIRST, GIVEN, CHECK, CLOSE, SECOND = range(6)
"""Kinds of the tokens of a completion: padding, first attempt, not sampled, check, </CHECK>, second attempt."""


class Attempts(NamedTuple):
    """Completions with checks; "own" rows are those of this process.

    Attributes:
      tokens: int32 [row, rollout, token], padded with the stop token.
      log_probs: float32 [row, rollout, token], of sampled tokens; 0 elsewhere.
      last: int32 [row, rollout, token], the last attempt alone, padded with the stop token; empty without one.
      ended: bool [row, rollout], whether the last attempt was not cut.
    """

    tokens: Int[np.ndarray, "row rollout token"]
    log_probs: Float[np.ndarray, "row rollout token"]
    kinds: Int[np.ndarray, "row rollout token"]
    last: Int[np.ndarray, "row rollout attempt_token"]
    ended: Bool[np.ndarray, "row rollout"]

    @property
    def counted(self) -> Bool[np.ndarray, "row rollout token"]:
        """Sampled tokens."""
        found: np.ndarray = (self.kinds != NOTHING) & (self.kinds != GIVEN)
        return found

    @property
    def checks(self) -> Bool[np.ndarray, "row rollout token"]:
        """Tokens of the self-check, m of Eq. 12."""
        found: np.ndarray = (self.kinds == CHECK) | (self.kinds == CLOSE)
        return found


def token_advantages(
    relative: Float[np.ndarray, "row rollout"],
    *,
    kinds: Int[np.ndarray, "row rollout token"],
    wrong: Bool[np.ndarray, "row rollout"],
    settings: SelfCheckOptions,
) -> Float[np.ndarray, "row rollout token"]:
    """Return the outcome advantage of each token, float32; see the table above."""
    keeps = np.ones_like(wrong) if settings.first_attempt == "outcome" else ~wrong
    gets = (kinds == SECOND) | ((kinds == FIRST) & keeps[..., None])
    return np.where(gets, relative[..., None], 0).astype(np.float32)


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


_AFTER_CHECK, _AFTER_FIRST = 2**31 - 2, 2**31 - 3  # folded into a rollout's key; no place of a token is as large


@dataclasses.dataclass
class SelfCheck:
    """Samples checks and second attempts.

    Attributes:
      longest_check: tokens of a check, marks left aside.
    """

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
        """Return the completions of this process's prompts.

        Args:
          replies: first attempts, [row, rollout, token].
          wrong: whether a first attempt is tried again; others get neither check nor second attempt.
        """
        tokens, log_probs, counted = (np.asarray(each) for each in replies)
        rows = [
            _Row(tokens[place][counted[place]], log_probs[place][counted[place]]) for place in np.ndindex(wrong.shape)
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
                row.give(np.concatenate([[] if row.has_ended(self.stops) else [self.stop], opens]))
        contexts = [np.concatenate([prompts[place], row.tokens]) for place, row in zip(of_prompt, rows, strict=True)]
        found = self._sample(self._check, state, batch, contexts, ~wrong)
        closed = []
        for row, again, tokens, log_probs in zip(rows, wrong, *found, strict=True):
            place = self.marks.find_close(tokens.tolist()) if again else -1
            closed.append(place >= 0)
            if not again:
                continue
            end = len(tokens) if place < 0 else place
            row.add(CHECK, tokens[:end], log_probs[:end])
            if place >= 0:
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
        found = self._sample(self._second, state, batch, contexts, ~np.array(closed))
        for row, has_closed, tokens, log_probs in zip(rows, closed, *found, strict=True):
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
        own = slice(jax.process_index() * number * group, (jax.process_index() + 1) * number * group)
        counted = replies.counted[own]
        tokens = [row[kept] for row, kept in zip(replies.tokens[own], counted, strict=True)]
        return tokens, [row[kept] for row, kept in zip(replies.log_probs[own], counted, strict=True)]

    def _stack(self, rows: list["_Row"], shape: tuple[int, ...]) -> Attempts:
        tokens, kinds = (
            np.full((len(rows), self.length), self.stop, np.int32),
            np.zeros((len(rows), self.length), np.int8),
        )
        log_probs = np.zeros((len(rows), self.length), np.float32)
        last, ended = np.full((len(rows), self.length), self.stop, np.int32), np.zeros(len(rows), bool)
        for place, row in enumerate(rows):
            end = len(row.tokens)
            tokens[place, :end], kinds[place, :end], log_probs[place, :end] = row.tokens, row.kinds, row.log_probs
            attempt = row.tokens[row.kinds == (SECOND if (row.kinds == GIVEN).any() else FIRST)]
            last[place, : len(attempt)] = attempt
            ended[place] = row.has_ended(self.stops)
        return Attempts(*(each.reshape(*shape, *each.shape[1:]) for each in (tokens, log_probs, kinds, last, ended)))


def second_keys(key: Array, *, stream: int, number: int) -> UInt32[Array, "rollout 2"]:
    """Return keys of second samples, folded from those of the rollouts: the same on any number of devices."""

    def fold(own: Array) -> Array:
        return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(own), stream))

    found: Array = jax.vmap(fold)(rollout_keys(key, first=0, number=number))
    return found


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

    def give(self, tokens: np.ndarray) -> None:
        """Add tokens that were not sampled."""
        self.add(GIVEN, tokens, np.zeros(len(tokens), np.float32))

    def has_ended(self, stops: tuple[int, ...]) -> bool:
        """Whether a stop token is the last."""
        return bool(len(self.tokens) and self.tokens[-1] in stops)
