"""Annotate a source of reports into a folder of records: annotator, checks, quality assurance, output."""

import dataclasses
import datetime
import functools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stepcot_jax import __version__
from stepcot_jax.annotate import annotation_checks
from stepcot_jax.annotate.annotation import Annotation, Aside, Outcome, Provenance, Report
from stepcot_jax.annotate.llm.answers import digest_text
from stepcot_jax.annotate.llm.interviews import examine, read_chain_answer, write_chain_answer
from stepcot_jax.annotate.llm.prompts import write_annotation_prompt, write_trust_prompt, write_vote_prompt
from stepcot_jax.annotate.output import FILE_NAME as SHARD_NAME
from stepcot_jax.annotate.output import (
    REPORTS,
    WRITTEN,
    Result,
    Shard,
    ShardFile,
    bring_images,
    digest_items,
    read_shard_file,
    write_shard_file,
)
from stepcot_jax.annotate.ray_rules import Annotate, annotate_with_ray, forget_blocks
from stepcot_jax.annotate.reports import locate_images, read_reports
from stepcot_jax.annotate.rules.annotator import annotate_report
from stepcot_jax.annotate.runs import Crew, Plan, Process, run_items
from stepcot_jax.chain import Chain
from stepcot_jax.data.records import data_json
from stepcot_jax.data.records.records import write_records
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.locks import lock_folder
from stepcot_jax.host.ray_blocks import Cluster
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.record import Record

_PROMPTS = (write_annotation_prompt, write_trust_prompt, write_vote_prompt)


def annotate_source(
    source: Path, folder: Path, plan: Plan, terminal: Terminal, *, chain: Chain, shard: Shard | None = None
) -> Result[Record]:
    """Annotate every report of a source into a folder of records, reports set aside, funnel and ledgers."""
    _require_no_result(source, folder, plan, shard)
    # Reading the source once first finds a bad last row before the first answer is paid for.
    contents = _read_contents(source, shard)
    with lock_folder(folder):
        # Again: another run may have finished while this one read the source.
        _require_no_result(source, folder, plan, shard)
        result = Result(_make_cases, units=REPORTS, written=WRITTEN)
        reports = (
            item for item in read_reports(source) if isinstance(item, Report) and (not shard or shard.has(item.id))
        )
        if plan.cluster is not None:
            _annotate_on(plan.cluster, reports, folder, chain, result, terminal, total=len(contents.places))
        else:
            run_items(
                reports,
                lambda crew: _prepare(crew, plan, chain),
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
        is_linked = plan.images == "link" and locate_images(source).resolve() != folder.resolve()
        if is_linked:
            num_images = bring_images(result.records, source=locate_images(source), folder=folder)
            terminal.say(f"images of {num_images} of {len(result.records)} records found and linked")
        # An earlier `data.json` would mark the new parts as a complete run.
        (folder / data_json.FILE_NAME).unlink(missing_ok=True)
        result.write(folder, is_part=shard is not None)
        if shard is not None:
            settings = _describe(plan, chain)
            write_shard_file(folder, contents.describe(shard, result.counts, settings=settings, images=is_linked))
        # `data.json` comes last and marks a complete run.
        write_records(folder, chain=chain, cases=result.records)
        if plan.cluster is not None:
            forget_blocks(folder)
    return result


def _annotate_on(
    cluster: Cluster,
    reports: Iterable[Report],
    folder: Path,
    chain: Chain,
    result: Result[Record],
    terminal: Terminal,
    *,
    total: int,
) -> None:
    """Annotate reports by rules on a Ray cluster into a result."""
    make = functools.partial(_prepare_rules, chain, _today())
    with terminal.bar("annotating", total=total):
        outcomes = annotate_with_ray(
            reports, make, cluster, folder=folder, settings=_digest_chain(chain), watch=terminal.update
        )
        for outcome in outcomes:
            result.take(outcome)


@dataclasses.dataclass(frozen=True)
class _Contents:
    """What a source holds.

    Attributes:
      places: positions of the shard's reports.
      asides: the shard's unreadable and repeated items, by position.
    """

    digest: str
    total: int
    places: list[int]
    asides: dict[int, Aside]

    @property
    def num_items(self) -> int:
        """Number of items of the shard."""
        return len(self.places) + len(self.asides)

    def describe(self, shard: Shard, counts: Sequence[int], *, settings: dict[str, Any], images: bool) -> ShardFile:
        """Return the file of a complete shard; `counts` are the numbers of records of its reports."""
        return ShardFile(
            shard=shard.index,
            count=shard.count,
            source=self.digest,
            total=self.total,
            settings=settings,
            annotated=list(zip(self.places, counts, strict=True)),
            unusable=list(self.asides),
            images=images,
        )


def _read_contents(source: Path, shard: Shard | None) -> _Contents:
    places: list[int] = []
    asides: dict[int, Aside] = {}
    total = 0

    def note(item: Report | Aside) -> Report | Aside:
        nonlocal total
        if shard is None or shard.has(item.id):
            if isinstance(item, Aside):
                asides[total] = item
            else:
                places.append(total)
        total += 1
        return item

    digest = digest_items(map(note, read_reports(source)))
    if not total:
        raise BadInput(f"{source} holds no report")
    return _Contents(digest, total, places, asides)


def _describe(plan: Plan, chain: Chain) -> dict[str, Any]:
    """Return what answers depend on, which must be the same for all shards of a run."""
    models = [plan.annotator, *plan.voters]
    return {
        "version": __version__,
        "rules": _RULES,
        "chain": _digest_chain(chain),
        "prompts": digest_text("".join(write(chain).digest for write in _PROMPTS)),
        "models": [[each.model, dict(each.decoding)] if each else "rules" for each in models],
        "trust": plan.asks_trust,
        "repairs": plan.num_repairs,
    }


def _digest_chain(chain: Chain) -> str:
    return digest_text(json.dumps([[step.name, step.question, list(step.options)] for step in chain.steps]))


_RULES = 2
"""Number of what the rules answer, raised when it changes; shards of two numbers are not merged."""


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def _require_no_result(source: Path, folder: Path, plan: Plan, shard: Shard | None) -> None:
    if shard is not None and (folder / SHARD_NAME).exists():
        found = read_shard_file(folder).name
        if found != shard:
            raise BadInput(f"{folder} holds shard {found}, expected {shard}; each shard needs its own folder")
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
    by_rules = _prepare_rules(chain, _today())

    async def process(report: Report) -> tuple[Annotation, Provenance]:
        data = {"report": report.text}
        if annotator is not None:
            annotation_checks.check_report(report)
            messages = annotator.prompt.messages(data)
            annotation, entry = await annotator.ask(
                report, messages, lambda text: read_chain_answer(text, chain=chain, report=report.text)
            )
            quotes = enumerate(annotation.quotes, start=1)
            provenance = (*annotator.describe(entry), *((f"step {number} evidence", quote) for number, quote in quotes))
            annotation_checks.check_annotation(report, annotation, chain=chain)
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
        annotation_checks.check_report(report)
        annotation = annotate_report(report, chain=chain)
        annotation_checks.check_annotation(report, annotation, chain=chain)
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
            report=report.text,
            answers=annotation.labels,
            reasoning=annotation.reasoning,
            provenance=dict(sorted(named.items())),
        )
        for image in report.images
    ]
    uncertain = annotation.uncertain
    return [case.with_stated(annotation.labels, uncertain) for case in cases] if uncertain else cases
