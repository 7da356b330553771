"""Table 4: trained on one source, read on another without fine-tuning, restricted to the classes there."""

import dataclasses
import pathlib
from collections.abc import Mapping

import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.prediction_files import SplitPredictions
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.models.student import ABSENT_LOGIT
from stepcot_jax.settings.run_settings import Settings
from stepcot_jax.tables.cells import Cell, vary
from stepcot_jax.tables.comparing import INTERVALS, Comparison, join, last_step_alone
from stepcot_jax.tables.diagnosis_table import METRICS
from stepcot_jax.tables.plan import Plan
from stepcot_jax.tables.published_figures import TRANSFER_SAMPLES
from stepcot_jax.tables.targets import check_target, relabel_last_step
from stepcot_jax.tables.writing import Entry, Table, columns


def list_cells(plan: Plan) -> list[Cell]:
    """Return teacher, student and a baseline on the same encoder, trained on the source alone.

    Raises:
      BadInput: the target shares patients or images with the training data, or shares no answer.
    """
    _check_targets(plan)
    return [cell for seed in plan.seeds for cell in (_main(plan, seed), _baseline(plan, seed))]


def _source(plan: Plan) -> tuple[str, ...]:
    """Origins to train on: the first of the phantom's styles; of other data those of the config."""
    if plan.target is not None:
        return plan.settings.data.origins
    if plan.settings.data.source != "phantom":
        raise BadInput(
            "--target_config is required (settings whose data the table reads) unless config.data.source='phantom', "
            "which has acquisition styles to hold out"
        )
    from stepcot_jax.data.phantom.phantom import ORIGINS

    return ORIGINS[:1]


def _check_targets(plan: Plan) -> None:
    """Refuse a target that overlaps with the source; no patient of the phantom has two styles."""
    if plan.target is not None:
        source = _main(plan, plan.seeds[0]).settings
        for name, settings in _targets(plan, source).items():
            check_target(source, settings, name=name)


def _main(plan: Plan, seed: int) -> Cell:
    cell = plan.main(seed)
    return Cell("teacher and student of the source", vary(cell.settings, {"data.origins": _source(plan)}))


def _baseline(plan: Plan, seed: int) -> Cell:
    cell = plan.baseline(plan.encoders(seed)[0], "all", seed)
    changed = vary(cell.settings, {"data.origins": _source(plan)})
    return Cell("baseline of the source, with steps", changed, prepare=cell.prepare)


def _targets(plan: Plan, settings: Settings) -> dict[str, Settings]:
    """By name, the settings of a source's cell with the data of a target."""
    if plan.target is not None:
        name = pathlib.PurePath(plan.target.data.root).name or plan.target.data.source
        return {name: dataclasses.replace(settings, data=plan.target.data, phantom=plan.target.phantom)}
    from stepcot_jax.data.phantom.phantom import ORIGINS

    return {origin: vary(settings, {"data.origins": (origin,)}) for origin in ORIGINS[1:]}


def make_tables(plan: Plan) -> list[Table]:
    """Make the table: the networks of finished cells read the targets."""
    _check_targets(plan)
    by_data: dict[str, list[SplitPredictions]] = {}
    left_out: dict[str, str] = {}
    chain = plan.cells.chain(_main(plan, plan.seeds[0]))
    for seed in plan.seeds:
        main, baseline = _main(plan, seed), _baseline(plan, seed)
        found = _join(plan.cells.predictions(main), plan.cells.predictions(baseline))
        by_data.setdefault("the source's test split", []).append(found)
        of_main, of_baseline = _read(plan, main, ("teacher", "student")), _read(plan, baseline, ("baseline",))
        for name, (split, left_out[name]) in of_main.items():
            by_data.setdefault(name, []).append(_join(split, of_baseline[name][0]))
    source = ", ".join(_source(plan)) or "the config's data"
    notes = [
        f"{chain.steps[-1].name}; trained on {source}, read without fine-tuning; answers that no case of the data has "
        f"are excluded. Seeds {list(plan.seeds)}."
    ]
    rows: list[tuple[Entry, ...]] = []
    waiting: dict[str, tuple[Entry, Entry]] = dict(TRANSFER_SAMPLES)
    nothing = (None, None)
    for name, splits in by_data.items():
        last = Chain(chain.steps[-1:])
        restricted = [restrict(last_step_alone(split), last) for split in splits]
        comparison = Comparison(restricted, last, plan.num_resamples)
        answers = np.unique(restricted[0].predictions.labels)
        named = [chain.steps[-1].options[label] for label in answers.tolist() if label >= 0]
        notes.append(f"{name}: {len(named)} classes ({', '.join(named)}). {left_out.get(name, '')}".rstrip())
        origins = set(splits[0].facts["origin"].tolist())
        published = waiting.pop(str(origins.pop()), nothing) if name in left_out and len(origins) == 1 else nothing
        for model in ("baseline", "teacher", "student"):
            figures = (comparison.figure(model, metric, 0) for metric in METRICS)
            rows.append((name, model, comparison.num_cases(0), len(named), *figures, *published))
    rows += [(name, *[None] * (len(METRICS) + 3), *sample) for name, sample in waiting.items()]
    notes += [INTERVALS, "Published: the cases of Table 4; its scores are unknown."]
    headings = (
        *columns("text", "read", "model"),
        *columns("number", "cases", "classes"),
        *columns("percent", *METRICS.values()),
        *columns("number", "cases", "classes", published=True),
    )
    return [Table("transfer", "Another source without fine-tuning", headings, tuple(rows), tuple(notes))]


def restrict(split: SplitPredictions, chain: Chain) -> SplitPredictions:
    """Restrict the predictions of one step to the answers that its cases have."""
    found = split.predictions
    known = np.unique(found.labels[found.labels >= 0])
    if not len(known):
        raise BadInput(f"no case has an answer to {chain.steps[0].name!r}")
    absent = ~np.isin(np.arange(next(iter(found.logits.values())).shape[-1]), known)
    logits = {name: np.where(absent, np.float32(ABSENT_LOGIT), values) for name, values in found.logits.items()}
    return dataclasses.replace(split, predictions=dataclasses.replace(found, logits=logits))


def _join(first: SplitPredictions, second: SplitPredictions) -> SplitPredictions:
    parts = [(name, part) for part in (first, second) for name in part.predictions.logits]
    return join({name: (part, name) for name, part in parts})


def _read(plan: Plan, cell: Cell, names: tuple[str, ...]) -> Mapping[str, tuple[SplitPredictions, str]]:
    """Predictions of a cell's networks on each target, and what of it is left out."""
    from stepcot_jax.features.inputs import load_inputs
    from stepcot_jax.systems.networks import make_predict
    from stepcot_jax.tables.cell_networks import load_weights, read_cases

    folder, found = plan.cells.folder(cell), {}
    trained = load_weights(folder, names)
    # Each network has its own best weights, encoder included.
    compiled = {model: make_predict(trained.networks, trained.text_features, (model,)) for model in names}
    for name, settings in _targets(plan, cell.settings).items():
        # The networks have the prompt vectors of their training: no text encoder is needed.
        settings = vary(plan.cells.share_features(settings), {"prompts.encoder": "hashed", "prompts.weights": ""})
        inputs = load_inputs(settings, folder, Terminal())
        dataset, left_out = relabel_last_step(inputs.dataset, trained.chain, name=name)
        split = read_cases(
            lambda batch: {model: predict(trained.params[model], batch)[model] for model, predict in compiled.items()},
            dataclasses.replace(inputs, dataset=dataset),
            "all",
            settings,
        )
        found[name] = split, left_out
    return found
