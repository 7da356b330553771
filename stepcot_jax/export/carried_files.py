"""Files of a run that an export carries, so that `load` reads the export as it reads the run."""

import json
import pathlib
from typing import Any

from stepcot_jax.encoders.load import ImageEncoder, describe_network
from stepcot_jax.features.store import FrozenImageEncoder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_file, read_json
from stepcot_jax.host.own_folder import save
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.run.stored import (
    CALIBRATION_FILE,
    CONVERTED_FILE,
    GATE_FILE,
    JOINT_FILE,
    NORMAL_FILE,
    PAIRS_FILE,
    POINTS_FILE,
    SETTINGS_FILE,
    STATISTICS_FILE,
    hide_folder,
)

STATISTICS = ("reliance",)
"""Parts of a run's statistics that readings use; the rest of statistics.json stays with the run."""

COPIED = (PAIRS_FILE, POINTS_FILE, JOINT_FILE, GATE_FILE, NORMAL_FILE, CONVERTED_FILE)
"""Files of the workdir that are copied if the run wrote them; none has names of patients or images."""

_MOST_BYTES = 2**26


def write_carried(folder: pathlib.Path, trained: Trained) -> None:
    """Write settings, calibration, joint models, counted pairs and statistics of a run, as far as the run has them."""
    trained.run.write_shared(folder / SETTINGS_FILE)
    if trained.calibration is not None:
        save(folder / CALIBRATION_FILE, trained.calibration)
    for name in COPIED:
        if (trained.workdir / name).exists():
            (folder / name).write_bytes(read_file(trained.workdir / name, max_bytes=_MOST_BYTES, accepted="a file"))
    if kept := read_kept_statistics(trained.workdir):
        (folder / STATISTICS_FILE).write_text(f"{json.dumps(kept, indent=1)}\n", encoding="utf-8")


def read_kept_statistics(workdir: pathlib.Path) -> dict[str, Any]:
    """Return the parts of a run's statistics that an export carries."""
    path = workdir / STATISTICS_FILE
    stored = read_json(path, dict[str, Any], accepted="expected the statistics.json of a run") if path.exists() else {}
    return {key: stored[key] for key in STATISTICS if stored.get(key)}


def name_encoder(encoder: FrozenImageEncoder) -> str:
    """Return an encoder's name without folders of this machine."""
    kind, _, source = encoder.name.partition(" of ")
    return f"{kind} of {hide_folder(source)}" if source else hide_folder(kind)


def describe_encoder(encoder: FrozenImageEncoder | None, workdir: pathlib.Path) -> dict[str, Any] | None:
    """Return a run's frozen image encoder as `CarriedEncoder` reads it; None if the run trained its own."""
    if encoder is None:
        return None
    if not isinstance(encoder, ImageEncoder):
        raise BadInput(f"{workdir}: {encoder.name} runs in PyTorch and cannot be exported")
    return {
        "name": name_encoder(encoder),
        "width": encoder.width,
        "digest": encoder.digest,
        "network": describe_network(encoder.network),
    }
