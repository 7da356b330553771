"""Outcome-aware stage credit, which MEDSAGE's authors released as "SA-GRPO" (public code 4c8030a, not in the paper).

A token's advantage is its reply's advantage times a multiplier of its stage, for the visual analysis, the knowledge and
the conclusion; other tokens keep 1. Within the group of a prompt, with s_ij the similarity of two replies' texts of a
stage (ROUGE-L's F1), A_i the advantage of reply i, and a reply right if its answer earns exactly 1:

    d    = 1 - mean of s_ij over pairs of non-empty texts                       0 with fewer than two
    c_i  = clamp(mean of s_ij over other right replies - mean over other wrong ones, -1, 1)
                                                     0 where i has no text of the stage or either set is empty
    d'_i = clamp(d (1 + sign(A_i) c_i), 0, 1)                                   d itself for the conclusion
    m_i  = clamp(1 + mix (3 softmax(gamma d'_i over the stages) - 1), lower, upper)

and in at most four rounds what m_i lacks to the sum of 3 is spread equally over its entries that are at no bound.
"""

import bisect
import dataclasses
import itertools
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from stepcot_jax.policies.tokenizers import Tokenizer
from stepcot_jax.reasoning.dialects import find_stages
from stepcot_jax.reasoning.text_overlap import similarity

STAGES = ("visual", "knowledge", "conclusion")
"""The stages that have a multiplier."""

_WORD = re.compile(r"[\w.+-]+")
_ROUNDS, _ROUNDING = 4, 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageCredit:
    """The released constants."""

    gamma: float = 1.25
    mix: float = 0.25
    lower: float = 0.85
    upper: float = 1.15


def compare_texts(texts: Sequence[str]) -> Float[np.ndarray, "reply reply"]:
    """Return the similarity of each pair of texts."""
    words, found = [_WORD.findall(text.lower()) for text in texts], np.eye(len(texts))
    for one, other in itertools.combinations(range(len(texts)), 2):
        found[one, other] = found[other, one] = similarity(words[one], words[other])
    return found


def stage_multipliers(
    texts: Sequence[Sequence[str]],
    *,
    right: Bool[np.ndarray, "reply"],
    wrong: Bool[np.ndarray, "reply"],
    advantages: Float[np.ndarray, "reply"],
    settings: StageCredit = StageCredit(),
) -> Float[np.ndarray, "reply stage"]:
    """Return the multipliers of a group's replies.

    Args:
      texts: [reply, stage], the texts of `STAGES`; "" for none.
      right: replies whose answer earns exactly 1.
      wrong: the other replies with a score.
      advantages: of the replies within their group.
      settings: constants.
    """
    adjusted = np.zeros((len(texts), len(STAGES)))
    for stage, name in enumerate(STAGES):
        own = [reply[stage] for reply in texts]
        filled, alike = np.array([bool(text.strip()) for text in own]), compare_texts(own)
        pairs = np.outer(filled, filled) & ~np.eye(len(own), dtype=bool)
        disagreement = 1 - alike[pairs].mean() if pairs.any() else 0.0
        credit = np.zeros(len(own))
        if name != "conclusion":
            credit = np.where(filled, _credit(alike, right, wrong), 0.0)
        adjusted[:, stage] = np.clip(disagreement * (1 + np.sign(advantages) * credit), 0, 1)
    weights = np.exp(settings.gamma * adjusted)
    shares = weights / weights.sum(axis=1, keepdims=True)
    found = np.clip(1 + settings.mix * (len(STAGES) * shares - 1), settings.lower, settings.upper)
    return np.stack([_correct(row, settings) for row in found])


def _credit(
    alike: Float[np.ndarray, "reply reply"], right: Bool[np.ndarray, "reply"], wrong: Bool[np.ndarray, "reply"]
) -> Float[np.ndarray, "reply"]:
    """Return how much more a text is like those of the other right replies than like those of the other wrong ones."""
    others = ~np.eye(len(alike), dtype=bool)
    counts = [(others & chosen).sum(1) for chosen in (right, wrong)]
    means = [
        (alike * (others & chosen)).sum(1) / np.maximum(count, 1)
        for chosen, count in zip((right, wrong), counts, strict=True)
    ]
    return np.where(np.minimum(*counts) > 0, np.clip(means[0] - means[1], -1, 1), 0.0)


def _correct(row: Float[np.ndarray, "stage"], settings: StageCredit) -> Float[np.ndarray, "stage"]:
    for _ in range(_ROUNDS):
        rest = len(row) - row.sum()
        free = (row > settings.lower) & (row < settings.upper)
        if abs(rest) < _ROUNDING or not free.any():
            break
        row = np.clip(row + np.where(free, rest / free.sum(), 0.0), settings.lower, settings.upper)
    return row


def credit_tokens(
    advantages: Float[np.ndarray, "prompt reply"],
    *,
    tokens: Int[np.ndarray, "prompt reply token"],
    answers: Float[np.ndarray, "prompt reply"],
    tokenizer: Tokenizer,
    dialect: str,
) -> Float[np.ndarray, "prompt reply token"]:
    """Return the advantage of each token, float32; `answers` are the answer rewards, NaN for an unscored reply."""
    found = np.repeat(advantages[..., None], tokens.shape[-1], axis=-1).astype(np.float32)
    for prompt, group in enumerate(tokens):
        texts = [tokenizer.decode(reply.tolist()) for reply in group]
        spans = [find_stages(text, dialect) for text in texts]
        multipliers = stage_multipliers(
            [[text[slice(*own.get(name, (0, 0)))] for name in STAGES] for text, own in zip(texts, spans, strict=True)],
            right=answers[prompt] == 1,
            wrong=answers[prompt] < 1,
            advantages=advantages[prompt],
        )
        for reply, own in enumerate(spans):
            for stage, name in enumerate(STAGES):
                if name in own:
                    places = find_tokens(group[reply].tolist(), own[name], tokenizer)
                    found[prompt, reply, places] *= np.float32(multipliers[reply, stage])
    return found


def find_tokens(tokens: list[int], span: tuple[int, int], tokenizer: Tokenizer) -> slice:
    """Return the tokens that begin within a part of their text, given as the positions of its start and end."""

    def decoded(number: int) -> int:
        return len(tokenizer.decode(tokens[:number]))

    first, end = (bisect.bisect_left(range(len(tokens)), edge, key=decoded) for edge in span)
    return slice(first, end)
