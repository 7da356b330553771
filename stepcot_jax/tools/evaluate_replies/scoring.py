"""The command's files and options: scores, perturbed rounds, and a judge at an endpoint."""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.judge import Judge
from stepcot_jax.annotate.output import LEDGER_FOLDER
from stepcot_jax.data.questions.record_files import VqaCollection, read_vqa_records
from stepcot_jax.data.questions.reply_files import ReplyFile, as_text, name_models, read_replies
from stepcot_jax.evaluation.audits import PERTURBED_KINDS
from stepcot_jax.evaluation.box_forms import BoxForm
from stepcot_jax.evaluation.replies import BASELINE, JUDGED, OpenScore, Results, ScoringSettings, to_json
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, make_workdir
from stepcot_jax.pages.sheets import Table
from stepcot_jax.record import Record
from stepcot_jax.run.scored_replies import ReplyScores, score_files, to_text
from stepcot_jax.tools.evaluate_replies.robustness import (
    describe_rounds,
    name_round,
    read_source,
    score_rounds,
    tabulate_rounds,
)


def score_command(options: argparse.Namespace, collection: VqaCollection, chosen: Sequence[Record]) -> tuple[str, str]:
    """Score the files of the command line, write all results; return the table as text, and why to doubt it or ""."""
    settings = _read_settings(options)
    files = _read_files(options, collection, chosen)
    make_workdir(options.out)
    how: dict[str, Any] = {"num_resamples": options.num_resamples, "seed": options.seed}
    how |= {"judge": _make_judge(options), "rates_stages": options.judge_stages}
    scored = score_files(files, chosen, collection.records, settings, root=collection.root, **how)
    document, further = _describe(scored, collection, files, options), []
    if options.perturbed:
        of_model = dataclasses.replace(settings, dialect=scored.dialects[files[0].name])
        further = [_score_perturbed(options, collection, chosen, scored.results, of_model)]
        document["perturbed"] = {
            "std": options.perturbation_std,
            "files": [_identify(path) for path in options.perturbed],
            "figures": describe_rounds(further[0]),
        }
    written = scored.write(
        options.out,
        title=f"Replies to {collection.path.parent.name or collection.path.name}",
        document=document,
        further=further,
        with_pictures=not options.without_pictures,
        num_shown=options.num_shown,
    )
    return "\n".join([scored.table(), *map(to_text, further), written]), scored.doubt


def _read_settings(options: argparse.Namespace) -> ScoringSettings:
    for name, least in (("num_resamples", 1), ("num_shown", 1), ("seed", 0)):
        if getattr(options, name) < least:
            raise BadInput(f"--{name.replace('_', '-')} must be at least {least}; got {getattr(options, name)}")
    if bool(options.perturbed) != bool(options.perturbed_records):
        raise BadInput("--perturbed and --perturbed-records are required together (the folder that `perturb` wrote)")
    open_score: OpenScore = options.open_score or ("relative" if options.judge else "exact")
    if open_score in JUDGED and not options.judge:
        raise BadInput(f"--open-score={open_score} needs the scores of a judge (--judge MODEL)")
    if open_score not in JUDGED and options.judge and not options.judge_stages:
        raise BadInput(f"--judge is not used with --open-score={open_score}; expected relative or within_two")
    return ScoringSettings(
        dialect=options.dialect,
        boxes=BoxForm(options.box_space, options.box_order),
        reading=options.reading,
        with_thinking=options.with_thinking,
        open_score=open_score,
        unequal_counts=options.unequal_counts,
        missing=options.missing,
    )


def _read_files(options: argparse.Namespace, collection: VqaCollection, chosen: Sequence[Record]) -> list[ReplyFile]:
    names = name_models(options.replies)
    if BASELINE in names:
        raise BadInput(f"{options.replies[names.index(BASELINE)]}: a row of the tables has this name; rename the file")
    known, ids = {record.id for record in collection.records}, {record.id: None for record in chosen}
    return [
        read_replies(
            path,
            name=name,
            chosen=ids.keys(),
            known=known,
            missing=options.missing,
            set_aside=collection.set_aside_ids,
            most_unknown=collection.num_unnamed,
        )
        for path, name in zip(options.replies, names, strict=True)
    ]


def _make_judge(options: argparse.Namespace) -> Judge | None:
    if not options.judge:
        given = [name for name in ("base_url", "key_variable", "max_tokens") if getattr(options, name) is not None]
        if given or options.judge_stages:
            flag = f"--{given[0].replace('_', '-')}" if given else "--judge-stages"
            raise BadInput(f"{flag} is accepted only with --judge MODEL")
        return None
    address = {name: getattr(options, name) for name in ("base_url", "key_variable")}
    endpoint = Endpoint(options.judge, **{name: value for name, value in address.items() if value is not None})
    return Judge(endpoint, options.out / LEDGER_FOLDER, cap=options.max_tokens, concurrency=options.concurrency)


def _score_perturbed(
    options: argparse.Namespace,
    collection: VqaCollection,
    chosen: Sequence[Record],
    results: Results,
    settings: ScoringSettings,
) -> Table:
    model = next(name for name in results.figures if name != BASELINE)
    source = read_source(options.perturbed_records)
    if source != digest_file(collection.path)[1]:
        raise BadInput(f"{options.perturbed_records}: not made of {collection.path} as it is now; run `perturb` again")
    rounds = []
    for number, path in enumerate(options.perturbed, start=1):
        records = read_vqa_records(name_round(options.perturbed_records, number)).records
        ids = {record.id: None for record in records}
        if set(ids) != {record.id for record in chosen if record.kind in PERTURBED_KINDS}:
            raise BadInput(
                f"{name_round(options.perturbed_records, number)}: other records than the closed and single-choice "
                f"ones of split {options.split}; write them with `perturb` from the same RECORDS and --split"
            )
        file = read_replies(path, name=path.stem, chosen=ids.keys(), known=ids.keys(), missing=options.missing)
        rounds.append((records, file))
    how: dict[str, Any] = {"num_resamples": options.num_resamples, "seed": options.seed}
    figures = score_rounds(rounds, settings, **how)
    return tabulate_rounds(figures, results.figures[model], model=model, std=options.perturbation_std)


def _describe(
    scored: ReplyScores, collection: VqaCollection, files: Sequence[ReplyFile], options: argparse.Namespace
) -> dict[str, Any]:
    """Return the content of metrics.json."""
    document = to_json(scored.results)
    for file in files:
        document["models"][file.name]["dialect"] = scored.dialects[file.name]
        document["models"][file.name] |= {"file": _identify(file.path), "num_unused": file.num_unused}
        document["models"][file.name] |= {"num_set_aside": file.num_set_aside, "num_unknown": file.num_unknown}
    document["records"] = {**_identify(collection.path), "split": options.split}
    return document


def _identify(path: Path) -> dict[str, str]:
    return {"path": as_text(path), "sha256": digest_file(path)[1]}
