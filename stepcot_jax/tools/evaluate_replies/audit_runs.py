"""Audit a run of this package in one command: a policy by its replies, a network of chains step by step."""

import argparse
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepcot_jax.data.phantom.phantom import draw_planned
from stepcot_jax.data.questions.record_files import read_vqa_records, write_replies
from stepcot_jax.data.questions.variants import (
    LAST,
    OWN,
    STEP,
    VARIANT,
    Pixels,
    ask_steps,
    plan_again,
    vary_given,
    vary_thinking,
)
from stepcot_jax.data.questions.vqa_dataset import scale_record
from stepcot_jax.evaluation.replies import ScoringSettings
from stepcot_jax.evaluation.unread import describe_unread, find_doubts
from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import is_export
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.pages.sheets import write_table
from stepcot_jax.reading.cases import CaseSource, open_data, open_run
from stepcot_jax.reading.corrections import NOT_GIVEN, accepts_answers
from stepcot_jax.reading.policy_reader import PolicyReader, load_reader
from stepcot_jax.reading.programs import Reader
from stepcot_jax.reading.radiographs import read_picture, read_pixels, to_input
from stepcot_jax.reading.trained_model import load_trained, read_default_model
from stepcot_jax.reasoning.thinking import ANSWERED_FIRST, in_words
from stepcot_jax.record import Record
from stepcot_jax.run.audit_folder import (
    CHAIN_SCORING,
    REPLIES,
    THINKING_REPLIES,
    draw_places,
    score_audit,
    write_thinking,
    write_variants,
)
from stepcot_jax.run.loading_questions import load_vqa_dataset
from stepcot_jax.run.scored_replies import choose_split, to_text

Labels = npt.NDArray[np.int64]  # [step], or [case, step]
_AS_PREFIX = "the reply continues the thinking"
_AS_ANSWERS = "answers given to the earlier steps: its own, half of them, a donor's, or one replaced"
_BATCH_SIZE = 32
_MOST_KEPT = 64  # decoded pictures, of cases or of donors


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

    written = write_variants(out, *_open_questions(reader, options.data), most=options.num_questions)
    texts = reply(REPLIES, written)
    if run.with_thinking and run.dialect not in ANSWERED_FIRST:
        own = _choose_own(written, texts)
        varied = vary_thinking([record for record in written if record.id in own], own, run.dialect)
        begun = [(record, text) for record, each in varied if reader.can_continue(text := each.write())]
        if begun:
            made = write_thinking(out, [record for record, _ in begun], _AS_PREFIX, own)
            reply(THINKING_REPLIES, made, [text for _, text in begun])
    return scoring, f"{resolve(options.workdir).name}, {reader.trained.phase} at update {reader.trained.step}"


def _choose_own(written: Sequence[Record], texts: Sequence[str]) -> dict[str, str]:
    """Return the replies to own pictures by id."""
    pairs = zip(written, texts, strict=True)
    return {record.id: text for record, text in pairs if record.provenance[VARIANT] == OWN}


def _open_questions(reader: PolicyReader, folder: str | None) -> tuple[Sequence[Record], Callable[[Record], Pixels]]:
    """Return the test questions of a policy's run, or of a folder, and a function that loads their pictures."""
    settings, size = reader.trained.run.settings, reader.trained.preprocessing.size
    if folder is not None:
        collection = read_vqa_records(find_path(folder, "--data"))
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


def ask_cases(
    out: Path, source: CaseSource, *, most: int, provenance: Callable[[Record], dict[str, str]] = lambda _: {}
) -> list[Record]:
    """Write variants of the pictures of at most `most` cases, with a question for each annotated step."""
    chosen = [source.diagnosed[place] for place in draw_places(len(source.diagnosed), most)]
    position = {source.cases[place].image: place for place in chosen}

    @functools.lru_cache(_MOST_KEPT)
    def load(image: str) -> Pixels:
        return np.asarray(source.picture(position[image]))

    asked = [
        question
        for case in (source.cases[place] for place in chosen)
        for question in ask_steps(case, source.chain, size=load(case.image).shape[1::-1], provenance=provenance(case))
    ]
    return write_variants(out, asked, lambda record: load(record.image), most=len(asked))


def audit_chain(options: argparse.Namespace, out: Path) -> tuple[ScoringSettings, str]:
    """Write the records and replies of an audit of a network; return how they are scored, and its name."""
    model = options.model or read_default_model(options.workdir)
    trained, published = load_trained(options.workdir, names=(model,)), options.as_published
    reader = Reader(trained, model=model, batch_size=_BATCH_SIZE, with_attention=False, as_published=published)
    settings = trained.run.settings

    def name_phantom(case: Record) -> dict[str, str]:
        if options.data is not None or settings.data.source != "phantom":
            return {}
        index = str(int(Path(case.image).stem.rpartition("_")[2]))  # `open_run` draws it by this name
        phantom = {name: str(getattr(settings.phantom, name)) for name in ("seed", "prevalence")}
        return {"source": "phantom", "index": index, **phantom}

    if options.data is None and is_export(options.workdir):
        raise BadInput(f"{options.workdir}: --data is required (a folder of radiographs; an export has no test split)")
    source = open_run(options.workdir, "test") if options.data is None else None
    source = source or open_data(find_path(options.data, "--data"), max_pixels=trained.run.max_pixels)
    written = ask_cases(out, source, most=options.num_questions, provenance=name_phantom)
    place_of = {path: place for place, path in enumerate(dict.fromkeys(record.image for record in written))}
    watched = Terminal().watch(list(place_of), "pictures")
    images = to_input([read_picture(out / path, trained.preprocessing) for path in watched], trained.preprocessing)
    said = _read(reader, images)
    labels = [said[place_of[record.image], int(record.provenance[STEP])] for record in written]
    texts = _write(written, labels)
    write_replies(out / REPLIES, written, texts)
    if reader.joint is not None or accepts_answers(trained, model=model):
        asked = [record for record in written if record.provenance[VARIANT] == OWN and LAST in record.provenance]
        answers = {record.id: said[place_of[record.image]] for record in asked}
        varied = list(_give_answers(asked, answers, trained.chain.answers_per_step))
        own = _choose_own(written, texts)
        made = write_thinking(out, [record for record, _ in varied], _AS_ANSWERS, own)
        places = [place_of[record.image] for record in made]
        concluded = _read(reader, images[places], np.stack([given for _, given in varied]))[:, -1]
        write_replies(out / THINKING_REPLIES, made, _write(made, concluded.tolist()))
    return CHAIN_SCORING, f"{resolve(options.workdir).name}, {model}{', joint reading' if reader.joint else ''}"


def _give_answers(
    asked: Sequence[Record], answers: Mapping[str, Labels], numbers: Sequence[int]
) -> Iterator[tuple[Record, Labels]]:
    """Return variants of the last step's questions with the answers that are given to the earlier steps."""
    steps, last, rng = np.arange(len(numbers)), len(numbers) - 1, np.random.default_rng(0)
    given = {name: np.where(steps < last, own, NOT_GIVEN) for name, own in answers.items()}
    said = {record.id: in_words(record.letters[answers[record.id][last]], record) for record in asked}

    def replace(own: Labels) -> Labels:
        step = int(rng.integers(last))
        return np.where(steps == step, (own[step] + rng.integers(1, numbers[step])) % numbers[step], own)

    def halve(own: Labels) -> Labels | None:
        return np.where(steps < last // 2, own, NOT_GIVEN) if last // 2 else None

    return vary_given(asked, given, said, halve=halve, turn=replace)


def _read(reader: Reader, images: np.ndarray, given: Labels | None = None) -> Labels:
    probabilities = reader.read(images, given).probabilities
    numbers = enumerate(reader.trained.chain.answers_per_step)
    return np.stack([probabilities[:, step, :number].argmax(axis=-1) for step, number in numbers], axis=1)


def _write(records: Sequence[Record], labels: Sequence[int]) -> list[str]:
    return [f"Answer: {record.letters[label]}" for record, label in zip(records, labels, strict=True)]
