"""Ask a model the same questions with the picture, without it and with another patient's, and compare its answers."""

import argparse
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepcot_jax import __version__
from stepcot_jax.annotate.llm.answers import LEDGER_FOLDER
from stepcot_jax.data.questions.question_splits import digest_picture
from stepcot_jax.data.questions.record_files import VqaCollection
from stepcot_jax.data.questions.reply_files import ReplyFile, as_text
from stepcot_jax.data.questions.variants import swap_pictures
from stepcot_jax.evaluation.controls import (
    ANOTHER,
    MAJORITY,
    OWN,
    WITHOUT,
    compare_controls,
    conclude,
    tabulate_controls,
)
from stepcot_jax.evaluation.replies import BASELINE, ScoringSettings, encode
from stepcot_jax.evaluation.scored_baseline import score_baseline
from stepcot_jax.evaluation.statistics import as_plain
from stepcot_jax.evaluation.unread import count_unread, find_doubts
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import make_workdir, write_whole
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.pages.sheets import write_table
from stepcot_jax.pages.shell import tabulate, write_report
from stepcot_jax.reading.question_files import (
    REQUEST,
    Asker,
    Question,
    ask_file,
    describe,
    draw_records,
    write_questions,
)
from stepcot_jax.reading.scored_file import score_file
from stepcot_jax.reasoning.dialects import AUTO, DIALECTS
from stepcot_jax.reasoning.plain_replies import PLAIN
from stepcot_jax.record import Record
from stepcot_jax.tools.evaluate_replies.scored_replies import describe_missing, read_own_replies, settle, to_text
from stepcot_jax.tools.options import check_asker, open_asker, read_split

_FILES = {OWN: "own.jsonl", WITHOUT: "without.jsonl", ANOTHER: "another.jsonl"}


def compare_command(options: argparse.Namespace) -> None:
    """Ask a model, or read the replies of a file, and write tables and page of its controls."""
    endpoint = check_asker(options)
    collection, records = read_split(options, options.records, "RECORDS")
    drawn, given_up = draw_records(records, options.num_questions), 0
    make_workdir(options.out)
    if options.replies:
        path = find_path(options.replies, "REPLIES")
        settings = ScoringSettings(options.dialect or AUTO, with_thinking=not options.without_thinking)
        files, model = {OWN: read_own_replies(path, OWN, drawn, collection)}, path.stem
        settings = settle(settings, files[OWN])
    else:
        asker, dialect, with_thinking = open_asker(options, endpoint, options.out / LEDGER_FOLDER)
        settings, model = ScoringSettings(dialect, with_thinking=with_thinking, missing="skip"), asker.name
        questions = write_questions(drawn, collection.root, dialect, with_thinking=with_thinking)
        files, given_up = _ask(options, asker, questions, records, collection)
    text, doubt = _write(options, model, drawn, collection, files, settings)
    print(text, flush=True)
    if given_up:
        raise RunStopped(f"{given_up} requests were given up; rerun the command to ask them again")
    if doubt:
        raise BadInput(f"{doubt}; the results are in {options.out}")


def _ask(
    options: argparse.Namespace,
    asker: Asker,
    questions: Sequence[Question],
    records: Sequence[Record],
    collection: VqaCollection,
) -> tuple[dict[str, ReplyFile], int]:
    """Ask all questions in each way, and return the replies and the number of requests that were given up."""
    digest = functools.cache(functools.partial(digest_picture, collection.root))
    by_id = {each.id: each for each in swap_pictures([question.record for question in questions], records, digest)}
    variants = {
        OWN: questions,
        WITHOUT: [dataclasses.replace(question, shows_picture=False) for question in questions],
        ANOTHER: [dataclasses.replace(each, record=by_id[each.id]) for each in questions if each.id in by_id],
    }
    files, given_up = dict[str, ReplyFile](), 0
    for name, asked in variants.items():
        if asked:
            path = options.out / _FILES[name]
            counts = ask_file(path, asked, asker, terminal=Terminal(), may_refuse_all=name == WITHOUT)
            print(f"{path}: {len(asked)} questions to {asker.name}, {name}: {describe(counts)}", flush=True)
            given_up += counts[REQUEST]
            files[name] = read_own_replies(path, name, [question.record for question in questions], collection)
    return files, given_up


def _write(
    options: argparse.Namespace,
    model: str,
    records: Sequence[Record],
    collection: VqaCollection,
    files: Mapping[str, ReplyFile],
    settings: ScoringSettings,
) -> tuple[str, str]:
    """Write all results; return them as text, and why to doubt them or ""."""
    scores = {name: score_file(records, file, settings) for name, file in files.items()}
    of_majority = dataclasses.replace(settings, dialect=PLAIN if settings.dialect == PLAIN else DIALECTS[0])
    majority, remark = score_baseline(collection.records, records, of_majority, of_chosen=True)
    scores[MAJORITY] = majority or []
    controls = compare_controls(records, scores)
    said, notes = conclude(controls), [remark.replace(BASELINE, MAJORITY.capitalize())]
    notes += filter(None, (describe_missing(file, records) for file in files.values()))
    notes.append(f"Replies are read as dialect {settings.dialect}.")
    tables = tabulate_controls(controls, notes)
    written = [name for table in tables for name in write_table(options.out, table)]
    nested: dict[str, Any] = {}
    for (figure, group, name), interval in controls.figures.items():
        nested.setdefault(group, {}).setdefault(name, {})[figure] = as_plain(interval)
    for (group, name), counts in controls.outcomes.items():
        nested[group][name]["replies"] = counts
    source = {"path": as_text(collection.path), "sha256": collection.sha256, "split": options.split}
    about = {"stepcot_jax": __version__, "model": model, "dialect": settings.dialect, "records": source}
    content = {**about, "said": said, "notes": notes, "figures": nested}
    write_whole(options.out / "controls.json", msgspec.json.format(encode(content)) + b"\n")
    title = f"Controls of {model} on {collection.root.name or collection.path.name}"
    sections, writer = list(map(tabulate, tables)), "stepcot evaluate_replies"
    page = write_report(title=title, about=said, sections=sections, writer=writer)
    write_whole(options.out / "controls.html", page.encode())
    of_own = {OWN: count_unread(scores[OWN])}
    names = f"in {options.out}: controls.html, controls.json, {', '.join(written)}"
    texts = [*said, "", *(to_text(table, by_row=True) for table in tables[:2]), names]
    return "\n".join(texts), find_doubts(of_own, {OWN: settings.dialect})
