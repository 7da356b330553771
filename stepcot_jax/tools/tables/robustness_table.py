"""Table `robustness`: answers of policies to perturbed questions, beside GEMeX-RMCoT's."""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

from stepcot_jax.data.questions.record_files import read_vqa_records, write_replies, write_vqa_records
from stepcot_jax.data.questions.vqa_dataset import VqaDataset
from stepcot_jax.evaluation import published
from stepcot_jax.evaluation.audits import PERTURBED_KINDS, perturb_records, spread
from stepcot_jax.evaluation.comparison import INTERVALS
from stepcot_jax.evaluation.replies import A_SCORE, BASELINE, ReplyScore, as_columns, score_all, score_models
from stepcot_jax.evaluation.statistics import mean_of_seeds, summarise
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.ranges import Interval
from stepcot_jax.pages.sheets import Column, Row, Table, columns, heads, mark_published
from stepcot_jax.policies.policy_files import AnyTokenizer
from stepcot_jax.policies.tokenizers import split_pieces
from stepcot_jax.reading.policy_reader import PolicyReader, load_reader
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.record import Record
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.run.networks import read_tokenizer
from stepcot_jax.run.settings import read_settings
from stepcot_jax.tools.tables.cells import Cell
from stepcot_jax.tools.tables.plan import Plan, Recipe
from stepcot_jax.tools.tables.policy_tables import (
    COUNTERPARTS,
    PLAIN,
    THINKING,
    make_scoring,
    read_all_replies,
    read_test_records,
    score_cell,
    score_constant,
    sft_of,
)

# A trained policy's greedy replies to perturbed test questions, kept in the folder of its cell.

ROUND_SEED = 0
"""Seed of the perturbations: the same questions for every training."""

FOLDER = "perturbed"


@dataclasses.dataclass(frozen=True)
class PerturbedReplies:
    """Perturbed questions with replies."""

    rounds: Sequence[tuple[Sequence[Record], Mapping[str, str]]]  # records and replies by id of each round
    left_out: Sequence[str]  # pieces that a closed vocabulary does not have, for each prompt that they were left out of


def answer_rounds(folder: pathlib.Path, records: Sequence[Record], *, num_rounds: int) -> PerturbedReplies:
    """Return a run's replies to the perturbed closed and single-choice records; those in `perturbed/` are reused."""
    settings = read_settings(folder / "settings.json")
    rounds, opened = list[tuple[Sequence[Record], Mapping[str, str]]](), None
    for number in range(1, num_rounds + 1):
        of_round = perturb_records(records, seed=ROUND_SEED, round_number=number)
        path, asked = (folder / FOLDER / f"{name}_{number}.jsonl" for name in ("replies", "records"))
        answered = read_vqa_records(asked).records if path.is_file() and asked.is_file() else ()
        if list(answered) != list(of_round):
            opened = opened or (load_reader(folder), load_vqa_dataset(settings, splits=("test",)))
            if list(opened[1].records) != list(records):
                raise BadInput(f"{folder}: the test records of its data have changed since it ran; restore them")
            asked.unlink(missing_ok=True)  # without its records no reply counts
            write_replies(path, of_round, answer_records(opened[0], of_round, opened[1]))
            write_vqa_records(asked, of_round)
        rounds.append((of_round, read_all_replies(path, of_round, name=path.stem)))
    tokenizer, vqa = read_tokenizer(folder, settings), settings.vqa
    left_out = [
        word.strip()
        for of_round, _ in rounds
        for record in of_round
        for word in leave_out(write_question(record, vqa.dialect, with_thinking=vqa.with_thinking), tokenizer)[1]
    ]
    return PerturbedReplies(rounds, left_out)


def answer_records(reader: PolicyReader, records: Sequence[Record], dataset: VqaDataset) -> list[str]:
    """Return greedy replies to records of a dataset's images, whose questions may be longer than those of training."""
    run, tokenizer = reader.trained.run, reader.trained.tokenizer
    image_of = {record.id: int(image) for record, image in zip(dataset.records, dataset.image_of, strict=True)}

    def encode(record: Record) -> list[int]:
        text = write_question(record, run.dialect, with_thinking=run.with_thinking)
        return tokenizer.encode_prompt(leave_out(text, tokenizer)[0])

    size = run.settings.evaluation.batch_size
    return reader.reply_all(records, lambda record: dataset.pixels[image_of[record.id]], batch_size=size, encode=encode)


def leave_out(text: str, tokenizer: AnyTokenizer) -> tuple[str, tuple[str, ...]]:
    """Return a prompt without the pieces that a closed vocabulary does not have, and those pieces.

    >>> from stepcot_jax.policies.tokenizers import Vocabulary
    >>> leave_out("Isn't there a mass?", Vocabulary.count(["Is there a mass?"], largest=3))
    (' there a mass?', ('Isn', "'", 't'))
    """
    if tokenizer.closed is None:
        return text, ()
    known, pieces = set(tokenizer.closed.base), split_pieces(text)
    unknown = tuple(piece for piece in pieces if piece not in known)
    return "".join(piece for piece in pieces if piece in known), unknown


# The table.

TRAININGS = (PLAIN, THINKING)

_PUBLISHED_NOTE = (
    "Recomputed: population standard deviation of the three rounds about their own mean, which the printed "
    "figures are, though the paper's note says from the original."
)


def make_published() -> list[Table]:
    """Return GEMeX-RMCoT's Table 5."""
    rows = [_published_row(*key) | {"training": key[1]} for key in published.PERTURBED]
    title = "A-score under perturbation of the questions (GEMeX-RMCoT, Table 5)"
    head = (*heads("questions", "training"), *_PUBLISHED_COLUMNS)
    return [Table.of("robustness", title, head, rows, (_PUBLISHED_NOTE,))]


def make_tables(plan: Plan) -> list[Table]:
    """Return our figures beside GEMeX-RMCoT's Table 5."""
    measured = {name: [_measure(plan, sft_of(plan, seed, name)) for seed in plan.seeds] for name in TRAININGS}
    _, of_first = measured[TRAININGS[0]][0]
    constant = _measure_constant(plan, of_first)
    rows: list[Row] = []
    for kind in PERTURBED_KINDS:
        rows.append({"questions": kind, "training": BASELINE, **_summarise([constant[kind]])})
        for name in TRAININGS:
            by_seed = [figures[kind] for figures, _ in measured[name]]
            rows.append(_published_row(kind, COUNTERPARTS[name]) | {"training": name} | _summarise(by_seed))
    words = collections.Counter(
        word for of_seeds in measured.values() for _, asked in of_seeds for word in asked.left_out
    )
    left_out = ", ".join(f"{word!r} ({number} times)" for word, number in sorted(words.items()))
    notes = (
        f"Test split, seeds {list(plan.seeds)} of training; the rounds are those of seed {ROUND_SEED} for all.",
        INTERVALS,
        'Closed questions: the leading "is" becomes "isn\'t" or "abnormal" becomes "normal", each question with '
        "probability 0.5, and the answer turns. Single choice: the options in random order.",
        "std: population standard deviation of the three rounds about their mean; mean over the seeds.",
        *([f"Left out of the prompts, since no training question has it: {left_out}."] if left_out else []),
        "Published: SFT on GEMeX-RMCoT-200K without and with thinking (GEMeX-RMCoT, Table 5). " + _PUBLISHED_NOTE,
    )
    head = (*heads("questions", "training"), *columns("percent", *published.ROUNDS, "std"), *_PUBLISHED_COLUMNS)
    return [Table.of("robustness", "A-score under perturbation of the questions", head, rows, notes)]


def _measure(plan: Plan, cell: Cell) -> tuple[Mapping[str, Sequence[Interval]], PerturbedReplies]:
    """Return the A-scores of each kind in the original and the rounds, and the replies."""
    records, scoring = read_test_records(plan, cell), make_scoring(cell.settings)
    asked = answer_rounds(plan.cells.folder(cell), records, num_rounds=len(published.ROUNDS) - 1)
    scored = [(perturbed, score_all(perturbed, replies, scoring)) for perturbed, replies in asked.rounds]
    return _find_a_scores(plan, [(records, score_cell(plan, cell, records)), *scored]), asked


def _measure_constant(plan: Plan, asked: PerturbedReplies) -> Mapping[str, Sequence[Interval]]:
    """Return the A-scores of the majority answer, which depends on a question's topic but not on its wording."""
    cell = sft_of(plan, plan.seeds[0], TRAININGS[0])
    rounds = [read_test_records(plan, cell), *(records for records, _ in asked.rounds)]
    return _find_a_scores(plan, [(records, score_constant(cell.settings, records)) for records in rounds])


def _find_a_scores(
    plan: Plan, rounds: Sequence[tuple[Sequence[Record], Sequence[ReplyScore]]]
) -> dict[str, list[Interval]]:
    scored = {str(number): as_columns(records, scores) for number, (records, scores) in enumerate(rounds)}
    intervals = score_models(scored, num_resamples=plan.num_resamples)
    return {kind: [intervals[name][A_SCORE, kind] for name in scored] for kind in PERTURBED_KINDS}


def _summarise(by_seed: Sequence[Sequence[Interval]]) -> Row:
    """Return the figures of a row from intervals [seed][original or round]."""
    deviations = [
        spread([interval.value for interval in of_seed[1:]], original=of_seed[0].value, std="population")
        for of_seed in by_seed
    ]
    row: Row = {"std": mean_of_seeds(deviations)}
    by_round = zip(published.ROUNDS, zip(*by_seed, strict=True), strict=True)
    return row | {name: summarise(of_round) for name, of_round in by_round}


_PUBLISHED_COLUMNS = (
    *columns("percent", *published.ROUNDS, published=True, digits=2),
    Column("std", "percent", published=True, digits=3),
    Column("std", "percent", recomputed=True, digits=4),
)


def _published_row(kind: str, training: str) -> Row:
    figures, std = published.PERTURBED[kind, training], published.PERTURBED_STD[kind, training]
    recomputed = published.round_half_up(published.recompute_std(figures), 6)
    return {"questions": kind, **mark_published({**figures, "std": std}, std=recomputed)}


RECIPES = {
    "robustness": Recipe(
        lambda plan, seed: [sft_of(plan, seed, name) for name in TRAININGS], make_tables, make_published
    )
}
