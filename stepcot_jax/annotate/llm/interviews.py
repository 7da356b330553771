"""Language models as annotator, doubter and voters: parse each answer, repair it, keep it in the ledger.

A new answer is written to the ledger before it is read, so a repeated run asks nothing again.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from stepcot_jax import __version__
from stepcot_jax.annotate.annotation import Annotation, CannotAnnotate, Item, Provenance, Reason
from stepcot_jax.annotate.llm.answers import Answers, Ledger, digest_messages, digest_text
from stepcot_jax.annotate.llm.client import Budget, Client, Endpoint
from stepcot_jax.annotate.llm.json_objects import BadAnswer, find_object
from stepcot_jax.annotate.llm.prompts import TRUST, VOTES, Message, Prompt, write_repair
from stepcot_jax.annotate.llm.replies import Entry, reply_text
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step, fold
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.endings import goes_on_behind

# Read an answer; errors are worded so that the model can correct it.


MAX_REASONING = 4000

MIN_QUOTED_LETTERS = 3
"""Minimal number of letters of a quote: "no" and "." are in every report."""


def read_chain_answer(text: str, *, chain: Chain, report: str) -> Annotation:
    """Read an answer to the annotation prompt, with quotes of the report; text around its JSON object is ignored."""
    names = [f"step_{number}" for number in range(1, chain.num_steps + 1)]
    answer = find_object(text, names)
    labels, reasoning, quotes, searched = [], [], [], fold(report)
    for name, step in zip(names, chain.steps, strict=True):
        entry = answer[name]
        if not isinstance(entry, dict) or set(entry) != {"quote", "reasoning", "answer"}:
            raise BadAnswer(f"found {entry!r:.80}, accepted is an object of quote, reasoning and answer", field=name)
        if not isinstance(entry["reasoning"], str) or not entry["reasoning"].strip():
            raise BadAnswer(f"found {entry['reasoning']!r:.80}, accepted is a text", field=f"{name}.reasoning")
        if len(entry["reasoning"]) > MAX_REASONING:
            length = f"found {len(entry['reasoning'])} characters"
            raise BadAnswer(f"{name}.reasoning: {length}, accepted are 1 to 3 sentences")
        labels.append(_read_label(entry["answer"], name=name, step=step))
        reasoning.append(entry["reasoning"].strip())
        quotes.append(_read_quote(entry["quote"], name=name, searched=searched))
    return Annotation(tuple(labels), tuple(reasoning), tuple(quotes))


def read_choice(text: str, *, field: str, accepted: Sequence[str]) -> str:
    """Read an answer to the trust question or a vote; `accepted` are the valid values, in lower case."""
    answer = find_object(text, ["reasoning", field])
    value = answer[field]
    folded = fold(value) if isinstance(value, str) else ""
    if folded not in accepted:
        raise BadAnswer(f"found {value!r:.80}, accepted is one of {', '.join(accepted)}", field=field)
    return folded


def read_texts(text: str, *, names: Sequence[str]) -> dict[str, str]:
    """Read an answer that is an object of texts."""
    answer = find_object(text, names)
    for name in names:
        if not isinstance(answer[name], str) or not answer[name].strip():
            raise BadAnswer(f"found {answer[name]!r:.80}, accepted is a text", field=name)
        if len(answer[name]) > MAX_REASONING:
            raise BadAnswer(f"found {len(answer[name])} characters, accepted are {MAX_REASONING}", field=name)
    return {name: " ".join(answer[name].split()) for name in names}


def read_scores(text: str, *, names: Sequence[str], least: int, greatest: int) -> dict[str, float]:
    """Read an answer that is an object of a reason and numbers."""
    answer = find_object(text, ["reason", *names])
    for name in names:
        is_number = isinstance(answer[name], int | float) and not isinstance(answer[name], bool)
        if not is_number or not least <= answer[name] <= greatest:
            raise BadAnswer(f"found {answer[name]!r:.80}, accepted is a number from {least} to {greatest}", field=name)
    return {name: float(answer[name]) for name in names}


def write_chain_answer(annotation: Annotation, *, chain: Chain) -> dict[str, dict[str, str | None]]:
    """Write an annotation as the object that the annotation prompt asks for; `read_chain_answer` reads it back."""
    steps = zip(chain.steps, annotation.labels, annotation.reasoning, strict=True)
    answer = {
        f"step_{number}": {"reasoning": reasoning, "answer": step.written(label)}
        for number, (step, label, reasoning) in enumerate(steps, start=1)
    }
    quoted = zip(answer, annotation.quotes, strict=True) if annotation.quotes else ()
    return answer | {name: {"quote": quote, **answer[name]} for name, quote in quoted}


def _read_quote(quote: Any, *, name: str, searched: str) -> str:
    """Return a quote in one line; `searched` is the folded report."""
    if not isinstance(quote, str) or sum(map(str.isalpha, quote)) < MIN_QUOTED_LETTERS:
        raise BadAnswer(f"found {quote!r:.80}, accepted are words of the report", field=f"{name}.quote")
    if fold(quote) not in searched:
        raise BadAnswer(
            f"found {quote!r:.80}, which the report does not have; accepted are words copied from one place of it",
            field=f"{name}.quote",
            reason=Reason.REASONING_NOT_IN_REPORT,
        )
    return " ".join(quote.split())


def _read_label(answer: Any, *, name: str, step: Step) -> int:
    try:
        label = step.read_answer(answer) if isinstance(answer, str) else NOT_ANNOTATED
    except BadInput:
        label = NOT_ANNOTATED
    if label == NOT_ANNOTATED:
        accepted = f"accepted is one of {', '.join(step.lettered_options)}"
        raise BadAnswer(f"found {answer!r:.80}, {accepted}", field=f"{name}.answer")
    return label


_Value = TypeVar("_Value")


class Interviewer:
    """Asks one model the questions of one task; a ledger in `answers` keeps the answers."""

    def __init__(
        self, endpoint: Endpoint, prompt: Prompt, *, answers: Answers, budget: Budget, num_repairs: int
    ) -> None:
        self.prompt, self.endpoint = prompt, endpoint
        self._client, self._num_tries = Client(endpoint, budget, prompt.schema), num_repairs + 1
        identity = {
            "task": prompt.task,
            "prompt_version": prompt.version,
            "prompt_digest": prompt.digest,
            "model": endpoint.model,
            "decoding": dict(endpoint.decoding),
        }
        self.ledger = Ledger(answers, identity)
        self._client.answered_before = len(self.ledger) > 0
        self._client.largest_counted = self.ledger.largest_counted
        self.asked_again: dict[tuple[str, str], Reason] = {}  # why, by item and refused request

    async def close(self) -> None:
        """Close the connection."""
        await self._client.close()

    def has_asked(self, item: Item, messages: Sequence[Message]) -> bool:
        """Return whether the ledger has an answer to this request, without repairs."""
        return self.ledger.find(item.id, digest_messages(list(messages))) is not None

    async def fetch(self, item: Item, messages: Sequence[Message]) -> Entry:
        """Return the ledger's entry of a request, or ask."""
        request = digest_messages(messages)
        entry = self.ledger.find(item.id, request)
        if entry is None:
            about = {"report": item.id, "text": digest_text(item.text), "request": request}
            entry = await self._client.ask(messages, about=about, record=self.ledger.append)
        return entry

    async def hear(self, item: Item, messages: Sequence[Message]) -> tuple[str, Entry]:
        """Return what a reply says behind its thoughts, and its ledger entry."""
        entry = await self.fetch(item, messages)
        return reply_text(entry, model=self.endpoint.model), entry

    async def ask(self, item: Item, messages: Sequence[Message], read: Callable[[str], _Value]) -> tuple[_Value, Entry]:
        """Return the answer as parsed by `read`, and its ledger entry; one that cannot be parsed is asked for again."""
        conversation = list(messages)
        for number in range(1, self._num_tries + 1):
            text, entry = await self.hear(item, conversation)
            try:
                value = read(text)
            except BadAnswer as error:
                field, problem, reason = error.field, str(error), error.reason
            else:
                if goes_on_behind(text, entry.finish):
                    detail = f"{self.endpoint.model}: cut at {entry.answer_tokens} tokens; allow more"
                    raise CannotAnnotate(Reason.CUT_BEHIND, detail)
                return value, entry
            if entry.finish == "length":
                problem = f"the answer was cut at {entry.answer_tokens} tokens, accepted is a shorter one; {problem}"
            if number < self._num_tries:
                self.asked_again[item.id, digest_messages(conversation)] = reason
            conversation += [{"role": "assistant", "content": entry.answer}, write_repair(problem)]
        # The full problem quotes the answer, and thus the item; the ledger has both.
        problem = f"{self._num_tries} unreadable answers, the last at {field}"
        raise CannotAnnotate(reason, f"{self.endpoint.model}: {problem}")

    def describe(self, entry: Entry) -> Provenance:
        """Return the provenance of an annotation or record made from an answer."""
        provenance = {
            "annotator": "llm",
            "model": self.endpoint.model,
            "prompt": f"{self.prompt.version} {self.prompt.digest[:12]}",
            "version": __version__,
            "date": entry.time[:10],
        }
        if entry.served_model and entry.served_model != self.endpoint.model:
            provenance["served model"] = entry.served_model
        return tuple(provenance.items())


async def examine(
    item: Item,
    answer: Mapping[str, Any],
    *,
    data: Mapping[str, Any],
    name: str,
    pictures: Sequence[str] = (),
    doubter: Interviewer | None,
    voters: Sequence[Interviewer],
) -> Provenance:
    """Ask the annotator (`doubter`) for trust and further models for votes; return both as provenance."""
    trusts, votes = [], []
    if doubter is not None:
        messages = [
            *doubter.prompt.messages(data, pictures=pictures),
            {"role": "assistant", "content": json.dumps(answer, ensure_ascii=False)},
            {"role": "user", "content": doubter.prompt.follow_up},
        ]
        trust, _ = await doubter.ask(item, messages, lambda text: read_choice(text, field="trust", accepted=TRUST))
        if trust != TRUST[0]:
            raise CannotAnnotate(Reason.NOT_TRUSTED, f"{doubter.endpoint.model}: {trust}")
        trusts.append(("trusts itself", trust))
    for voter in voters:  # in turn until one disagrees, because every vote costs tokens
        messages = voter.prompt.messages({**data, name: answer}, pictures=pictures)
        vote, _ = await voter.ask(item, messages, lambda text: read_choice(text, field="vote", accepted=VOTES))
        votes.append(f"{voter.endpoint.model}: {vote}")
        if vote != VOTES[0]:
            raise CannotAnnotate(Reason.VOTED_DOWN, ", ".join(votes))
    return (*trusts, *([("votes", ", ".join(votes))] if votes else []))
