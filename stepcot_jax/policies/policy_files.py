"""Files of a policy's run beside its checkpoints: lengths of prompts and replies, and the vocabulary."""

from pathlib import Path

import msgspec

from stepcot_jax.encoders.text_encoder import load_tokenizer_files
from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole
from stepcot_jax.policies.tokenizers import PretrainedTokenizer, Tokenizer

LENGTHS_FILE = "policy.json"
VOCABULARY_FILE = "vocabulary.json"

AnyTokenizer = Tokenizer
"""A closed vocabulary, a pretrained tokenizer, or one with the control tokens of a chat."""

_LONGEST = 2**16
_TOKENIZER = "config.policy.tokenizer"


class PolicyLengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Sizes that a run settles when it counts its training records, and the encoder that it found."""

    prompt_length: int
    reply_length: int
    num_words: int
    largest_coordinate: int
    image_encoder: str = ""

    def __post_init__(self) -> None:
        for name in ("prompt_length", "reply_length", "num_words"):
            if not 1 <= getattr(self, name) <= 2 * _LONGEST:
                raise BadInput(f"{name}: {getattr(self, name)} is not 1 to {2 * _LONGEST}")


def write_lengths(workdir: Path, lengths: PolicyLengths) -> None:
    """Write `policy.json`, atomically."""
    write_whole(workdir / LENGTHS_FILE, msgspec.json.format(msgspec.json.encode(lengths), indent=1) + b"\n")


def read_lengths(workdir: Path) -> PolicyLengths:
    """Read what `write_lengths` wrote."""
    return read_json(workdir / LENGTHS_FILE, PolicyLengths, accepted="expected the lengths of a policy's run")


def load_pretrained(name: str) -> PretrainedTokenizer:
    """Load a Hugging Face tokenizer; its own code is never run."""
    source = find_path(name, _TOKENIZER) if is_address(name) else name
    try:
        return PretrainedTokenizer(load_tokenizer_files(source))
    except BadInput as error:
        raise BadInput(f"{_TOKENIZER}: {name!r} cannot be loaded ({error})") from None
