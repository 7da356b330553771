"""Each step's own logits and probabilities, without the padding of the answer axis."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import Chain

_Float = TypeVar("_Float", bound=np.floating)


def softmax(logits: npt.NDArray[_Float], axis: int = -1) -> npt.NDArray[_Float]:
    """Return the softmax along an axis; importing SciPy's would take a tenth of the time to a first answer.

    >>> softmax(np.log([[1.0, 3.0]])).round(6).tolist()
    [[0.25, 0.75]]
    """
    weights: npt.NDArray[_Float] = np.exp(logits - logits.max(axis=axis, keepdims=True))
    weights /= weights.sum(axis=axis, keepdims=True)
    return weights


def own_logits(
    logits: npt.NDArray[np.floating], *, chain: Chain, model: str = "model"
) -> tuple[npt.NDArray[np.float64], ...]:
    """Cut the padding off each step's logits.

    Args:
      logits: [case, step, answer], padded to the step with the most answers or wider.

    Returns:
      For each step [case, answer].
    """
    widest = max(chain.answers_per_step)
    if logits.ndim != 3 or logits.shape[1] != chain.num_steps or logits.shape[2] < widest:
        raise ValueError(
            f"{model}: logits must have shape [case, {chain.num_steps}, {widest} or more]; got {logits.shape}"
        )
    own = []
    for position, step in enumerate(chain.steps):
        part = logits[:, position, : step.num_answers].astype(np.float64)
        if not np.isfinite(part).all():
            num_bad = int((~np.isfinite(part)).any(axis=1).sum())
            raise FloatingPointError(f"{model}, step {step.name!r}: logits of {num_bad} cases are not finite")
        own.append(part)
    return tuple(own)


def own_probabilities(
    logits: npt.NDArray[np.floating], *, chain: Chain, model: str = "model"
) -> tuple[npt.NDArray[np.float64], ...]:
    """Return each step's distributions [case, answer]; arguments and errors are those of `own_logits`."""
    return tuple(softmax(own, axis=1) for own in own_logits(logits, chain=chain, model=model))


def describe_difference(found: list[tuple[str, tuple[str, ...]]], chain: Chain) -> str | None:
    """Describe how the step names and options of a file differ from a chain's; None if they do not.

    The wording of questions may differ: it does not change what a label means.

    >>> from stepcot_jax.chain import Chain, Step
    >>> describe_difference([("Size", ("Small", "Big"))], Chain((Step("Size", "How large?", ("Small", "Large")),)))
    "step 1 is 'Size' with options ['Small', 'Big'], not 'Size' with ['Small', 'Large']"
    """
    if len(found) != chain.num_steps:
        return f"it has {len(found)} steps, not {chain.num_steps}"
    for number, ((name, options), step) in enumerate(zip(found, chain.steps, strict=True), start=1):
        if (name, options) != (step.name, step.options):
            return (
                f"step {number} is {name!r} with options {list(options)}, not {step.name!r} with {list(step.options)}"
            )
    return None
