"""The chat template of Qwen2.5 and Qwen2.5-VL: turns as tokens, up to where the reply starts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from stepcot_jax.host.errors import BadInput

SYSTEM = "You are a helpful assistant."
TEXT_SYSTEM = f"You are Qwen, created by Alibaba Cloud. {SYSTEM}"
"""The system prompts of the published chat templates of Qwen2.5-VL and of Qwen2.5, used where a chat has none."""

TURN = ("<|im_start|>", "<|im_end|>")
IMAGE = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
"""Control tokens around a turn, and of an image."""

IMAGE_TOKEN = IMAGE[1]

FRAME = ("\n", f"system\n{SYSTEM}", "user\n", "assistant\n")
"""Texts of the template that a closed vocabulary must have."""


class WrittenTurn(NamedTuple):
    """A turn of a chat."""

    role: str
    text: str
    num_images: int = 0


def write_turns(
    turns: Sequence[WrittenTurn],
    encode: Callable[[str], list[int]],
    control: Mapping[str, int],
    *,
    system: str = SYSTEM,
) -> list[int]:
    """Return the tokens of a chat in the format of the published template, up to where the reply starts.

    Args:
      turns: of the chat; without a first turn of the role "system" that of the template is added.
    """
    turns = turns if turns and turns[0].role == "system" else [WrittenTurn("system", system), *turns]
    start, end = (control[name] for name in TURN)
    newline, tokens = encode("\n"), list[int]()
    for turn in turns:
        shown = [control[name] for _ in range(turn.num_images) for name in IMAGE]
        # Control tokens divide a text, whose parts are tokenized one by one.
        parts = (f"{turn.role}\n", turn.text) if shown else (f"{turn.role}\n{turn.text}", "")
        first, second = (encode(part) for part in parts)
        tokens += [start, *first, *shown, *second, end, *newline]
    return [*tokens, start, *encode("assistant\n")]


def find_control_tokens(tokenizer: Any, *, source: str, has_images: bool = True) -> dict[str, int]:
    """Return the control tokens of a transformers tokenizer by name."""
    vocabulary, names = tokenizer.get_vocab(), TURN + (IMAGE if has_images else ())
    if missing := [name for name in names if name not in vocabulary]:
        raise BadInput(f"{source}: the tokenizer has no {', '.join(missing)} (expected Qwen's)")
    return {name: vocabulary[name] for name in names}


def refuse_control(text: str, tokens: list[int], control: Mapping[str, int]) -> list[int]:
    """Return the tokens of a text that may come from anyone."""
    if found := sorted(name for name, token in control.items() if token in tokens):
        raise BadInput(f"the text {text[:60]!r} has the control token {', '.join(found)} (expected plain text)")
    return tokens
