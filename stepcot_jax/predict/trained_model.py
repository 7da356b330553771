"""Load the networks of a run with their best weights from its workdir, without its data and optimizers."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.resnet import make_resnet
from stepcot_jax.evaluation.consistency import Rules, make_rules
from stepcot_jax.evaluation.consistency_files import read_pairs
from stepcot_jax.features.inputs import load_frozen_encoder, trained_preprocessing
from stepcot_jax.features.spec import FrozenImageEncoder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import read_json
from stepcot_jax.run.stored_reading import CALIBRATION_FILE, PAIRS_FILE, STATISTICS_FILE, StoredReading, read_reading
from stepcot_jax.settings.run_settings import POLICY_JOBS, Settings, read_settings
from stepcot_jax.systems.networks import Networks, init_params, make_networks
from stepcot_jax.training.state import Params
from stepcot_jax.training.stored_params import read_best, restore_params

if TYPE_CHECKING:
    from stepcot_jax.evaluation.calibration import Calibration


@dataclasses.dataclass(frozen=True)
class Trained:
    """The trained networks of a run, ready to read images.

    Attributes:
      workdir: of the run.
      settings: of the run.
      chain: the steps.
      networks: the modules.
      params: by network ("teacher", "student"), the whole parameter tree at that network's best update.
      best_steps: the update of each network's weights.
      text_features: float32 [step, width]; None without text.
      preprocessing: from an image to the encoder's input.
      frozen_encoder: None if the parameters hold "image_encoder".
      calibration: of the networks' confidence; None if the run fitted none.
      reliance: by network, how far a true answer moves later ones on average, 0 to 1; empty if the run did not measure.
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
    reliance: Mapping[str, float | None] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def rules(self) -> Rules | None:
        """Pairs of answers that its training chains never had together; None for a run that counted none.

        Raises:
          BadInput: the file of the counts is damaged or of another chain.
        """
        path = self.workdir / PAIRS_FILE
        return make_rules(self.chain, counts=read_pairs(path, self.chain)) if path.is_file() else None

    @property
    def max_pixels(self) -> int:
        """Largest accepted width times height of an image."""
        return int(self.settings.data.max_megapixels * 1e6)

    def check_model(self, model: str) -> None:
        """Refuse a network that was not trained or not loaded.

        Raises:
          BadInput: `model` is not among the loaded networks.
        """
        if model not in self.params:
            raise BadInput(f"{self.workdir} has no trained {model!r}; it has {', '.join(self.params)}")


def load_trained(workdir: pathlib.Path, *, names: tuple[str, ...] | None = None) -> Trained:
    """Load the networks of a run.

    Args:
      workdir: what `stepcot_jax.main` wrote.
      names: of the networks to load, "teacher" and "student"; None loads all that the run has trained.

    Raises:
      BadInput: a file of the workdir is missing, damaged or does not fit the others, or the run's image features were
        imported, so that it cannot read images.
    """
    workdir = pathlib.Path(workdir)
    settings = _read_settings(workdir)
    if settings.job in POLICY_JOBS:
        raise BadInput(
            f"{workdir}: config.job={settings.job!r} trains a policy, which answers questions and reads no steps; ask "
            "it with python -m stepcot_jax.answer"
        )
    trained_names = names_of_run(settings)
    for name in names or ():
        if name not in trained_names:
            raise BadInput(f"{workdir} has no trained {name!r}; it has {', '.join(trained_names)}")
    if settings.job == "baseline":
        raise BadInput(
            f"{workdir}: config.job='baseline' cannot be loaded here; expected 'teacher', 'distill' or 'chain_grpo'"
        )
    if settings.image_encoder.name == "imported":
        raise BadInput(
            f"{workdir}: with config.image_encoder.name='imported' the run cannot read images, as its features were "
            "computed elsewhere; train with the same encoder as 'pretrained' instead (docs/encoders.md lists them)"
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
        reliance=_read_reliance(workdir / STATISTICS_FILE),
    )


def names_of_run(settings: Settings) -> tuple[str, ...]:
    """Return the networks that a run trains."""
    if settings.job == "chain_grpo":
        return ("teacher",)
    return ("teacher", "student") if settings.job == "distill" else (settings.job,)


def read_default_model(workdir: pathlib.Path) -> str:
    """Return the default network of a run: the student if it has one.

    Raises:
      BadInput: the folder is not the workdir of a run.
    """
    return names_of_run(_read_settings(workdir))[-1]


def _read_settings(workdir: pathlib.Path) -> Settings:
    if not workdir.is_dir():
        raise BadInput(f"{workdir} is not the workdir of a run (no such folder)")
    return read_settings(workdir / "settings.json")


def _load_frozen(workdir: pathlib.Path, settings: Settings, stored: StoredReading) -> FrozenImageEncoder | None:
    if not settings.image_encoder.is_frozen:
        return None
    frozen = load_frozen_encoder(settings)
    if stored.encoder_digest and frozen.digest != stored.encoder_digest:
        raise BadInput(
            f"{settings.image_encoder.weights} has the digest {frozen.digest[:12]}; {workdir} was trained on "
            f"weights with the digest {stored.encoder_digest[:12]}"
        )
    return frozen


def _restore(folder: pathlib.Path, names: tuple[str, ...]) -> tuple[dict[str, Params], dict[str, int]]:
    """Return parameters and update of each network's best weights; the latest if nothing was measured."""
    latest, best = read_best(folder)
    steps = {name: best[name].step if name in best else latest for name in names}
    by_step = {step: jax.tree.map(_as_float32, restore_params(folder, step)) for step in sorted(set(steps.values()))}
    for tree in by_step.values():
        tree.pop("reference", None)  # the frozen start of "chain_grpo", which answers nothing here
    return {name: by_step[step] for name, step in steps.items()}, steps


def _read_reliance(path: pathlib.Path) -> dict[str, float | None]:
    """Return the mean movement of each network in a run's statistics; empty for a run that did not measure it."""
    if not path.is_file():
        return {}
    found = read_json(path, dict[str, Any], accepted="expected the statistics.json of a run").get("reliance") or {}
    return {model: own.get("mean_movement") for model, own in found.items()}


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
    """Refuse weights whose names or shapes do not fit the settings."""
    if frozen is None:
        side = preprocessing.size
        batch = {"images": jax.ShapeDtypeStruct((1, side, side, 3), np.float32)}
    else:
        batch = {"image_features": jax.ShapeDtypeStruct((1, frozen.width), np.float32)}
    if networks.teacher.text != (text is not None):
        stored = "no prompt vectors" if text is None else f"prompt vectors {text.shape}"
        raise BadInput(f"{workdir}: config.teacher.text={networks.teacher.text} does not fit the stored {stored}")
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
                f"{workdir}, weights of the {name}, {path}: {found.get(path, 'missing')} does not fit settings.json, "
                f"which needs {expected.get(path, 'no such tensor')}; {len(other)} tensors differ"
            )


def _list_shapes(tree: Params) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): tuple(leaf.shape) for path, leaf in leaves}


def _read_calibration(path: pathlib.Path, chain: Chain) -> "Calibration | None":
    if not path.exists():
        return None
    from stepcot_jax.evaluation.calibration_files import read_calibration

    return read_calibration(path, chain)
