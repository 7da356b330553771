"""Sample replies token by token, with one random key a rollout.

A rollout's tokens are a function of its key alone: neither the other rollouts nor the number of devices change them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from stepcot_jax.models.decoder import empty_cache
from stepcot_jax.policies.policy import SampledPolicy, lay_out
from stepcot_jax.policies.tokenizers import Tokenizer

Extend = Callable[[Int[Array, "rollout"], Int[Array, ""], Any], tuple[Float[Array, "rollout word"], Any]]
"""(tokens, their place within the reply, caches) -> (scores of the next token, caches)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How replies are drawn.

    Attributes:
      longest: tokens of the longest reply, the stop token included; a longer one is cut.
      stop: token that ends a reply, and fills it up.
      temperature: logits are divided by it, > 0.
      greedy: take the likeliest token instead of drawing one.
      more_stops: further tokens that end a reply.
    """

    longest: int
    stop: int
    temperature: float = 1.0
    greedy: bool = False
    more_stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.longest < 1 or not self.temperature > 0:
            raise ValueError(f"longest and temperature must be above 0; got {self.longest} and {self.temperature}")


class Replies(NamedTuple):
    """Sampled replies: `stop` and log-probability 0 after the end; the first stop token counts."""

    tokens: Int[Array, "rollout token"]
    log_probs: Float[Array, "rollout token"]
    counted: Bool[Array, "rollout token"]


def rollout_keys(key: Array, *, first: int | Int[Array, ""], number: int) -> UInt32[Array, "rollout 2"]:
    """Return the key of each rollout; the same for every division of the rollouts among devices."""
    return jax.vmap(lambda place: jax.random.key_data(jax.random.fold_in(key, place)))(first + jnp.arange(number))


def sample_replies(
    extend: Extend,
    *,
    scores: Float[Array, "rollout word"],
    caches: Any,
    keys: UInt32[Array, "rollout 2"],
    sampling: Sampling,
    skipped: Bool[Array, "rollout"] | None = None,
) -> Replies:
    """Draw replies; ends when all have ended."""
    number = scores.shape[0]
    shape = (number, sampling.longest)
    uniform = jax.vmap(lambda key: _uniform(key, sampling.longest), out_axes=1)(keys)

    def draw(place: Any, scores: Any, ended: Any, replies: Replies) -> tuple[Any, Any, Replies]:
        scaled = scores.astype(jnp.float32) / jnp.float32(sampling.temperature)
        largest = jnp.max(scaled, axis=-1, keepdims=True)
        weights = jnp.exp(scaled - largest)
        tokens = jnp.argmax(scaled, axis=-1) if sampling.greedy else draw_words(weights, uniform[place])
        tokens = jnp.where(ended, sampling.stop, tokens.astype(jnp.int32))
        chosen = (jnp.take_along_axis(scaled, tokens[:, None], axis=1) - largest)[:, 0]
        chosen = chosen - jnp.log(jnp.sum(weights, axis=-1))
        replies = Replies(
            replies.tokens.at[:, place].set(tokens),
            replies.log_probs.at[:, place].set(jnp.where(ended, 0.0, chosen)),
            replies.counted.at[:, place].set(~ended),
        )
        for stop in (sampling.stop, *sampling.more_stops):
            ended = ended | (tokens == stop)
        return tokens, ended, replies

    def goes_on(carried: Any) -> Any:
        place, _, _, ended, _ = carried
        return (place < sampling.longest) & ~jnp.all(ended)

    def step(carried: Any) -> Any:
        place, tokens, caches, ended, replies = carried
        scores, caches = extend(tokens, place - 1, caches)
        tokens, ended, replies = draw(place, scores, ended, replies)
        return place + 1, tokens, caches, ended, replies

    blank = Replies(jnp.full(shape, sampling.stop, jnp.int32), jnp.zeros(shape, jnp.float32), jnp.zeros(shape, bool))
    # The first token needs no pass through the network, and none follows the last.
    tokens, ended, blank = draw(jnp.int32(0), scores, jnp.zeros(number, bool) if skipped is None else skipped, blank)
    start = (jnp.int32(1), tokens, caches, ended, blank)
    replies: Replies = jax.lax.while_loop(goes_on, step, start)[-1]
    return replies


def _uniform(key: UInt32[Array, "2"], number: int) -> Float[Array, "place"]:
    """Return a number in [0, 1) for each place of a reply, the same for every length."""
    own = jax.random.wrap_key_data(key)
    return jax.vmap(lambda place: jax.random.uniform(jax.random.fold_in(own, place)))(jnp.arange(number))


def draw_words(weights: Float[Array, "rollout word"], uniform: Float[Array, "rollout"]) -> Int[Array, "rollout"]:
    """Return a word of each row, drawn in proportion to the weights, by inverting the cumulative sum.

    One random number a row, against one a word for the Gumbel trick of `jax.random.categorical`, which took a third of
    the time of a rollout. The sum has two levels: blocks of sqrt(words), then the words of the chosen block. A word of
    weight 0 is never drawn; a word whose share is below the resolution of float32, 1.2e-7, may not be.

    Args:
      weights: [rollout, word], >= 0, the largest of a row 1.
    """
    num_words = weights.shape[1]
    size, unit = _block_size(num_words)
    blocks = jnp.pad(weights, ((0, 0), (0, -num_words % unit))).reshape(len(weights), -1, size)
    upto = jnp.cumsum(jnp.sum(blocks, axis=-1), axis=-1)
    block, rest = _invert(upto, uniform * upto[:, -1])
    chosen = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
    word, _ = _invert(jnp.cumsum(chosen, axis=-1), rest)
    return block * size + word


def _block_size(num_words: int) -> tuple[int, int]:
    """Return about sqrt(words), and the multiple that words are padded to.

    Devices divide a large vocabulary. They hold whole blocks if these come in eights; if a block divides an eighth, no
    device sends a part of one to the next.
    """
    size = math.isqrt(num_words)
    if num_words < 2**16:
        return size, size
    size = next((near for near in range(size, size // 8, -1) if not num_words % (8 * near)), size)
    return size, 8 * size


def _invert(
    upto: Float[Array, "rollout place"], target: Float[Array, "rollout"]
) -> tuple[Int[Array, "rollout"], Float[Array, "rollout"]]:
    """Return the first place whose cumulative sum is above the target, and the target less the sum before it."""
    last = upto[:, -1]
    target = jnp.minimum(target, last * jnp.float32(1 - 2**-23))  # rounding may lift it to the sum of all
    place = jnp.sum(upto <= target[:, None], axis=-1)
    before = jnp.take_along_axis(upto, jnp.maximum(place - 1, 0)[:, None], axis=1)[:, 0]
    return place, target - jnp.where(place > 0, before, 0.0)


# Greedy replies to any number of prompts, in batches of one size.


def reply_in_batches(
    ask: Callable[[Sequence[int]], np.ndarray],
    number: int,
    *,
    batch_size: int,
    tokenizer: Tokenizer,
    watch: Callable[[range], Iterable[int]] = iter,
) -> list[str]:
    """Return the replies to prompts 0 to `number` - 1; all batches have one size, so that one program answers all."""
    texts = list[str]()
    for first in watch(range(0, number, batch_size)):
        chosen = [min(first + row, number - 1) for row in range(batch_size)]
        texts += [tokenizer.decode(row.tolist()) for row in ask(chosen)]
    return texts[:number]


# Replies of a vision-prefix policy: read image and prompt once, then sample with the caches.


@functools.partial(jax.jit, static_argnames=("policy", "sampling"))
def generate(
    policy: SampledPolicy,
    params: Any,
    images: Any,
    prompts: Any,
    lengths: Any,
    *,
    sampling: Sampling,
    keys: UInt32[Array, "rollout 2"],
    skipped: Bool[Array, "rollout"] | None = None,
) -> Replies:
    """Sample replies; every prompt is read once, however many replies it gets."""
    num_cases = len(jax.tree.leaves(lengths)[0])
    each, left = divmod(len(keys), num_cases)
    if left or not each:
        raise ValueError(f"keys: {len(keys)} rollouts are not a multiple of {num_cases} prompts")
    # Once before the loop, not at every token.
    variables = {"params": lay_out(policy, params)}
    scores, prefix = policy.apply(variables, images, prompts, lengths, method="prefill")
    if each > 1:
        repeat = functools.partial(jnp.repeat, repeats=each, axis=0, total_repeat_length=len(keys))
        scores, lengths = jax.tree.map(repeat, (scores, lengths))
    caches = empty_cache(policy.sizes, num_rollouts=len(keys), num_slots=sampling.longest, dtype=policy.dtype)

    def extend(
        tokens: Int[Array, "rollout"], place: Int[Array, ""], caches: Any
    ) -> tuple[Float[Array, "rollout word"], Any]:
        found: tuple[Float[Array, "rollout word"], Any] = policy.apply(
            variables, tokens, place, lengths, caches, prefix=prefix, method="extend"
        )
        return found

    return sample_replies(extend, scores=scores, caches=caches, keys=keys, sampling=sampling, skipped=skipped)
