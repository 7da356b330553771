"""Files that a run leaves in its workdir, and what its networks are read with in place of the data.

`reading/chain.json` has the steps, a vector for each prompt unless the teacher has no text, and the digest of the
frozen encoder. `reading/shapes.json` has the shapes of all parameters.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32

from stepcot_jax.chain import Chain
from stepcot_jax.host.files import digest_file
from stepcot_jax.host.own_folder import check_digests, load, save, write_digests

CALIBRATION_FILE, PAIRS_FILE, STATISTICS_FILE = "calibration.json", "pairs.json", "statistics.json"
GATE_FILE, JOINT_FILE, NORMAL_FILE = "gate.npz", "joint.json", "normal_picture.npz"
POINTS_FILE = "points.json"
"""Files that a finished run leaves in its workdir."""

CONVERTED_FILE = "converted.json"
"""File of a workdir whose networks were converted from another package's file, with that file's name."""

FOLDER = "reading"
CHAIN_FILE = f"{FOLDER}/chain.json"
SHAPES_FILE = f"{FOLDER}/shapes.json"

RESULT_FILES = (CALIBRATION_FILE, GATE_FILE, JOINT_FILE, NORMAL_FILE, PAIRS_FILE, POINTS_FILE, STATISTICS_FILE)

_MOST_CHAIN_BYTES = 2**28
_WAY_OUT = "running main again with the same --config and --workdir writes it"


def seal(workdir: pathlib.Path, names: Iterable[str]) -> None:
    """Write the digests of files that a run has written for readers; a name without a file has none."""
    write_digests(workdir, names, way_out=_WAY_OUT)


def check_sealed(workdir: pathlib.Path) -> None:
    """Refuse files that differ from those that the run wrote."""
    check_digests(workdir, way_out=_WAY_OUT)


Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class StoredReading:
    """The questions and prompt vectors of a run."""

    chain: Chain
    text_features: Float32[np.ndarray, "step width"] | None
    encoder_digest: str = ""  # of the frozen image encoder that the networks were trained on; "" without one
    trained_on: str = ""  # the training data in a few words


def write_reading(
    workdir: pathlib.Path, chain: Chain, text_features: Any, *, encoder_digest: str = "", trained_on: str = ""
) -> None:
    """Write what the networks are read with, and its digest."""
    text = None if text_features is None else np.asarray(text_features, np.float32)
    save(workdir / CHAIN_FILE, StoredReading(chain, text, encoder_digest, trained_on))
    seal(workdir, [CHAIN_FILE])


def read_reading(workdir: pathlib.Path) -> StoredReading:
    """Return the questions and prompt vectors that `write_reading` wrote."""
    return load(workdir / CHAIN_FILE, StoredReading, max_bytes=_MOST_CHAIN_BYTES)


@dataclasses.dataclass(frozen=True)
class _StoredShapes:
    networks: str
    shapes: Shapes


def write_shapes(workdir: pathlib.Path, shapes: Shapes, *, inputs: Sequence[int]) -> None:
    """Write the shapes of a run's parameters, so that readers can check parameters without tracing the networks."""
    save(workdir / SHAPES_FILE, _StoredShapes(_digest_networks(workdir, inputs), shapes))


def read_shapes(workdir: pathlib.Path, *, inputs: Sequence[int]) -> Shapes | None:
    """Return the shapes that `write_shapes` wrote; None without the file or for other settings, questions or inputs."""
    path = workdir / SHAPES_FILE
    if not path.exists():
        return None
    stored = load(path, _StoredShapes)
    return stored.shapes if stored.networks == _digest_networks(workdir, inputs) else None


def _digest_networks(workdir: pathlib.Path, inputs: Sequence[int]) -> str:
    """Return a digest of everything that determines the shapes of parameters."""
    digests = [digest_file(path)[1] for path in (workdir / "settings.json", workdir / CHAIN_FILE)]
    return hashlib.sha256(f"{digests} {list(inputs)}".encode()).hexdigest()
