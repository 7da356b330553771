"""Audit a network that reads chains: each step is a question with options, earlier answers are its thinking."""

import argparse
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepcot_jax.chain import NOT_ANNOTATED
from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.data.questions.variants import (
    AGREE,
    DONATED_BY,
    OWN,
    STEP,
    THINKS,
    VARIANT,
    Pixels,
    ask_steps,
    choose_donor,
    make_variant,
)
from stepcot_jax.evaluation.replies import ScoringSettings
from stepcot_jax.host.download import find_path
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reading.cases import CaseSource, open_data, open_run
from stepcot_jax.reading.corrections import accepts_answers
from stepcot_jax.reading.programs import Reader
from stepcot_jax.reading.radiographs import read_picture, to_input
from stepcot_jax.reading.trained_model import load_trained, read_default_model
from stepcot_jax.record import Record
from stepcot_jax.tools.evaluate_replies.audit_folder import (
    CONDITION,
    REPLIES,
    THINKING,
    THINKING_REPLIES,
    draw_places,
    score_folder,
    write_questions,
    write_replies,
)

Labels = npt.NDArray[np.int64]  # [case, step]
FORM = {"dialect": "medclm", "with_thinking": False}
"""How replies to the questions of a chain are written: "Answer: B"."""

_BATCH_SIZE = 32
_CONDITION = "the network is given answers to the earlier steps: half of its own, a donor's, or one replaced"


def open_steps(
    source: CaseSource, *, most: int, provenance: Callable[[Record], dict[str, str]] = lambda _: {}
) -> tuple[list[Record], Callable[[Record], Pixels]]:
    """Return the steps of at most `most` cases as questions, and a function that loads their pictures."""
    chosen = [source.diagnosed[place] for place in draw_places(len(source.diagnosed), most)]
    position = {source.cases[place].image: place for place in chosen}

    @functools.cache
    def load(image: str) -> Pixels:
        return np.asarray(source.picture(position[image]))

    records = [
        question
        for case in (source.cases[place] for place in chosen)
        for question in ask_steps(case, source.chain, size=load(case.image).shape[1::-1], provenance=provenance(case))
    ]
    return records, lambda record: load(record.image)


def audit_chain(options: argparse.Namespace, out: Path) -> str:
    """Audit a network of a workdir, write the folder of the audit, and return the figures as text."""
    model = options.model or read_default_model(options.workdir)
    trained, published = load_trained(options.workdir, names=(model,)), options.as_published
    reader = Reader(trained, model=model, batch_size=_BATCH_SIZE, with_attention=False, as_published=published)
    phantom, most = trained.run.settings.phantom, options.num_questions

    def name_phantom(case: Record) -> dict[str, str]:
        index = str(int(Path(case.image).stem.rpartition("_")[2]))  # `open_run` has drawn it by this name
        return {"source": "phantom", "seed": str(phantom.seed), "index": index, "prevalence": phantom.prevalence}

    if options.data is not None:
        data = open_data(find_path(options.data, "--data"), max_pixels=trained.max_pixels)
        records, load = open_steps(data, most=most)
    elif trained.run.settings.data.source == "phantom":
        records, load = open_steps(open_run(options.workdir, "test"), most=most, provenance=name_phantom)
    else:
        records, load = open_steps(open_run(options.workdir, "test"), most=most)
    written = write_questions(out, records, load, most=len(records), **FORM)
    paths = list(dict.fromkeys(record.image for record in written))
    watched = Terminal().watch(paths, "pictures")
    images = to_input([read_picture(out / path, trained.preprocessing) for path in watched], trained.preprocessing)
    place_of = {path: place for place, path in enumerate(paths)}
    said = _read(reader, images)
    answers = [said[place_of[record.image], int(record.provenance[STEP])] for record in written]
    write_replies(
        out / REPLIES, written, [_write(record, label) for record, label in zip(written, answers, strict=True)]
    )
    thinking = None
    if reader.joint is not None or accepts_answers(trained, model=model):
        thinking = out / THINKING_REPLIES
        last = str(trained.chain.num_steps - 1)
        asked = [record for record in written if record.provenance[VARIANT] == OWN and record.provenance[STEP] == last]
        own = np.array([place_of[record.image] for record in asked])
        varied = list(_vary_given(asked, said[own], trained.chain.answers_per_step))
        given = np.stack([labels for _, _, labels in varied])
        concluded = _read(reader, images[own[[place for _, place, _ in varied]]], given)[:, -1]
        made = [record for record, _, _ in varied]
        write_vqa_records(out / THINKING, made)
        write_replies(thinking, made, _write(made, concluded.tolist()))
    who = f"{options.workdir.resolve().name}, {model}{', joint reading' if reader.joint else ''}"
    scoring = ScoringSettings(**FORM)
    return score_folder(out, out / REPLIES, thinking, scoring, num_resamples=options.num_resamples, who=who)


def _read(reader: Reader, images: np.ndarray, given: Labels | None = None) -> Labels:
    probabilities = reader.read(images, given).probabilities
    numbers = enumerate(reader.trained.chain.answers_per_step)
    return np.stack([probabilities[:, step, :number].argmax(axis=-1) for step, number in numbers], axis=1)


def _write(records: Sequence[Record], labels: Sequence[int]) -> list[str]:
    return [f"Answer: {record.letters[label]}" for record, label in zip(records, labels, strict=True)]


def _vary_given(asked: Sequence[Record], own: Labels, numbers: Sequence[int]) -> Iterator[tuple[Record, int, Labels]]:
    """Yield variants of the last step's questions, the position of each question, and the answers that are given."""
    earlier, rng = np.arange(own.shape[1]) < own.shape[1] - 1, np.random.default_rng(0)
    for place, record in enumerate(asked):
        others = [other for other in range(len(asked)) if asked[other].patient != record.patient]
        agree = np.mean([own[other, -1] == own[place, -1] for other in others]) if others else np.nan
        differing = {asked[other].id: other for other in others if own[other, -1] != own[place, -1]}
        donor = choose_donor(record, [asked[other] for other in differing.values()])
        kept = np.where(earlier, own[place], NOT_ANNOTATED)
        cut = np.where(np.arange(len(kept)) < (len(kept) - 1) // 2, kept, NOT_ANNOTATED)
        turned, step = kept.copy(), int(rng.integers(len(kept) - 1))
        turned[step] = (kept[step] + rng.integers(1, numbers[step])) % numbers[step]
        given = {"thinking_own": kept, "thinking_cut": cut, "thinking_turned": turned}
        made = {CONDITION: _CONDITION}
        if donor is not None:
            given["thinking_donor"] = np.where(earlier, own[differing[donor.id]], NOT_ANNOTATED)
        for name in (name for name in THINKS if name in given):
            shared = {DONATED_BY: donor.id, AGREE: f"{agree:.6f}"} if name == "thinking_donor" and donor else {}
            yield make_variant(record, name, **made, **shared), place, given[name]
