"""Completions with a self-check: the kinds of their tokens, and who gets which advantage (MEDSAGE: Eq. 8 to 12).

The completion that is trained is first attempt, stop, <CHECK>, check, </CHECK>, second attempt, stop. Who gets what:

| first, second answer | first attempt | check | second attempt |
|---|---|---|---|
| right, none | A | - | - |
| wrong, right | 0 | alpha | A |
| wrong, wrong | 0 | 0 | A |

A is relative to the group's rewards of each completion's last attempt. With `first_attempt` "outcome" a wrong first
attempt gets A too. What is given, not sampled, does not count: <CHECK>, and the stop of an attempt that was cut.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from stepcot_jax.settings.policy_sections import SelfCheckSettings

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
    settings: SelfCheckSettings,
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
