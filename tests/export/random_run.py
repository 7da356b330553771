"""A run of random numbers, as `load_trained` would give it, and a process that reads its export alone."""

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

from configs import quickstart
from stepcot_jax.chain import Chain, Step
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.encoders.resnet import ResNet
from stepcot_jax.encoders.transformer import TransformerSizes, VisionTransformer
from stepcot_jax.evaluation.calibration import Calibration
from stepcot_jax.evaluation.gate import fit_gate
from stepcot_jax.host.own_folder import save, save_arrays
from stepcot_jax.reading.trained_model import Trained
from stepcot_jax.run.networks import make_networks
from stepcot_jax.run.settings import make_settings
from stepcot_jax.run.stored import StoredRun
from stepcot_jax.systems.networks import init_params, read_moments
from tests.oracles.random_params import normal, randomise

SIZE, WIDTH = 32, 16
CHAIN = Chain(
    (
        Step("Detection", "Is there anything?", ("No abnormality", "Increased", "Decreased | <b>mixed</b>")),
        Step("Side", "Where?", ("Left", "Right", "Both", "Elsewhere", "N/A")),
        Step("Diagnosis", "What is it?", ("Normal", "Mass")),
    )
)
CALIBRATION = Calibration(
    coverage=0.9,
    temperatures={"student": (2.0, 0.5, 1.25), "teacher": (1.5, 1.0, 0.8)},
    thresholds={"student": (0.5, 0.6, 0.7), "teacher": (0.5, 0.6, 0.7)},
)


def make_run(workdir: pathlib.Path, *, frozen: bool = False, calibrated: bool = True) -> Trained:
    """Teacher and student of different best steps; the image encoder is trained along, or frozen."""
    config = quickstart.get_config()
    for part in (config.teacher, config.student):
        part.width = WIDTH
    config.teacher.num_layers = 1
    config.teacher.num_heads = 2
    config.prompts.width = WIDTH
    config.loss.projection_width = 8
    if frozen:
        config.image_encoder.name, config.image_encoder.weights = "pretrained", "somewhere/clip"
    settings = make_settings(config)
    preprocessing = Preprocessing(SIZE, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3), fit="crop")
    text = normal(1, CHAIN.num_steps, WIDTH)
    encoder = None if frozen else ResNet(widths=(8, 8), blocks_per_stage=1, stem_kernel=3, grid=2)
    networks = make_networks(settings, CHAIN, encoder)
    frozen_encoder = make_frozen_encoder(preprocessing) if frozen else None
    shape = {"image_features": jnp.zeros((1, 8))} if frozen else {"images": jnp.zeros((1, SIZE, SIZE, 3))}
    shapes = jax.eval_shape(
        lambda: init_params(networks, key=jax.random.key(0), batch=shape, text_features=jnp.asarray(text))
    )
    params = {name: random_tree(shapes, seed) for seed, name in enumerate(("teacher", "student"))}
    calibration, best = CALIBRATION if calibrated else None, {"teacher": 845, "student": 910}
    read = {"text_features": text, "preprocessing": preprocessing, "frozen_encoder": frozen_encoder}
    found = {"networks": networks, "params": params, "best_steps": best, "calibration": calibration, **read}
    return Trained(workdir=workdir, run=StoredRun(settings), chain=CHAIN, **found)


def write_gate(found: Trained) -> None:
    noise = np.random.default_rng(8).normal(size=(60, SIZE, SIZE, 3)).astype(np.float32)
    if found.frozen_encoder is not None:
        features = np.asarray(found.frozen_encoder.encode(noise))
    else:
        params = {"image_encoder": found.params["student"]["image_encoder"]}
        features = np.asarray(read_moments(params, {"images": noise}, networks=found.networks))
    save_arrays(found.workdir / "gate.npz", {"student": fit_gate(features[:40], features[40:], false_alarms=0.05)})


def random_tree(shapes, seed):
    """Nothing is zero or one, where a swapped tensor would not be seen."""
    return jax.tree.map(np.asarray, randomise(shapes, seed))


def make_frozen_encoder(preprocessing: Preprocessing) -> ImageEncoder:
    sizes = TransformerSizes(
        width=12, num_layers=1, num_heads=2, mlp_width=16, activation="gelu", epsilon=1e-5, norm_first=True
    )
    network = VisionTransformer(sizes, SIZE, 8, 8)
    images = np.zeros((1, SIZE, SIZE, 3), np.float32)
    params = random_tree(jax.eval_shape(lambda: network.init(jax.random.key(0), jnp.asarray(images))["params"]), 7)
    given = {"preprocessing": preprocessing, "network": network, "read_params": lambda: params}
    return ImageEncoder(name="CLIP of somewhere/clip", width=8, digest="0" * 64, num_parameters=1, **given)


def expected_logits(run: Trained, name: str, images: np.ndarray) -> np.ndarray:
    """The networks' own logits, not by way of the export."""
    params = run.params[name]

    def read(images):
        if run.frozen_encoder is None:
            features = run.networks.image_encoder.apply({"params": params["image_encoder"]}, images)
        else:
            features, _ = run.frozen_encoder.network.apply({"params": run.frozen_encoder.params}, images)
        inputs = {"image_features": features, "deterministic": True}
        if name == "teacher":
            inputs["text_features"] = jnp.asarray(run.text_features)
        network = getattr(run.networks, name)
        return network.apply({"params": jax.tree.map(jnp.asarray, params[name])}, **inputs).logits

    return np.asarray(jax.jit(read)(images))


def write_report(run: Trained) -> None:
    run.workdir.mkdir(parents=True, exist_ok=True)
    save(run.workdir / "report.json", {"num_cases": {"train": 300, "val": 40, "test": 41}})


ALONE = """
import importlib.machinery, pathlib, sys

ALLOWED = {{*{allowed!r}, *sys.stdlib_module_names}}

class Few(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in ALLOWED or name.startswith("_sysconfigdata"):
            return super().find_spec(name, path, target)

sys.meta_path[:] = [importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, Few]
folder = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(folder))
import json
import numpy as np
from load import load
images = np.load(sys.argv[2])
{body}
loaded = {{name.partition(".")[0] for name in sys.modules}}
assert not loaded & {{"stepcot_jax", "flax", "safetensors", "jaxtyping", "orbax", "msgspec"}}, loaded
"""
JAX = ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "scipy", "flatbuffers")
OWN = ("load", "exported_files")


def read_alone(folder: pathlib.Path, images: np.ndarray, body: str):
    """Run `body` with the folder's load.py in a process that finds no other packages; return what it printed."""
    np.save(folder.parent / "images.npy", images)
    code = ALONE.format(allowed=(*JAX, *OWN), body=body)
    command = [sys.executable, "-I", "-B", "-c", code, str(folder), str(folder.parent / "images.npy")]
    environment = {name: os.environ[name] for name in ("PATH", "XLA_FLAGS")} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
