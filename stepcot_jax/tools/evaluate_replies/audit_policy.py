"""Audit a policy of this package in one command: questions, replies, continued thinkings, and figures."""

import argparse
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from stepcot_jax.data.phantom.phantom import draw_planned
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.questions.reply_files import read_replies
from stepcot_jax.data.questions.variants import Pixels, plan_again
from stepcot_jax.data.questions.vqa_dataset import scale_record
from stepcot_jax.evaluation.replies import ScoringSettings
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reading.policy_reader import PolicyReader, load_reader
from stepcot_jax.reading.radiographs import read_pixels
from stepcot_jax.reasoning.thinking import ANSWERED_FIRST
from stepcot_jax.record import Record
from stepcot_jax.run.loading_questions import load_vqa_dataset
from stepcot_jax.run.scored_replies import choose_split
from stepcot_jax.tools.evaluate_replies.audit_folder import (
    AS_PREFIX,
    REPLIES,
    THINKING_REPLIES,
    score_folder,
    write_questions,
    write_replies,
    write_thinking,
)


def audit_policy(options: argparse.Namespace, out: Path) -> str:
    """Audit the policy of a workdir or export, write the folder of the audit, and return the figures as text."""
    reader, terminal = load_reader(options.workdir, phase=options.phase), Terminal()
    run, size = reader.trained.run, reader.trained.run.settings.evaluation.batch_size
    records, load = open_questions(reader, options.data)
    form = {"dialect": run.dialect, "with_thinking": run.with_thinking}
    written = write_questions(out, records, load, most=options.num_questions, **form)

    def reply(records: Sequence[Record], begun: Sequence[str], path: Path) -> None:
        watch = functools.partial(terminal.watch, description=f"replies, {path.stem}")
        texts = reader.reply_all(records, lambda record: out / record.image, begun=begun, batch_size=size, watch=watch)
        write_replies(path, records, texts)

    reply(written, (), out / REPLIES)
    thinking = None
    if run.with_thinking and run.dialect not in ANSWERED_FIRST:
        thinking = out / THINKING_REPLIES
        ids = {record.id: None for record in written}
        file = read_replies(out / REPLIES, name="", chosen=ids, known=ids)
        made = write_thinking(out, file, dialect=run.dialect, condition=AS_PREFIX, accepts=reader.can_continue)
        reply([record for record, _ in made], [each.write() for _, each in made], thinking)
    who = f"{options.workdir.resolve().name}, {reader.trained.phase} at update {reader.trained.step}"
    return score_folder(
        out, out / REPLIES, thinking, ScoringSettings(**form), num_resamples=options.num_resamples, who=who
    )


def open_questions(reader: PolicyReader, folder: str | None) -> tuple[Sequence[Record], Callable[[Record], Pixels]]:
    """Return the test questions of a policy's run, or of a folder, and a function that loads their pictures."""
    settings, size = reader.trained.run.settings, reader.trained.preprocessing.size
    if folder is not None:
        collection = read_vqa_records(find_path(folder, "--data"))
        chosen = choose_split(collection.records, "test", where=str(collection.path))
        records = [scale_record(record, (size, size)) for record in chosen]
        return records, lambda record: read_pixels(collection.root / record.image)
    if settings.vqa.source == "given":
        raise BadInput(f"{reader.trained.workdir}: --data is required (the questions were passed to sc.fit)")
    records = load_vqa_dataset(settings, splits=("test",)).records
    if settings.vqa.source == "phantom":
        return records, functools.partial(_draw, size=settings.phantom.image_size)
    root = find_path(settings.vqa.root, "config.vqa.root")
    root = root if root.is_dir() else root.parent
    return records, lambda record: read_pixels(root / record.image)


def _draw(record: Record, *, size: int) -> Pixels:
    planned = plan_again(record.provenance)
    if planned is None:
        raise BadInput(f"record {record.id[:80]!r}: provenance names no phantom; expected source, seed and index")
    return draw_planned(planned, size=size).image
