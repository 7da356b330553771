"""Ask every dialogue about every case, and write the replies.

The dialogues of a case follow each other, because the variant `own` needs the replies of lower levels; several cases
are asked at once. The model's ledger keeps the replies of an interrupted run.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepcot_jax.annotate.llm.answers import digest_messages
from stepcot_jax.annotate.llm.client import Budget
from stepcot_jax.annotate.llm.crew import process_items
from stepcot_jax.chain import Chain
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.files import write_whole
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reading.chat_models import Model, Reply, Request, ShownImage
from stepcot_jax.reasoning.levels import Dialogue, Key, make_dialogue, name_step, position_of
from stepcot_jax.tools.constrain.constraints import Verified, verify
from stepcot_jax.tools.constrain.levels import write_messages

REPLIES_NAME = "replies.jsonl"


@dataclasses.dataclass(frozen=True)
class AskedCase:
    """A case to ask about."""

    id: str
    patient_id: str
    truth: tuple[int, ...]
    image: ShownImage

    @property
    def text(self) -> str:
        """Version of the case in a ledger: the id alone, because the request's digest covers the picture."""
        return self.id


@dataclasses.dataclass(frozen=True)
class Answered:
    """One dialogue with its reply and the verification of the reply."""

    dialogue: Dialogue
    reply: Reply
    verified: Verified


CaseReplies = Mapping[Key, Answered]


@dataclasses.dataclass(frozen=True)
class Asking:
    """The dialogues to ask about each case."""

    chain: Chain
    keys: tuple[Key, ...]
    lists_diagnoses: bool = True
    concurrency: int = 4

    def __post_init__(self) -> None:
        levels = [level for variant, level in self.keys if variant == "own"]
        if levels and levels != list(range(1, max(levels) + 1)):
            raise BadInput(f"--levels: {levels} with own answers must be every level up to {max(levels)}")


async def ask_case(case: AskedCase, model: Model, asking: Asking) -> CaseReplies:
    """Ask all dialogues about one case; equal ones of several variants are asked once."""
    answered: dict[Key, Answered] = {}
    replies: dict[str, Reply] = {}
    answers: dict[int, int] = {}
    for key in asking.keys:
        dialogue = make_dialogue(key, answers=answers, truth=case.truth)
        messages = write_messages(asking.chain, dialogue, lists_diagnoses=asking.lists_diagnoses)
        digest = digest_messages(messages)
        if digest not in replies:
            replies[digest] = await model.reply(Request(case.id, messages, case.image, dialogue))
        verified = verify(
            replies[digest].answer, chain=asking.chain, dialogue=dialogue, lists_diagnoses=asking.lists_diagnoses
        )
        answered[key] = Answered(dialogue, replies[digest], verified)
        if key[0] == "own":
            labels = verified.labels
            answers |= {asked: labels[name_step(asked)] for asked in dialogue.asked if name_step(asked) in labels}
    return answered


async def ask_all(
    cases: Sequence[AskedCase], model: Model, asking: Asking, *, budget: Budget, terminal: Terminal
) -> list[CaseReplies]:
    """Ask all dialogues about all cases, in their order."""

    async def process(case: AskedCase) -> tuple[CaseReplies, tuple[()]]:
        try:
            return await ask_case(case, model, asking), ()
        finally:
            case.image.release()  # thousands of pictures would fill the memory

    replies: list[CaseReplies] = []
    failed: list[tuple[str, str]] = []
    with terminal.bar("asking", total=len(cases)):
        async for outcome in process_items(cases, process, budget=budget, concurrency=asking.concurrency):
            if outcome.made is None:
                failed.append((outcome.item.id, outcome.aside.detail if outcome.aside else ""))
            else:
                replies.append(outcome.made)
            spent = f"{budget.num_spent} tokens" if budget.num_spent else ""
            terminal.update(len(replies) + len(failed), spent)
    if failed:
        raise RunStopped(
            f"requests about {len(failed)} of {len(cases)} cases were given up (first: {failed[0][0][:80]!r}: "
            f"{failed[0][1]}); all other replies are in the ledger, rerun the command to ask again"
        )
    return replies


def run_all(
    cases: Sequence[AskedCase], open_model: Callable[[], tuple[Model, Budget]], asking: Asking, *, terminal: Terminal
) -> tuple[list[CaseReplies], Model]:
    """Open the model, ask all dialogues about all cases and close the model; an interruption raises `RunStopped`."""

    async def run() -> tuple[list[CaseReplies], Model]:
        model, budget = open_model()
        try:
            return await ask_all(cases, model, asking, budget=budget, terminal=terminal), model
        finally:
            await model.close()

    try:
        return asyncio.run(run())
    except KeyboardInterrupt:
        raise RunStopped("interrupted; rerun the command to resume") from None


def write_replies(folder: Path, cases: Sequence[AskedCase], replies: Sequence[CaseReplies], chain: Chain) -> None:
    """Write `replies.jsonl`: a line for each dialogue of each case, with reply, answers and broken constraints."""
    lines = []
    for case, answered_case in zip(cases, replies, strict=True):
        for (variant, level), answered in answered_case.items():
            reply, verified = answered.reply, answered.verified
            line: dict[str, Any] = {"case": case.id, "variant": variant, "level": level}
            given = answered.dialogue.given
            line["given"] = {name_step(position): chain.steps[position].written(label) for position, label in given}
            line["reply"] = reply.text
            line |= {"problem": reply.problem} if reply.problem else {}
            line |= {"is_cut": True} if reply.is_cut else {}
            line["answers"] = {
                field: chain.steps[position_of(field, chain.num_steps)].written(label)
                for field, label in verified.labels.items()
            }
            names = [f"{constraint.kind} {constraint.field}".strip() for constraint in verified.constraints]
            line["not_followed"] = {
                reading: [name for name, kept in zip(names, getattr(verified, reading), strict=True) if not kept]
                for reading in ("strict", "loose")
            }
            lines.append(line)
    write_whole(folder / REPLIES_NAME, msgspec.json.Encoder().encode_lines(lines))
