"""Annotate a source of reports into a folder of records: annotator, checks, quality assurance, output."""

import datetime
from pathlib import Path

from stepcot_jax import __version__
from stepcot_jax.annotate import annotation_checks
from stepcot_jax.annotate.annotation import Annotation, Aside, Outcome, Provenance, Report
from stepcot_jax.annotate.llm.interviews import examine
from stepcot_jax.annotate.llm.prompt import write_annotation_prompt, write_trust_prompt, write_vote_prompt
from stepcot_jax.annotate.llm.read_answers import read_chain_answer, write_chain_answer
from stepcot_jax.annotate.output import Result, bring_images
from stepcot_jax.annotate.reports import locate_images, read_reports
from stepcot_jax.annotate.rules.annotator import annotate_report
from stepcot_jax.annotate.runs import Crew, Plan, Process, run_items
from stepcot_jax.chain import Chain
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.cases import Case
from stepcot_jax.data.records.records import write_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.terminal import Terminal


def annotate_source(source: Path, folder: Path, plan: Plan, terminal: Terminal, *, chain: Chain) -> Result[Case]:
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
        result = Result(_make_cases, units="reports", written="records, one a frontal image")
        reports = (item for item in read_reports(source) if isinstance(item, Report))
        run_items(
            reports,
            lambda crew: _prepare(crew, plan, chain),
            folder=folder,
            plan=plan,
            total=len(found),
            result=result,
            terminal=terminal,
        )
        result.set_aside += filter(None, found)
        if result.num_collected != len(found):
            raise BadInput(f"{source} changed during the run: {len(found)} reports, then {result.num_collected}")
        if plan.images == "link" and locate_images(source).resolve() != folder.resolve():
            num_images = bring_images(result.records, source=locate_images(source), folder=folder)
            terminal.say(f"images of {num_images} of {len(result.records)} records found and linked")
        # `data.json` comes last and marks a complete run.
        result.write(folder)
        write_records(folder, chain=chain, cases=result.records)
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


def _prepare(crew: Crew, plan: Plan, chain: Chain) -> Process[Report, Annotation]:
    """Return the function that annotates one report."""
    annotator = crew.interview(plan.annotator, write_annotation_prompt(chain)) if plan.annotator else None
    doubter = crew.interview(plan.annotator, write_trust_prompt(chain)) if plan.annotator and plan.asks_trust else None
    voters = [crew.interview(endpoint, write_vote_prompt(chain)) for endpoint in plan.voters]
    today = datetime.datetime.now(datetime.UTC).date().isoformat()

    async def process(report: Report) -> tuple[Annotation, Provenance]:
        annotation_checks.check_report(report)
        data = {"report": report.text}
        if annotator is not None:
            messages = annotator.prompt.messages(data)
            annotation, entry = await annotator.ask(
                report, messages, lambda text: read_chain_answer(text, chain=chain, report=report.text)
            )
            quotes = enumerate(annotation.quotes, start=1)
            provenance = (*annotator.describe(entry), *((f"step {number} evidence", quote) for number, quote in quotes))
        else:
            annotation = annotate_report(report, chain=chain)
            provenance = (("annotator", "rules"), ("version", __version__), ("date", today))
        annotation_checks.check_annotation(report, annotation, chain=chain)
        answer = write_chain_answer(annotation, chain=chain)
        return annotation, provenance + await examine(
            report, answer, data=data, name="chain", doubter=doubter, voters=voters
        )

    return process


def _make_cases(outcome: Outcome[Report, Annotation]) -> list[Case]:
    report, annotation = outcome.item, outcome.made
    if annotation is None:
        return []
    named = dict(outcome.provenance)
    if report.id not in (report.patient_id, *report.images):
        named["report"] = report.id
    return [
        Case(
            patient_id=report.patient_id,
            image_path=image,
            origin=report.origin,
            report=report.text,
            labels=annotation.labels,
            reasoning=annotation.reasoning,
            provenance=tuple(sorted(named.items())),
        )
        for image in report.images
    ]
