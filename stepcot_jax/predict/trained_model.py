"""From a run's workdir to networks with their best weights: its data and its optimizers are not needed."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.features.inputs import load_frozen_encoder, trained_preprocessing
from stepcot_jax.features.protocol import FrozenImageEncoder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.stored_reading import StoredReading, read_reading
from stepcot_jax.settings.run_settings import Settings, read_settings
from stepcot_jax.systems.networks import Networks, init_params, make_networks
from stepcot_jax.training.state import Params
from stepcot_jax.training.stored_params import read_best, restore_params

if TYPE_CHECKING:
    from stepcot_jax.evaluation.calibration import Calibration

CALIBRATION_FILE = "calibration.json"


@dataclasses.dataclass(frozen=True)
class Trained:
    """What a run has trained, ready to read images.

    Attributes:
      workdir: of the run.
      settings: of the run.
      chain: the steps.
      networks: the modules.
      params: by network ("teacher", "student"), the whole parameter tree at that network's best step.
      best_steps: the step of each network's weights.
      text_features: float32 [step, width]; None without text.
      preprocessing: how an image becomes what the encoder takes.
      frozen_encoder: None where the parameters hold "image_encoder".
      calibration: of the networks' confidence; None where the run has fitted none.
    """

    workdir: pathlib.Path
    settings: Settings
    chain: Chain
    networks: Networks
    params: dict[str, Params]
    best_steps: dict[str, int]
    text_features: jax.Array | None
    preprocessing: Preprocessing
    frozen_encoder: FrozenImageEncoder | None
    calibration: "Calibration | None"

    def check_model(self, model: str) -> None:
        """Refuse a network that was not trained or not loaded.

        Raises:
          BadInput: `model` is none of those at hand.
        """
        if model not in self.params:
            raise BadInput(f"{self.workdir}: found no {model!r}, accepted are {', '.join(self.params)}")


def load_trained(workdir: pathlib.Path, *, names: tuple[str, ...] | None = None) -> Trained:
    """The networks of a run.

    Args:
      workdir: what `stepcot_jax.main` wrote.
      names: of the networks to load, "teacher" and "student"; None loads those that the run has trained.

    Raises:
      BadInput: something of the workdir is missing, damaged or does not fit the rest, or the run cannot read images
        because its features were made elsewhere.
    """
    workdir = pathlib.Path(workdir)
    if not workdir.is_dir():
        raise BadInput(f"{workdir}: found no such folder, accepted is the workdir of a run")
    settings = read_settings(workdir / "settings.json")
    trained_names = names_of_run(settings)
    for name in names or ():
        if name not in trained_names:
            raise BadInput(f"{workdir}: found no {name!r}, accepted of this run are {', '.join(trained_names)}")
    if settings.job == "baseline":
        raise BadInput(
            f"{workdir}: found config.job='baseline', accepted are runs of a teacher, with or without student"
        )
    if settings.image_encoder.name == "imported":
        raise BadInput(
            f"{workdir}: found config.image_encoder.name='imported', whose features were made elsewhere, so that no "
            "image can be read here; accepted are runs with 'resnet_small', 'resnet18' or 'pretrained': train one with "
            "the same encoder as 'pretrained' (docs/encoders.md says which there are)"
        )
    stored = read_reading(workdir)
    frozen = _load_frozen(workdir, settings, stored)
    image_encoder = make_resnet(settings.image_encoder.name) if frozen is None else None
    preprocessing = trained_preprocessing(settings) if frozen is None else frozen.preprocessing
    networks = make_networks(settings, stored.chain, image_encoder)
    text_features = None if stored.text_features is None else jax.device_put(stored.text_features)
    params, best_steps = _restore(workdir / "checkpoints", names or trained_names)
    _check_shapes(workdir, params, networks, text_features, preprocessing, frozen)
    return Trained(
        workdir=workdir,
        settings=settings,
        chain=stored.chain,
        networks=networks,
        params=params,
        best_steps=best_steps,
        text_features=text_features,
        preprocessing=preprocessing,
        frozen_encoder=frozen,
        calibration=_read_calibration(workdir / CALIBRATION_FILE, stored.chain),
    )


def names_of_run(settings: Settings) -> tuple[str, ...]:
    """The networks that a run trains."""
    return ("teacher", "student") if settings.job == "distill" else (settings.job,)


def read_default_model(workdir: pathlib.Path) -> str:
    """The network of a run that reads unless another is asked for: the student where there is one.

    Raises:
      BadInput: there is no run.
    """
    if not workdir.is_dir():
        raise BadInput(f"{workdir}: found no such folder, accepted is the workdir of a run")
    return names_of_run(read_settings(workdir / "settings.json"))[-1]


def _load_frozen(workdir: pathlib.Path, settings: Settings, stored: StoredReading) -> FrozenImageEncoder | None:
    if not settings.image_encoder.is_frozen:
        return None
    frozen = load_frozen_encoder(settings)
    if stored.encoder_digest and frozen.digest != stored.encoder_digest:
        raise BadInput(
            f"{settings.image_encoder.weights}: found other weights than {workdir} was trained on (digest "
            f"{frozen.digest[:12]}, not {stored.encoder_digest[:12]}), accepted are the same files"
        )
    return frozen


def _restore(folder: pathlib.Path, names: tuple[str, ...]) -> tuple[dict[str, Params], dict[str, int]]:
    """Parameters and step of each network's best weights; the latest where nothing was measured."""
    latest, best = read_best(folder)
    steps = {name: best[name].step if name in best else latest for name in names}
    by_step = {step: jax.tree.map(_as_float32, restore_params(folder, step)) for step in sorted(set(steps.values()))}
    return {name: by_step[step] for name, step in steps.items()}, steps


def _as_float32(leaf: np.ndarray) -> np.ndarray:
    return np.asarray(leaf, np.float32)


def _check_shapes(
    workdir: pathlib.Path,
    params: dict[str, Params],
    networks: Networks,
    text: jax.Array | None,
    preprocessing: Preprocessing,
    frozen: FrozenImageEncoder | None,
) -> None:
    """Refuse weights that are not those of the settings, whole and of the right shapes."""
    if frozen is None:
        side = preprocessing.size
        batch = {"images": jax.ShapeDtypeStruct((1, side, side, 3), np.float32)}
    else:
        batch = {"image_features": jax.ShapeDtypeStruct((1, frozen.width), np.float32)}
    if networks.teacher.text != (text is not None):
        raise BadInput(f"{workdir}: found config.teacher.text={networks.teacher.text} and {_describe_text(text)}")
    shapes = jax.eval_shape(
        lambda batch: init_params(networks, key=jax.random.key(0), batch=batch, text_features=text), batch
    )
    expected = _list_shapes(shapes)
    for name, tree in params.items():
        found = _list_shapes(tree)
        other = sorted(path for path in expected.keys() | found.keys() if expected.get(path) != found.get(path))
        if other:
            path = other[0]
            raise BadInput(
                f"{workdir}: weights of the {name}: {path}: found {found.get(path, 'nothing')}, accepted is "
                f"{expected.get(path, 'nothing')} as settings.json has it; {len(other)} tensors differ"
            )


def _describe_text(text: Any) -> str:
    return "no prompt vectors" if text is None else f"prompt vectors {text.shape}, accepted are both or none"


def _list_shapes(tree: Params) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}


def _read_calibration(path: pathlib.Path, chain: Chain) -> "Calibration | None":
    if not path.exists():
        return None
    from stepcot_jax.evaluation.calibration import read_calibration

    return read_calibration(path, chain)
