"""Table 11: parameters, memory, latency and throughput of every encoder, of teacher and student.

Each model is measured in a separate process, whose peak memory counts, and which prints one JSON line:

stepcot tables measure-cost teacher|student|encoder --cell FOLDER
stepcot tables measure-cost encoder --weights FOLDER
stepcot tables measure-cost encoder --reference NAME
"""

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.interpreters import partial_eval

from stepcot_jax.evaluation.published import COST, COST_MEGABYTES, COST_OF_ENCODERS
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.machine import use_compilation_cache
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.pages.sheets import Entry, Row, Table, columns, heads, mark_published
from stepcot_jax.tools.options import local_path
from stepcot_jax.tools.tables.encoders import Encoder
from stepcot_jax.tools.tables.plan import Plan, Recipe

if TYPE_CHECKING:
    from stepcot_jax.encoders.checkpoints import Architecture

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
        raise RuntimeError(f"measure-cost {arguments} ended with {finished.returncode}: {finished.stderr[-2000:]}")
    return msgspec.json.decode(finished.stdout.splitlines()[-1], type=Cost)


@dataclasses.dataclass(frozen=True)
class _Model:
    run: Callable[[Any], Any]
    shape: tuple[int, ...]
    num_parameters: int
    num_trained: int
    starts_from: str = "images"
    is_jax: bool = True


def _is_jax(encoder: Any) -> bool:
    """Return whether a frozen encoder, if any, is a network of this package and not PyTorch's."""
    from stepcot_jax.encoders.load import ImageEncoder

    return encoder is None or isinstance(encoder, ImageEncoder)


def _open_cell(folder: pathlib.Path, what: str) -> _Model:
    """Return a network of a run behind its encoder, or the encoder alone."""
    from stepcot_jax.encoders.load import load_text_encoder
    from stepcot_jax.run.networks import load_frozen_encoder
    from stepcot_jax.systems.networks import encode_images, make_predict
    from stepcot_jax.tools.tables.cell_networks import load_weights
    from stepcot_jax.training.state import count_parameters

    name = "teacher" if what == "encoder" else what
    trained = load_weights(folder, (name,))
    params, networks, settings = trained.params[name], trained.networks, trained.settings
    num_along = count_parameters(params.get("image_encoder", {}))
    num_model = 0 if what == "encoder" else count_parameters(params[name])
    frozen: Any = load_frozen_encoder(settings) if settings.image_encoder.name == "pretrained" else None
    num_frozen = getattr(frozen, "num_parameters", 0)
    if what == "teacher" and settings.prompts.encoder == "pretrained":
        num_frozen += load_text_encoder(settings.prompts.weights).num_parameters
    # The student uses an encoder that the teacher trained.
    counts = num_model + num_along + num_frozen, num_model + (0 if what == "student" else num_along)
    size = settings.image_encoder.image_size if frozen is None else frozen.preprocessing.size
    shape, starts_from, kind = (size, size, 3), "images", "images"
    if networks.image_encoder is None:
        kind = "image_features"
        if frozen is None and what == "encoder":
            raise BadInput(f"{folder}: the run has imported features; expected a run with an image encoder to time")
        if frozen is None:
            projection = params[name]["image_projections" if what == "teacher" else "image_projection"]
            shape, starts_from = (projection["linear"]["kernel"].shape[-2],), "features"  # type: ignore[assignment]
    if what == "encoder" and frozen is not None:
        return _Model(frozen.encode, shape, *counts, is_jax=_is_jax(frozen))
    encode = functools.partial(encode_images, networks)
    compute = jax.jit(encode) if what == "encoder" else make_predict(networks, trained.text_features, (what,))

    def run(inputs: Any) -> Any:
        return compute(params, {kind: inputs if frozen is None else frozen.encode(inputs)})

    return _Model(run, shape, *counts, starts_from, is_jax=_is_jax(frozen))


def measure(model: _Model, *, repeats: int) -> Cost:
    """Time a model at each batch size; the first two calls compile and are left out."""
    milliseconds: dict[int, float] = {}
    megabytes = multiply_adds = None
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
    if model.is_jax:
        multiply_adds = count_multiply_adds(model.run, jax.ShapeDtypeStruct((1, *model.shape), np.float32))
    return Cost(model.num_parameters, model.num_trained, megabytes, milliseconds, model.starts_from, multiply_adds)


def peak_megabytes() -> float | None:
    """Return the peak memory so far in MB: of the accelerator, else of this process on Linux, else None."""
    if peak_bytes := (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use"):
        return peak_bytes / 1e6
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
    options = parser.parse_args(arguments)
    if sum(map(bool, (options.cell, options.weights, options.reference))) != 1:
        parser.error("give --cell, --weights or --reference")
    if options.cell is None and options.what != "encoder":
        parser.error("give --cell, or --weights or --reference with `encoder`")
    use_compilation_cache()
    if options.cell:
        model = _open_cell(options.cell, options.what)
    elif options.reference:
        model = make_reference(options.reference)
    else:
        from stepcot_jax.features.frozen_encoders import load_encoder

        encoder: Any = load_encoder(options.weights, options.dtype)
        shape = (*[encoder.preprocessing.size] * 2, 3)
        model = _Model(encoder.encode, shape, encoder.num_parameters, 0, is_jax=_is_jax(encoder))
    print(msgspec.json.encode(measure(model, repeats=options.repeats)).decode())


# Encoders of the paper's Table 11 with random weights, whose cost does not depend on their values.

REFERENCES = ("ResNet18", "ResNet50", "DenseNet121", "CLIP")
"""Names in Table 11; this package has no EfficientNet-B3, FLAVA, BLIP or VisualBERT of its own."""


def recognise_reference(name: str) -> "Architecture":
    """Return the networks of one of `REFERENCES`; CLIP is its ViT-B/32, with both towers."""
    from stepcot_jax.encoders.checkpoints import recognise

    if name not in REFERENCES:
        raise BadInput(f"--reference={name!r} is not one of {', '.join(REFERENCES)}")
    config = {"model_type": "clip"} if name == "CLIP" else {"architecture": name.lower()}
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        return recognise(pathlib.Path(folder), {}, "float32")


def make_reference(name: str) -> _Model:
    """Make one of `REFERENCES`; parameters without BatchNorm's statistics and classifiers, of CLIP of both towers."""
    from stepcot_jax.encoders.load import count_parameters

    architecture = recognise_reference(name)
    image: Any = architecture.image
    shape = (*[architecture.preprocessing.size] * 2, 3)  # type: ignore[union-attr]
    params = jax.jit(image.init)(jax.random.key(0), jnp.zeros((1, *shape)))["params"]
    encode = jax.jit(lambda params, images: image.apply({"params": params}, images)[0])
    return _Model(functools.partial(encode, params), shape, count_parameters(architecture.shapes()), 0)


def count_multiply_adds(function: Callable[..., Any], *inputs: Any) -> int:
    """Count the multiply-adds of the matrix products and convolutions of a function; nothing is computed.

    Results that nothing uses do not count, as XLA leaves them out. A loop of known length counts as often as it runs,
    one of unknown length once, and of a condition all branches. Twice the number is about the number of floating-point
    operations.

    >>> import jax.numpy as jnp
    >>> count_multiply_adds(lambda x: x @ jnp.ones((5, 7)), jax.ShapeDtypeStruct((3, 5), jnp.float32))
    105
    """
    jaxpr = jax.make_jaxpr(function)(*inputs).jaxpr
    needed, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return _count(needed)


def _count(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name, parameters = equation.primitive.name, equation.params
        size = sum(math.prod(output.aval.shape) for output in equation.outvars)
        if name == "dot_general":
            (contracted, _), _ = parameters["dimension_numbers"]
            total += size * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
        elif name == "conv_general_dilated":
            kernel, numbers = equation.invars[1].aval.shape, parameters["dimension_numbers"]
            # Of the kernel, all but its output channels is multiplied for each element of the output.
            total += size * math.prod(kernel) // kernel[numbers.rhs_spec[0]]
        else:
            inner = sum(map(_count, _jaxprs(list(parameters.values()))))
            total += inner * (parameters["length"] if name == "scan" else 1)
    return total


def _jaxprs(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [jaxpr for part in value for jaxpr in _jaxprs(part)]
    if hasattr(value, "jaxpr"):
        return [value.jaxpr]
    return [value] if hasattr(value, "eqns") else []


# The table.

_RANDOM = ", random weights"
_MULTIPLY_ADDS, _THROUGHPUT = "multiply-adds an image (G)", f"images/s at {max(BATCH_SIZES)}"
_PUBLISHED_COLUMNS = ("parameters", "trained", "a sample of four (ms)", "four images (ms)")
_COLUMNS: dict[str, Callable[[Cost], Entry]] = {
    "parameters": lambda cost: cost.num_parameters,
    "trained": lambda cost: cost.num_trained,
    _MULTIPLY_ADDS: lambda cost: None if cost.multiply_adds is None else cost.multiply_adds / 1e9,
    "peak memory (MB)": lambda cost: cost.megabytes,
    "one image (ms)": lambda cost: cost.milliseconds[1],
    "four images (ms)": lambda cost: cost.milliseconds[4],
    _THROUGHPUT: lambda cost: cost.images_per_second,
}

_PUBLISHED_ENCODERS = (
    "Encoders of Table 11 that this package has are measured with random weights, medians of 5 runs; a cost does not "
    "depend on the weights' values. Without classifier; of CLIP (ViT-B/32) the image tower runs.",
    "Published: of encoders the paper's text gives the parameters of three, in millions with two digits. It says that "
    "ResNet18, ResNet50, DenseNet121 and EfficientNet-B3 have 7.03 to 23.67 million and take 0.20 to 1.30 ms a sample, "
    "not which has what, and names BLIP and VisualBERT without figures. CLIP's exceed those counted here by "
    "BiomedCLIP's 0.53 million, which therefore seem to be those of a head alone.",
)


def make_tables(plan: Plan) -> list[Table]:
    """Measure each model in its own process and make the table."""
    rows: list[Row] = []
    models = _list_models(plan)
    for name, arguments in models.items():
        if arguments is not None:
            Terminal().say(f"measuring {name}")
            cost = measure_apart(arguments)
            figures = {heading: read(cost) for heading, read in _COLUMNS.items()}
            rows.append({"model": name, "from": cost.starts_from, **figures, **_published(name)})
    shown = {_plain_name(str(row["model"])) for row in rows}
    others = [encoder for encoder in COST_OF_ENCODERS if encoder.casefold() not in shown]
    rows += [{"model": f"encoder {encoder}", **_published(encoder)} for encoder in others]
    left_out = [name for name, arguments in models.items() if arguments is None]
    notes = [
        f"Measured on {jax.default_backend()} ({jax.devices()[0].device_kind}), float32 or as the config says; "
        "medians of 30 runs from normalised images to answers, prompts encoded ahead. Memory is the peak of a "
        "dedicated process at batch 4; the student's includes the networks that are restored with it.",
        f"Published times are of the authors' GPU, with {COST_MEGABYTES:,} MB of memory; parameters count both towers "
        "of CLIP, and for the teacher BERT.",
        "Multiply-adds: of matrix products and convolutions, about half of the floating-point operations; without "
        "those of the prompts' encoder.",
        *_PUBLISHED_ENCODERS,
        *([f"Left out because their features are imported: {', '.join(left_out)}."] if left_out else []),
    ]
    of_paper = columns("number", *_PUBLISHED_COLUMNS, published=True)
    head = (*heads("model", "from"), *columns("number", *_COLUMNS), *of_paper)
    return [Table.of("cost", "What the models cost", head, rows, notes)]


def _list_models(plan: Plan) -> dict[str, list[str] | None]:
    """Return the arguments of `measure-cost` by model name; None for imported features, which have no network."""
    cell = f"--cell={plan.cells.folder(plan.main(plan.seeds[0]))}"
    models = {f"encoder {encoder.name}": _encoder_arguments(encoder, plan, cell) for encoder in plan.encoders()}
    measured = {_plain_name(name) for name, arguments in models.items() if arguments is not None}
    for name in REFERENCES:
        if name.casefold() not in measured:
            models[f"encoder {name}{_RANDOM}"] = ["encoder", f"--reference={name}", "--repeats=5"]
    return models | {name: [name, cell] for name in ("teacher", "student")}


def _encoder_arguments(encoder: Encoder, plan: Plan, cell: str) -> list[str] | None:
    name = encoder.changes.get("image_encoder.name", plan.settings.image_encoder.name)
    weights = encoder.changes.get("image_encoder.weights", plan.settings.image_encoder.weights)
    if name == "imported":
        return None
    if name != "pretrained":
        return ["encoder", cell]
    if encoder.prepare is not None:
        encoder.prepare()
    return ["encoder", f"--weights={weights}", f"--dtype={plan.settings.image_encoder.dtype}"]


def _plain_name(name: str) -> str:
    """Return the name of a row's encoder without case.

    >>> _plain_name("encoder CLIP, random weights")
    'clip'
    """
    return name.removeprefix("encoder ").removesuffix(_RANDOM).casefold()


def _published(name: str) -> dict[str, Entry]:
    """Return the published figures of a model, or of an encoder in any case, as far as they are known."""
    known = {encoder.casefold(): figures for encoder, figures in COST_OF_ENCODERS.items()}
    parameters, milliseconds = known.get(_plain_name(name), (None, None))
    figures = COST.get(name, (parameters, None, milliseconds, None))
    return mark_published(dict(zip(_PUBLISHED_COLUMNS, figures, strict=True)))


# The cost does not depend on the seed.
RECIPES = {"cost": Recipe(lambda plan, seed: [plan.main(seed)] if seed == plan.seeds[0] else [], make_tables)}
