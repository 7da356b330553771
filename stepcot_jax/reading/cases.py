"""Open the cases for readers: a data root, or a split of a run with the run's images."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain
from stepcot_jax.data.images.image_decoding import decode_picture
from stepcot_jax.data.images.image_files import ImageFiles, folder_files
from stepcot_jax.data.records.records import Collection
from stepcot_jax.data.sources.layouts import read_source
from stepcot_jax.evaluation.predictions import SplitPredictions, read_predictions
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.record import Record
from stepcot_jax.run.stored import StoredRun, read_patients, read_stored

if TYPE_CHECKING:
    from stepcot_jax.data.phantom.phantom import PhantomCase

_PHANTOM_PATH = re.compile(r"images/phantom_([0-9]{1,9})\.png")
_NUM_SHOWN = 80


@dataclasses.dataclass(frozen=True)
class CaseSource:
    """Cases to draw from for readers."""

    name: str
    chain: Chain
    cases: tuple[Record, ...]  # the cases, including those whose last step is unannotated
    picture: Callable[[int], Image.Image]  # from the position of a case to its upright picture, mode "L" or "RGB"
    report: Callable[[int], str]  # from the position of a case to its report; "" without one

    @property
    def diagnosed(self) -> tuple[int, ...]:
        """Positions of the cases whose last step is annotated."""
        return tuple(position for position, case in enumerate(self.cases) if case.answers[-1] != NOT_ANNOTATED)


def open_data(root: Path, *, max_pixels: int, **reading: Any) -> CaseSource:
    """Open all cases of a data root in any layout."""
    collection = read_source(root, **reading)
    return _with_files(str(root), collection, folder_files(collection, max_pixels=max_pixels), max_pixels)


def open_run(workdir: Path, split: str, *, root: Path | None = None) -> CaseSource:
    """Open the cases of a split of a finished run; of a policy's run those of the split's patients."""
    run = read_stored(workdir)
    if run.trains_policy:
        return _open_policy_run(run, workdir, split, root)
    path = workdir / "predictions" / f"{split}.npz"
    name = f"{split} split of {workdir}"
    if run.settings.data.source == "phantom" and root is None:
        predictions = read_predictions(path, DEFAULT_CHAIN)
        cases = tuple(_predicted_cases(predictions))

        def draw(position: int) -> "PhantomCase":
            return _draw(cases[position], run, path)

        return CaseSource(
            name,
            DEFAULT_CHAIN,
            cases,
            picture=lambda position: Image.fromarray(np.asarray(draw(position).image)),
            report=lambda position: draw(position).case.report,
        )
    data = _open_data_of(run, root)
    predictions = read_predictions(path, data.chain)
    positions = {case.image: position for position, case in enumerate(data.cases)}
    chosen = []
    for case in _predicted_cases(predictions):
        where = _name(path, case)
        if case.image not in positions:
            raise BadInput(f"{where} is missing in {data.name}; expected the data of the run")
        chosen.append(positions[case.image])
        _require_same(case, data.cases[chosen[-1]], f"{where} in {data.name}")
    return _select(data, chosen, name)


def _open_policy_run(run: StoredRun, workdir: Path, split: str, root: Path | None) -> CaseSource:
    vqa = run.settings.vqa
    if vqa.source != "folder" and root is None:
        raise BadInput(f"{workdir}: config.vqa.source={vqa.source!r} has no data root; expected DATA, or another run")
    root = find_path(vqa.root, "config.vqa.root") if root is None else root
    reading = {"on_bad_record": run.settings.data.on_bad_record, "layout": vqa.layout}
    data, patients = open_data(root, max_pixels=run.max_pixels, **reading), set(read_patients(workdir).get(split, ()))
    chosen = [position for position, case in enumerate(data.cases) if case.patient in patients]
    if not chosen:
        raise BadInput(f"{data.name}: no case of a patient in the {split} split of {workdir}; expected the run's data")
    return _select(data, chosen, f"{split} split of {workdir}")


def _select(data: CaseSource, chosen: Sequence[int], name: str) -> CaseSource:
    cases = tuple(data.cases[position] for position in chosen)
    return CaseSource(
        name,
        data.chain,
        cases,
        picture=lambda position: data.picture(chosen[position]),
        report=lambda position: cases[position].report,
    )


def _open_data_of(run: StoredRun, root: Path | None) -> CaseSource:
    data, max_pixels = run.settings.data, run.max_pixels
    if data.source == "given" and root is None:
        raise BadInput("the run's cases were passed to sc.fit; expected a run that read them from its data root")
    is_prepared = data.source == "tfds" and root is None
    root = find_path(data.root, "config.data.root") if root is None else root
    if is_prepared:
        from stepcot_jax.data.tfds.source import open_prepared  # needs an optional library

        prepared = open_prepared(root, max_pixels=max_pixels)
        return _with_files(data.root, prepared.collection, prepared.images, max_pixels)
    of_folder = {"layout": data.layout, "single_label": data.single_label, "labels_from": data.labels_from}
    return open_data(
        root,
        max_pixels=max_pixels,
        step_names=data.step_names,
        on_bad_record=data.on_bad_record,
        **(of_folder if data.source == "folder" else {}),
    )


def _with_files(name: str, collection: Collection, images: ImageFiles, max_pixels: int) -> CaseSource:
    def decode(position: int) -> Image.Image:
        return decode_picture(images.read(position), name=images.name(position), max_pixels=max_pixels)

    cases = tuple(collection.cases)
    return CaseSource(name, collection.chain, cases, decode, lambda position: cases[position].report)


def _predicted_cases(predictions: SplitPredictions) -> Sequence[Record]:
    """Return the cases of a predictions file, which has no reports and no reasoning."""
    labels = predictions.predictions.labels.tolist()
    patients, paths, origins = (predictions.facts[name].tolist() for name in ("patient_id", "image_path", "origin"))
    return [
        Record(patient=patient, image=path, origin=origin, answers=tuple(row), reasoning=("",) * len(row))
        for patient, path, origin, row in zip(patients, paths, origins, labels, strict=True)
    ]


def _name(path: Path, case: Record) -> str:
    return f"{path}, case {case.image[:_NUM_SHOWN]!r}"


def _draw(case: Record, run: StoredRun, path: Path) -> "PhantomCase":
    where = _name(path, case)
    number = _PHANTOM_PATH.fullmatch(case.image)
    if number is None:
        raise BadInput(f"{where} is not a phantom's image_path, such as images/phantom_000012.png")
    drawn = run.draw(int(number[1]))
    _require_same(case, drawn.case, f"{where}, drawn again,")
    return drawn


def _require_same(expected: Record, actual: Record, where: str) -> None:
    """Refuse a case with another patient or other answers; steps that the run did not supervise may be annotated."""
    answered = zip(expected.answers, actual.answers, strict=True)
    for field, is_same in (
        ("patient_id", expected.patient == actual.patient),
        ("labels", all(of_run in (NOT_ANNOTATED, of_data) for of_run, of_data in answered)),
    ):
        if not is_same:
            raise BadInput(f"{where} has another {field} than in the run; expected the data of the run")
