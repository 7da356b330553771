"""Grouped-query attention over cached keys and values, some of which the rollouts of a case share.

A rollout attends to its own slots and, with a prefix, to those of its case: one softmax over both. The prefix is stored
and read once a case, not once a rollout.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class KeyValues(NamedTuple):
    """Keys and values of one layer; a slot without a token holds zeros.

    With one head of keys they are the operands of the matrix products as they are: XLA writes a token into them in
    place, whereas it copies the whole cache at every token if a reshape stands between writing and reading.

    Attributes:
      keys: [rollout, slot, kv_head * head_width], already rotated.
      values: [rollout, slot, kv_head * head_width].
    """

    keys: Float[Array, "rollout slot width"]
    values: Float[Array, "rollout slot width"]


class Prefix(NamedTuple):
    """Keys and values of one layer that the rollouts of a case share; rollouts of a case follow each other.

    Attributes:
      layer: [case, slot, kv_head * head_width].
      is_real: [case, slot], which slots the rollouts see; padding is not real.
    """

    layer: KeyValues
    is_real: Bool[Array, "case slot"]


def attend(
    queries: Float[Array, "rollout token head width"],
    *,
    own: KeyValues,
    visible: Bool[Array, "#rollout token slot"],
    prefix: Prefix | None = None,
) -> Float[Array, "rollout token head width"]:
    """Return sum_s softmax_s(q k_s / sqrt(width)) v_s over the slots s of `own` and `prefix`.

    The tokens and query heads that share a head of keys are the rows of one matrix product: those of a rollout with
    `own`, those of all rollouts of a case with `prefix`. Scores and softmax are float32.

    Args:
      queries: [rollout, token, head, width], rotated.
      own: of each rollout.
      visible: [rollout, token, slot], which slots of `own` a token sees, at least one.
      prefix: of each case.
    """
    num_rollouts, num_tokens, num_heads, width = queries.shape
    num_kv = own.keys.shape[2] // width
    group = num_heads // num_kv
    rows = queries.reshape(num_rollouts, num_tokens, num_kv, group, width).swapaxes(1, 2)
    rows = rows.reshape(num_rollouts * num_kv, num_tokens * group, width)
    parts, seen = [own], [jnp.repeat(visible, group, axis=1)]
    if prefix is not None:
        parts.append(prefix.layer)
        seen.append(jnp.repeat(prefix.is_real, num_rollouts // prefix.is_real.shape[0], axis=0)[:, None])
    scores, heads = [], [KeyValues(*(_by_head(each, num_kv) for each in part)) for part in parts]
    for part, sees in zip(heads, seen, strict=True):
        sees = sees if sees.shape[0] == 1 else jnp.repeat(sees, num_kv, axis=0)
        # A slot that a token does not see gets a weight of exactly 0, whatever it holds.
        scores.append(jnp.where(sees, _scores(rows, part.keys, num_kv), jnp.finfo(jnp.float32).min))
    largest = functools.reduce(jnp.maximum, (jnp.max(each, axis=-1, keepdims=True) for each in scores))
    weights = [jnp.exp(each - jax.lax.stop_gradient(largest)) for each in scores]
    total = functools.reduce(jnp.add, (jnp.sum(each, axis=-1, keepdims=True) for each in weights))
    mixes = (_mix(each, part.values, num_kv) for each, part in zip(weights, heads, strict=True))
    mixed = functools.reduce(jnp.add, mixes) / total
    mixed = mixed.reshape(num_rollouts, num_kv, num_tokens, group, width).swapaxes(1, 2)
    return mixed.reshape(queries.shape).astype(queries.dtype)


def _scores(
    rows: Float[Array, "rollout_kv row width"], keys: Float[Array, "case_kv slot width"], num_kv: int
) -> Float[Array, "rollout_kv row slot"]:
    gathered = _gather(rows, keys.shape[0], num_kv)
    # The smaller operand goes right: the CPU's matrix products copy it.
    pair = (gathered, keys) if gathered.shape[1] > keys.shape[1] else (keys, gathered)
    found = jax.lax.dot_general(*pair, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32)
    found = found if pair[1] is keys else found.swapaxes(1, 2)
    return _spread(found, rows.shape[0], num_kv) * jnp.float32(rows.shape[-1] ** -0.5)


def _mix(
    weights: Float[Array, "rollout_kv row slot"], values: Float[Array, "case_kv slot width"], num_kv: int
) -> Float[Array, "rollout_kv row width"]:
    gathered = _gather(weights.astype(values.dtype), values.shape[0], num_kv)
    found = jnp.einsum("cqs,csw->cqw", gathered, values, preferred_element_type=jnp.float32)
    return _spread(found, weights.shape[0], num_kv)


def _by_head(heads: Float[Array, "case slot kv_width"], num_kv: int) -> Float[Array, "case_kv slot width"]:
    if num_kv == 1:
        return heads
    num_cases, num_slots, _ = heads.shape
    return heads.reshape(num_cases, num_slots, num_kv, -1).swapaxes(1, 2).reshape(num_cases * num_kv, num_slots, -1)


def _gather(
    rows: Float[Array, "rollout_kv row last"], number: int | Any, num_kv: int
) -> Float[Array, "case_kv row2 last"]:
    """Return the rows of all rollouts of each case as one axis."""
    if number == rows.shape[0]:
        return rows
    split = rows.reshape(number // num_kv, rows.shape[0] // number, num_kv, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(number, -1, rows.shape[-1])


def _spread(
    rows: Float[Array, "case_kv row2 last"], number: int | Any, num_kv: int
) -> Float[Array, "rollout_kv row last"]:
    """Undo `_gather`."""
    if number == rows.shape[0]:
        return rows
    each, last = number // rows.shape[0], rows.shape[-1]
    split = rows.reshape(rows.shape[0] // num_kv, num_kv, each, rows.shape[1] // each, last)
    return split.swapaxes(1, 2).reshape(number, -1, last)
