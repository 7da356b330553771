"""Annotate a source of reports into a folder of records: annotator, checks, quality assurance, output.

Reports are annotated concurrently; their outcomes come in the order of the reports.
"""

import asyncio
import collections
import contextlib
import dataclasses
import datetime
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Literal

from stepcot_jax import __version__
from stepcot_jax.annotate import annotation_checks
from stepcot_jax.annotate.annotation import Annotation, Aside, CannotAnnotate, Outcome, Provenance, Reason, Report
from stepcot_jax.annotate.llm.budget import Budget
from stepcot_jax.annotate.llm.client import RequestFailed, RequestRefused
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.interviews import Interviewer, examine
from stepcot_jax.annotate.llm.ledger import SUFFIX, count_spent
from stepcot_jax.annotate.llm.prompt import Prompt, write_annotation_prompt, write_trust_prompt, write_vote_prompt
from stepcot_jax.annotate.output import LEDGER_FOLDER, Result, bring_images
from stepcot_jax.annotate.reports import locate_images, read_reports
from stepcot_jax.annotate.rules.annotator import annotate_report
from stepcot_jax.chain import Chain
from stepcot_jax.data.records import data_json
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.terminal import Terminal

Process = Callable[[Report], Awaitable[tuple[Annotation, Provenance]]]

MOST_FAILURES_IN_A_ROW = 3
"""Consecutive requests given up after which the run blames the endpoint; refused requests do not count."""

_WINDOW = 4


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings of a run.

    Attributes:
      annotator: the model that reads the chains; None for the rules.
      voters: further models that vote on each chain.
      asks_trust: whether to ask the annotator if it trusts its own chain.
      chain: the steps.
      cap: most tokens of all ledgers in the folder; None for no cap.
      concurrency: number of reports in flight.
      num_repairs: how often an unreadable answer is asked for again.
      on_failure: "stop" ends a run with failed requests with an error; "set-aside" sets their reports aside.
      images: "link" links the records' images into the folder, "none" leaves them.
      overwrite: whether to replace an earlier result in the folder.
    """

    annotator: Endpoint | None
    voters: tuple[Endpoint, ...]
    asks_trust: bool
    chain: Chain
    cap: int | None
    concurrency: int
    num_repairs: int
    on_failure: Literal["stop", "set-aside"]
    images: Literal["link", "none"]
    overwrite: bool

    def __post_init__(self) -> None:
        for flag, found, least in (
            ("--concurrency", self.concurrency, 1),
            ("--repairs", self.num_repairs, 0),
            ("--max-tokens", self.cap, 1),
        ):
            if found is not None and found < least:
                raise BadInput(f"{flag}: {found} must be at least {least}")
        if self.asks_trust and self.annotator is None:
            raise BadInput("--trust requires --annotator=llm")
        models = [voter.model for voter in self.voters]
        again = [model for model in models if models.count(model) > 1]
        if again:
            raise BadInput(f"--voter: {again[0]!r} appears twice; name each model once")


def annotate_source(source: Path, folder: Path, plan: Plan, terminal: Terminal) -> Result:
    """Annotate every report of a source into a folder of records, reports set aside, funnel and ledgers.

    Raises:
      BadInput: the source, the folder or a setting cannot be used, or no report was kept.
      RunStopped: the run is not complete; the same command resumes it.
    """
    _require_no_result(source, folder, plan)
    # Reading the source once first finds a bad last row before the first answer is paid for.
    found = [item if isinstance(item, Aside) else None for item in read_reports(source)]
    if not found:
        raise BadInput(f"{source} holds no report")
    with lock_folder(folder):
        # Again: another run may have finished while this one read the source.
        _require_no_result(source, folder, plan)
        result = Result()
        try:
            asyncio.run(_collect(source, folder, plan, terminal, len(found), result))
        except (KeyboardInterrupt, RunStopped) as error:
            why = str(error) if isinstance(error, RunStopped) else "interrupted; rerun the command to resume"
            num_done = result.num_collected - len(result.failed)
            raise RunStopped(f"{num_done} of {len(found)} reports are done; {why}") from None
        if result.failed and plan.on_failure == "stop":
            first = f"{result.failed[0].id[:80]!r}: {result.failed[0].detail}"
            raise RunStopped(
                f"requests for {len(result.failed)} of {len(found)} reports were given up (first: {first}); all other "
                "answers are in the ledger, rerun the command to ask again or pass --on-failure=set-aside"
            )
        result.set_aside += filter(None, found)
        if result.num_collected != len(found):
            raise BadInput(f"{source} changed during the run: {len(found)} reports, then {result.num_collected}")
        if plan.images == "link" and locate_images(source).resolve() != folder.resolve():
            num_images = bring_images(result.cases, source=locate_images(source), folder=folder)
            terminal.say(f"images of {num_images} of {len(result.cases)} records found and linked")
        result.write(folder, plan.chain)
    return result


def _require_no_result(source: Path, folder: Path, plan: Plan) -> None:
    path = folder / data_json.FILE_NAME
    if not path.exists():
        return
    if not plan.overwrite:
        raise BadInput(f"{path} exists; choose another folder or pass --overwrite")
    file = source / data_json.FILE_NAME if source.is_dir() else source
    if file.exists() and file.samefile(path):
        raise BadInput(f"{path} is the source itself; choose another folder")


async def _collect(
    source: Path, folder: Path, plan: Plan, terminal: Terminal, num_reports: int, result: Result
) -> None:
    budget = Budget(plan.cap)
    reports = (item for item in read_reports(source) if isinstance(item, Report))
    asks_models = plan.annotator is not None or bool(plan.voters)
    concurrency = plan.concurrency if asks_models else 1
    async with contextlib.AsyncExitStack() as stack:
        process = _prepare(folder, plan, budget, stack)
        with terminal.bar("annotating", total=num_reports):
            async for outcome in process_reports(reports, process, budget=budget, concurrency=concurrency):
                result.take(outcome)
                note = f"kept {result.num_kept}" + (f", {budget.num_spent} tokens" if asks_models else "")
                terminal.update(result.num_collected, note)


def _prepare(folder: Path, plan: Plan, budget: Budget, stack: contextlib.AsyncExitStack) -> Process:
    """Return the function that annotates one report; `stack` closes its interviewers."""
    ledgers, in_use = folder / LEDGER_FOLDER, set()

    def interview(endpoint: Endpoint, prompt: Prompt) -> Interviewer:
        interviewer = Interviewer(endpoint, prompt, folder=ledgers, budget=budget, num_repairs=plan.num_repairs)
        stack.push_async_callback(interviewer.close)
        in_use.add(interviewer.ledger.path)
        return interviewer

    annotator = interview(plan.annotator, write_annotation_prompt(plan.chain)) if plan.annotator else None
    doubter = interview(plan.annotator, write_trust_prompt(plan.chain)) if plan.annotator and plan.asks_trust else None
    voters = [interview(endpoint, write_vote_prompt(plan.chain)) for endpoint in plan.voters]
    if plan.cap is not None:
        budget.num_spent += sum(map(count_spent, set(ledgers.glob(f"*{SUFFIX}")) - in_use))
    today = datetime.datetime.now(datetime.UTC).date().isoformat()

    async def process(report: Report) -> tuple[Annotation, Provenance]:
        annotation_checks.check_report(report)
        if annotator is not None:
            annotation, provenance = await annotator.annotate(report, plan.chain)
        else:
            annotation = annotate_report(report, chain=plan.chain)
            provenance = (("annotator", "rules"), ("version", __version__), ("date", today))
        annotation_checks.check_annotation(report, annotation, chain=plan.chain)
        return annotation, provenance + await examine(
            report, annotation, chain=plan.chain, doubter=doubter, voters=voters
        )

    return process


async def process_reports(
    reports: Iterable[Report], process: Process, *, budget: Budget, concurrency: int = 1
) -> AsyncIterator[Outcome]:
    """Yield the outcome of each report, in order, holding only a few reports at a time.

    `process` returns a report's chain, or raises `CannotAnnotate` or `RequestFailed`. The budget is stopped when the
    run has to stop, so that requests in flight finish and no new one starts.

    Raises:
      RunStopped: spending cap, full disk or unreachable endpoint.
      BadInput: no request can succeed with this key, address or model.
    """
    slots, streak = asyncio.Semaphore(concurrency), 0
    pending: collections.deque[asyncio.Task[Outcome]] = collections.deque()

    async def process_one(report: Report) -> Outcome:
        nonlocal streak
        async with slots:
            try:
                annotation, provenance = await process(report)
            except CannotAnnotate as error:
                streak = 0
                return Outcome(report, aside=Aside(report.id, error.reason, error.detail))
            except RequestFailed as error:
                streak += not isinstance(error, RequestRefused)
                if isinstance(error, RequestRefused) or streak < MOST_FAILURES_IN_A_ROW:
                    aside = Aside(report.id, Reason.NO_ANSWER, str(error))
                    return Outcome(report, aside=aside, has_failed=True)
                why = f"{streak} requests in a row were given up, the last with: {error}"
                stop = RunStopped(f"{why}; every answer is in the ledger, rerun the command to resume")
                await budget.stop(stop)
                raise stop from None
            except (RunStopped, BadInput) as error:
                # Before the slot is released to the next report, whose request would fail too.
                await budget.stop(error)
                raise
            streak = 0
            return Outcome(report, annotation, provenance)

    try:
        for report in reports:
            pending.append(asyncio.create_task(process_one(report)))
            while len(pending) >= _WINDOW * concurrency or (pending and pending[0].done()):
                yield await _first(pending)
            await asyncio.sleep(0)
        while pending:
            yield await _first(pending)
    except (RunStopped, BadInput) as error:
        await budget.stop(error)
        # Requests in flight are paid for: wait, so that the ledger keeps their answers for the next run.
        await asyncio.gather(*pending, return_exceptions=True)
        raise
    finally:
        for task in pending:
            task.cancel()


async def _first(pending: collections.deque[asyncio.Task[Outcome]]) -> Outcome:
    """Return the first task's outcome; raise at once what stops any other task."""
    while not pending[0].done():
        await asyncio.wait([task for task in pending if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            if task.done():
                task.result()
    return pending.popleft().result()
