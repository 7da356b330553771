"""The text of a step, as the teacher's text encoder reads it."""

import string

from stepcot_jax.chain import Chain
from stepcot_jax.host.errors import BadInput

FIELDS = ("name", "question", "options")
"""What a template may stand for: the step's short name, its question, its lettered options."""


def write_prompts(chain: Chain, template: str) -> tuple[str, ...]:
    """One prompt a step.

    Args:
      chain: the steps.
      template: text with any of the fields {name}, {question}, {options}.

    Raises:
      BadInput: the template has another field, or none (all steps would read the same).

    >>> from stepcot_jax.chain import Step
    >>> write_prompts(Chain((Step("Size", "How large?", ("Small", "Large")),)), "{question} {options}")
    ('How large? A. Small; B. Large',)
    """
    accepted = f"accepted are texts with fields of {', '.join(f'{{{field}}}' for field in FIELDS)}"
    try:
        found = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
        prompts = tuple(
            template.format(name=step.name, question=step.question, options="; ".join(step.lettered_options))
            for step in chain.steps
        )
    except (ValueError, LookupError, AttributeError) as error:
        raise BadInput(f"config.prompts.template: found {template!r} ({error}), {accepted}") from None
    if not found or not found <= set(FIELDS):
        raise BadInput(f"config.prompts.template: found {template!r}, {accepted}")
    return prompts
