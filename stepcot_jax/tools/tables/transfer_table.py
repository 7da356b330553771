"""Table 4: trained on one source, read on another without fine-tuning, with and without the intermediate steps."""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from stepcot_jax.chain import NOT_ANNOTATED, Chain, fold
from stepcot_jax.data.dataset import Dataset
from stepcot_jax.data.identities import fold_patient
from stepcot_jax.data.images.image_files import digest_content
from stepcot_jax.data.phantom.phantom import ORIGINS
from stepcot_jax.data.record_table import RecordTable
from stepcot_jax.data.splits.splits import Splits
from stepcot_jax.evaluation.comparison import CORRECTED, INTERVALS, AnswerComparison, join, last_step_alone, settle
from stepcot_jax.evaluation.predictions import SplitPredictions
from stepcot_jax.evaluation.published import TRANSFER_SAMPLES
from stepcot_jax.features.store import digest_pixels
from stepcot_jax.host.download import name_source
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.models.student import ABSENT_LOGIT
from stepcot_jax.pages.sheets import Entry, Table, columns, heads, mark_published
from stepcot_jax.run.loading import load_dataset
from stepcot_jax.run.networks import trained_preprocessing
from stepcot_jax.run.settings import Settings
from stepcot_jax.tools.tables.cells import Cell, vary
from stepcot_jax.tools.tables.encoders import Encoder
from stepcot_jax.tools.tables.plan import NETWORKS, Plan, Recipe
from stepcot_jax.tools.tables.step_tables import FIGURE_COLUMNS, SUPERVISION, list_supervised, list_trained, name_gain

# Transfer targets: answers mapped to the networks' chain, and checks for overlap with the training data.


def relabel_last_step(dataset: Dataset, chain: Chain, *, name: str) -> tuple[Dataset, str]:
    """Map the answers to the last step to the labels of another chain, and drop all other answers.

    Options are matched by text, case and spacing folded. The options of other steps may differ.
    """
    step, options = dataset.chain.steps[-1], chain.steps[-1].options
    by_text = {fold(option): label for label, option in enumerate(options)}
    label_of = {label: by_text.get(fold(option), NOT_ANNOTATED) for label, option in enumerate(step.options)}
    label_of[NOT_ANNOTATED] = NOT_ANNOTATED
    counts = collections.Counter(
        dataset.cases[index].answers[-1] for index in _members(dataset, "train", "val", "test")
    )
    num_unanswered = counts.pop(NOT_ANNOTATED, 0)
    unknown = sorted(label for label in counts if label_of[label] == NOT_ANNOTATED)
    if counts and len(unknown) == len(counts):
        texts = [step.options[label] for label in unknown]
        raise BadInput(f"{name}: answers {texts} to {step.name!r} are not among {list(options)}")
    nothing = [NOT_ANNOTATED] * (chain.num_steps - 1)
    others: dict[str, Any] = {"uncertain": (), "reasoning": ("",) * chain.num_steps}
    relabelled = RecordTable(
        msgspec.structs.replace(case, answers=(*nothing, label_of[case.answers[-1]]), **others)
        for case in dataset.cases
    )
    kept = {
        split: tuple(index for index in members if dataset.cases[index].answers[-1] not in unknown)
        for split, members in dataset.splits.by_name().items()
    }
    named = ", ".join(f"{step.options[label]} {counts[label]}" for label in unknown)
    parts = {
        f"cases of classes that the networks do not have ({named})": sum(counts[label] for label in unknown),
        "unannotated cases": num_unanswered,
        "records set aside by the loader": len(dataset.set_aside),
    }
    left_out = ", ".join(f"{count} {what}" for what, count in parts.items() if count)
    changed = dataclasses.replace(dataset, chain=chain, cases=relabelled, splits=Splits(**kept))
    return changed, f"Left out: {left_out}." if left_out else ""


def check_target(source: Settings, target: Settings, *, name: str) -> None:
    """Refuse a transfer target that overlaps with the training data, before anything is trained.

    Patients are compared by id within one data root, or within phantoms of one seed; elsewhere equal ids mean nothing.
    Images are compared by file content; with a phantom, which has no files, by their pixels after preprocessing; with
    imported features by path.
    """
    by_path = source.image_encoder.name == "imported"
    are_phantoms = source.data.source == target.data.source == "phantom"
    if are_phantoms and source.phantom.seed != target.phantom.seed and not by_path:
        return
    trained, read = _load(source), _load(target)
    relabel_last_step(read, trained.chain, name=name)
    learned, asked = _members(trained, "train", "val"), _members(read, "train", "val", "test")
    overlapping: list[int] = []
    if _has_same_patients(source, target):
        patients = {fold_patient(trained.cases[index].patient) for index in learned}
        overlapping = [index for index in asked if fold_patient(read.cases[index].patient) in patients]
    if not overlapping and (by_path or not are_phantoms):
        by = "path" if by_path else "pixels" if trained.images is None or read.images is None else "content"
        known = {_identify_image(trained, index, by) for index in learned}
        overlapping = [index for index in asked if _identify_image(read, index, by) in known]
    if overlapping:
        first, num_patients = read.cases[overlapping[0]], len({read.cases[index].patient for index in overlapping})
        raise BadInput(
            f"--target_config: {num_patients} patients with {len(overlapping)} of the {len(asked)} cases of {name} are "
            f"in the source's train or val split, the first is {first.patient!r} ({first.image}); "
            "expected held-out data"
        )


def _load(settings: Settings) -> Dataset:
    if settings.data.on_bad_record == "stop":  # else images that cannot be decoded change the splits
        settings = vary(settings, {"data.check_images": "on_use"})
    how: dict[str, Any] = {"preprocessing": trained_preprocessing(settings), "progress": Terminal().watch}
    dataset = load_dataset(settings, require_images=settings.image_encoder.name != "imported", **how)
    return dataset.with_origins(settings.data.origins) if settings.data.origins else dataset


def _members(dataset: Dataset, *splits: str) -> list[int]:
    by_name = dataset.splits.by_name()
    return sorted(index for split in splits for index in by_name[split])


def _has_same_patients(source: Settings, target: Settings) -> bool:
    """Return whether equal ids mean the same patient; a phantom's patient depends on seed and id alone."""
    if "phantom" in (source.data.source, target.data.source):
        return source.data.source == target.data.source and source.phantom.seed == target.phantom.seed
    paths = {root: pathlib.Path(root) for root in (source.data.root, target.data.root)}
    return len({name_source(str(path.parent) if path.is_file() else root) for root, path in paths.items()}) == 1


def _identify_image(dataset: Dataset, index: int, by: str) -> str:
    """Return a key of an image, equal for equal images."""
    if by == "path":
        return dataset.cases[index].image
    if by == "pixels" or dataset.images is None:
        return digest_pixels(dataset.pixels[index])
    return digest_content(dataset.images, index)


SOURCE = "the source's test split"

_PUBLISHED = (
    "Published: the cases of Table 4. The paper's text has none of its scores; it says that networks trained with the "
    "steps are better throughout."
)


def list_cells(plan: Plan, seed: int) -> list[Cell]:
    """Return teacher, student, and baselines without and with the intermediate steps, trained on the source alone."""
    if seed == plan.seeds[0]:
        _check_targets(plan)
    return [_main(plan, seed), *_baselines(plan, seed).values()]


def _source(plan: Plan) -> tuple[str, ...]:
    """Return the origins to train on: the first of the phantom's styles; of other data those of the config."""
    if plan.target is not None:
        return plan.settings.data.origins
    if plan.settings.data.source != "phantom":
        raise BadInput(
            "--target_config is required (settings whose data the table reads) unless config.data.source='phantom', "
            "which has acquisition styles to hold out"
        )
    return ORIGINS[:1]


def _check_targets(plan: Plan) -> None:
    """Refuse a target that overlaps with the source; no patient of the phantom has two styles."""
    if plan.target is not None:
        source = _main(plan, plan.seeds[0]).settings
        for name, settings in _targets(plan, source).items():
            check_target(source, settings, name=name)


def _of_source(plan: Plan, cell: Cell, name: str) -> Cell:
    return dataclasses.replace(cell, name=name, settings=vary(cell.settings, {"data.origins": _source(plan)}))


def _main(plan: Plan, seed: int) -> Cell:
    return _of_source(plan, plan.main(seed), "teacher and student of the source")


def _encoders(plan: Plan, seed: int) -> tuple[list[Encoder], list[str]]:
    """Return the encoders of the baselines, and the names of those left out.

    The config's own encoder comes first, then those that the user names. Encoders derived from a teacher of all data
    may have learned from the target; imported features exist for the source's images only.
    """
    configured, *others = plan.encoders(seed)
    named = [encoder for encoder in others if encoder.name in plan.named_encoders]
    imported = [encoder.name for encoder in named if encoder.changes["image_encoder.name"] == "imported"]
    return [configured, *(encoder for encoder in named if encoder.name not in imported)], imported


def _baselines(plan: Plan, seed: int) -> dict[str, Cell]:
    cells = [plan.baseline(encoder, steps, seed) for encoder in _encoders(plan, seed)[0] for steps in ("last", "all")]
    return {cell.name: _of_source(plan, cell, f"{cell.name}, of the source") for cell in cells}


def _targets(plan: Plan, settings: Settings) -> dict[str, Settings]:
    if plan.target is None:
        return {origin: vary(settings, {"data.origins": (origin,)}) for origin in ORIGINS[1:]}
    name = pathlib.PurePath(plan.target.data.root).name or plan.target.data.source
    return {name: dataclasses.replace(settings, data=plan.target.data, phantom=plan.target.phantom)}


def make_tables(plan: Plan) -> list[Table]:
    """Make the table: the networks of finished cells read the targets."""
    _check_targets(plan)
    chain = plan.cells.chain(_main(plan, plan.seeds[0]))
    last = Chain(chain.steps[-1:])
    by_data: dict[str, list[SplitPredictions]] = {}
    left_out: dict[str, str] = {}
    for seed in plan.seeds:
        for name, (split, without) in _read_all(plan, seed).items():
            by_data.setdefault(name, []).append(restrict(last_step_alone(split), last))
            left_out[name] = without
    comparisons = {name: AnswerComparison(splits, plan.num_resamples, chain=last) for name, splits in by_data.items()}
    encoders, imported = _encoders(plan, plan.seeds[0])
    rows: list[dict[str, Any]] = []
    waiting: dict[str, tuple[int, int]] = dict(TRANSFER_SAMPLES)
    source = ", ".join(_source(plan)) or "the config's data"
    notes = [
        f"{chain.steps[-1].name}; trained on {source}, read without fine-tuning; answers that no case of the data has "
        f"are excluded. Seeds {list(plan.seeds)}."
    ]
    for name, comparison in comparisons.items():
        answers = np.unique(comparison.splits[0].predictions.labels).tolist()
        classes = [last.steps[0].options[label] for label in answers if label >= 0]
        notes.append(f"{name}: {len(classes)} classes ({', '.join(classes)}). {left_out[name]}".rstrip())
        origins = set(comparison.splits[0].facts["origin"].tolist())
        sample = waiting.pop(str(origins.pop()), None) if name != SOURCE and len(origins) == 1 else None
        about = {"read": name, "cases": comparison.num_cases(0), "classes": len(classes), **_published(sample)}
        of_models = [row for encoder in encoders for row in list_supervised(comparison, encoder.name)]
        of_models += [list_trained(comparison, network) for network in NETWORKS]
        rows += [about | row for row in of_models]
    rows += [{"read": name, **_published(sample)} for name, sample in waiting.items()]
    notes += [INTERVALS, CORRECTED, *SUPERVISION, _PUBLISHED]
    notes += [encoder.note for encoder in encoders if encoder.note]
    if imported:
        notes.append(f"Left out, since imported features are of the source's images: {', '.join(imported)}.")
    head = heads("read", "model", "intermediate steps", "#cases", "#classes")
    head = (*head, *FIGURE_COLUMNS, *columns("number", "cases", "classes", published=True))
    return [Table.of("transfer", "Another source without fine-tuning", head, settle(rows, name_gain), notes)]


def _published(sample: tuple[int, int] | None) -> dict[str, Entry]:
    return {} if sample is None else mark_published(dict(zip(("cases", "classes"), sample, strict=True)))


def restrict(split: SplitPredictions, chain: Chain) -> SplitPredictions:
    """Restrict the predictions of one step to the answers that its cases have."""
    predictions = split.predictions
    known = np.unique(predictions.labels[predictions.labels >= 0])
    if not len(known):
        raise BadInput(f"no case has an answer to {chain.steps[0].name!r}")
    absent = ~np.isin(np.arange(next(iter(predictions.logits.values())).shape[-1]), known)
    logits = {name: np.where(absent, np.float32(ABSENT_LOGIT), values) for name, values in predictions.logits.items()}
    return split.change(logits=logits)


def _read_all(plan: Plan, seed: int) -> dict[str, tuple[SplitPredictions, str]]:
    """Return by data set the predictions of all models of a seed, and a sentence on the cases left out."""
    main = _main(plan, seed)
    models = {network: (main, network) for network in NETWORKS}
    models |= {name: (cell, "baseline") for name, cell in _baselines(plan, seed).items()}
    parts: dict[str, dict[str, tuple[SplitPredictions, str]]] = {}
    left_out, read = {SOURCE: ""}, {}
    for name, (cell, network) in models.items():
        if cell.name not in read:
            names = NETWORKS if cell is main else (network,)
            read[cell.name] = {SOURCE: (plan.cells.predictions(cell), ""), **_read(plan, cell, names)}
        for data, (split, without) in read[cell.name].items():
            parts.setdefault(data, {})[name] = split, network
            left_out[data] = without
    return {data: (join(of_data), left_out[data]) for data, of_data in parts.items()}


def _read(plan: Plan, cell: Cell, names: tuple[str, ...]) -> Mapping[str, tuple[SplitPredictions, str]]:
    """Return by target the predictions of a cell's networks, and a sentence on the cases left out."""
    from stepcot_jax.run.inputs import load_inputs
    from stepcot_jax.tools.tables.cell_networks import load_weights, read_cases

    folder, by_target = plan.cells.folder(cell), {}
    trained = load_weights(folder, names)
    for name, settings in _targets(plan, cell.settings).items():
        # The networks have the prompt vectors of their training: no text encoder is needed.
        settings = vary(plan.cells.share_features(settings), {"prompts.encoder": "hashed", "prompts.weights": ""})
        inputs = load_inputs(settings, folder, Terminal())
        dataset, left_out = relabel_last_step(inputs.dataset, trained.chain, name=name)
        split = read_cases(trained, dataclasses.replace(inputs, dataset=dataset), "all", settings)
        by_target[name] = split, left_out
    return by_target


RECIPES = {"transfer": Recipe(list_cells, make_tables)}
