"""Measure the cost of one model in a separate process, whose peak memory counts, and print one JSON line.

stepcot tables measure-cost teacher|student|encoder --cell FOLDER
stepcot tables measure-cost encoder --weights FOLDER
stepcot tables measure-cost encoder --reference NAME
"""

import argparse
import dataclasses
import functools
import json
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from stepcot_jax.host.errors import BadInput
from stepcot_jax.tools.options import local_path

BATCH_SIZES = (1, 4, 32)
"""One image, the paper's batch of four, and a large batch for the throughput."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of a model."""

    num_parameters: int  # of all networks that run; of CLIP both towers, as published
    num_trained: int  # of the model itself, including an encoder trained with it
    megabytes: float | None  # peak memory of a dedicated process at batch 4; None where unknown
    milliseconds: dict[int, float]  # median from normalised images to answers (or features), by batch size
    starts_from: str  # "images", or "features" where those are imported
    multiply_adds: int | None = None  # for one image; None where a network is not JAX's

    @property
    def images_per_second(self) -> float:
        """Throughput in the largest batch."""
        most = max(self.milliseconds)
        return 1000 * most / self.milliseconds[most]


def measure_apart(arguments: Sequence[str]) -> Cost:
    """Measure a cost in a new process."""
    command = [sys.executable, "-m", "stepcot_jax", "tables", "measure-cost", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
    if finished.returncode == 2:
        raise BadInput(finished.stderr.strip().splitlines()[-1].removeprefix("error: "))
    if finished.returncode:
        raise RuntimeError(f"cost_measuring {arguments} ended with {finished.returncode}: {finished.stderr[-2000:]}")
    fields = json.loads(finished.stdout.splitlines()[-1])
    fields["milliseconds"] = {int(size): value for size, value in fields["milliseconds"].items()}
    return Cost(**fields)


@dataclasses.dataclass(frozen=True)
class _Model:
    """A function of a batch to time, with the shape of an input."""

    run: Callable[[Any], Any]
    shape: tuple[int, ...]
    num_parameters: int
    num_trained: int
    starts_from: str = "images"
    is_jax: bool = True


def _open_weights(weights: str, dtype: str) -> _Model:
    from stepcot_jax.features.frozen_encoders import load_encoder

    encoder: Any = load_encoder(weights, dtype)
    shape = (*[encoder.preprocessing.size] * 2, 3)
    return _Model(encoder.encode, shape, encoder.num_parameters, 0, is_jax=_is_jax(encoder))


def _open_reference(name: str) -> _Model:
    from stepcot_jax.tools.tables.encoders import REFERENCES, make_reference

    if name not in REFERENCES:
        raise BadInput(f"--reference={name!r} is not one of {', '.join(REFERENCES)}")
    reference = make_reference(name)
    return _Model(reference.encode, (*[reference.size] * 2, 3), reference.num_parameters, 0)


def _is_jax(encoder: Any) -> bool:
    """Return whether a frozen encoder, if any, is a network of this package and not PyTorch's."""
    from stepcot_jax.encoders.load import ImageEncoder

    return encoder is None or isinstance(encoder, ImageEncoder)


def _open_cell(folder: pathlib.Path, what: str) -> _Model:
    """Return a network of a run behind its encoder, or the encoder alone."""
    import jax

    from stepcot_jax.run.networks import load_frozen_encoder
    from stepcot_jax.systems.networks import encode_images, make_predict
    from stepcot_jax.tools.tables.cell_networks import load_weights
    from stepcot_jax.training.state import count_parameters

    name = "teacher" if what == "encoder" else what
    trained = load_weights(folder, (name,))
    params, networks = trained.params[name], trained.networks
    along = params.get("image_encoder", {})
    num_along, num_model = count_parameters(along), 0 if what == "encoder" else count_parameters(params[name])
    settings = trained.settings
    frozen: Any = load_frozen_encoder(settings) if settings.image_encoder.name == "pretrained" else None
    num_frozen = getattr(frozen, "num_parameters", 0)
    if what == "teacher" and settings.prompts.encoder == "pretrained":
        from stepcot_jax.encoders.load import load_text_encoder

        num_frozen += load_text_encoder(settings.prompts.weights).num_parameters
    size = settings.image_encoder.image_size if frozen is None else frozen.preprocessing.size
    shape: tuple[int, ...] = (size, size, 3)
    starts_from = "images"
    if networks.image_encoder is None and frozen is None:
        if what == "encoder":
            raise BadInput(f"{folder}: the run has imported features; expected a run with an image encoder to time")
        projection = params[name]["image_projections" if what == "teacher" else "image_projection"]
        shape, starts_from = (projection["linear"]["kernel"].shape[-2],), "features"
    encode = functools.partial(encode_images, networks)
    compute = jax.jit(encode) if what == "encoder" else make_predict(networks, trained.text_features, (what,))
    kind = "image_features" if networks.image_encoder is None else "images"

    def run(inputs: Any) -> Any:
        return compute(params, {kind: inputs if frozen is None else frozen.encode(inputs)})

    if what == "encoder" and frozen is not None:
        run = frozen.encode
    # The student uses an encoder that the teacher trained.
    num_trained = num_model + (0 if what == "student" else num_along)
    num_parameters = num_model + num_along + num_frozen
    return _Model(run, shape, num_parameters, num_trained, starts_from, is_jax=_is_jax(frozen))


def measure(model: _Model, *, repeats: int) -> Cost:
    """Time a model at each batch size; the first two calls compile and are left out."""
    import jax
    import numpy as np

    from stepcot_jax.tools.tables.encoders import count_multiply_adds

    milliseconds: dict[int, float] = {}
    megabytes = None
    for size in BATCH_SIZES:
        batch = np.random.default_rng(0).standard_normal((size, *model.shape)).astype(np.float32)
        seconds = []
        for _ in range(repeats + 2):
            start = time.perf_counter()
            jax.block_until_ready(model.run(batch))
            seconds.append(time.perf_counter() - start)
        milliseconds[size] = 1000 * statistics.median(seconds[2:])
        if size <= 4:
            megabytes = peak_megabytes()
    multiply_adds = None
    if model.is_jax:
        multiply_adds = count_multiply_adds(model.run, jax.ShapeDtypeStruct((1, *model.shape), np.float32))
    return Cost(model.num_parameters, model.num_trained, megabytes, milliseconds, model.starts_from, multiply_adds)


def peak_megabytes() -> float | None:
    """Return the peak memory so far in MB: of the accelerator, else of this process on Linux, else None."""
    import jax

    statistics_of_device = jax.devices()[0].memory_stats()
    if statistics_of_device and "peak_bytes_in_use" in statistics_of_device:
        return statistics_of_device["peak_bytes_in_use"] / 1e6
    try:
        status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return None
    peak = re.search(r"VmHWM:\s+(\d+) kB", status)
    return None if peak is None else int(peak[1]) * 1024 / 1e6


def main(arguments: list[str] | None = None) -> None:
    """Measure the model that the command line names."""
    parser = argparse.ArgumentParser(prog="stepcot tables measure-cost", description=__doc__)
    parser.add_argument("what", choices=("teacher", "student", "encoder"))
    parser.add_argument("--cell", type=local_path, help="workdir of a finished run")
    parser.add_argument("--weights", default="", help="of a frozen encoder, as config.image_encoder.weights")
    parser.add_argument("--reference", default="", help="an encoder of Table 11, with random weights")
    parser.add_argument("--dtype", default="float32", help="compute type of a frozen encoder")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--compilation-cache", type=local_path)
    options = parser.parse_args(arguments)
    if sum(map(bool, (options.cell, options.weights, options.reference))) != 1:
        parser.error("give --cell, --weights or --reference")
    if options.cell is None and options.what != "encoder":
        parser.error("give --cell, or --weights or --reference with `encoder`")
    if options.compilation_cache is not None:
        import jax

        jax.config.update("jax_compilation_cache_dir", str(options.compilation_cache.resolve()))
    if options.reference:
        model = _open_reference(options.reference)
    elif options.weights:
        model = _open_weights(options.weights, options.dtype)
    else:
        model = _open_cell(options.cell, options.what)
    print(json.dumps(dataclasses.asdict(measure(model, repeats=options.repeats))))
