"""Where pretrained weights come from: a local folder or file, or a Hugging Face id."""

import json
import pathlib
import re
from typing import Any

from stepcot_jax.encoders.weights import PREFERRED, TORCH_SUFFIXES
from stepcot_jax.host.errors import BadInput

_ID = re.compile(r"(?P<repository>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[\w./-]+))?")
_SMALL_FILES = (
    "config.json",
    "open_clip_config.json",
    "preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)
_SAFETENSORS = (
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
    "open_clip_model.safetensors",
)
_TORCH = tuple(name for name in PREFERRED if name.endswith(TORCH_SUFFIXES))


def resolve(source: str) -> pathlib.Path:
    """The local folder or file of a source.

    Args:
      source: a folder or file, or a Hugging Face id such as "openai/clip-vit-base-patch32", with "@" and a revision
        where not the newest is meant. Of an id, config, weights and tokenizer are downloaded, nothing else, and
        from then on come from huggingface_hub's cache; PyTorch's .bin only where there is no safetensors.

    Raises:
      BadInput: there is no such folder and no such id, or no network to ask.
    """
    path = pathlib.Path(source).expanduser()
    if path.exists():
        return path
    match = _ID.fullmatch(source)
    if not match or source.startswith((".", "-")):
        raise BadInput(f"{source}: found no such folder or file, accepted are those or a Hugging Face id (owner/name)")
    folder = _download(source, match["repository"], match["revision"], (*_SMALL_FILES, *_SAFETENSORS))
    if not any((folder / name).exists() for name in PREFERRED):
        folder = _download(source, match["repository"], match["revision"], (*_SMALL_FILES, *_TORCH))
    return folder


def has_text_encoder(path: pathlib.Path) -> bool:
    """Whether a checkpoint, as `resolve` finds it, has a text encoder beside its image encoder, with a tokenizer."""
    has_tokenizer = any((path / name).is_file() for name in ("tokenizer.json", "vocab.json", "vocab.txt"))
    if (path / "open_clip_config.json").is_file():
        return has_tokenizer
    try:
        config = json.loads((path / "config.json").read_bytes())
    except (OSError, ValueError):  # a file of torchvision's weights, or what loading refuses with its own words
        return False
    return has_tokenizer and isinstance(config, dict) and "text_config" in config


def _download(source: str, repository: str, revision: str | None, patterns: tuple[str, ...]) -> pathlib.Path:
    # Imported here: most runs read features and never come by.
    import huggingface_hub
    from huggingface_hub import errors

    allowed: Any = list(patterns)
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(repository, revision=revision, allow_patterns=allowed))
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise BadInput(
            f"{source}: found no such folder here and no such id on Hugging Face ({type(error).__name__}), accepted "
            "are a folder or file, or owner/name[@revision]; some models ask to log in first (hf auth login)"
        ) from None
    except Exception as error:  # no network shows as a dozen kinds, from the hub, its HTTP library and the system
        raise BadInput(
            f"{source}: found no such folder here and could not download it ({type(error).__name__}). Two ways out: "
            f"download it where there is a network (hf download {repository} --local-dir FOLDER) and give the folder; "
            "or make the features elsewhere and import them"
        ) from None
