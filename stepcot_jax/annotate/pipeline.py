"""From a source of reports to a folder of records: annotator, checks, quality assurance, output."""

import asyncio
import dataclasses
import datetime
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Literal

from stepcot_jax import __version__
from stepcot_jax.annotate import annotation_checks
from stepcot_jax.annotate.annotation import Annotation, Report
from stepcot_jax.annotate.budget import Budget, count_spent
from stepcot_jax.annotate.client import Client
from stepcot_jax.annotate.endpoint import Endpoint
from stepcot_jax.annotate.ledger import SUFFIX
from stepcot_jax.annotate.llm import DEFAULT_NUM_REPAIRS, Interviewer, LlmAnnotator
from stepcot_jax.annotate.output import LEDGER_FOLDER, Result, bring_images
from stepcot_jax.annotate.prompt import Prompt, write_annotation_prompt, write_trust_prompt, write_vote_prompt
from stepcot_jax.annotate.reports import Refused, locate_images, read_reports
from stepcot_jax.annotate.rules import annotate_report
from stepcot_jax.annotate.run import Outcome, Process, Provenance, process_reports
from stepcot_jax.annotate.voting import QualityAssurance
from stepcot_jax.chain import DEFAULT_CHAIN, Chain
from stepcot_jax.data.records import data_json
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.terminal import Terminal

_Annotate = Callable[[Report], Awaitable[tuple[Annotation, Provenance]]]


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run does.

    Attributes:
      annotator: None for the rules, or the model that reads the chains.
      voters: further models that vote on each chain.
      asks_trust: whether the annotator is asked if it trusts its own chain.
      chain: the steps to answer.
      cap: tokens that the folder's ledgers may cost in all; None for no cap.
      concurrency: reports under way at once.
      num_repairs: how often an answer that cannot be read is asked for again.
      on_failure: "stop" ends a run in which requests were given up with an error, "set-aside" sets their reports aside.
      images: "link" brings the images of the records that can be found into the folder, "none" leaves them.
      overwrite: whether an earlier result in the folder is replaced.
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
                raise BadInput(f"{flag}: found {found}, accepted is a whole number >= {least}")
        if self.asks_trust and self.annotator is None:
            raise BadInput("--trust: found the rules, which have no doubts; accepted with --annotator=llm")
        models = [(voter.model, voter.decoding) for voter in self.voters]
        again = next((model for model in models if models.count(model) > 1), None)
        if again is not None:
            raise BadInput(f"--voter: found {again[0]!r} twice, accepted is each model once")

    @property
    def asks_models(self) -> bool:
        """Whether any model is asked."""
        return self.annotator is not None or bool(self.voters)


def annotate_source(source: Path, folder: Path, plan: Plan, terminal: Terminal) -> Result:
    """Annotate every report of a source into a folder.

    Args:
      source: see `reports.read_reports`.
      folder: gets the records, what was set aside, the funnel and, where models are asked, their ledgers.
      plan: what to do.
      terminal: shows the progress.

    Raises:
      BadInput: the source, the folder or a setting cannot be used, or no report was kept.
      RunStopped: the run could not be finished; the same command goes on where it stopped.
    """
    _require_no_result(source, folder, plan)
    # Read once before anything is asked: a bad last row is found before the first answer is paid for.
    num_reports = sum(1 for _ in read_reports(source))
    if not num_reports:
        raise BadInput(f"{source}: found no report in it, accepted is a source with one or more")
    with lock_folder(folder):
        return _annotate_into(source, folder, plan, terminal, num_reports)


def _annotate_into(source: Path, folder: Path, plan: Plan, terminal: Terminal, num_reports: int) -> Result:
    result, failed = Result(), list[Outcome]()
    try:
        asyncio.run(_collect(source, folder, plan, result, failed, terminal, num_reports))
    except KeyboardInterrupt:
        message = "interrupted; the same command goes on from there"
        raise RunStopped(f"{result.num_collected - len(failed)} of {num_reports} reports are done; {message}") from None
    except RunStopped as error:
        raise RunStopped(f"{result.num_collected - len(failed)} of {num_reports} reports are done; {error}") from None
    if failed and plan.on_failure == "stop":
        first = f"{failed[0].report.id[:80]!r}: {failed[0].detail}"
        raise RunStopped(
            f"requests about {len(failed)} of {num_reports} reports were given up (first: {first}); "
            "all else is in the ledger, the same command asks for them again, and "
            "--on-failure=set-aside finishes without them"
        )
    if result.num_collected != num_reports:
        found = f"found {result.num_collected} reports after {num_reports}"
        raise BadInput(f"{source}: {found}, accepted is a source that nobody writes to meanwhile")
    if plan.images == "link" and locate_images(source).resolve() != folder.resolve():
        num_images = bring_images(result.cases, source=locate_images(source), folder=folder)
        terminal.say(f"images of {num_images} of {len(result.cases)} records found and linked")
    result.write(folder, plan.chain)
    return result


def _require_no_result(source: Path, folder: Path, plan: Plan) -> None:
    path = folder / data_json.FILE_NAME
    if path.exists() and (not plan.overwrite or _is_read_from(source, path)):
        raise BadInput(
            f"{path}: found records there, accepted is a folder without (or --overwrite, if they are not the source)"
        )


def _is_read_from(source: Path, result_path: Path) -> bool:
    """Whether the reports would be read from the very file that the result replaces."""
    file = source / data_json.FILE_NAME if source.is_dir() else source
    return file.exists() and file.samefile(result_path)


async def _collect(
    source: Path,
    folder: Path,
    plan: Plan,
    result: Result,
    failed: list[Outcome],
    terminal: Terminal,
    num_reports: int,
) -> None:
    """Fill the result, and `failed` with the outcomes of reports about which a request was given up."""
    budget = Budget(plan.cap)
    interviewers: list[Interviewer] = []
    refused: list[Refused] = []

    def pass_by() -> Iterator[Report]:
        """The reports; what the source itself refuses needs no annotator."""
        for item in read_reports(source):
            if isinstance(item, Report):
                yield item
            else:
                refused.append(item)

    try:
        process = _prepare(folder, plan, budget, interviewers)
        # Again: another run may have ended while this one read the source.
        _require_no_result(source, folder, plan)
        if plan.cap is not None:
            in_use = {interviewer.ledger.path for interviewer in interviewers}
            others = set((folder / LEDGER_FOLDER).glob(f"*{SUFFIX}")) - in_use
            budget.num_spent += sum(map(count_spent, others))
        concurrency = plan.concurrency if plan.asks_models else 1
        with terminal.bar("annotating", total=num_reports):
            async for outcome in process_reports(pass_by(), process, budget=budget, concurrency=concurrency):
                result.take(outcome)
                failed += [outcome] if outcome.has_failed else []
                note = f"kept {result.num_kept}" + (f", {budget.num_spent} tokens" if plan.asks_models else "")
                terminal.update(result.num_collected + len(refused), note)
        for item in refused:
            result.take(item)
    finally:
        for interviewer in interviewers:
            await interviewer.close()


def _prepare(folder: Path, plan: Plan, budget: Budget, interviewers: list[Interviewer]) -> Process:
    """The way of one report; `interviewers` gets what has to be closed."""

    def interview(endpoint: Endpoint, prompt: Prompt) -> Interviewer:
        interviewer = Interviewer(
            Client(endpoint, budget),
            endpoint,
            prompt,
            folder=folder / LEDGER_FOLDER,
            budget=budget,
            num_repairs=plan.num_repairs,
        )
        interviewers.append(interviewer)
        return interviewer

    annotate: _Annotate = _annotate_by_rules(plan.chain)
    doubter = None
    if plan.annotator is not None:
        annotate = LlmAnnotator(interview(plan.annotator, write_annotation_prompt(plan.chain)), plan.chain).annotate
        if plan.asks_trust:
            doubter = interview(plan.annotator, write_trust_prompt(plan.chain))
    voters = [interview(endpoint, write_vote_prompt(plan.chain)) for endpoint in plan.voters]
    assurance = QualityAssurance(plan.chain, doubter=doubter, voters=voters)

    async def process(report: Report) -> tuple[Annotation, Provenance]:
        annotation_checks.check_report(report)
        annotation, provenance = await annotate(report)
        annotation_checks.check_annotation(report, annotation, chain=plan.chain)
        return annotation, provenance + await assurance.examine(report, annotation)

    return process


def _annotate_by_rules(chain: Chain) -> _Annotate:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    provenance = (("annotator", "rules"), ("version", __version__), ("date", today))

    async def annotate(report: Report) -> tuple[Annotation, Provenance]:
        return annotate_report(report, chain=chain), provenance

    return annotate
