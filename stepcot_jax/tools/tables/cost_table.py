"""Table 11: parameters, memory, latency and throughput of every encoder, of teacher and student."""

from stepcot_jax.evaluation.published import COST, COST_MEGABYTES, COST_OF_ENCODERS
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.pages.sheets import Entry, Row, Table, columns
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.cost_measuring import BATCH_SIZES, Cost, measure_apart
from stepcot_jax.tools.tables.encoders import REFERENCES, Encoder
from stepcot_jax.tools.tables.plan import Plan

_RANDOM = ", random weights"
_MULTIPLY_ADDS, _THROUGHPUT = "multiply-adds an image (G)", f"images/s at {max(BATCH_SIZES)}"
_PUBLISHED_COLUMNS = ("parameters", "trained", "a sample of four (ms)", "four images (ms)")

_PUBLISHED_ENCODERS = (
    "Encoders of Table 11 that this package has are measured with random weights, medians of 5 runs; a cost does not "
    "depend on the weights' values. Without classifier; of CLIP (ViT-B/32) the image tower runs.",
    "Published: of encoders the paper's text gives the parameters of three, in millions with two digits. It says that "
    "ResNet18, ResNet50, DenseNet121 and EfficientNet-B3 have 7.03 to 23.67 million and take 0.20 to 1.30 ms a sample, "
    "not which has what, and names BLIP and VisualBERT without figures. CLIP's exceed those counted here by "
    "BiomedCLIP's 0.53 million, which therefore seem to be those of a head alone.",
)


def list_cells(plan: Plan) -> list[Cell]:
    """Return teacher and student of the first seed; the cost does not depend on it."""
    return [plan.main(plan.seeds[0])]


def make_tables(plan: Plan) -> list[Table]:
    """Measure each model in its own process and make the table."""
    import jax

    rows: list[Row] = []
    models = _list_models(plan)
    for name, arguments in models.items():
        if arguments is not None:
            Terminal().say(f"measuring {name}")
            cost = measure_apart([*arguments, f"--compilation-cache={plan.workdir / 'compilation_cache'}"])
            rows.append(_make_row(name, cost) | _published(name))
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
    headings = (
        *columns("text", "model", "from"),
        *columns("number", "parameters", "trained", _MULTIPLY_ADDS, "peak memory (MB)"),
        *columns("number", "one image (ms)", "four images (ms)", _THROUGHPUT),
        *columns("number", *_PUBLISHED_COLUMNS, published=True),
    )
    return [Table.of("cost", "What the models cost", headings, rows, notes)]


def _list_models(plan: Plan) -> dict[str, list[str] | None]:
    """Return the arguments of `cost_measuring` by model name; None for imported features, which have no network."""
    cell = f"--cell={plan.cells.folder(plan.main(plan.seeds[0]))}"
    encoders = {f"encoder {encoder.name}": _encoder_arguments(encoder, plan, cell) for encoder in plan.encoders()}
    measured = {_plain_name(name) for name, arguments in encoders.items() if arguments is not None}
    references: dict[str, list[str] | None] = {
        f"encoder {name}{_RANDOM}": ["encoder", f"--reference={name}", "--repeats=5"]
        for name in REFERENCES
        if name.casefold() not in measured
    }
    return {**encoders, **references, "teacher": ["teacher", cell], "student": ["student", cell]}


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


def _make_row(name: str, cost: Cost) -> Row:
    return {
        "model": name,
        "from": cost.starts_from,
        "parameters": cost.num_parameters,
        "trained": cost.num_trained,
        _MULTIPLY_ADDS: None if cost.multiply_adds is None else cost.multiply_adds / 1e9,
        "peak memory (MB)": cost.megabytes,
        "one image (ms)": cost.milliseconds[1],
        "four images (ms)": cost.milliseconds[4],
        _THROUGHPUT: cost.images_per_second,
    }


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
    return {f"published: {heading}": figure for heading, figure in zip(_PUBLISHED_COLUMNS, figures, strict=True)}
