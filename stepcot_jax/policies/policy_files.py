"""Files of a policy's run beside its checkpoints: lengths of prompts and replies, and the vocabulary."""

from pathlib import Path
from typing import Annotated

import msgspec

from stepcot_jax.encoders.text_encoder import load_tokenizer_files
from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.own_folder import load, save
from stepcot_jax.policies.tokenizers import PretrainedTokenizer, Tokenizer

LENGTHS_FILE = "policy.json"
VOCABULARY_FILE = "vocabulary.json"

AnyTokenizer = Tokenizer
"""A closed vocabulary, a pretrained tokenizer, or one with the control tokens of a chat."""

_TOKENIZER = "config.policy.tokenizer"

_Length = Annotated[int, msgspec.Meta(ge=1, le=2**17)]


class PolicyLengths(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes that a run settles when it counts its training records, and the encoder that it found."""

    prompt_length: _Length
    reply_length: _Length
    num_words: _Length
    largest_coordinate: int
    image_encoder: str = ""


def write_lengths(workdir: Path, lengths: PolicyLengths) -> None:
    """Write `policy.json`, atomically."""
    save(workdir / LENGTHS_FILE, lengths)


def read_lengths(workdir: Path) -> PolicyLengths:
    """Read what `write_lengths` wrote."""
    return load(workdir / LENGTHS_FILE, PolicyLengths)


def load_pretrained(name: str) -> PretrainedTokenizer:
    """Load a Hugging Face tokenizer; its own code is never run."""
    source = find_path(name, _TOKENIZER) if is_address(name) else name
    try:
        return PretrainedTokenizer(load_tokenizer_files(source))
    except BadInput as error:
        raise BadInput(f"{_TOKENIZER}: {name!r} cannot be loaded ({error})") from None
