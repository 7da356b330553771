"""From padded logits to the distribution over a step's own answers."""

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain


def own_logits(
    logits: npt.NDArray[np.floating], *, chain: Chain, model: str = "model"
) -> tuple[npt.NDArray[np.float64], ...]:
    """The logits of each step's own answers, without the padding behind them.

    Args:
      logits: [case, step, answer], padded to the step with the most answers or wider.
      chain: the steps.
      model: name for messages.

    Returns:
      For each step [case, answer].

    Raises:
      ValueError: the logits do not fit the chain.
      FloatingPointError: a logit of a step's own answers is not finite.
    """
    widest = max(chain.answers_per_step)
    if logits.ndim != 3 or logits.shape[1] != chain.num_steps or logits.shape[2] < widest:
        raise ValueError(
            f"{model}: found logits {logits.shape}, accepted is [case, {chain.num_steps}, {widest} or more]"
        )
    own = []
    for position, step in enumerate(chain.steps):
        part = logits[:, position, : step.num_answers].astype(np.float64)
        if not np.isfinite(part).all():
            num_bad = int((~np.isfinite(part)).any(axis=1).sum())
            raise FloatingPointError(f"{model}, step {step.name!r}: logits of {num_bad} cases are not finite")
        own.append(part)
    return tuple(own)


def softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Distribution over the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Logarithm of the distribution over the last axis, finite for finite logits."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def describe_difference(found: list[tuple[str, tuple[str, ...]]], chain: Chain) -> str | None:
    """How the names and options that a file was written with differ from a chain's; None if they do not.

    The wording of the questions makes no difference to what a label means.

    >>> from stepcot_jax.chain import Chain, Step
    >>> describe_difference([("Size", ("Small", "Big"))], Chain((Step("Size", "How large?", ("Small", "Large")),)))
    "step 1: found 'Size' with options ['Small', 'Big'], accepted is 'Size' with ['Small', 'Large']"
    """
    if len(found) != chain.num_steps:
        return f"found {len(found)} steps, accepted are {chain.num_steps}"
    for number, ((name, options), step) in enumerate(zip(found, chain.steps, strict=True), start=1):
        if (name, options) != (step.name, step.options):
            return (
                f"step {number}: found {name!r} with options {list(options)}, "
                f"accepted is {step.name!r} with {list(step.options)}"
            )
    return None
