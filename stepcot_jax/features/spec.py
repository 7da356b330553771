"""Frozen encoders as protocols, and the description of the store that holds their features (`store.json`)."""

import dataclasses
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.features.keys import describe_preprocessing, digest_fields
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json, write_whole

FORMAT_VERSION = 1
DESCRIPTION_FILE = "store.json"

Kind = Literal["image", "text", "imported images", "imported prompts"]
Patches = Literal["none", "float16", "float32"]

_FORMAT = "stepcot_jax features"
_MAX_DESCRIPTION_BYTES = 1 << 20


class _FrozenEncoder(Protocol):
    """Frozen encoder of any framework.

    Attributes:
      digest: of the weights and of everything else that determines the features, such as the compute dtype.
    """

    @property
    def name(self) -> str: ...

    @property
    def width(self) -> int: ...

    @property
    def digest(self) -> str: ...


@runtime_checkable
class FrozenImageEncoder(_FrozenEncoder, Protocol):
    """Frozen image encoder; `preprocessing` is of the images given to `encode`."""

    @property
    def preprocessing(self) -> Preprocessing: ...  # noqa: D102

    def encode(self, images: Any) -> Any:
        """Return features [case, width] of normalised images float32 [case, height, width, 3]."""

    def encode_patches(self, images: Any) -> tuple[Any, Any]:
        """Return features [case, width] and patch tokens [case, patch, channel] of normalised images."""

    def patch_shape(self) -> tuple[int, int]:
        """Return the number of patches of an image and their channels."""


@runtime_checkable
class FrozenTextEncoder(_FrozenEncoder, Protocol):
    """Frozen text encoder; `max_tokens` is the length at which texts are truncated."""

    @property
    def max_tokens(self) -> int: ...  # noqa: D102

    def encode(self, texts: Sequence[str], *, pooling: Any) -> Any:
        """Return features [text, width]."""


@dataclasses.dataclass(frozen=True)
class StoreSpec:
    """Origin of the features of a store.

    Attributes:
      encoder: name for messages; the same weights under another name are the same encoder.
      digest: of the encoder's weights, or of the files of imported features.
      details: preprocessing of images, or pooling of texts; JSON values.
      patches: dtype of the patch tokens stored with the features, or "none".
    """

    kind: Kind
    encoder: str
    digest: str
    width: int
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    patches: Patches = "none"

    def __post_init__(self) -> None:
        # Lists for tuples, as JSON returns them, so that written and requested specs compare equal.
        object.__setattr__(self, "details", json.loads(json.dumps(dict(self.details))))

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that processes sharing a store must agree on."""
        fields = dataclasses.asdict(self)
        del fields["encoder"]
        return {"version": FORMAT_VERSION, **fields}

    @property
    def identity_digest(self) -> str:
        """Hex digest of `identity`."""
        return digest_fields("store", **self.identity).hex()

    @property
    def folder_name(self) -> str:
        """Folder name for the store, unique to this spec."""
        return f"{self.kind.replace(' ', '-')}-{self.identity_digest[:16]}"


def describe_image_store(encoder: FrozenImageEncoder, *, patches: Patches = "none") -> StoreSpec:
    """Return the spec of a store for an image encoder's features."""
    details = describe_preprocessing(encoder.preprocessing)
    if patches != "none":
        details["patch_shape"] = list(encoder.patch_shape())
    return StoreSpec("image", encoder.name, encoder.digest, encoder.width, details, patches)


def describe_text_store(encoder: FrozenTextEncoder, *, pooling: str) -> StoreSpec:
    """Return the spec of a store for a text encoder's features."""
    width = getattr(encoder, "projected_width", 0) if pooling == "projected" else encoder.width
    details = {"pooling": pooling, "max_tokens": int(encoder.max_tokens)}
    return StoreSpec("text", encoder.name, encoder.digest, width, details)


def open_spec(folder: Path, spec: StoreSpec | None) -> StoreSpec:
    """Return the spec of a store's folder, and write it if the folder is new."""
    path = folder / DESCRIPTION_FILE
    if spec is not None and not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        strangers = [entry.name for entry in folder.iterdir() if not entry.name.startswith(".")]
        if strangers and not path.exists():
            raise BadInput(
                f"{folder}: contains {sorted(strangers)[0]!r} and no {DESCRIPTION_FILE} (expected a new or empty "
                "folder, or a feature store)"
            )
        _write_once(path, spec)
    found = _read_spec(path)
    if spec is None:
        return found
    differing = [name for name, value in spec.identity.items() if found.identity[name] != value]
    if differing:
        raise BadInput(
            f"{path}: the store holds features of {found.encoder!r} with {_list_fields(found, differing)}; expected "
            f"{_list_fields(spec, differing)} (use another folder)"
        )
    return spec


def _list_fields(spec: StoreSpec, names: Sequence[str]) -> str:
    return ", ".join(f"{name}={json.dumps(spec.identity[name])[:200]}" for name in names)


def _write_once(path: Path, spec: StoreSpec) -> None:
    """Write a store's description atomically unless it exists; processes of several machines may do so at once."""
    document = {"format": _FORMAT, "encoder": spec.encoder, **spec.identity}
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    write_whole(partial, (json.dumps(document, indent=2) + "\n").encode())
    try:
        path.hardlink_to(partial)  # unlike a rename, fails if another process was first
    except FileExistsError:
        return
    except OSError:  # a file system without links
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _read_spec(path: Path) -> StoreSpec:
    expected = "expected the description of a feature store"
    document = read_json(path, dict[str, Any], accepted=expected, max_bytes=_MAX_DESCRIPTION_BYTES)
    if (found := document.pop("format", None)) != _FORMAT:
        raise BadInput(f"{path}, 'format': {found!r} is not {_FORMAT!r}; {expected}")
    if (version := document.pop("version", None)) != FORMAT_VERSION:
        raise BadInput(f"{path}: store version {version!r} is not {FORMAT_VERSION} (use another folder)")
    try:
        return msgspec.convert(document, StoreSpec)
    except msgspec.ValidationError as error:
        raise BadInput(f"{path}: {error}; {expected}") from None
