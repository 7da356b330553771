"""Labels as the texts of their answers."""

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED


def named(labels, chain=DEFAULT_CHAIN):
    """Return the answer of each step; None where nobody annotated it."""
    pairs = zip(chain.steps, labels, strict=True)
    return [None if label == NOT_ANNOTATED else step.options[label] for step, label in pairs]
