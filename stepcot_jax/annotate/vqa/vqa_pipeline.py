"""Annotate a source of questions or of boxes into reasoning records: annotator, checks, quality assurance, output."""

import asyncio
import collections
import dataclasses
import datetime
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax import __version__
from stepcot_jax.annotate.annotation import Aside, CannotAnnotate, Item, Outcome, Provenance, Reason
from stepcot_jax.annotate.llm.interviews import examine, read_texts
from stepcot_jax.annotate.output import Result, bring_images
from stepcot_jax.annotate.runs import Crew, Plan, Process, run_items
from stepcot_jax.annotate.vqa import lvkc, medclm, rmcot
from stepcot_jax.annotate.vqa.items import Question, Task, TaskSettings, as_provenance, read_questions
from stepcot_jax.annotate.vqa.pictures import require_picture
from stepcot_jax.annotate.vqa.text_checks import INSTRUCTION_WORDS, find_word
from stepcot_jax.data.questions.record_files import FILE_NAME, write_vqa_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.record import Record, SetAside

TASKS: Mapping[str, Task[Any]] = {task.name: task for task in (rmcot.TASK, lvkc.TASK, medclm.TASK)}


@dataclasses.dataclass(frozen=True)
class VqaSource:
    """What is annotated.

    Attributes:
      path: records, released VQA data, or a detection list.
      box_size: width and height that the boxes of released data refer to.
      seed: of the questions about a detection list, and of its splits.
      with_normal: whether to ask about the images of a detection list that have no box.
    """

    path: Path
    box_size: tuple[int, int] | None = None
    seed: int = 0
    with_normal: bool = False


def annotate_questions(
    source: VqaSource,
    plan: Plan,
    terminal: Terminal,
    *,
    task: str,
    settings: TaskSettings,
    num_regenerations: int = 0,
) -> Result[Record]:
    """Annotate every question of a source into a folder of records, what was set aside, funnel and ledgers.

    Args:
      num_regenerations: how often an answer that a voter does not call correct is written anew.
    """
    chosen, folder = TASKS[task], settings.folder
    _check_settings(chosen, plan, settings, num_regenerations)
    _require_no_result(source.path, folder, plan)
    bad: list[SetAside] = []
    questions, root = read_questions(
        source.path,
        seed=source.seed,
        box_size=source.box_size,
        require_images=task == medclm.TASK.name or settings.sends_pictures,
        set_aside=bad,
        with_normal=source.with_normal,
    )
    settings = dataclasses.replace(settings, root=root)
    questions, hostile = _screen(questions)
    planned = [*chosen.plan(questions, settings), *hostile]
    items = [item for item in planned if not isinstance(item, Aside)]
    with lock_folder(folder):
        _require_no_result(source.path, folder, plan)
        result = Result(_make_records, units=chosen.units, written="records")
        prepare = functools.partial(
            _prepare, plan=plan, task=chosen, settings=settings, regenerations=num_regenerations
        )
        run_items(items, prepare, folder=folder, plan=plan, total=len(items), result=result, terminal=terminal)
        result.set_aside += [Aside(f"record {each.record}", Reason.UNREADABLE_RECORD, each.reason) for each in bad]
        result.set_aside += [item for item in planned if isinstance(item, Aside)]
        if plan.images == "link" and root.resolve() != folder.resolve():
            drawn = {"easy"} if chosen.finish is not None else set()
            bare = [record for record in result.records if record.provenance.get("stage") not in drawn]
            num_images = bring_images(bare, source=root, folder=folder)
            terminal.say(f"images of {num_images} of {len(bare)} records found and linked")
        if chosen.finish is not None:
            chosen.finish(result.records, settings)
        # `records.jsonl` comes last and marks a complete run.
        result.write(folder)
        write_vqa_records(folder / FILE_NAME, result.records)
    return result


def _screen(questions: Sequence[Question]) -> tuple[list[Question], list[Aside]]:
    """Return the questions, and those set aside because a sentence of their grounded report gives an instruction."""
    kept, hostile = [], []
    for question in questions:
        texts = (f"{said.name}. {said.label}. {said.sentence}" for said in question.statements)
        if any(find_word(text, INSTRUCTION_WORDS) for text in texts):
            hostile.append(Aside(question.id, Reason.INSTRUCTION, "a sentence of the grounded report"))
        else:
            kept.append(question)
    return kept, hostile


def _check_settings(task: Task[Any], plan: Plan, settings: TaskSettings, num_regenerations: int) -> None:
    if num_regenerations < 0:
        raise BadInput(f"--regenerate: {num_regenerations} must be at least 0")
    if num_regenerations and (plan.annotator is None or not plan.voters):
        raise BadInput("--regenerate requires --annotator=llm and --voter")
    if settings.sends_pictures and (task.show is None or plan.annotator is None):
        raise BadInput("--send-images requires --annotator=llm and --task=lvkc or medclm")
    if task.name == medclm.TASK.name and plan.images == "none":
        raise BadInput("--images=none: --task=medclm draws boxes and requires the images")


def _require_no_result(source: Path, folder: Path, plan: Plan) -> None:
    path = folder / FILE_NAME
    if not path.exists():
        return
    if not plan.overwrite:
        raise BadInput(f"{path} exists; choose another folder or pass --overwrite")
    file = source / FILE_NAME if source.is_dir() else source
    if file.exists() and file.samefile(path):
        raise BadInput(f"{path} is the source itself; choose another folder")


def _make_records(outcome: Outcome[Any, Record]) -> list[Record]:
    record = outcome.made
    if record is None:
        return []
    return [msgspec.structs.replace(record, provenance=as_provenance(record, dict(outcome.provenance)))]


Write = Callable[[Item, Mapping[str, str], str], Awaitable[tuple[dict[str, str], Provenance]]]
"""(item, what tells attempts apart, picture) -> (parts, provenance)."""


def _make_writer(crew: Crew, plan: Plan, task: Task[Any]) -> Write:
    """Return the function that writes the parts of one record: templates, or the requests of the task."""
    annotators = {}
    if plan.annotator is not None:
        annotators = {each.prompt.task: crew.interview(plan.annotator, each.prompt) for each in task.requests}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    under_way: dict[tuple[str, str], asyncio.Lock] = collections.defaultdict(asyncio.Lock)

    async def write(item: Item, attempt: Mapping[str, str], picture: str) -> tuple[dict[str, str], Provenance]:
        if not annotators:
            return task.write(item), (("annotator", "templates"), ("version", __version__), ("date", today))
        parts: dict[str, str] = {}
        provenance: Provenance = ()
        for request in task.choose(item):
            annotator, names = annotators[request.prompt.task], request.names
            data, shown = {**request.data(item, parts), **attempt}, picture if request.sees else ""
            messages = annotator.prompt.messages(data, picture=shown)
            about = request.about(item)
            async with under_way[request.prompt.task, about.id]:  # the next one finds the answer in the ledger
                found, entry = await annotator.ask(about, messages, lambda text, of=names: read_texts(text, names=of))
            parts |= found
            provenance = (*annotator.describe(entry), ("task", task.name))
        return parts, provenance

    return write


def _prepare(
    crew: Crew, *, plan: Plan, task: Task[Any], settings: TaskSettings, regenerations: int
) -> Process[Any, Record]:
    """Return the function that makes one record."""
    write = _make_writer(crew, plan, task)
    regenerations = regenerations if plan.annotator is not None else 0
    doubter = crew.interview(plan.annotator, task.trust) if plan.annotator and plan.asks_trust else None
    voters = [crew.interview(endpoint, task.vote) for endpoint in plan.voters]

    @functools.cache
    def find_problem(image_path: str) -> str:
        try:
            require_picture(image_path, settings)
        except BadInput as error:
            return str(error)
        return ""

    async def make(item: Item, attempt: Mapping[str, str]) -> tuple[Record, Provenance]:
        problem = find_problem(task.picture(item)) if task.picture is not None else ""
        if problem:
            raise CannotAnnotate(Reason.UNREADABLE_RECORD, problem)
        try:
            picture = task.show(item, settings) if settings.sends_pictures and task.show is not None else ""
        except BadInput as error:
            raise CannotAnnotate(Reason.UNREADABLE_RECORD, str(error)) from None
        parts, provenance = await write(item, attempt, picture)
        try:
            record = task.assemble(item, parts)
        except BadInput as error:
            raise CannotAnnotate(Reason.NOT_ASSEMBLED, str(error).partition(":")[0]) from None
        task.check(item, parts, record)
        data = {**task.data(item), **attempt}
        return record, provenance + await examine(
            item, parts, data=data, name="written", picture=picture, doubter=doubter, voters=voters
        )

    async def process(item: Item) -> tuple[Record, Provenance]:
        for number in range(regenerations):
            try:
                return await make(item, {"attempt": str(number + 1)} if number else {})
            except CannotAnnotate as error:
                if error.reason != Reason.VOTED_DOWN:
                    raise
        return await make(item, {"attempt": str(regenerations + 1)} if regenerations else {})

    return process
