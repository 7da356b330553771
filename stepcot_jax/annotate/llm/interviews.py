"""Language models as annotator, doubter and voters: parse each answer, repair it, keep it in the ledger.

Every answer is read from the ledger, where a new one goes first, so a repeated run asks nothing again. A chain is kept
if the annotator trusts it and every voter calls it correct. Voters are asked in turn until one disagrees, because
every vote costs tokens.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from stepcot_jax.annotate.annotation import Annotation, CannotAnnotate, Provenance, Reason, Report
from stepcot_jax.annotate.llm.budget import Budget
from stepcot_jax.annotate.llm.client import Client
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.ledger import Ledger, digest_messages, digest_text
from stepcot_jax.annotate.llm.model_answers import BadAnswer, read_chain_answer, read_choice, write_chain_answer
from stepcot_jax.annotate.llm.prompt import PROMPT_VERSION, TRUST, VOTES, Message, Prompt, write_repair
from stepcot_jax.annotate.llm.replies import Entry
from stepcot_jax.chain import Chain

_Value = TypeVar("_Value")


class Interviewer:
    """Asks one model the questions of one task; a ledger in `folder` keeps the answers, the budget is charged with it.

    An unreadable answer is asked for again `num_repairs` times.

    Raises:
      BadInput: the key, the openai package or the ledger cannot be used.
    """

    def __init__(self, endpoint: Endpoint, prompt: Prompt, *, folder: Path, budget: Budget, num_repairs: int) -> None:
        self.prompt, self.endpoint = prompt, endpoint
        self._client, self._num_tries = Client(endpoint, budget, prompt.schema), num_repairs + 1
        identity = {
            "task": prompt.task,
            "prompt_version": PROMPT_VERSION,
            "prompt_digest": prompt.digest,
            "model": endpoint.model,
            "decoding": dict(endpoint.decoding),
        }
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
        for _ in range(self._num_tries):
            entry = await self._find_or_ask(report, conversation)
            if entry.answer is None:
                raise CannotAnnotate(Reason.NO_ANSWER, f"{self.endpoint.model}: {entry.problem}")
            try:
                return read(entry.answer), entry
            except BadAnswer as error:
                field, problem = error.field, str(error)
            if entry.finish == "length":
                problem = f"the answer was cut at {entry.answer_tokens} tokens, accepted is a shorter one; {problem}"
            conversation += [{"role": "assistant", "content": entry.answer}, write_repair(problem)]
        # The full problem quotes the answer, and so the report; the ledger has it.
        problem = f"{self._num_tries} unreadable answers, the last at {field}"
        raise CannotAnnotate(Reason.NO_ANSWER, f"{self.endpoint.model}: {problem}")

    async def _find_or_ask(self, report: Report, messages: Sequence[Message]) -> Entry:
        request = digest_messages(messages)
        if (found := self.ledger.find(report.id, request)) is not None:
            return found
        about = {"report": report.id, "text": digest_text(report.text), "request": request}
        return await self._client.ask(messages, about=about, record=self.ledger.append)

    async def annotate(self, report: Report, chain: Chain) -> tuple[Annotation, Provenance]:
        """Return a report's chain and its provenance; for the annotation prompt. Raises as `ask`."""
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


async def examine(
    report: Report, annotation: Annotation, *, chain: Chain, doubter: Interviewer | None, voters: Sequence[Interviewer]
) -> Provenance:
    """Ask the annotator (`doubter`) for trust and further models for votes, and return both for the provenance.

    Raises:
      CannotAnnotate: the annotator does not trust its chain, or a voter does not call it correct; and as
        `Interviewer.ask`.
    """
    said, votes = [], []
    answer = write_chain_answer(annotation, chain=chain)
    if doubter is not None:
        messages = [
            *doubter.prompt.messages({"report": report.text}),
            {"role": "assistant", "content": json.dumps(answer, ensure_ascii=False)},
            {"role": "user", "content": doubter.prompt.follow_up},
        ]
        trust, _ = await doubter.ask(report, messages, lambda text: read_choice(text, field="trust", accepted=TRUST))
        if trust != TRUST[0]:
            raise CannotAnnotate(Reason.NOT_TRUSTED, f"{doubter.endpoint.model}: {trust}")
        said.append(("trusts itself", trust))
    for voter in voters:
        messages = voter.prompt.messages({"report": report.text, "chain": answer})
        vote, _ = await voter.ask(report, messages, lambda text: read_choice(text, field="vote", accepted=VOTES))
        votes.append(f"{voter.endpoint.model}: {vote}")
        if vote != VOTES[0]:
            raise CannotAnnotate(Reason.VOTED_DOWN, ", ".join(votes))
    return (*said, *([("votes", ", ".join(votes))] if votes else []))
