"""Audit a policy of this package in one command, by its replies."""

import argparse
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from stepcot_jax.data.phantom.phantom import draw_planned
from stepcot_jax.data.questions.record_files import write_replies
from stepcot_jax.data.questions.variants import OWN, VARIANT, Pixels, plan_again, vary_thinking
from stepcot_jax.data.questions.vqa_dataset import scale_record
from stepcot_jax.evaluation.replies import ScoringSettings
from stepcot_jax.evaluation.unread import describe_unread, find_doubts
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.pages.sheets import write_table
from stepcot_jax.reading.audit_folder import REPLIES, THINKING_REPLIES, score_audit, write_thinking, write_variants
from stepcot_jax.reading.policy_reader import PolicyReader, load_reader
from stepcot_jax.reading.radiographs import read_pixels
from stepcot_jax.reading.scored_file import choose_split
from stepcot_jax.reasoning.thinking import ANSWERED_FIRST
from stepcot_jax.record import Record
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.tools.evaluate_replies.scored_replies import to_text

_AS_PREFIX = "the reply continues the thinking"


def write_results(
    out: Path, replies: Path, thinking: Path | None, scoring: ScoringSettings, who: str = ""
) -> tuple[str, str]:
    """Write the tables of an audit to its folder; return them as text, and why to doubt them or ""."""
    tables, unread = score_audit(out, replies, thinking, scoring)
    names = [name for table in tables for name in write_table(out, table)]
    text = [*describe_unread(unread), "", who, "", *map(to_text, tables), f"in {out}: {', '.join(names)}\n"]
    return "\n".join(text), find_doubts(unread, dict.fromkeys(unread, scoring.dialect))


def audit_policy(options: argparse.Namespace, out: Path) -> tuple[ScoringSettings, str]:
    """Write the records and replies of an audit of a policy; return how they are scored, and its name."""
    reader, watch = load_reader(options.workdir, phase=options.phase), Terminal().watch
    run = reader.trained.run
    scoring = ScoringSettings(run.dialect, with_thinking=run.with_thinking)

    def reply(name: str, records: Sequence[Record], begun: Sequence[str] = ()) -> list[str]:
        watched, size = functools.partial(watch, description=name), run.settings.evaluation.batch_size
        texts = reader.reply_all(
            records, lambda record: out / record.image, begun=begun, batch_size=size, watch=watched
        )
        write_replies(out / name, records, texts)
        return texts

    written = write_variants(out, *_open_questions(reader, options), most=options.num_questions)
    texts = reply(REPLIES, written)
    if run.with_thinking and run.dialect not in ANSWERED_FIRST:
        pairs = zip(written, texts, strict=True)
        own = {record.id: text for record, text in pairs if record.provenance[VARIANT] == OWN}
        varied = vary_thinking([record for record in written if record.id in own], own, run.dialect)
        begun = [(record, text) for record, each in varied if reader.can_continue(text := each.write())]
        if begun:
            made = write_thinking(out, [record for record, _ in begun], _AS_PREFIX, own)
            reply(THINKING_REPLIES, made, [text for _, text in begun])
    return scoring, f"{resolve(options.workdir).name}, {reader.trained.phase} at update {reader.trained.step}"


def _open_questions(
    reader: PolicyReader, options: argparse.Namespace
) -> tuple[Sequence[Record], Callable[[Record], Pixels]]:
    """Return the test questions of a policy's run, or of other data, and a function that loads their pictures."""
    settings, size = reader.trained.run.settings, reader.trained.preprocessing.size
    if options.data is not None:
        from stepcot_jax.data.sources.layouts import read_vqa_source  # of other questions alone: 20 modules

        box_size = options.box_size and tuple(options.box_size)
        collection = read_vqa_source(find_path(options.data, "--data"), layout=options.layout, box_size=box_size)
        chosen = choose_split(collection.records, "test", where=str(collection.path))
        scaled = [scale_record(record, (size, size)) for record in chosen]
        return scaled, lambda record: read_pixels(collection.root / record.image)
    if settings.vqa.source == "given":
        raise BadInput(f"{reader.trained.workdir}: --data is required (the run's questions were passed to sc.fit)")
    records = load_vqa_dataset(settings, splits=("test",)).records
    if settings.vqa.source == "folder":
        path = find_path(settings.vqa.root, "config.vqa.root")
        root = path if path.is_dir() else path.parent
        return records, lambda record: read_pixels(root / record.image)

    def draw(record: Record) -> Pixels:
        planned = plan_again(record.provenance)
        assert planned is not None  # noqa: S101 - drawn from this plan a moment ago
        return draw_planned(planned, size=settings.phantom.image_size).image

    return records, draw
