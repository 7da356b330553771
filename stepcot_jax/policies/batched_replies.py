"""Greedy replies to any number of prompts, in batches of one size."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stepcot_jax.policies.tokenizers import Tokenizer


def reply_in_batches(
    ask: Callable[[Sequence[int]], np.ndarray],
    number: int,
    *,
    batch_size: int,
    tokenizer: Tokenizer,
    watch: Callable[[range], Iterable[int]] = iter,
) -> list[str]:
    """Return the replies to prompts 0 to `number` - 1 in order.

    Every batch has the same size, so that one program answers all; the last is filled up with the last prompt.

    Args:
      ask: from the places of a batch's prompts to the tokens of their replies, int [case, token].
    """
    texts = list[str]()
    for first in watch(range(0, number, batch_size)):
        chosen = [min(first + row, number - 1) for row in range(batch_size)]
        texts += [tokenizer.decode(row.tolist()) for row in ask(chosen)]
    return texts[:number]
