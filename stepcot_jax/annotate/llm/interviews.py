"""Language models as annotator, doubter and voters: parse each answer, repair it, keep it in the ledger.

Every answer is read from the ledger, where a new one goes first, so a repeated run asks nothing again. A chain is kept
if the annotator trusts it and every voter calls it correct. Voters are asked in turn until one disagrees, because
every vote costs tokens.

The wording of `BadAnswer` is sent back to the model and is part of the ledger's request digest: changing it makes
resumed runs pay for repairs again.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stepcot_jax.annotate.annotation import Annotation, CannotAnnotate, Provenance, Reason, Report
from stepcot_jax.annotate.llm.budget import Budget
from stepcot_jax.annotate.llm.client import Client
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.ledger import Ledger, digest_messages, digest_text
from stepcot_jax.annotate.llm.prompt import PROMPT_VERSION, TRUST, VOTES, Message, Prompt, write_repair
from stepcot_jax.annotate.llm.replies import Entry
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step, fold
from stepcot_jax.host.errors import BadInput

MAX_REASONING = 4000
"""Most characters of one reasoning."""

_THOUGHTS = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)
_MAX_OBJECTS = 200

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
            request = digest_messages(conversation)
            entry = self.ledger.find(report.id, request)
            if entry is None:
                about = {"report": report.id, "text": digest_text(report.text), "request": request}
                entry = await self._client.ask(conversation, about=about, record=self.ledger.append)
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


class BadAnswer(ValueError):
    """An answer that violates the schema: the message tells the model what to correct, `field` quotes no answer."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field or "the JSON object"


def read_chain_answer(text: str, *, chain: Chain) -> Annotation:
    """Read an answer to the annotation prompt; text around its single JSON object is ignored.

    Raises:
      BadAnswer: there is no such object, or it violates the schema.
    """
    names = [f"step_{number}" for number in range(1, chain.num_steps + 1)]
    found = _find_object(text, names)
    labels, reasoning = [], []
    for name, step in zip(names, chain.steps, strict=True):
        entry = found[name]
        if not isinstance(entry, dict) or set(entry) != {"reasoning", "answer"}:
            raise BadAnswer(f"found {entry!r:.80}, accepted is an object of reasoning and answer", field=name)
        if not isinstance(entry["reasoning"], str) or not entry["reasoning"].strip():
            raise BadAnswer(f"found {entry['reasoning']!r:.80}, accepted is a text", field=f"{name}.reasoning")
        if len(entry["reasoning"]) > MAX_REASONING:
            found_length = f"{name}.reasoning: found {len(entry['reasoning'])} characters"
            raise BadAnswer(f"{found_length}, accepted are 1 to 3 sentences")
        labels.append(_read_label(entry["answer"], name=name, step=step))
        reasoning.append(entry["reasoning"].strip())
    return Annotation(tuple(labels), tuple(reasoning))


def read_choice(text: str, *, field: str, accepted: Sequence[str]) -> str:
    """Read an answer to the trust question or a vote; `accepted` are the valid values, in lower case.

    Raises:
      BadAnswer: there is no such object, or its value is not accepted.

    >>> read_choice('{"reasoning": "As reported.", "vote": "Correct"}', field="vote", accepted=("correct",))
    'correct'
    """
    found = _find_object(text, ["reasoning", field])
    value = found[field]
    folded = fold(value) if isinstance(value, str) else ""
    if folded not in accepted:
        raise BadAnswer(f"found {value!r:.80}, accepted is one of {', '.join(accepted)}", field=field)
    return folded


def write_chain_answer(annotation: Annotation, *, chain: Chain) -> dict[str, dict[str, str | None]]:
    """Write an annotation as the object that the annotation prompt asks for; `read_chain_answer` reads it back."""
    steps = zip(chain.steps, annotation.labels, annotation.reasoning, strict=True)
    return {
        f"step_{number}": {"reasoning": reasoning, "answer": step.written(label)}
        for number, (step, label, reasoning) in enumerate(steps, start=1)
    }


def _read_label(answer: Any, *, name: str, step: Step) -> int:
    try:
        label = step.read_answer(answer) if isinstance(answer, str) else NOT_ANNOTATED
    except BadInput:
        label = NOT_ANNOTATED
    if label == NOT_ANNOTATED:
        accepted = f"accepted is one of {', '.join(step.lettered_options)}"
        raise BadAnswer(f"found {answer!r:.80}, {accepted}", field=f"{name}.answer")
    return label


def _find_object(text: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the one JSON object of a text with exactly these names."""
    other = "no JSON object"
    found: list[dict[str, Any]] = []
    for candidate in _objects(_THOUGHTS.sub("", text)):
        missing = [name for name in names if name not in candidate]
        more = [str(name)[:80] for name in candidate if name not in names]
        if missing:
            other = f"an object with the names {missing} missing"
        elif more:
            other = f"an object with more names: {more[:8]}"
        else:
            found.append(candidate)
    if found and all(each == found[0] for each in found):
        return found[0]
    what = f"{len(found)} objects that differ" if found else other
    raise BadAnswer(f"found {what}, accepted is one JSON object with the names {', '.join(names)}")


def _objects(text: str) -> list[dict[str, Any]]:
    """Return the outermost JSON objects of a text."""
    decoder = json.JSONDecoder(object_pairs_hook=_refuse_repetition)
    found, position = [], text.find("{")
    # Bounded: a text of opening brackets would take quadratic time.
    for _ in range(_MAX_OBJECTS):
        if position < 0:
            break
        try:
            value, position = decoder.raw_decode(text, position)
            found.append(value)
        except (json.JSONDecodeError, RecursionError):
            position += 1
        position = text.find("{", position)
    return found


def _refuse_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadAnswer("found a name twice in one object, accepted is each name once")
    return found
