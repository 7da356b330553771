"""A language model as annotator: its answer is read against the schema, and asked for again where it does not follow.

Every answer comes from the ledger, into which a new one goes first; hence a run that is repeated asks nothing anew.
"""

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from stepcot_jax.annotate.annotation import NO_ANSWER, Annotation, CannotAnnotate, Report
from stepcot_jax.annotate.budget import Budget
from stepcot_jax.annotate.client import Client, Reply
from stepcot_jax.annotate.endpoint import Endpoint
from stepcot_jax.annotate.ledger import Entry, Identity, Ledger, digest_messages, digest_text
from stepcot_jax.annotate.model_answers import BadAnswer, read_chain_answer
from stepcot_jax.annotate.prompt import PROMPT_VERSION, Message, Prompt, write_repair
from stepcot_jax.chain import Chain

DEFAULT_NUM_REPAIRS = 2

_Value = TypeVar("_Value")


class Interviewer:
    """Asks one model the questions of one task, with a ledger.

    Args:
      client: the model.
      endpoint: its settings.
      prompt: the task.
      folder: of the ledgers.
      budget: learns what the ledger's answers have cost.
      num_repairs: how often an answer that cannot be read is asked for again.

    Raises:
      BadInput: the ledger cannot be used.
    """

    def __init__(
        self,
        client: Client,
        endpoint: Endpoint,
        prompt: Prompt,
        *,
        folder: Path,
        budget: Budget,
        num_repairs: int = DEFAULT_NUM_REPAIRS,
    ) -> None:
        self.prompt, self.endpoint = prompt, endpoint
        self._client, self._num_repairs = client, num_repairs
        identity = Identity(prompt.task, PROMPT_VERSION, prompt.digest, endpoint.model, endpoint.decoding)
        self.ledger = Ledger(folder, identity)
        client.answered_before = len(self.ledger) > 0
        budget.num_spent += self.ledger.num_tokens

    async def close(self) -> None:
        """Close connection and ledger."""
        self.ledger.close()
        await self._client.close()

    async def ask(
        self, report: Report, messages: Sequence[Message], read: Callable[[str], _Value]
    ) -> tuple[_Value, Entry]:
        """What `read` makes of the model's answer, and the ledger's entry of it.

        Raises:
          CannotAnnotate: no answer could be read, repairs included.
          RequestFailed: a request was given up.
          RunStopped: the run has to stop.
          BadInput: the endpoint does not take the key, the address or the model.
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
        # The full problem quotes the answer, and so the report; it can be had from the ledger.
        tries = self._num_repairs + 1
        raise CannotAnnotate(
            NO_ANSWER, f"{self.endpoint.model}: none of {tries} answers could be read, the last not at {field}"
        )

    async def _find_or_ask(self, report: Report, messages: Sequence[Message]) -> Entry:
        request = digest_messages(messages)
        found = self.ledger.find(report.id, request)
        if found is not None:
            return found

        def record(reply: Reply) -> None:
            self.ledger.append(_as_entry(reply, report=report, request=request))

        await self._client.ask(messages, schema=self.prompt.schema, record=record)
        entry = self.ledger.find(report.id, request)
        assert entry is not None  # noqa: S101
        return entry


class LlmAnnotator:
    """Reads chains from reports by asking a language model.

    Args:
      interviewer: with the annotation prompt of the chain.
      chain: the steps to answer.
    """

    def __init__(self, interviewer: Interviewer, chain: Chain) -> None:
        self._interviewer, self._chain = interviewer, chain

    async def annotate(self, report: Report) -> tuple[Annotation, tuple[tuple[str, str], ...]]:
        """The chain of a report, and how it came about.

        Raises:
          CannotAnnotate: the model gave none.
          RequestFailed: a request was given up.
          RunStopped: the run has to stop.
          BadInput: the endpoint does not take the key, the address or the model.
        """
        prompt = self._interviewer.prompt
        messages = prompt.messages({"report": report.text})
        annotation, entry = await self._interviewer.ask(
            report, messages, lambda text: read_chain_answer(text, chain=self._chain)
        )
        provenance = {
            "annotator": "llm",
            "model": self._interviewer.endpoint.model,
            "prompt": f"{PROMPT_VERSION} {prompt.digest[:12]}",
            "date": entry.time[:10],
        }
        if entry.served_model and entry.served_model != provenance["model"]:
            provenance["served model"] = entry.served_model
        return annotation, tuple(provenance.items())


def _as_entry(reply: Reply, *, report: Report, request: str) -> Entry:
    return Entry(
        report=report.id,
        text=digest_text(report.text),
        request=request,
        answer=reply.text,
        problem=reply.problem,
        is_final=reply.is_final,
        finish=reply.finish,
        served_model=reply.served_model,
        form=reply.form,
        prompt_tokens=reply.prompt_tokens,
        answer_tokens=reply.answer_tokens,
        is_counted=reply.is_counted,
        seconds=reply.seconds,
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )
