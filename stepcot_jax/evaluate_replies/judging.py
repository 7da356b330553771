"""Ask a language model to judge open answers and stages, as GEMeX-RMCoT and MEDSAGE do."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from stepcot_jax.annotate.llm.judge import (
    Exchange,
    Judge,
    judge_answers,
    judge_stages,
    label_steps,
    make_exchange,
)
from stepcot_jax.evaluation.replies import CHECKED_STAGES, ReplyScore, ScoringSettings, read
from stepcot_jax.evaluation.stage_quality import LABEL_VALUES
from stepcot_jax.reasoning.record import STAGE_NAMES, VqaRecord
from stepcot_jax.rewards.answers import Judged

_Score = TypeVar("_Score")


def judge_open_answers(
    records: Sequence[VqaRecord], replies: Mapping[str, str], settings: ScoringSettings, judge: Judge
) -> dict[str, Judged]:
    """Rate the open answers that could be read, from 1 to 10; return the scores by record id."""
    open_records = [record for record in records if record.kind == "open"]
    return _ask(judge_answers, _exchange(open_records, replies, settings), judge)


def judge_all_stages(
    records: Sequence[VqaRecord],
    replies: Mapping[str, str],
    scores: Sequence[ReplyScore],
    settings: ScoringSettings,
    judge: Judge,
) -> list[ReplyScore]:
    """Return the scores with the judge's stage scores from 1 to 5, and its labels where a record has no facts.

    Without facts, the stages of a reply that could not be read, or is missing and counts, are worth 0.
    """
    exchanges = [exchange for exchange in _exchange(records, replies, settings) if exchange.stages]
    asked = {exchange.id for exchange in exchanges}
    rated = _ask(judge_stages, exchanges, judge)
    unknown = {record.id for record in records if not record.facts}
    labels = _ask(label_steps, [exchange for exchange in exchanges if exchange.id in unknown], judge)
    values = {name: {label: LABEL_VALUES[text] for label, text in found.items()} for name, found in labels.items()}

    def complete(score: ReplyScore) -> ReplyScore:
        is_skipped = score.text is None and settings.missing == "skip"
        is_worthless = score.id in unknown - asked and settings.dialect in CHECKED_STAGES and not is_skipped
        nothing = dict.fromkeys(STAGE_NAMES, 0.0) if is_worthless else None
        changes = {"rated_stages": rated.get(score.id), "stages": values.get(score.id, nothing)}
        ordered = {name: tuple(each[stage] for stage in STAGE_NAMES) for name, each in changes.items() if each}
        return dataclasses.replace(score, **ordered)  # type: ignore[arg-type]

    return [complete(score) for score in scores]


def _exchange(
    records: Sequence[VqaRecord], replies: Mapping[str, str], settings: ScoringSettings
) -> Iterator[Exchange]:
    """Yield the replies whose answer could be read as `settings` has them read."""
    for record in records:
        reply = read(replies.get(record.id, ""), settings)
        if reply.answer is None or (settings.reading == "strict" and not reply.is_well_formed):
            continue
        yield make_exchange(record, reply)


def _ask(
    ask: Callable[[Sequence[Exchange], Judge], list[_Score | None]], exchanges: Iterable[Exchange], judge: Judge
) -> dict[str, _Score]:
    asked = list(exchanges)
    found = zip(asked, ask(asked, judge) if asked else [], strict=True)
    return {exchange.id: score for exchange, score in found if score is not None}
