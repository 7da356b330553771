"""Store the questions and prompt vectors in a workdir, so that its networks can be used without the data.

`reading/chain.json` has the steps and the digest of the frozen encoder; `reading/text_features.npy` has a vector for
each step, and is absent if the teacher has no text. `reading/shapes.json` has the shapes of all parameters.
"""

import dataclasses
import hashlib
import io
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from jaxtyping import Float

from stepcot_jax.chain import Chain, Step
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, read_file, read_json, write_whole

CALIBRATION_FILE, PAIRS_FILE, STATISTICS_FILE = "calibration.json", "pairs.json", "statistics.json"
GATE_FILE, JOINT_FILE, NORMAL_FILE = "gate.npz", "joint.json", "normal_picture.npz"
"""Files that a finished run leaves in its workdir."""

CHOICES_FILE = "choices.sha256"
"""File with the digests of what a run fitted, counted and measured for its readings, as `sha256sum -c` reads them."""

CONVERTED_FILE = "converted.json"
"""File of a workdir whose networks were converted from another package's file, with that file's name."""

FOLDER = "reading"
CHAIN_FILE = "chain.json"
TEXT_FILE = "text_features.npy"
SHAPES_FILE = "shapes.json"

_MOST_CHAIN_BYTES = 4 * 2**20
_MOST_TEXT_BYTES = 64 * 2**20
_WAY_OUT = "running main again with the same --config and --workdir writes it"


def write_choices(workdir: pathlib.Path) -> None:
    """Write the digests of calibration, joint models, counted pairs and statistics, those that the run has."""
    paths = [workdir / name for name in (CALIBRATION_FILE, JOINT_FILE, PAIRS_FILE, STATISTICS_FILE)]
    lines = [f"{digest_file(path)[1]}  {path.name}\n" for path in paths if path.exists()]
    write_whole(workdir / CHOICES_FILE, "".join(lines).encode())


def check_choices(workdir: pathlib.Path) -> None:
    """Refuse files that differ from those that the run wrote; runs of earlier versions have no digests."""
    if not (workdir / CHOICES_FILE).exists():
        return
    for line in (
        read_file(workdir / CHOICES_FILE, max_bytes=4096, accepted="digests").decode("ascii", "replace").splitlines()
    ):
        digest, _, name = line.partition("  ")
        if name not in (CALIBRATION_FILE, JOINT_FILE, PAIRS_FILE, STATISTICS_FILE):
            raise BadInput(f"{workdir / CHOICES_FILE}: {line[:100]!r} is not a digest and the name of a run's file")
        path = workdir / name
        if not path.exists() or digest_file(path)[1] != digest:
            found = "changed since the run wrote it" if path.exists() else "missing"
            raise BadInput(f"{path}: {found} ({CHOICES_FILE} has its digest); {_WAY_OUT}")


class _StoredStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    question: str
    options: tuple[str, ...]
    asked_if: tuple[int, int] | None = None
    choice: str = ""
    part: str = ""


class _StoredChain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steps: tuple[_StoredStep, ...]
    has_text: bool
    encoder_digest: str = ""
    trained_on: str = ""
    text_digest: str = ""  # SHA-256 of the file of prompt vectors; "" in runs of earlier versions


class _StoredShapes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    networks: str
    shapes: dict[str, list[int]]


Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class StoredReading:
    """The questions and prompt vectors of a run."""

    chain: Chain
    text_features: Float[np.ndarray, "step width"] | None
    encoder_digest: str  # of the frozen image encoder that the networks were trained on; "" without one
    trained_on: str = ""  # the training data in a few words; "" in runs of earlier versions


def write_reading(
    workdir: pathlib.Path, chain: Chain, text_features: Any, *, encoder_digest: str = "", trained_on: str = ""
) -> None:
    """Write the files of `read_reading`, each atomically."""
    folder = workdir / FOLDER
    text_digest = ""
    if text_features is None:
        (folder / TEXT_FILE).unlink(missing_ok=True)
    else:
        content = io.BytesIO()
        np.save(content, np.asarray(text_features, np.float32), allow_pickle=False)
        write_whole(folder / TEXT_FILE, content.getvalue())
        text_digest = hashlib.sha256(content.getvalue()).hexdigest()
    steps = tuple(_StoredStep(**vars(step)) for step in chain.steps)
    stored = _StoredChain(steps, text_features is not None, encoder_digest, trained_on, text_digest)
    write_whole(folder / CHAIN_FILE, msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n")


def read_reading(workdir: pathlib.Path) -> StoredReading:
    """Return the questions and prompt vectors that `write_reading` wrote."""
    path = workdir / FOLDER / CHAIN_FILE
    accepted = f"expected the file that a run wrote ({_WAY_OUT})"
    stored = read_json(path, _StoredChain, accepted=accepted, max_bytes=_MOST_CHAIN_BYTES)
    try:
        chain = Chain(tuple(Step(**msgspec.structs.asdict(step)) for step in stored.steps))
    except BadInput as error:
        raise BadInput(f"{path}: {error}; {accepted}") from None
    text_features = _read_text(path.with_name(TEXT_FILE), chain, stored.text_digest) if stored.has_text else None
    return StoredReading(chain, text_features, stored.encoder_digest, stored.trained_on)


def write_shapes(workdir: pathlib.Path, shapes: Shapes, *, inputs: Sequence[int]) -> None:
    """Write the shapes of a run's parameters, so that readers can check parameters without tracing the networks."""
    stored = _StoredShapes(_digest_networks(workdir, inputs), {name: list(shape) for name, shape in shapes.items()})
    write_whole(workdir / FOLDER / SHAPES_FILE, msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n")


def read_shapes(workdir: pathlib.Path, *, inputs: Sequence[int]) -> Shapes | None:
    """Return the shapes that `write_shapes` wrote; None without the file or for other settings, questions or inputs."""
    path = workdir / FOLDER / SHAPES_FILE
    if not path.exists():
        return None
    stored = read_json(path, _StoredShapes, accepted="expected the shapes of a run", max_bytes=_MOST_CHAIN_BYTES)
    if stored.networks != _digest_networks(workdir, inputs):
        return None
    return {name: tuple(shape) for name, shape in stored.shapes.items()}


def _digest_networks(workdir: pathlib.Path, inputs: Sequence[int]) -> str:
    """Return a digest of everything that determines the shapes of parameters."""
    digests = [digest_file(path)[1] for path in (workdir / "settings.json", workdir / FOLDER / CHAIN_FILE)]
    return hashlib.sha256(f"{digests} {list(inputs)}".encode()).hexdigest()


def _read_text(path: pathlib.Path, chain: Chain, digest: str) -> Float[np.ndarray, "step width"]:
    try:
        content = read_file(path, max_bytes=_MOST_TEXT_BYTES)
    except BadInput as error:
        raise BadInput(f"{error}; {_WAY_OUT}") from None
    except OSError as error:
        raise BadInput(f"{path} cannot be read ({error.strerror}); {_WAY_OUT}") from None
    accepted = f"expected finite float32 numbers of shape [{chain.num_steps}, width] ({_WAY_OUT})"
    try:
        # Refuses pickled objects, and a header that declares more than the file holds.
        features = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, OSError, EOFError, SyntaxError, MemoryError) as error:
        problem = "its header states too many numbers" if isinstance(error, MemoryError) else type(error).__name__
        raise BadInput(f"{path} is not an array ({problem}); {accepted}") from None
    if not isinstance(features, np.ndarray) or features.dtype != np.float32 or features.ndim != 2:
        raise BadInput(f"{path} is not a float32 matrix; {accepted}")
    if len(features) != chain.num_steps or not np.isfinite(features).all():
        raise BadInput(f"{path} has {len(features)} vectors, or numbers that are not finite; {accepted}")
    if digest and hashlib.sha256(content).hexdigest() != digest:
        raise BadInput(f"{path} has changed since it was saved; {_WAY_OUT}")
    return features
