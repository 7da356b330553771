"""What made the features of a store: compared before anything is read or written, kept in its `store.json`."""

import dataclasses
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from stepcot_jax.features.keys import digest_fields
from stepcot_jax.features.shards import PARTIAL_SUFFIX
from stepcot_jax.host.errors import BadInput

FORMAT_VERSION = 1
DESCRIPTION_FILE = "store.json"

Kind = Literal["image", "text", "imported images", "imported prompts"]
Patches = Literal["none", "float16", "float32"]

_MAX_DESCRIPTION_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class StoreSpec:
    """What made the features of a store.

    Attributes:
      kind: of the features.
      encoder: name of the encoder for people; the same weights under another name are the same encoder.
      digest: of the encoder's weights or, of imported features, of the files they came in.
      width: of a feature.
      details: preprocessing of images, pooling of texts; anything that JSON can say.
      patches: type of the patch tokens that are stored beside the features, or "none".
    """

    kind: Kind
    encoder: str
    digest: str
    width: int
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    patches: Patches = "none"

    def __post_init__(self) -> None:
        # As JSON gives it back (lists for tuples), so that what was written and what is asked for compare.
        object.__setattr__(self, "details", json.loads(json.dumps(dict(self.details))))

    @property
    def identity(self) -> dict[str, Any]:
        """All that must agree for two processes to share a store."""
        fields = dataclasses.asdict(self)
        del fields["encoder"]
        return {"version": FORMAT_VERSION, **fields}

    @property
    def identity_digest(self) -> str:
        """Hex digest of `identity`."""
        return digest_fields("store", **self.identity).hex()

    @property
    def folder_name(self) -> str:
        """A name for the store's folder that no store of another spec has."""
        return f"{self.kind.replace(' ', '-')}-{self.identity_digest[:16]}"


def list_fields(spec: StoreSpec, names: Sequence[str]) -> str:
    """Fields of a spec with their values, for a message."""
    return ", ".join(f"{name}={json.dumps(spec.identity[name])[:200]}" for name in names)


def write_once(path: Path, spec: StoreSpec) -> None:
    """Write a store's description unless there is one, whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(8)}{PARTIAL_SUFFIX}")
    document = {"format": "stepcot_jax features", "encoder": spec.encoder, **spec.identity}
    try:
        with partial.open("x", encoding="utf-8") as file:
            file.write(json.dumps(document, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            path.hardlink_to(partial)  # unlike a rename it fails if another process was first
        except FileExistsError:
            return
        except OSError:  # a file system without links
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_spec(path: Path) -> StoreSpec:
    """What a `store.json` says.

    Raises:
      BadInput: it is missing, cannot be read, or is of another version.
    """
    try:
        if path.stat().st_size > _MAX_DESCRIPTION_BYTES:
            raise ValueError("too large")
        document = json.loads(path.read_text(encoding="utf-8"))
        version = document.pop("version")
        if document.pop("format") != "stepcot_jax features":
            raise ValueError("another format")
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise BadInput(f"{path}: found no description of a feature store ({error}), accepted is one") from error
    if version != FORMAT_VERSION:
        raise BadInput(
            f"{path}: found a store of version {version!r}, accepted is {FORMAT_VERSION} (or another folder)"
        )
    names = {field.name for field in dataclasses.fields(StoreSpec)}
    if set(document) != names or not isinstance(document["width"], int) or not isinstance(document["details"], dict):
        raise BadInput(f"{path}: found fields {sorted(document)}, accepted are {sorted(names)}")
    return StoreSpec(**document)
