"""Prompts for a model to answer, and scores of its replies: perturbed rounds (GEMeX-RMCoT, Table 5), and a judge."""

import argparse
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.judge import Judge
from stepcot_jax.annotate.output import LEDGER_FOLDER
from stepcot_jax.data.questions.record_files import VqaCollection, read_vqa_records, write_vqa_records
from stepcot_jax.data.questions.reply_files import ReplyFile, as_text, name_models, read_replies
from stepcot_jax.data.questions.variants import VARIANT
from stepcot_jax.evaluation.audits import PERTURBED_KINDS, PerturbationStd, is_perturbed, perturb_records, spread
from stepcot_jax.evaluation.box_forms import BoxForm
from stepcot_jax.evaluation.field_rules.rule_table import choose_rules
from stepcot_jax.evaluation.replies import (
    A_SCORE,
    BASELINE,
    JUDGED,
    Key,
    OpenScore,
    ScoringSettings,
    as_columns,
    score_models,
    to_json,
)
from stepcot_jax.evaluation.unread import count_unread, describe_unread
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import digest_file, make_workdir, read_json, write_whole, writing_whole
from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.sheets import Column, Entry, Table, heads
from stepcot_jax.reading.scored_file import score_file
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.record import Record
from stepcot_jax.tools.evaluate_replies.field_rules import write_rules
from stepcot_jax.tools.evaluate_replies.scored_replies import ReplyScores, read_own_replies, score_files, to_text
from stepcot_jax.tools.options import check_numbers

_SOURCE = "source.json"


_STDS: dict[PerturbationStd, str] = {
    "population": "standard deviation of the rounds about their mean",
    "sample": "standard deviation of the rounds about their mean, with one less in the divisor",
    "from_original": "root mean square of the rounds' differences to the original",
}


def _name_round(folder: Path, number: int) -> Path:
    return folder / f"records_{number}.jsonl"


def write_rounds(options: argparse.Namespace, records: Sequence[Record], collection: VqaCollection) -> list[Path]:
    """Write the yes/no and single-choice records of each round, their prompts, and the digest of the source file."""
    written, turned = list[Path](), options.negated_answer
    form: dict[str, Any] = {"root": collection.root, "dialect": options.dialect, "with_thinking": options.with_thinking}
    write_whole(options.out / _SOURCE, msgspec.json.encode({"sha256": collection.sha256}))
    for number in range(1, options.rounds + 1):
        perturbed = perturb_records(records, seed=options.seed, round_number=number, negated_answer=turned)
        written += [_name_round(options.out, number), options.out / f"prompts_{number}.jsonl"]
        write_vqa_records(written[-2], perturbed)
        write_prompts(written[-1], perturbed, **form)
    return written


def write_prompts(
    path: Path, records: Sequence[Record], *, root: Path, dialect: str, with_thinking: bool = True
) -> None:
    """Write prompts: lines with `id`, `image` (a path), `image_size` if known, `prompt`, and `variant` of an audit."""
    with writing_whole(path) as file:
        for record in records:
            image = os.path.abspath(root / record.image)  # noqa: PTH100 - links are kept
            line: dict[str, Any] = {"id": record.id, "image": image}
            line |= {"image_size": record.image_size} if all(record.image_size) else {}
            line["prompt"] = write_question(record, dialect, with_thinking=with_thinking)
            if VARIANT in record.provenance:
                line["variant"] = record.provenance[VARIANT]
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def score_rounds(
    rounds: Sequence[tuple[Sequence[Record], ReplyFile]], settings: ScoringSettings, *, num_resamples: int, seed: int
) -> tuple[list[dict[Key, Interval]], list[str]]:
    """Compute the figures of each round from its records and replies, and describe what could not be read."""
    scores = [score_file(records, file, settings) for records, file in rounds]
    columns_of = {str(place): as_columns(rounds[place][0], scored) for place, scored in enumerate(scores)}
    unread = {f"per. {number}": count_unread(scored) for number, scored in enumerate(scores, start=1)}
    return list(score_models(columns_of, num_resamples=num_resamples, seed=seed).values()), describe_unread(unread)


def _tabulate_rounds(
    rounds: Sequence[Mapping[Key, Interval]], original: Mapping[Key, Interval], *, model: str, std: PerturbationStd
) -> Table:
    numbered = (f"%per. {number}" for number in range(1, len(rounds) + 1))
    head = (*heads("task", "%original", *numbered), Column("std", "percent", digits=3))
    rows: list[tuple[Entry, ...]] = []
    for kind in PERTURBED_KINDS:
        key = A_SCORE, kind
        if key in original and all(key in of_round for of_round in rounds):
            intervals = [of_round[key] for of_round in rounds]
            deviation = spread([interval.value for interval in intervals], original=original[key].value, std=std)
            rows.append((kind, original[key], *intervals, deviation))
    notes = (
        'Closed questions: the leading "is" becomes "isn\'t" or "abnormal" becomes "normal", each question with '
        "probability 0.5. Single choice: the options in random order.",
        f"std: {_STDS[std]}.",
    )
    return Table("perturbed", f"A-score of {model} under perturbation", head, tuple(rows), notes)


def _describe_rounds(table: Table) -> dict[str, dict[str, Any]]:
    described = {}
    for kind, original, *others, deviation in table.rows:
        figures = [{name: getattr(entry, name) for name in ("value", "low", "high")} for entry in (original, *others)]
        described[str(kind)] = {"original": figures[0], "rounds": figures[1:], "std": deviation}
    return described


# The command's files and options: scores, perturbed rounds, and a judge at an endpoint.


def score_command(options: argparse.Namespace, collection: VqaCollection, chosen: Sequence[Record]) -> tuple[str, str]:
    """Score the files of the command line, write all results; return the table as text, and why to doubt it or ""."""
    settings, rules = _read_settings(options), choose_rules(options.rule, collection.layout)
    files = _read_files(options, collection, chosen)
    make_workdir(options.out)
    how: dict[str, Any] = {"num_resamples": options.num_resamples, "seed": options.seed}
    how |= {"judge": _make_judge(options), "rates_stages": options.judge_stages}
    scored = score_files(files, chosen, collection.records, settings, root=collection.root, **how)
    document, further = _describe(scored, collection, files, options), []
    if options.perturbed:
        of_model = dataclasses.replace(settings, dialect=scored.dialects[files[0].name])
        further = [_score_perturbed(options, collection, chosen, scored, of_model)]
        document["perturbed"] = {
            "std": options.perturbation_std,
            "files": [_identify(path) for path in options.perturbed],
            "figures": _describe_rounds(further[0]),
        }
    written = scored.write(
        options.out,
        title=f"Replies to {collection.root.name or collection.path.name}",
        document=document,
        further=further,
        with_pictures=not options.without_pictures,
        num_shown=options.num_shown,
    )
    by_rule = [write_rules(options.out, files, scored, rules, num_shown=options.num_shown)] if rules else []
    return "\n".join([scored.table(), *map(to_text, further), *by_rule, written]), scored.doubt


def _read_settings(options: argparse.Namespace) -> ScoringSettings:
    check_numbers(options, "num_resamples", "num_shown")
    check_numbers(options, "seed", least=0)
    if bool(options.perturbed) != bool(options.perturbed_records):
        raise BadInput("--perturbed and --perturbed-records are required together (the folder that `perturb` wrote)")
    open_score: OpenScore = options.open_score or ("relative" if options.judge else "exact")
    if open_score in JUDGED and not options.judge:
        raise BadInput(f"--open-score={open_score} needs the scores of a judge (--judge MODEL)")
    if open_score not in JUDGED and options.judge and not options.judge_stages:
        raise BadInput(f"--judge is not used with --open-score={open_score}; expected relative or within_two")
    named = ("dialect", "reading", "with_thinking", "unequal_counts", "missing")
    how = {name: getattr(options, name) for name in named}
    return ScoringSettings(boxes=BoxForm(options.box_space, options.box_order), open_score=open_score, **how)


def _read_files(options: argparse.Namespace, collection: VqaCollection, chosen: Sequence[Record]) -> list[ReplyFile]:
    names = name_models(options.replies)
    if BASELINE in names:
        raise BadInput(f"{options.replies[names.index(BASELINE)]}: a row of the tables has this name; rename the file")
    pairs = zip(options.replies, names, strict=True)
    return [read_own_replies(path, name, chosen, collection, missing=options.missing) for path, name in pairs]


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
    scored: ReplyScores,
    settings: ScoringSettings,
) -> Table:
    model = next(name for name in scored.results.figures if name != BASELINE)
    expected = "expected a folder that `perturb` wrote"
    made_of = read_json(options.perturbed_records / _SOURCE, dict[str, str], accepted=expected)
    if made_of.get("sha256") != collection.sha256:
        raise BadInput(f"{options.perturbed_records}: not made of {collection.path} as it is now; run `perturb` again")
    rounds = []
    for number, path in enumerate(options.perturbed, start=1):
        records = read_vqa_records(_name_round(options.perturbed_records, number)).records
        ids = {record.id: None for record in records}
        if set(ids) != {record.id for record in chosen if is_perturbed(record)}:
            raise BadInput(
                f"{_name_round(options.perturbed_records, number)}: other records than the yes/no and single-choice "
                f"ones of split {options.split}; write them with `perturb` from the same RECORDS and --split"
            )
        file = read_replies(path, name=path.stem, chosen=ids.keys(), known=ids.keys(), missing=options.missing)
        rounds.append((records, file))
    how: dict[str, Any] = {"num_resamples": options.num_resamples, "seed": options.seed}
    figures, unread = score_rounds(rounds, settings, **how)
    original: Mapping[Key, Interval] = scored.results.figures[model]
    if any(record.kind in PERTURBED_KINDS and not is_perturbed(record) for record in chosen):
        pairs = zip(chosen, scored.scores[model], strict=True)
        records, scores = zip(*(pair for pair in pairs if is_perturbed(pair[0])), strict=True)
        original = score_models({model: as_columns(records, scores)}, **how)[model]
    table = _tabulate_rounds(figures, original, model=model, std=options.perturbation_std)
    return dataclasses.replace(table, notes=(*unread, *table.notes))


def _describe(
    scored: ReplyScores, collection: VqaCollection, files: Sequence[ReplyFile], options: argparse.Namespace
) -> dict[str, Any]:
    document = to_json(scored.results)
    for file in files:
        counts = {name: getattr(file, name) for name in ("num_unused", "num_set_aside", "num_unknown")}
        about = {"dialect": scored.dialects[file.name], "file": _identify(file.path), **counts}
        document["models"][file.name] |= about
    document["records"] = {"path": as_text(collection.path), "sha256": collection.sha256, "split": options.split}
    return document


def _identify(path: Path) -> dict[str, str]:
    return {"path": as_text(path), "sha256": digest_file(path)[1]}
