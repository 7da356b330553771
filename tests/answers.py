"""Labels as the texts of their answers."""

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED


def name_answers(labels, chain=DEFAULT_CHAIN):
    """Return the answer of each step; None where nobody annotated it."""
    named = zip(chain.steps, labels, strict=True)
    return [None if label == NOT_ANNOTATED else step.options[label] for step, label in named]
