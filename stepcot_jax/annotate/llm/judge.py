"""A language model as judge of replies (GEMeX-RMCoT, Table 3; MEDSAGE, Section 4; step labels as in MiCEval).

A request that is given up or cannot be read is unscored (None), never 0.
"""

import asyncio
import collections
import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from stepcot_jax.annotate.annotation import Provenance
from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.crew import Crew, Streak, process_items
from stepcot_jax.annotate.llm.interviews import read_scores
from stepcot_jax.annotate.llm.json_objects import BadAnswer, find_object
from stepcot_jax.annotate.llm.prompts import RATE_ANSWERS, RATE_STAGES, Message, Prompt, rate_steps_prompt
from stepcot_jax.chain import fold
from stepcot_jax.reasoning.replies import Judged, Reply
from stepcot_jax.record import STAGE_NAMES, Record

STEP_LABELS: Mapping[str, tuple[str, ...]] = {
    "localisation": ("fully correct", "partially correct", "unsupported"),
    "visual": ("fully correct", "partially correct", "unsupported"),
    "knowledge": ("correct", "incorrect"),
    "conclusion": ("correct", "incorrect"),
}
"""Labels of each stage: localisation and visual analysis describe, knowledge and conclusion reason."""

_Score = TypeVar("_Score")


@dataclasses.dataclass(frozen=True)
class Exchange:
    """A question with the record's answer and the reply to be judged."""

    id: str  # unique name, such as the record's id
    caption: str  # text instead of the picture
    question: str
    reference: str  # the record's answer, with its reasoning if there is one
    reply: str  # the reply's answer, with its reasoning if there is one
    # stages: texts of the reply's stages by `record.STAGE_NAMES`, for stage scores and step labels
    stages: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def text(self) -> str:
        """Everything that a score depends on."""
        return json.dumps([self.caption, self.question, self.reference, self.reply, dict(self.stages)])

    def data(self) -> dict[str, Any]:
        """Return the exchange as data of a request."""
        shown = {"caption": self.caption, "question": self.question, "reference": self.reference}
        return {**shown, **({"stages": dict(self.stages)} if self.stages else {"reply": self.reply})}


def make_exchange(record: Record, reply: Reply) -> Exchange:
    """Return the exchange of a record and a reply that has an answer, with the record's id."""
    if reply.answer is None:
        raise ValueError(f"the reply to record {record.id!r} has no answer; there is nothing to judge")
    stages = {name: reply.stages.get(name, "") for name in STAGE_NAMES} if reply.stages else {}
    return Exchange(
        id=record.id,
        caption=describe_picture(record),
        question=record.question,
        reference=_with_reason(", ".join(record.accepted_texts[:1]) or ", ".join(record.answer), record.thinking),
        reply=_with_reason(reply.answer, reply.thinking),
        stages=stages,
    )


def describe_picture(record: Record) -> str:
    """Return the text instead of the picture in a request: the record's preamble, facts and boxes."""
    facts = "; ".join(f"{name}: {value}" for name, value in record.facts.items() if value)
    boxes = "; ".join(f"{box.label} {list(box.corners)}" for box in record.references)
    size = f"boxes in a picture of {record.image_size[0]} by {record.image_size[1]} pixels: {boxes}" if boxes else ""
    return " | ".join(part for part in (record.preamble, facts, size) if part) or "not described"


def _with_reason(answer: str, thinking: str) -> str:
    return f"{answer}\nReason: {thinking}" if thinking.strip() else answer


@dataclasses.dataclass(frozen=True)
class Judge:
    """A judge with its ledgers."""

    endpoint: Endpoint
    folder: Path
    cap: int | None = None  # most tokens of all ledgers in the folder; None for no cap
    concurrency: int = 4  # number of requests in flight
    num_repairs: int = 2  # how often an unreadable answer is requested again
    # replies without a usable answer so far, by reason
    unusable: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


class JudgeSession(Generic[_Score]):
    """A judge with one prompt, asked many times; failed requests are counted across calls of `ask`."""

    def __init__(self, judge: Judge, prompt: Prompt, read: Callable[[str], _Score]) -> None:
        self._judge, self._prompt, self._read = judge, prompt, read
        self._runner = asyncio.Runner()
        self._crew: Crew | None = None
        self._streak = Streak()

    def ask(self, exchanges: Sequence[Exchange]) -> list[_Score | None]:
        """Score the exchanges, or read their scores from the ledger; None where no answer is usable."""
        return self._runner.run(self._ask(exchanges))

    async def _ask(self, exchanges: Sequence[Exchange]) -> list[_Score | None]:
        if self._crew is None:
            self._crew = Crew(self._judge.folder, cap=self._judge.cap, num_repairs=self._judge.num_repairs)
        crew = self._crew
        interviewer = crew.interview(self._judge.endpoint, self._prompt)

        def write(exchange: Exchange) -> list[Message]:
            return self._prompt.messages(exchange.data())

        async def process(exchange: Exchange) -> tuple[_Score, Provenance]:
            score, _ = await interviewer.ask(exchange, write(exchange), self._read)
            return score, ()

        is_known = [interviewer.has_asked(exchange, write(exchange)) for exchange in exchanges]
        scores: list[_Score | None] = [None] * len(exchanges)
        for group, streak in ((True, None), (False, self._streak)):
            indices = [index for index, known in enumerate(is_known) if known == group]
            items = [exchanges[index] for index in indices]
            outcomes = process_items(
                items, process, budget=crew.budget, concurrency=self._judge.concurrency, streak=streak
            )
            ended = [outcome async for outcome in outcomes]
            self._judge.unusable.update(outcome.aside.reason for outcome in ended if outcome.aside)
            for index, outcome in zip(indices, ended, strict=True):
                scores[index] = outcome.made
        return scores

    def close(self) -> None:
        """Close connection and ledger; safe to call twice."""
        if self._crew is not None:
            self._runner.run(self._crew.close())
            self._crew = None
        self._runner.close()


def open_answer_session(judge: Judge) -> JudgeSession[Judged]:
    """Return a session that rates reference and reply of each exchange from 1 to 10."""
    return JudgeSession(judge, RATE_ANSWERS, _read_ratings)


def _read_ratings(text: str) -> Judged:
    scores = read_scores(text, names=("reference", "reply"), least=1, greatest=10)
    return Judged(scores["reference"], scores["reply"])


def judge_answers(exchanges: Sequence[Exchange], judge: Judge) -> list[Judged | None]:
    """Rate reference and reply of each exchange from 1 to 10; None where no answer is usable."""
    return _judge(exchanges, judge, RATE_ANSWERS, _read_ratings)


def judge_stages(exchanges: Sequence[Exchange], judge: Judge) -> list[dict[str, float] | None]:
    """Score the four stages of each exchange from 1 to 5; raises as `judge_answers`."""
    return _judge(exchanges, judge, RATE_STAGES, lambda text: read_scores(text, names=STAGE_NAMES, least=1, greatest=5))


def label_steps(exchanges: Sequence[Exchange], judge: Judge) -> list[dict[str, str] | None]:
    """Label the four stages of each exchange with one of `STEP_LABELS`; raises as `judge_answers`."""
    return _judge(exchanges, judge, rate_steps_prompt(STEP_LABELS), read_step_labels)


def read_step_labels(text: str) -> dict[str, str]:
    """Read an answer of step labels."""
    answer = find_object(text, ["reason", *STAGE_NAMES])
    labels = {name: fold(answer[name]) if isinstance(answer[name], str) else "" for name in STAGE_NAMES}
    for name, accepted in STEP_LABELS.items():
        if labels[name] not in accepted:
            raise BadAnswer(f"found {answer[name]!r:.80}, accepted is one of {', '.join(accepted)}", field=name)
    return labels


def _judge(
    exchanges: Sequence[Exchange], judge: Judge, prompt: Prompt, read: Callable[[str], _Score]
) -> list[_Score | None]:
    with contextlib.closing(JudgeSession(judge, prompt, read)) as session:
        return session.ask(exchanges)
