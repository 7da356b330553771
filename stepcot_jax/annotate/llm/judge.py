"""A language model as judge of replies: answers from 1 to 10, stages from 1 to 5, and labels of steps.

GEMeX-RMCoT, Table 3: the judge rates reference and reply, with the picture as a caption. MEDSAGE, Section 4: scores of
stages; its judge's prompt is not published. Labels of steps follow MiCEval's public code. Every answer is in a ledger,
and a request that is given up or cannot be read is unscored (None), never 0.
"""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stepcot_jax.annotate.annotation import Provenance
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.prompt import Prompt
from stepcot_jax.annotate.llm.read_answers import BadAnswer, find_object, read_scores
from stepcot_jax.annotate.llm.vqa_prompts import RATE_ANSWERS, RATE_STAGES, rate_steps_prompt
from stepcot_jax.annotate.runs import Crew, process_items
from stepcot_jax.chain import fold
from stepcot_jax.reasoning.record import STAGE_NAMES
from stepcot_jax.rewards.answer_rewards import Judged

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
    """What is judged.

    Attributes:
      id: unique name, such as the record's id.
      caption: what stands for the picture.
      question: the question.
      reference: the record's answer, with its reasoning if there is one.
      reply: the reply's answer, with its reasoning if there is one.
      stages: texts of the reply's stages by `record.STAGE_NAMES`, for stage scores and step labels.
    """

    id: str
    caption: str
    question: str
    reference: str
    reply: str
    stages: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def text(self) -> str:
        """Everything that a score depends on."""
        return json.dumps([self.caption, self.question, self.reference, self.reply, dict(self.stages)])

    def data(self) -> dict[str, Any]:
        """Return the exchange as data of a request."""
        shown = {"caption": self.caption, "question": self.question, "reference": self.reference}
        return {**shown, **({"stages": dict(self.stages)} if self.stages else {"reply": self.reply})}


@dataclasses.dataclass(frozen=True)
class Judge:
    """A judge with its ledgers.

    Attributes:
      endpoint: the model.
      folder: folder of the ledgers.
      cap: most tokens of all ledgers in the folder; None for no cap.
      concurrency: number of requests in flight.
      num_repairs: how often an unreadable answer is asked for again.
    """

    endpoint: Endpoint
    folder: Path
    cap: int | None = None
    concurrency: int = 4
    num_repairs: int = 2


def judge_answers(exchanges: Sequence[Exchange], judge: Judge) -> list[Judged | None]:
    """Rate reference and reply of each exchange from 1 to 10; None where there is no usable answer.

    Raises:
      RunStopped: spending cap, or three requests given up in a row; the same call resumes from the ledger.
      BadInput: no request can succeed with this key, address or model.
    """

    def read(text: str) -> Judged:
        scores = read_scores(text, names=("reference", "reply"), least=1, greatest=10)
        return Judged(scores["reference"], scores["reply"])

    return _judge(exchanges, judge, RATE_ANSWERS, read)


def judge_stages(exchanges: Sequence[Exchange], judge: Judge) -> list[dict[str, float] | None]:
    """Score the four stages of each exchange from 1 to 5; raises as `judge_answers`."""
    return _judge(exchanges, judge, RATE_STAGES, lambda text: read_scores(text, names=STAGE_NAMES, least=1, greatest=5))


def label_steps(exchanges: Sequence[Exchange], judge: Judge) -> list[dict[str, str] | None]:
    """Label the four stages of each exchange with one of `STEP_LABELS`; raises as `judge_answers`."""
    return _judge(exchanges, judge, rate_steps_prompt(STEP_LABELS), read_step_labels)


def read_step_labels(text: str) -> dict[str, str]:
    """Read an answer of step labels.

    Raises:
      BadAnswer: there is no such object, or a label is another one.
    """
    found = find_object(text, ["reason", *STAGE_NAMES])
    labels = {name: fold(found[name]) if isinstance(found[name], str) else "" for name in STAGE_NAMES}
    for name, accepted in STEP_LABELS.items():
        if labels[name] not in accepted:
            raise BadAnswer(f"found {found[name]!r:.80}, accepted is one of {', '.join(accepted)}", field=name)
    return labels


def _judge(
    exchanges: Sequence[Exchange], judge: Judge, prompt: Prompt, read: Callable[[str], _Score]
) -> list[_Score | None]:
    async def ask_all() -> list[_Score | None]:
        crew = Crew(judge.folder, cap=judge.cap, num_repairs=judge.num_repairs)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(crew.close)
            interviewer = crew.interview(judge.endpoint, prompt)
            crew.charge_other_ledgers()

            async def process(exchange: Exchange) -> tuple[_Score, Provenance]:
                score, _ = await interviewer.ask(exchange, prompt.messages(exchange.data()), read)
                return score, ()

            outcomes = process_items(exchanges, process, budget=crew.budget, concurrency=judge.concurrency)
            return [outcome.made async for outcome in outcomes]

    return asyncio.run(ask_all())
