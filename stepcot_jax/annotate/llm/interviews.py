"""Language models as annotator, doubter and voters: parse each answer, repair it, keep it in the ledger.

Every answer is read from the ledger, where a new one goes first, so a repeated run asks nothing again. What a model
made is kept if the model trusts it and every voter calls it correct. Voters are asked in turn until one disagrees,
because every vote costs tokens.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar

from stepcot_jax.annotate.annotation import CannotAnnotate, Item, Provenance, Reason
from stepcot_jax.annotate.llm.budget import Budget
from stepcot_jax.annotate.llm.client import Client, Record
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.ledger import Ledger, digest_messages, digest_text
from stepcot_jax.annotate.llm.prompt import TRUST, VOTES, Message, Prompt, write_repair
from stepcot_jax.annotate.llm.read_answers import BadAnswer, read_choice
from stepcot_jax.annotate.llm.replies import Entry

_Value = TypeVar("_Value")


class Asker(Protocol):
    """Asks an endpoint, as `client.Client` does."""

    answered_before: bool
    largest_counted: int | None

    async def ask(self, messages: Sequence[Message], *, about: Mapping[str, str], record: Record) -> Entry:
        """Return the entry of an answer, already recorded."""

    async def close(self) -> None:
        """Close connections."""


Connect: TypeAlias = Callable[[Endpoint, Budget, Prompt], Asker]


def connect_live(endpoint: Endpoint, budget: Budget, prompt: Prompt) -> Asker:
    """Return a client that sends each request."""
    return Client(endpoint, budget, prompt.schema)


def identify(endpoint: Endpoint, prompt: Prompt) -> dict[str, Any]:
    """Return the identity of the ledger of a model and a prompt."""
    return {
        "task": prompt.task,
        "prompt_version": prompt.version,
        "prompt_digest": prompt.digest,
        "model": endpoint.model,
        "decoding": dict(endpoint.decoding),
    }


class Interviewer:
    """Asks one model the questions of one task; a ledger in `folder` keeps the answers, the budget is charged with it.

    An unreadable answer is asked for again `num_repairs` times. `connect` returns what asks the endpoint.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        prompt: Prompt,
        *,
        folder: Path,
        budget: Budget,
        num_repairs: int,
        connect: Connect = connect_live,
    ) -> None:
        self.prompt, self.endpoint = prompt, endpoint
        self._client, self._num_tries = connect(endpoint, budget, prompt), num_repairs + 1
        self.ledger = Ledger(folder, identify(endpoint, prompt))
        self._client.answered_before = len(self.ledger) > 0
        self._client.largest_counted = self.ledger.largest_counted
        budget.num_spent += self.ledger.num_tokens

    async def close(self) -> None:
        """Close connection and ledger."""
        self.ledger.close()
        await self._client.close()

    def has_asked(self, item: Item, messages: Sequence[Message]) -> bool:
        """Return whether the ledger has an answer to this request, without repairs."""
        return self.ledger.find(item.id, digest_messages(list(messages))) is not None

    async def ask(self, item: Item, messages: Sequence[Message], read: Callable[[str], _Value]) -> tuple[_Value, Entry]:
        """Return the answer as parsed by `read`, and its ledger entry."""
        conversation = list(messages)
        for _ in range(self._num_tries):
            request = digest_messages(conversation)
            entry = self.ledger.find(item.id, request)
            if entry is None:
                about = {"report": item.id, "text": digest_text(item.text), "request": request}
                entry = await self._client.ask(conversation, about=about, record=self.ledger.append)
            if entry.answer is None:
                raise CannotAnnotate(Reason.NO_ANSWER, f"{self.endpoint.model}: {entry.problem}")
            try:
                return read(entry.answer), entry
            except BadAnswer as error:
                field, problem, reason = error.field, str(error), error.reason
            if entry.finish == "length":
                problem = f"the answer was cut at {entry.answer_tokens} tokens, accepted is a shorter one; {problem}"
            conversation += [{"role": "assistant", "content": entry.answer}, write_repair(problem)]
        # The full problem quotes the answer, and so the item; the ledger has it.
        problem = f"{self._num_tries} unreadable answers, the last at {field}"
        raise CannotAnnotate(reason, f"{self.endpoint.model}: {problem}")

    def describe(self, entry: Entry) -> Provenance:
        """Return the provenance of what was made from an answer."""
        provenance = {
            "annotator": "llm",
            "model": self.endpoint.model,
            "prompt": f"{self.prompt.version} {self.prompt.digest[:12]}",
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
    picture: str = "",
    doubter: Interviewer | None,
    voters: Sequence[Interviewer],
) -> Provenance:
    """Ask the annotator (`doubter`) for trust and further models for votes, and return both for the provenance."""
    said, votes = [], []
    if doubter is not None:
        messages = [
            *doubter.prompt.messages(data, picture=picture),
            {"role": "assistant", "content": json.dumps(answer, ensure_ascii=False)},
            {"role": "user", "content": doubter.prompt.follow_up},
        ]
        trust, _ = await doubter.ask(item, messages, lambda text: read_choice(text, field="trust", accepted=TRUST))
        if trust != TRUST[0]:
            raise CannotAnnotate(Reason.NOT_TRUSTED, f"{doubter.endpoint.model}: {trust}")
        said.append(("trusts itself", trust))
    for voter in voters:
        messages = voter.prompt.messages({**data, name: answer}, picture=picture)
        vote, _ = await voter.ask(item, messages, lambda text: read_choice(text, field="vote", accepted=VOTES))
        votes.append(f"{voter.endpoint.model}: {vote}")
        if vote != VOTES[0]:
            raise CannotAnnotate(Reason.VOTED_DOWN, ", ".join(votes))
    return (*said, *([("votes", ", ".join(votes))] if votes else []))
