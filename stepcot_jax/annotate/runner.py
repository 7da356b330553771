"""Annotation runs: from reports to a folder of chains, and from questions or boxes to a folder of reasoning."""

import asyncio
import collections
import dataclasses
import datetime
import functools
import hashlib
import itertools
import json
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from stepcot_jax import __version__
from stepcot_jax.annotate import checks
from stepcot_jax.annotate.annotation import (
    Annotation,
    Aside,
    CannotAnnotate,
    Item,
    ItemT,
    Outcome,
    Provenance,
    Reason,
    Report,
)
from stepcot_jax.annotate.checks import INSTRUCTION_WORDS, find_word
from stepcot_jax.annotate.llm.answers import digest_text
from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.crew import Crew, Process, process_items
from stepcot_jax.annotate.llm.interviews import examine, read_chain_answer, read_texts, write_chain_answer
from stepcot_jax.annotate.llm.json_objects import BadAnswer
from stepcot_jax.annotate.llm.prompts import write_annotation_prompt, write_trust_prompt, write_vote_prompt
from stepcot_jax.annotate.output import FILE_NAME as SHARD_NAME
from stepcot_jax.annotate.output import (
    LEDGER_FOLDER,
    REPORTS,
    RL_NAME,
    WRITTEN,
    Result,
    Shard,
    ShardFile,
    WithImage,
    bring_images,
    read_shard_file,
    write_shard_file,
)
from stepcot_jax.annotate.recipes import lvkc, medclm, rmcot
from stepcot_jax.annotate.recipes.instructions import sample_balanced
from stepcot_jax.annotate.recipes.items import (
    Question,
    Request,
    Task,
    TaskSettings,
    add_provenance,
    read_questions,
)
from stepcot_jax.annotate.recipes.pictures import read_picture
from stepcot_jax.annotate.regions import RegionSearch
from stepcot_jax.annotate.reports import locate_images, read_reports
from stepcot_jax.annotate.rules.annotator import annotate_report
from stepcot_jax.chain import Chain
from stepcot_jax.data.questions import record_files
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.records import write_records
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.extras import MapBlocks
from stepcot_jax.host.files import lock_folder, read_file, write_whole
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.record import Record, SetAside

FOLDER = "blocks"
BLOCK_SIZE = 256
"""Reports per block, about a quarter of a second of work."""

_MAX_BLOCK_BYTES = 1 << 30

Annotate = Callable[[Report], tuple[Annotation, Provenance]]
"""Annotates one report, or raises `CannotAnnotate`."""


class _Done(msgspec.Struct, frozen=True):
    made: Annotation | None
    provenance: Provenance
    aside: Aside | None


def _start_worker(make: Callable[[], Annotate]) -> Callable[[Sequence[Report]], bytes]:
    """Return the function with which a worker annotates a block and returns the encoded outcomes."""
    annotate = make()
    return lambda reports: msgspec.json.encode([_annotate(report, annotate) for report in reports])


def _annotate(report: Report, annotate: Annotate) -> _Done:
    try:
        made, provenance = annotate(report)
    except CannotAnnotate as error:
        return _Done(None, (), Aside(report.id, error.reason, error.detail))
    return _Done(made, provenance, None)


def annotate_in_blocks(
    reports: Iterable[Report],
    make: Callable[[], Annotate],
    map_blocks: MapBlocks,
    *,
    folder: Path,
    settings: str,
    watch: Callable[[int], None],
) -> Iterator[Outcome[Report, Annotation]]:
    """Yield the outcome of each report, in order; finished blocks are kept in `folder` until `forget_blocks`."""
    source = iter(reports)
    blocks = list(iter(lambda: list(itertools.islice(source, BLOCK_SIZE)), []))
    paths = [folder / FOLDER / f"{_name_block(block, settings)}.json" for block in blocks]
    missing = [index for index, path in enumerate(paths) if not path.exists()]
    num_done = sum(map(len, blocks)) - sum(len(blocks[index]) for index in missing)
    for index, content in map_blocks([blocks[index] for index in missing], functools.partial(_start_worker, make)):
        write_whole(paths[missing[index]], content)
        num_done += len(blocks[missing[index]])
        watch(num_done)
    for block, path in zip(blocks, paths, strict=True):
        content = read_file(path, max_bytes=_MAX_BLOCK_BYTES, accepted="a finished block")
        for report, done in zip(block, msgspec.json.decode(content, type=list[_Done]), strict=True):
            yield Outcome(report, done.made, done.provenance, done.aside)


def forget_blocks(folder: Path) -> None:
    """Remove the finished blocks of a run that is complete."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _name_block(block: Sequence[Report], settings: str) -> str:
    digest = hashlib.sha256()
    for part in ((__version__, settings), *block):
        digest.update(repr(part).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


TASKS: Mapping[str, Task[Any]] = {task.name: task for task in (rmcot.TASK, lvkc.TASK, medclm.TASK)}

_PROMPTS = (write_annotation_prompt, write_trust_prompt, write_vote_prompt)
_RULES = 3
"""Version of the rules' answers, raised when they change; shards of different versions are not merged."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of a run."""

    annotator: Endpoint | None  # the model that annotates; None for the offline version
    voters: tuple[Endpoint, ...]  # further models that vote on each answer
    asks_trust: bool = False  # whether to ask the annotator if it trusts its own answer
    cap: int | None = None  # most tokens of all answers in the folder; None for no cap
    concurrency: int = 4  # number of items in flight
    num_repairs: int = 2  # how often an unreadable answer is requested again
    # "stop" ends a run with failed requests with an error; "set-aside" sets their items aside
    on_failure: Literal["stop", "set-aside"] = "stop"
    images: Literal["link", "none"] = "link"  # "link" links the records' images into the folder, "none" leaves them
    overwrite: bool = False  # whether to replace an earlier result in the folder
    # annotates by rules in the processes of an engine; None to annotate in this process
    map_blocks: MapBlocks | None = None

    def __post_init__(self) -> None:
        for flag, number, least in (
            ("--concurrency", self.concurrency, 1),
            ("--repairs", self.num_repairs, 0),
            ("--max-tokens", self.cap, 1),
        ):
            if number is not None and number < least:
                raise BadInput(f"{flag}: {number} must be at least {least}")
        if self.asks_trust and self.annotator is None:
            raise BadInput("--trust requires --annotator=llm")
        if self.map_blocks is not None and (self.annotator is not None or self.voters):
            raise BadInput("--engine=ray is for --annotator=rules without --voter")
        models = [voter.model for voter in self.voters]
        again = [model for model in models if models.count(model) > 1]
        if again:
            raise BadInput(f"--voter: {again[0]!r} appears twice; name each model once")


def run_items(
    items: Iterable[ItemT],
    prepare: Callable[[Crew], Process[Any, Any]],
    *,
    folder: Path,
    plan: Plan,
    total: int,
    result: Result,
    terminal: Terminal,
) -> None:
    """Annotate items into a result, with the models' answers below `folder`."""
    asks_models = plan.annotator is not None or bool(plan.voters)

    async def collect(crew: Crew) -> None:
        concurrency = plan.concurrency if asks_models else 1
        try:
            process = prepare(crew)
            with terminal.bar("annotating", total=total):
                async for outcome in process_items(items, process, budget=crew.budget, concurrency=concurrency):
                    result.add(outcome)
                    note = f"kept {result.num_kept}" + (f", {crew.budget.num_spent} tokens" if asks_models else "")
                    terminal.update(result.num_collected, note)
        finally:
            await crew.close()

    try:
        asyncio.run(collect(Crew(folder / LEDGER_FOLDER, cap=plan.cap, num_repairs=plan.num_repairs)))
    except (KeyboardInterrupt, RunStopped) as error:
        why = str(error) if isinstance(error, RunStopped) else "interrupted; rerun the command to resume"
        num_done = result.num_collected - len(result.failed)
        raise RunStopped(f"{num_done} of {total} {result.units} are done; {why}") from None
    if result.failed and plan.on_failure == "stop":
        first = f"{result.failed[0].id[:80]!r}: {result.failed[0].detail}"
        raise RunStopped(
            f"requests for {len(result.failed)} of {total} {result.units} were given up (first: {first}); all other "
            "answers are in the ledger, rerun the command to ask again or pass --on-failure=set-aside"
        )


def _require_no_result(source: Path, folder: Path, plan: Plan, name: str) -> None:
    path = folder / name
    if not path.exists():
        return
    if not plan.overwrite:
        raise BadInput(f"{path} exists; choose another folder or pass --overwrite")
    file = source / name if source.is_dir() else source
    if file.exists() and file.samefile(path):
        raise BadInput(f"{path} is the source itself; choose another folder")


def _link_images(records: Sequence[WithImage], root: Path, folder: Path, plan: Plan, terminal: Terminal) -> bool:
    """Link images into the folder if the plan requires it; return whether it does."""
    if plan.images == "none" or resolve(root) == resolve(folder):
        return False
    num_images = bring_images(records, source=root, folder=folder)
    terminal.say(f"images of {num_images} of {len(records)} records found and linked")
    return True


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


# Reports to chains.


def annotate_source(
    source: Path, folder: Path, plan: Plan, terminal: Terminal, *, chain: Chain, shard: Shard | None = None
) -> Result[Record]:
    """Annotate every report of a source into a folder of records, reports set aside, funnel and ledgers."""
    _require_same_shard(folder, shard)
    _require_no_result(source, folder, plan, data_json.FILE_NAME)
    # Read the source once before the first answer is paid for, to find bad rows.
    contents = _read_contents(source, shard)
    with lock_folder(folder):
        # Again: another run may have finished while this one read the source.
        _require_same_shard(folder, shard)
        _require_no_result(source, folder, plan, data_json.FILE_NAME)
        result = Result(_make_cases, units=REPORTS, written=WRITTEN)
        reports = (
            item for item in read_reports(source) if isinstance(item, Report) and (not shard or shard.has(item.id))
        )
        if plan.map_blocks is not None:
            make, digest = functools.partial(_prepare_rules, chain, _today()), _digest_chain(chain)
            with terminal.bar("annotating", total=len(contents.positions)):
                for outcome in annotate_in_blocks(
                    reports, make, plan.map_blocks, folder=folder, settings=digest, watch=terminal.update
                ):
                    result.add(outcome)
        else:
            run_items(
                reports,
                lambda crew: _prepare_reports(crew, plan, chain),
                folder=folder,
                plan=plan,
                total=contents.num_items,
                result=result,
                terminal=terminal,
            )
        result.set_aside += contents.asides.values()
        if result.num_collected != contents.num_items:
            raise BadInput(
                f"{source} changed during the run: {contents.num_items} reports, then {result.num_collected}"
            )
        is_linked = _link_images(result.records, locate_images(source), folder, plan, terminal)
        # An earlier `data.json` would mark the new files as a complete run.
        (folder / data_json.FILE_NAME).unlink(missing_ok=True)
        result.write(folder, is_part=shard is not None)
        if shard is not None:
            described = ShardFile(
                version=__version__,
                shard=shard.index,
                count=shard.count,
                source=contents.digest,
                total=contents.total,
                settings=_describe(plan, chain),
                annotated=list(zip(contents.positions, result.counts, strict=True)),
                unusable=list(contents.asides),
                images=is_linked,
            )
            write_shard_file(folder, described)
        # `data.json` comes last and marks a complete run.
        write_records(folder, chain=chain, cases=result.records)
        if plan.map_blocks is not None:
            forget_blocks(folder)
    return result


@dataclasses.dataclass(frozen=True)
class _Contents:
    digest: str
    total: int
    positions: list[int]  # positions of the shard's reports
    asides: dict[int, Aside]  # the shard's unreadable and repeated items, by position

    @property
    def num_items(self) -> int:
        """Number of items of the shard."""
        return len(self.positions) + len(self.asides)


def _read_contents(source: Path, shard: Shard | None) -> _Contents:
    positions: list[int] = []
    asides: dict[int, Aside] = {}
    digest, total = hashlib.sha256(), 0
    for total, item in enumerate(read_reports(source), start=1):
        digest.update(digest_text(repr(item)).encode())
        if shard is None or shard.has(item.id):
            if isinstance(item, Aside):
                asides[total - 1] = item
            else:
                positions.append(total - 1)
    if not total:
        raise BadInput(f"{source} holds no report")
    return _Contents(digest.hexdigest(), total, positions, asides)


def _describe(plan: Plan, chain: Chain) -> dict[str, Any]:
    """Return the settings that answers depend on, which must be the same for all shards of a run."""
    models = [plan.annotator, *plan.voters]
    return {
        "rules": _RULES,
        "chain": _digest_chain(chain),
        "prompts": digest_text("".join(write(chain).digest for write in _PROMPTS)),
        "models": [[model.model, dict(model.decoding)] if model else "rules" for model in models],
        "trust": plan.asks_trust,
        "repairs": plan.num_repairs,
    }


def _digest_chain(chain: Chain) -> str:
    return digest_text(json.dumps([[step.name, step.question, list(step.options)] for step in chain.steps]))


def _require_same_shard(folder: Path, shard: Shard | None) -> None:
    if shard is not None and (folder / SHARD_NAME).exists():
        held = read_shard_file(folder).name
        if held != shard:
            raise BadInput(f"{folder} holds shard {held}, expected {shard}; each shard needs its own folder")


def _prepare_reports(crew: Crew, plan: Plan, chain: Chain) -> Process[Report, Annotation]:
    annotator = crew.interview(plan.annotator, write_annotation_prompt(chain)) if plan.annotator else None
    doubter = crew.interview(plan.annotator, write_trust_prompt(chain)) if plan.annotator and plan.asks_trust else None
    voters = [crew.interview(endpoint, write_vote_prompt(chain)) for endpoint in plan.voters]
    by_rules = _prepare_rules(chain, _today())

    async def process(report: Report) -> tuple[Annotation, Provenance]:
        data = {"report": report.text}
        if annotator is not None:
            checks.check_report(report)
            messages = annotator.prompt.messages(data)
            annotation, entry = await annotator.ask(
                report, messages, lambda text: read_chain_answer(text, chain=chain, report=report.text)
            )
            quotes = enumerate(annotation.quotes, start=1)
            provenance = (*annotator.describe(entry), *((f"step {number} evidence", quote) for number, quote in quotes))
            checks.check_annotation(report, annotation, chain=chain)
        else:
            annotation, provenance = by_rules(report)
        answer = write_chain_answer(annotation, chain=chain)
        return annotation, provenance + await examine(
            report, answer, data=data, name="chain", doubter=doubter, voters=voters
        )

    return process


def _prepare_rules(chain: Chain, today: str) -> Annotate:
    """Return the function that annotates one report by rules, checks included."""

    def annotate(report: Report) -> tuple[Annotation, Provenance]:
        checks.check_report(report)
        annotation = annotate_report(report, chain=chain)
        checks.check_annotation(report, annotation, chain=chain)
        return annotation, (("annotator", "rules"), ("version", __version__), ("date", today))

    return annotate


def _make_cases(outcome: Outcome[Report, Annotation]) -> list[Record]:
    report, annotation = outcome.item, outcome.made
    if annotation is None:
        return []
    named = dict(outcome.provenance)
    if report.id not in (report.patient_id, *report.images):
        named["report"] = report.id
    cases = [
        Record(
            patient=report.patient_id,
            image=image,
            origin=report.origin,
            split=report.split,
            report=report.text,
            answers=annotation.labels,
            reasoning=annotation.reasoning,
            provenance=dict(sorted(named.items())),
        )
        for image in report.images
    ]
    uncertain = annotation.uncertain
    return [case.with_stated(annotation.labels, uncertain) for case in cases] if uncertain else cases


# Questions and boxes to reasoning.


def annotate_questions(
    source: Path, plan: Plan, terminal: Terminal, *, task: str, settings: TaskSettings, num_regenerations: int = 0
) -> Result[Record]:
    """Annotate the questions of a source; what conflicts or is voted down is rewritten `num_regenerations` times."""
    chosen, folder, name = TASKS[task], settings.folder, record_files.FILE_NAME
    _check_settings(chosen, plan, settings, num_regenerations)
    _require_no_result(source, folder, plan, name)
    bad: list[SetAside] = []
    requires_images = task == medclm.TASK.name or settings.sends_pictures
    questions, root = read_questions(
        source,
        seed=settings.seed,
        layout=settings.layout,
        box_size=settings.box_size,
        require_images=requires_images,
        set_aside=bad,
        with_normal=settings.with_normal,
        grounded=settings.grounded,
    )
    settings = dataclasses.replace(settings, root=root)
    questions, hostile = _screen(questions)
    planned = [*chosen.plan(questions, settings), *hostile]
    items = [item for item in planned if not isinstance(item, Aside)]
    with lock_folder(folder):
        _require_no_result(source, folder, plan, name)
        result = Result(
            lambda outcome: [add_provenance(outcome.made, dict(outcome.provenance))],
            units=chosen.units,
            written="records",
        )
        prepare = functools.partial(
            _prepare_questions, plan=plan, task=chosen, settings=settings, again=num_regenerations, result=result
        )
        run_items(items, prepare, folder=folder, plan=plan, total=len(items), result=result, terminal=terminal)
        result.set_aside += [Aside(f"record {aside.record}", Reason.UNREADABLE_RECORD, aside.reason) for aside in bad]
        result.set_aside += [item for item in planned if isinstance(item, Aside)]
        drawn = {"easy"} if chosen.finish is not None else set()
        bare = [record for record in result.records if record.provenance.get("stage") not in drawn]
        _link_images(bare, root, folder, plan, terminal)
        if chosen.finish is not None:
            chosen.finish(result.records, settings)
        # `records.jsonl` comes last and marks a complete run.
        result.write(folder)
        _write_sample(result, settings)
        record_files.write_vqa_records(folder / name, result.records)
    return result


def _write_sample(result: Result[Record], settings: TaskSettings) -> None:
    """Write the balanced sample for reinforcement learning, if one is wanted."""
    (settings.folder / RL_NAME).unlink(missing_ok=True)  # of an earlier run
    if settings.rl_sample:
        number, by = settings.rl_sample, settings.rl_balance
        sample, result.sampled = sample_balanced(result.records, number=number, by=by, seed=settings.seed)
        record_files.write_vqa_records(settings.folder / RL_NAME, sample)


def _screen(questions: Sequence[Question]) -> tuple[list[Question], list[Aside]]:
    """Return the questions, and those set aside because a sentence of their grounded report gives an instruction."""
    kept, hostile = [], []
    for question in questions:
        texts = (f"{box.region}. {box.label}. {box.sentence}" for box in question.statements)
        if any(find_word(text, INSTRUCTION_WORDS) for text in texts):
            hostile.append(Aside(question.id, Reason.INSTRUCTION, "a sentence of the grounded report"))
        else:
            kept.append(question)
    return kept, hostile


def _check_settings(task: Task[Any], plan: Plan, settings: TaskSettings, num_regenerations: int) -> None:
    if num_regenerations < 0:
        raise BadInput(f"--regenerate: {num_regenerations} must be at least 0")
    if num_regenerations and (plan.annotator is None or not (plan.voters or task.name == lvkc.TASK.name)):
        raise BadInput("--regenerate requires --annotator=llm, and --voter or --task=lvkc")
    if settings.sends_pictures and (task.show is None or plan.annotator is None):
        raise BadInput("--send-images requires --annotator=llm and --task=lvkc or medclm")
    if task.name == medclm.TASK.name and plan.images == "none":
        raise BadInput("--images=none: --task=medclm draws boxes and requires the images")


_REWRITTEN = frozenset({Reason.VOTED_DOWN, Reason.CONTRADICTION, Reason.UNSUPPORTED, Reason.OTHER_ANSWER})
"""Why `--regenerate` writes a trajectory anew: conflicts between stages and broken chains of evidence."""

Written = tuple[dict[str, str], Provenance]
Write = Callable[[Item, Mapping[str, str], Sequence[str]], Awaitable[Written]]
"""(item, number of the attempt as data, pictures) -> (parts, provenance)."""


def _make_writer(crew: Crew, plan: Plan, task: Task[Any]) -> Write:
    """Return the function that writes the parts of one record: templates, or the requests of the task."""
    annotators = {}
    if plan.annotator is not None:
        annotators = {request.prompt.task: crew.interview(plan.annotator, request.prompt) for request in task.requests}
    today = _today()
    under_way: dict[tuple[str, str], asyncio.Lock] = collections.defaultdict(asyncio.Lock)

    async def write(item: Item, attempt: Mapping[str, str], pictures: Sequence[str]) -> Written:
        if not annotators:
            return task.write(item), (("annotator", "templates"), ("version", __version__), ("date", today))
        parts: dict[str, str] = {}
        provenance: Provenance = ()
        for request in task.choose(item):
            request.require(item, parts)
            annotator = annotators[request.prompt.task]
            data, shown = {**request.data(item, parts), **attempt}, pictures if request.sees else ()
            messages = annotator.prompt.messages(data, pictures=shown)
            about, read = request.about(item), functools.partial(_read_checked, request=request, item=item, parts=parts)
            async with under_way[request.prompt.task, about.id]:  # the next one finds the answer in the ledger
                texts, entry = await annotator.ask(about, messages, read)
            parts |= texts
            provenance = (*annotator.describe(entry), ("task", task.name))
        return parts, provenance

    return write


def _read_checked(text: str, *, request: Request[Any], item: Item, parts: Mapping[str, str]) -> dict[str, str]:
    """Read the texts of an answer; one that its check refuses is as one that cannot be read."""
    texts = read_texts(text, names=request.names)
    try:
        request.check(item, {**parts, **texts})
    except CannotAnnotate as error:
        if error.is_final:
            raise
        raise BadAnswer(f"refused ({error}); accepted is a text without this", reason=error.reason) from None
    return texts


def _prepare_questions(
    crew: Crew, *, plan: Plan, task: Task[Any], settings: TaskSettings, again: int, result: Result[Record]
) -> Process[Any, Record]:
    write, result.count_repeats = _make_writer(crew, plan, task), crew.count_repeats
    regenerations = again if plan.annotator is not None else 0
    doubter = crew.interview(plan.annotator, task.trust) if plan.annotator and plan.asks_trust else None
    voters = [crew.interview(endpoint, task.vote) for endpoint in plan.voters]
    search, finds = None, task.region
    if finds is not None and settings.proposes and plan.annotator is not None:
        verifiers = [crew.interview(endpoint, finds.vote) for endpoint in plan.voters or (plan.annotator,)]
        search = RegionSearch(crew.interview(plan.annotator, finds.proposal), verifiers, settings)

    @functools.cache
    def find_problem(image_path: str) -> str:
        try:
            read_picture(image_path, settings)
        except BadInput as error:
            return str(error)
        return ""

    async def make(item: Item, attempt: Mapping[str, str]) -> tuple[Record, Provenance]:
        problem = find_problem(task.picture(item)) if task.picture is not None else ""
        if problem:
            raise CannotAnnotate(Reason.UNREADABLE_RECORD, problem)
        said: Provenance = ()
        try:
            if search is not None and finds is not None and (question := finds.question(item)) is not None:
                box, said = await search.find(question, attempt)
                item = finds.place(item, box, settings)
            pictures = task.show(item, settings) if settings.sends_pictures and task.show is not None else ()
        except BadInput as error:
            raise CannotAnnotate(Reason.UNREADABLE_RECORD, str(error)) from None
        parts, provenance = await write(item, attempt, pictures)
        try:
            record = task.assemble(item, parts)
        except BadInput as error:
            raise CannotAnnotate(Reason.NOT_ASSEMBLED, str(error).partition(":")[0]) from None
        task.check(item, parts, record)
        data = {**task.data(item), **attempt}
        examined = await examine(
            item, parts, data=data, name="written", pictures=pictures, doubter=doubter, voters=voters
        )
        return record, provenance + said + examined

    async def process(item: Item) -> tuple[Record, Provenance]:
        for number in range(regenerations):
            try:
                return await make(item, {"attempt": str(number + 1)} if number else {})
            except CannotAnnotate as error:
                if error.reason not in _REWRITTEN:
                    raise
                result.written_anew[error.reason] += 1
        return await make(item, {"attempt": str(regenerations + 1)} if regenerations else {})

    return process
