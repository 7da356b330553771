"""Annotation from Python: reports to chains, and boxes or questions to reasoning, without a command line."""

import dataclasses
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import replace

from stepcot_jax.annotate.agreement import Aligned, StepComparison, align, compare
from stepcot_jax.annotate.annotation import Aside
from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.output import Result
from stepcot_jax.annotate.recipes.items import TaskSettings
from stepcot_jax.annotate.reports import locate_images
from stepcot_jax.annotate.runner import TASKS, Plan, annotate_questions, annotate_source
from stepcot_jax.chain import DEFAULT_CHAIN, Chain
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.record import Record, Records


@dataclasses.dataclass(frozen=True)
class RulesAnnotator:
    """Annotates by the package's rules or templates: offline, the same every time."""


Annotator = RulesAnnotator | Endpoint


@dataclasses.dataclass(frozen=True)
class Annotated:
    """The outcome of `annotate_reports`.

    Attributes:
      records: a record for each frontal image of a kept report, with the answers and their sentences.
      set_aside: the other reports, each with the reason.
      agreement: for each step the annotators' agreement and kappa; () with one annotator.
      funnel: number of reports collected, set aside by reason, and kept, as a Markdown table for each source.
    """

    records: Records
    set_aside: tuple[Aside, ...]
    agreement: tuple[StepComparison, ...]
    funnel: str


def annotate_reports(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    annotator: Annotator | Sequence[Annotator] = RulesAnnotator(),
    voters: Sequence[Endpoint] = (),
    chain: Chain = DEFAULT_CHAIN,
    out: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Annotated:
    """Make chains from radiology reports.

    Args:
      sources: IU X-Ray, a folder with data.json, or a .csv or .jsonl file of id, report, image; or several of them.
      annotator: `RulesAnnotator()` or `LLMAnnotator(model=..., base_url=...)`. Of several, the first makes the records
        and the others are compared with it.
      voters: further models that must call a chain correct.
      chain: steps and options to answer.
      out: folder of records, linked images, reports set aside and models' answers, where a second call goes on. None
        keeps nothing: a model's answers are lost at an error.
      **options: further fields of `annotate.runner.Plan`, such as `cap` (most tokens) and `overwrite`.

    Raises:
      BadInput: a source cannot be read, every report was set aside, or `out` has a result.
      RunStopped: requests were given up, or the cap is reached; `out` has the answers so far.
    """
    paths = [sources] if isinstance(sources, str | os.PathLike) else list(sources)
    annotators = list(annotator) if isinstance(annotator, Sequence) else [annotator]
    if not paths or not annotators:
        raise BadInput("annotate_reports: at least one source and one annotator are required")
    found = [find_path(path, "sources") for path in paths]
    options = {"images": "none" if out is None else "link"} | options
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary if out is None else out)
        root = Path(os.path.commonpath([resolve(locate_images(path)) for path in found])) if out is None else folder
        parts: list[list[Result[Record]]] = []
        comparable: list[Aligned] = []
        records: list[Record] = []
        for number, source in enumerate(found):
            target = folder / f"source_{number}" if len(found) > 1 else folder
            folders = [target / f"annotator_{place}" for place in range(len(annotators))]
            folders = folders if len(annotators) > 1 else [target]
            parts.append(
                [
                    annotate_source(source, below, _make_plan(chosen, voters, options), Terminal(), chain=chain)
                    for chosen, below in zip(annotators, folders, strict=True)
                ]
            )
            prefix = (resolve(locate_images(source)) if out is None else folders[0]).relative_to(root)
            records += [replace(case, image=(prefix / case.image).as_posix()) for case in parts[-1][0].records]
            comparable += [align(folders)] if len(annotators) > 1 else []
    firsts = [results[0] for results in parts]
    units = tuple(unit for aligned in comparable for unit in aligned.units)
    return Annotated(
        Records(records, root=root, chain=chain),
        tuple(aside for result in firsts for aside in result.set_aside),
        compare(dataclasses.replace(comparable[0], units=units)) if comparable else (),
        "\n".join(result.as_markdown() for result in firsts),
    )


def make_records(
    source: str | os.PathLike[str],
    recipe: Literal["rmcot", "lvkc", "medclm"],
    *,
    out: str | os.PathLike[str] | None = None,
    annotator: Annotator = RulesAnnotator(),
    voters: Sequence[Endpoint] = (),
    seed: int = 0,
    num_regenerations: int = 0,
    **options: Any,
) -> Records:
    """Make questions with reasoning and boxes, by one of three published recipes.

    Args:
      source: boxes of findings (ChestX-ray8, VinBigData, PadChest-GR, a phantom folder), GEMeX, MEDSAGE, or
        records.jsonl.
      recipe: "rmcot": thinking with regions; "lvkc": four stages; "medclm": easy, medium and hard views.
      out: folder of records, pictures and models' answers; None for a folder beside `source`, named after both.
      annotator: `RulesAnnotator()` writes from templates, `LLMAnnotator(model=...)` asks a language model.
      voters: further models that must call a record correct.
      seed: of the questions about boxes, their splits, and perturbed boxes.
      num_regenerations: how often a record that is voted down is written anew.
      **options: further fields of `annotate.recipes.items.TaskSettings`, such as `box_size`, and of
        `annotate.runner.Plan`, such as `cap` and `overwrite`.

    Returns:
      The records, with the folder of their pictures.

    Raises:
      BadInput: the recipe or the source is unknown, no record can be made, or `out` has a result.
      RunStopped: requests were given up, or the cap is reached; `out` has the answers so far.
    """
    if recipe not in TASKS:
        raise BadInput(f"recipe must be one of {', '.join(TASKS)}; got {recipe!r}")
    path = find_path(source, "source")
    folder = path.with_name(f"{path.stem}_{recipe}") if out is None else Path(out)
    names = {field.name for field in dataclasses.fields(TaskSettings)} - {"root", "folder", "seed"}
    of_task = {name: options.pop(name) for name in names & options.keys()}
    settings = TaskSettings(root=path, folder=folder, seed=seed, **of_task)
    plan = _make_plan(annotator, voters, options)
    made = annotate_questions(
        path, plan, Terminal(), task=recipe, settings=settings, num_regenerations=num_regenerations
    )
    return Records(made.records, root=folder)


def _make_plan(annotator: Annotator, voters: Sequence[Endpoint], options: Mapping[str, Any]) -> Plan:
    unknown = sorted(options.keys() - {field.name for field in dataclasses.fields(Plan)})
    if unknown:
        raise BadInput(f"{unknown[0]!r} is not an option of annotating")
    model = None if isinstance(annotator, RulesAnnotator) else annotator
    return Plan(annotator=model, voters=tuple(voters), **options)
