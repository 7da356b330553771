"""Annotate a source of reports into a folder of records: annotator, checks, quality assurance, output."""

import asyncio
import contextlib
import dataclasses
import datetime
import functools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal

from stepcot_jax import __version__
from stepcot_jax.annotate import annotation_checks
from stepcot_jax.annotate.annotation import Annotation, Report
from stepcot_jax.annotate.llm.budget import Budget, count_spent
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.interviews import DEFAULT_NUM_REPAIRS, Interviewer, QualityAssurance
from stepcot_jax.annotate.llm.ledger import SUFFIX
from stepcot_jax.annotate.llm.prompt import Prompt, write_annotation_prompt, write_trust_prompt, write_vote_prompt
from stepcot_jax.annotate.output import LEDGER_FOLDER, Result, bring_images
from stepcot_jax.annotate.reports import Refused, locate_images, read_reports
from stepcot_jax.annotate.rules.annotator import annotate_report
from stepcot_jax.annotate.scheduling import Process, Provenance, process_reports
from stepcot_jax.chain import DEFAULT_CHAIN, Chain
from stepcot_jax.data.records import data_json
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.terminal import Terminal


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

    annotator: Endpoint | None = None
    voters: tuple[Endpoint, ...] = ()
    asks_trust: bool = False
    chain: Chain = DEFAULT_CHAIN
    cap: int | None = None
    concurrency: int = 4
    num_repairs: int = DEFAULT_NUM_REPAIRS
    on_failure: Literal["stop", "set-aside"] = "stop"
    images: Literal["link", "none"] = "link"
    overwrite: bool = False

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
        models = [(voter.model, voter.decoding) for voter in self.voters]
        again = next((model for model in models if models.count(model) > 1), None)
        if again is not None:
            raise BadInput(f"--voter: {again[0]!r} appears twice; name each model once")

    @property
    def asks_models(self) -> bool:
        """Whether the run asks any model."""
        return self.annotator is not None or bool(self.voters)


def annotate_source(source: Path, folder: Path, plan: Plan, terminal: Terminal) -> Result:
    """Annotate every report of a source into a folder.

    Args:
      source: see `reports.read_reports`.
      folder: receives records, reports set aside, funnel and ledgers.
      plan: settings.
      terminal: shows the progress.

    Raises:
      BadInput: the source, the folder or a setting cannot be used, or no report was kept.
      RunStopped: the run is not complete; the same command resumes it.
    """
    _require_no_result(source, folder, plan)
    # Reading the source once first finds a bad last row before the first answer is paid for.
    num_reports = sum(1 for _ in read_reports(source))
    if not num_reports:
        raise BadInput(f"{source} holds no report")
    with lock_folder(folder):
        return _annotate_into(source, folder, plan, terminal, num_reports)


def _annotate_into(source: Path, folder: Path, plan: Plan, terminal: Terminal, num_reports: int) -> Result:
    result = Result()
    try:
        asyncio.run(_collect(source, folder, plan, result, terminal, num_reports))
    except (KeyboardInterrupt, RunStopped) as error:
        why = str(error) if isinstance(error, RunStopped) else "interrupted; rerun the command to resume"
        num_done = result.num_collected - len(result.failed)
        raise RunStopped(f"{num_done} of {num_reports} reports are done; {why}") from None
    if result.failed and plan.on_failure == "stop":
        first = f"{result.failed[0].report.id[:80]!r}: {result.failed[0].detail}"
        raise RunStopped(
            f"requests for {len(result.failed)} of {num_reports} reports were given up (first: {first}); all other "
            "answers are in the ledger, rerun the command to ask again or pass --on-failure=set-aside"
        )
    if result.num_collected != num_reports:
        raise BadInput(f"{source} changed during the run: {num_reports} reports at first, then {result.num_collected}")
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
    source: Path, folder: Path, plan: Plan, result: Result, terminal: Terminal, num_reports: int
) -> None:
    budget = Budget(plan.cap)
    refused: list[Refused] = []

    def readable() -> Iterator[Report]:
        for item in read_reports(source):
            if isinstance(item, Report):
                yield item
            else:
                refused.append(item)

    async with contextlib.AsyncExitStack() as stack:
        interviewers, process = _prepare(folder, plan, budget, stack)
        # Again: another run may have finished while this one read the source.
        _require_no_result(source, folder, plan)
        if plan.cap is not None:
            in_use = {interviewer.ledger.path for interviewer in interviewers}
            others = set((folder / LEDGER_FOLDER).glob(f"*{SUFFIX}")) - in_use
            budget.num_spent += sum(map(count_spent, others))
        concurrency = plan.concurrency if plan.asks_models else 1
        with terminal.bar("annotating", total=num_reports):
            async for outcome in process_reports(readable(), process, budget=budget, concurrency=concurrency):
                result.take(outcome)
                note = f"kept {result.num_kept}" + (f", {budget.num_spent} tokens" if plan.asks_models else "")
                terminal.update(result.num_collected + len(refused), note)
        for item in refused:
            result.take(item)


def _prepare(
    folder: Path, plan: Plan, budget: Budget, stack: contextlib.AsyncExitStack
) -> tuple[list[Interviewer], Process]:
    """Return the interviewers, which `stack` closes, and the function that annotates one report."""
    interviewers = []

    def interview(endpoint: Endpoint, prompt: Prompt) -> Interviewer:
        interviewer = Interviewer(
            endpoint, prompt, folder=folder / LEDGER_FOLDER, budget=budget, num_repairs=plan.num_repairs
        )
        stack.push_async_callback(interviewer.close)
        interviewers.append(interviewer)
        return interviewer

    doubter = None
    annotate: Callable[[Report, Chain], Awaitable[tuple[Annotation, Provenance]]]
    if plan.annotator is None:
        annotate = functools.partial(_annotate_by_rules, datetime.datetime.now(datetime.UTC).date().isoformat())
    else:
        annotate = interview(plan.annotator, write_annotation_prompt(plan.chain)).annotate
        if plan.asks_trust:
            doubter = interview(plan.annotator, write_trust_prompt(plan.chain))
    voters = [interview(endpoint, write_vote_prompt(plan.chain)) for endpoint in plan.voters]
    assurance = QualityAssurance(plan.chain, doubter=doubter, voters=voters)

    async def process(report: Report) -> tuple[Annotation, Provenance]:
        annotation_checks.check_report(report)
        annotation, provenance = await annotate(report, plan.chain)
        annotation_checks.check_annotation(report, annotation, chain=plan.chain)
        return annotation, provenance + await assurance.examine(report, annotation)

    return interviewers, process


async def _annotate_by_rules(today: str, report: Report, chain: Chain) -> tuple[Annotation, Provenance]:
    provenance = (("annotator", "rules"), ("version", __version__), ("date", today))
    return annotate_report(report, chain=chain), provenance
