"""Load the networks of a run with their best weights from its workdir, without its data and optimizers."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import jax
import msgspec
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.evaluation.consistency import Rules, make_rules, read_pairs
from stepcot_jax.evaluation.gate import Gate
from stepcot_jax.evaluation.joint import JointModel, read_joint
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import is_export
from stepcot_jax.host.files import read_json
from stepcot_jax.host.own_folder import load, load_arrays
from stepcot_jax.run.given import check_readable
from stepcot_jax.run.stored import (
    CALIBRATION_FILE,
    GATE_FILE,
    JOINT_FILE,
    NORMAL_FILE,
    PAIRS_FILE,
    POINTS_FILE,
    STATISTICS_FILE,
    StoredParts,
    StoredRun,
    check_sealed,
    read_reading,
    read_shapes,
    read_stored,
)
from stepcot_jax.run.task import REPORT
from stepcot_jax.systems.networks import Networks, init_params
from stepcot_jax.training.checkpoints import read_best, restore_params
from stepcot_jax.training.state import Params, refuse_misfit, shapes_by_name
from stepcot_jax.training.system import System

if TYPE_CHECKING:
    from stepcot_jax.evaluation.calibration import Calibration
    from stepcot_jax.evaluation.operating_points import OperatingPoints
    from stepcot_jax.features.store import FrozenImageEncoder
    from stepcot_jax.run.stored import NormalPicture

# Compare the names and shapes of stored weights with those of the networks that the settings describe.


def check_shapes(
    workdir: pathlib.Path, parts: StoredParts, networks: Networks, *, exported: bool, alone: bool = False
) -> None:
    """Refuse weights whose names or shapes do not fit the settings.

    An export and the run of a network without teacher (`alone`) have only what reads images.
    """
    text, frozen = parts.text_features, parts.frozen
    if frozen is None:
        side = parts.preprocessing.size
        batch = {"images": jax.ShapeDtypeStruct((1, side, side, 3), np.float32)}
    else:
        batch = {"image_features": jax.ShapeDtypeStruct((1, frozen.width), np.float32)}
    alone = alone or exported
    used = networks.teacher.text and (not alone or "teacher" in parts.params)
    if used != (text is not None):
        stored = "no prompt vectors" if text is None else f"prompt vectors {text.shape}"
        raise BadInput(f"{workdir}: config.teacher.text={networks.teacher.text} does not fit the stored {stored}")
    inputs = (*(() if text is None else text.shape), 0 if frozen is None else frozen.width)
    known = None if exported else read_shapes(workdir, inputs=inputs)
    if known is not None and all(shapes_by_name(tree) == known for tree in parts.params.values()):
        return  # tracing the networks takes a third of the time to a first answer
    if exported:
        from stepcot_jax.reading.exported_model import check_counts

        check_counts(workdir, parts, networks)
    names = {"names": tuple(parts.params)} if alone else {}
    shapes = jax.eval_shape(
        lambda batch: init_params(networks, key=jax.random.key(0), batch=batch, text_features=text, **names), batch
    )
    for name, tree in parts.params.items():
        expected = {part: shapes[part] for part in shapes if not alone or part in (name, "image_encoder")}
        refuse_misfit(f"{workdir}, weights of the {name}", tree, expected, source="settings.json")


class _Reliance(msgspec.Struct):
    mean_movement: float | None = None


class _Statistics(msgspec.Struct):
    reliance: dict[str, _Reliance] | None = None


class _Report(msgspec.Struct):
    default: str = ""


@dataclasses.dataclass(frozen=True)
class Trained:
    """The trained networks of a run, ready to read images."""

    workdir: pathlib.Path
    run: StoredRun
    chain: Chain
    networks: Networks
    params: dict[
        str, Params
    ]  # by network ("teacher", "student", "plain"), the parameter tree at that network's best update
    best_steps: dict[str, int]  # the update of each network's weights
    text_features: jax.Array | None  # float32 [step, width]; None without text
    preprocessing: Preprocessing  # from an image to the encoder's input
    frozen_encoder: "FrozenImageEncoder | None"  # None if the parameters hold "image_encoder"
    calibration: "Calibration | None"  # of the networks' confidence; None if the run fitted none
    reliance: Mapping[str, float | None] = dataclasses.field(default_factory=dict)  # by network, 0 to 1
    trained_on: str = ""  # the training data in a few words, such as "phantoms (drawn images), 3,000 cases"

    @functools.cached_property
    def rules(self) -> Rules | None:
        """Pairs of answers that its training chains never had together; None for a run that counted none."""
        path = self.workdir / PAIRS_FILE
        return make_rules(self.chain, counts=read_pairs(path, self.chain)) if path.exists() else None

    def joint(self, model: str) -> JointModel | None:
        """Return the joint model of a network; None for a run that fitted none."""
        return read_joint(self.workdir / JOINT_FILE, self.chain, model=model)

    def gate(self, model: str) -> Gate | None:
        """Return the gate of a network; None if the run stored none."""
        return load_arrays(self.workdir / GATE_FILE, model, Gate)

    @functools.cached_property
    def normal_picture(self) -> "NormalPicture | None":
        """Mean picture of its normal training cases; None for a run that stored none."""
        from stepcot_jax.run.stored import read_normal_picture

        return read_normal_picture(self.workdir / NORMAL_FILE, size=self.preprocessing.size)

    @functools.cached_property
    def operating_points(self) -> "OperatingPoints | None":
        """Thresholds of the answers with their figures on the test split; None for a run that chose none."""
        from stepcot_jax.evaluation.operating_points import read_points

        path = self.workdir / POINTS_FILE
        return read_points(path, self.chain) if path.exists() else None

    def check_model(self, model: str) -> None:
        """Refuse a network that was not trained or not loaded."""
        if model not in self.params:
            raise BadInput(f"{self.workdir} has no trained {model!r}; it has {', '.join(self.params)}")


def load_trained(
    workdir: pathlib.Path, *, names: tuple[str, ...] | None = None, system: System | None = None
) -> Trained:
    """Load the networks of a run, or of an export of one."""
    workdir = pathlib.Path(workdir)
    run = read_stored(workdir)
    if run.problem:
        raise BadInput(f"{workdir}: {run.problem}")
    if system is None:
        check_readable(workdir)
    exported = is_export(workdir)
    check_sealed(workdir)
    held = _list_models(workdir, run)
    for name in names or ():
        if name not in held:
            raise BadInput(f"{workdir} has no trained {name!r}; it has {', '.join(held)}")
    if exported:
        from stepcot_jax.reading.exported_model import read_exported_parts

        parts = read_exported_parts(workdir, names=names or held)
    else:
        parts = _read_parts(workdir, run, names=names or held)
    if system is None:
        networks = run.make_networks(parts.chain, trains_encoder=parts.frozen is None)
    else:
        networks = _networks_of(system, workdir)
    check_shapes(workdir, parts, networks, exported=exported, alone=run.settings.reads_alone)
    return Trained(
        workdir=workdir,
        run=run,
        chain=parts.chain,
        networks=networks,
        params=parts.params,
        best_steps=parts.best_steps,
        text_features=parts.text_features,
        preprocessing=parts.preprocessing,
        frozen_encoder=parts.frozen,
        calibration=_read_calibration(workdir / CALIBRATION_FILE, parts.chain),
        reliance=_read_reliance(workdir / STATISTICS_FILE),
        trained_on=parts.trained_on,
    )


def _networks_of(system: System, workdir: pathlib.Path) -> Networks:
    networks: Networks | None = getattr(system, "networks", None)
    if networks is None:
        raise BadInput(f"{workdir}: {type(system).__name__} has no networks that read step by step (see StepCoT)")
    return networks


def _read_parts(workdir: pathlib.Path, run: StoredRun, *, names: tuple[str, ...]) -> StoredParts:
    stored = read_reading(workdir)
    stored.chain.refuse_tree("a reader of images")
    frozen = run.load_frozen(workdir, stored.encoder_digest)
    params, best_steps = _restore(workdir / "checkpoints", names)
    return StoredParts(
        chain=stored.chain,
        text_features=None if stored.text_features is None else jax.device_put(stored.text_features),
        frozen=frozen,
        preprocessing=run.preprocessing if frozen is None else frozen.preprocessing,
        params=params,
        best_steps=best_steps,
        trained_on=stored.trained_on,
    )


def read_default_model(workdir: pathlib.Path) -> str:
    """Return the default network: of a run the one that it chose (`run.results.rank_networks`), of an export the first.

    A run without that choice, unfinished or converted, has the student, or else its only network.
    """
    return choose_model(workdir, _list_models(workdir, read_stored(workdir)))


def choose_model(workdir: pathlib.Path, names: Sequence[str]) -> str:
    """Return the default of these networks of a run or an export."""
    if is_export(workdir):
        return names[0]
    chosen = load(workdir / REPORT, _Report).default if (workdir / REPORT).exists() else ""
    return chosen if chosen in names else "student" if "student" in names else names[-1]


def _list_models(workdir: pathlib.Path, run: StoredRun) -> tuple[str, ...]:
    if not is_export(workdir):
        return run.names
    from stepcot_jax.reading.exported_model import list_exported_models  # its files, which a workdir has not

    return list_exported_models(workdir)


def _restore(folder: pathlib.Path, names: tuple[str, ...]) -> tuple[dict[str, Params], dict[str, int]]:
    """Return parameters and update of each network's best weights; the latest if nothing was measured."""
    latest, best = read_best(folder)
    steps = {name: best[name].step if name in best else latest for name in names}
    as_float32 = functools.partial(np.asarray, dtype=np.float32)
    by_step = {step: jax.tree.map(as_float32, restore_params(folder, step)) for step in sorted(set(steps.values()))}
    return {name: by_step[step] for name, step in steps.items()}, steps


def _read_reliance(path: pathlib.Path) -> dict[str, float | None]:
    """Return the mean movement of each network in a run's statistics; empty for a run that did not measure it."""
    if not path.exists():
        return {}
    reliance = read_json(path, _Statistics, accepted="expected the statistics.json of a run").reliance or {}
    return {model: of_model.mean_movement for model, of_model in reliance.items()}


def _read_calibration(path: pathlib.Path, chain: Chain) -> "Calibration | None":
    if not path.exists():
        return None
    from stepcot_jax.evaluation.calibration import read_calibration

    return read_calibration(path, chain)
