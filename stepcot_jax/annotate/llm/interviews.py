"""Language models as annotator, doubter and voters: parse each answer, repair it, keep it in the ledger.

Every answer is read from the ledger, where a new one goes first, so a repeated run asks nothing again. A chain is kept
if the annotator trusts it and every voter calls it correct. Voters are asked in turn until one disagrees, because
every vote costs tokens.
"""

import dataclasses
import datetime
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from stepcot_jax.annotate.annotation import NO_ANSWER, NOT_TRUSTED, VOTED_DOWN, Annotation, CannotAnnotate, Report
from stepcot_jax.annotate.llm.budget import Budget
from stepcot_jax.annotate.llm.client import Client
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.ledger import Entry, Identity, Ledger, digest_messages, digest_text
from stepcot_jax.annotate.llm.model_answers import BadAnswer, read_chain_answer, read_choice, write_chain_answer
from stepcot_jax.annotate.llm.prompt import PROMPT_VERSION, TRUST, VOTES, Message, Prompt, write_repair
from stepcot_jax.annotate.llm.replies import Reply
from stepcot_jax.chain import Chain

DEFAULT_NUM_REPAIRS = 2

_Value = TypeVar("_Value")


class Interviewer:
    """Asks one model the questions of one task, with a ledger.

    Args:
      endpoint: the model and its settings.
      prompt: the task.
      folder: folder of the ledgers.
      budget: tokens shared by the run; charged with the cost of the ledger.
      num_repairs: how often an unreadable answer is asked for again.

    Raises:
      BadInput: the key, the openai package or the ledger cannot be used.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        prompt: Prompt,
        *,
        folder: Path,
        budget: Budget,
        num_repairs: int = DEFAULT_NUM_REPAIRS,
    ) -> None:
        self.prompt, self.endpoint = prompt, endpoint
        self._client, self._num_repairs = Client(endpoint, budget), num_repairs
        identity = Identity(prompt.task, PROMPT_VERSION, prompt.digest, endpoint.model, endpoint.decoding)
        self.ledger = Ledger(folder, identity)
        self._client.answered_before = len(self.ledger) > 0
        budget.num_spent += self.ledger.num_tokens

    async def close(self) -> None:
        """Close connection and ledger."""
        self.ledger.close()
        await self._client.close()

    async def ask(
        self, report: Report, messages: Sequence[Message], read: Callable[[str], _Value]
    ) -> tuple[_Value, Entry]:
        """Return the answer as parsed by `read`, and its ledger entry.

        Raises:
          CannotAnnotate: no answer could be parsed, repairs included.
          RequestFailed: a request was given up.
          RunStopped: the run has to stop.
          BadInput: the endpoint refuses the key, the address or the model.
        """
        conversation = list(messages)
        for _ in range(self._num_repairs + 1):
            entry = await self._find_or_ask(report, conversation)
            if entry.answer is None:
                raise CannotAnnotate(NO_ANSWER, f"{self.endpoint.model}: {entry.problem}")
            try:
                return read(entry.answer), entry
            except BadAnswer as error:
                field, problem = error.field, str(error)
            if entry.finish == "length":
                problem = f"the answer was cut at {entry.answer_tokens} tokens, accepted is a shorter one; {problem}"
            conversation += [{"role": "assistant", "content": entry.answer}, write_repair(problem)]
        # The full problem quotes the answer, and so the report; the ledger has it.
        tries = self._num_repairs + 1
        raise CannotAnnotate(NO_ANSWER, f"{self.endpoint.model}: {tries} unreadable answers, the last at {field}")

    async def _find_or_ask(self, report: Report, messages: Sequence[Message]) -> Entry:
        request = digest_messages(messages)
        found = self.ledger.find(report.id, request)
        if found is not None:
            return found

        def record(reply: Reply) -> None:
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            reply_fields = dataclasses.asdict(reply)
            text = digest_text(report.text)
            self.ledger.append(Entry(report=report.id, text=text, request=request, time=now, **reply_fields))

        await self._client.ask(messages, schema=self.prompt.schema, record=record)
        entry = self.ledger.find(report.id, request)
        assert entry is not None  # noqa: S101
        return entry

    async def annotate(self, report: Report, chain: Chain) -> tuple[Annotation, tuple[tuple[str, str], ...]]:
        """Return a report's chain and its provenance; for the annotation prompt.

        Raises:
          CannotAnnotate: the model gave none.
          RequestFailed: a request was given up.
          RunStopped: the run has to stop.
          BadInput: the endpoint refuses the key, the address or the model.
        """
        messages = self.prompt.messages({"report": report.text})
        annotation, entry = await self.ask(report, messages, lambda text: read_chain_answer(text, chain=chain))
        provenance = {
            "annotator": "llm",
            "model": self.endpoint.model,
            "prompt": f"{PROMPT_VERSION} {self.prompt.digest[:12]}",
            "date": entry.time[:10],
        }
        if entry.served_model and entry.served_model != self.endpoint.model:
            provenance["served model"] = entry.served_model
        return annotation, tuple(provenance.items())


class QualityAssurance:
    """Asks the annotator for trust and further models for votes.

    Args:
      chain: the steps.
      doubter: the annotator with the trust prompt; None to skip.
      voters: further models with the vote prompt.
    """

    def __init__(self, chain: Chain, *, doubter: Interviewer | None, voters: Sequence[Interviewer]) -> None:
        self._chain, self._doubter, self._voters = chain, doubter, tuple(voters)

    async def examine(self, report: Report, annotation: Annotation) -> tuple[tuple[str, str], ...]:
        """Return trust and votes for the record's provenance.

        Raises:
          CannotAnnotate: the annotator does not trust its chain, or a voter does not call it correct.
          RequestFailed: a request was given up.
          RunStopped: the run has to stop.
          BadInput: an endpoint refuses the key, the address or the model.
        """
        if self._doubter is None and not self._voters:
            return ()
        said = []
        answer = write_chain_answer(annotation, chain=self._chain)
        if self._doubter is not None:
            messages = [
                *self._doubter.prompt.messages({"report": report.text}),
                {"role": "assistant", "content": json.dumps(answer, ensure_ascii=False)},
                {"role": "user", "content": self._doubter.prompt.follow_up},
            ]
            trust = await _choose(self._doubter, report, messages, field="trust", accepted=TRUST)
            if trust != TRUST[0]:
                raise CannotAnnotate(NOT_TRUSTED, f"{self._doubter.endpoint.model}: {trust}")
            said.append(("trusts itself", trust))
        votes: list[str] = []
        for voter in self._voters:
            messages = voter.prompt.messages({"report": report.text, "chain": answer})
            vote = await _choose(voter, report, messages, field="vote", accepted=VOTES)
            votes.append(f"{voter.endpoint.model}: {vote}")
            if vote != VOTES[0]:
                raise CannotAnnotate(VOTED_DOWN, ", ".join(votes))
        if votes:
            said.append(("votes", ", ".join(votes)))
        return tuple(said)


async def _choose(
    interviewer: Interviewer, report: Report, messages: Sequence[Message], *, field: str, accepted: Sequence[str]
) -> str:
    choice, _ = await interviewer.ask(report, messages, lambda text: read_choice(text, field=field, accepted=accepted))
    return choice
