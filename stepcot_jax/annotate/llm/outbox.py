"""Write requests to batch files instead of sending them: JSON Lines for hosted batch endpoints and `vllm run-batch`."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from stepcot_jax.annotate.llm.batch_journal import FOLDER, Asked, Identity, Journal, name_request
from stepcot_jax.annotate.llm.budget import Budget
from stepcot_jax.annotate.llm.client import AwaitsReply, RequestRefused
from stepcot_jax.annotate.llm.endpoint import Endpoint
from stepcot_jax.annotate.llm.interviews import identify
from stepcot_jax.annotate.llm.ledger import digest_identity, shorten_model
from stepcot_jax.annotate.llm.prompt import Message, Prompt
from stepcot_jax.annotate.llm.replies import Entry, bound_prompt_tokens, shows_picture
from stepcot_jax.annotate.llm.request_settings import first_form, write_settings
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import sync_folder

URL = "/v1/chat/completions"


@dataclasses.dataclass(frozen=True)
class BatchLimits:
    """Settings of batch files.

    Attributes:
      max_requests: most requests of a file.
      max_bytes: most bytes of a file.
      again: whether to write requests without an answer again: outstanding, given up or refused.
    """

    max_requests: int = 50_000
    max_bytes: int = 200_000_000
    again: bool = False

    def __post_init__(self) -> None:
        for flag, found in (("--max-requests", self.max_requests), ("--max-megabytes", self.max_bytes)):
            if found < 1:
                raise BadInput(f"{flag} must be above 0")


class Outbox:
    """The batch files of one round.

    Attributes:
      files: files written, with the number of requests and the model of each.
      outstanding: names of requests that are needed now and wait for a reply since an earlier round.
      num_reserved: upper bound of the tokens of requests without a reply, those of this round included.
      num_unaffordable: requests not written because of the spending cap.
    """

    def __init__(self, folder: Path, limits: BatchLimits) -> None:
        self._folder, self._limits = folder / FOLDER, limits
        self.journal = Journal(self._folder)
        self.round = self.journal.num_rounds + 1
        self.files: dict[Path, tuple[int, str]] = {}
        self.outstanding: set[str] = set()
        self.num_unaffordable = 0
        self._open: dict[tuple[str, str], _Part] = {}
        self._written: dict[str, Asked] = {}
        # Of requests that are written again, too: the earlier file may be answered, and paid, all the same.
        self.num_reserved = sum(each.prompt_tokens + each.answer_tokens for each in self.journal.outstanding())

    def connect(self, endpoint: Endpoint, budget: Budget, prompt: Prompt) -> "BatchClient":
        """Return the client of one model and prompt, which writes requests."""
        return BatchClient(self, endpoint, budget, prompt)

    def may_afford(self, num_tokens: int, budget: Budget) -> bool:
        """Return whether a request fits into the cap beside what is spent and what waits for replies."""
        if budget.cap is not None and budget.num_spent + self.num_reserved + num_tokens > budget.cap:
            self.num_unaffordable += 1
            return False
        self.num_reserved += num_tokens
        return True

    def is_open(self, name: str) -> bool:
        """Return whether a request is in a file and has no reply; raise for one that was given up."""
        if name in self._written:
            return True
        request = self.journal.requests.get(name)
        if request is None or self._limits.again:
            return False
        if request.how == "refused":
            raise RequestRefused(request.problem)
        most = self.journal.identities[request.asked.ledger].num_attempts
        if request.how == "failed" and request.num_failures >= most:
            raise RequestRefused(f"{request.problem} (attempts: {request.num_failures})")
        if not request.how:
            self.outstanding.add(name)
        return not request.how

    def write(self, endpoint: Endpoint, asked: Asked, line: bytes) -> None:
        """Write a request to the current file of its model, or a new one."""
        if len(line) > self._limits.max_bytes:
            raise RequestRefused(f"the request has {len(line)} bytes, more than a file of --max-megabytes")
        place = (endpoint.model, endpoint.base_url)
        part = self._open.get(place)
        if part is None or not part.has_room(len(line), self._limits):
            if part is not None:
                part.close()
            part = self._open[place] = self._start(endpoint)
        part.write(line)
        self.files[part.path] = (part.num_requests, endpoint.model)
        self._written[asked.id] = asked

    def __enter__(self) -> "Outbox":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Note the requests once their files are on the disk; after an error, remove the files instead."""
        for part in self._open.values():
            part.close()
        if kind is None:
            sync_folder(self._folder)
            self.journal.add(*self._written.values())
        else:
            for path in self.files:
                path.unlink(missing_ok=True)
        self.journal.flush()
        self.journal.close()

    def _start(self, endpoint: Endpoint) -> "_Part":
        model = shorten_model(endpoint.model)
        number = 1 + sum(path.name.startswith(f"round-{self.round:03}-{model}-") for path in self.files)
        return _Part(self._folder / f"round-{self.round:03}-{model}-{number:03}.jsonl")


class _Part:
    """A batch file; readable by its owner only, because it holds reports."""

    def __init__(self, path: Path) -> None:
        self.path, self.num_requests, self._num_bytes = path, 0, 0
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._file: BinaryIO = os.fdopen(descriptor, "wb")

    def has_room(self, num_bytes: int, limits: BatchLimits) -> bool:
        return self.num_requests < limits.max_requests and self._num_bytes + num_bytes <= limits.max_bytes

    def write(self, line: bytes) -> None:
        self._file.write(line)
        self.num_requests += 1
        self._num_bytes += len(line)

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class BatchClient:
    """Takes the place of `client.Client`: writes each request to a file, once, and never has an answer."""

    answered_before = False
    largest_counted: int | None = None

    def __init__(self, outbox: Outbox, endpoint: Endpoint, budget: Budget, prompt: Prompt) -> None:
        self._outbox, self._endpoint, self._budget, self._prompt = outbox, endpoint, budget, prompt
        identity = identify(endpoint, prompt)
        self._ledger, journal = digest_identity(identity), outbox.journal
        known = Identity(self._ledger, identity, endpoint.num_attempts)
        if journal.identities.get(self._ledger) != known:
            journal.add(known)
        self._form, self._tokens_name = journal.wording(self._ledger, form=first_form(prompt.schema))

    async def ask(
        self,
        messages: Sequence[Message],
        *,
        about: Mapping[str, str],
        record: Callable[[Entry], None],  # noqa: ARG002
    ) -> Entry:
        """Write a request unless it is in a file already."""
        name, outbox = name_request(self._prompt.task, self._ledger, about), self._outbox
        bound = bound_prompt_tokens(messages, self._prompt.schema, largest_counted=self.largest_counted)
        bounds = (bound, self._endpoint.max_answer_tokens)
        if not outbox.is_open(name) and outbox.may_afford(sum(bounds), self._budget):
            settings = write_settings(
                self._endpoint, self._prompt.schema, form=self._form, tokens_name=self._tokens_name
            )
            body = {"model": self._endpoint.model, "messages": list(messages), **settings}
            asked = Asked(
                id=name,
                round=outbox.round,
                ledger=self._ledger,
                **about,
                form=self._form,
                tokens_name=self._tokens_name,
                prompt_tokens=bounds[0],
                answer_tokens=bounds[1],
                has_picture=shows_picture(messages),
            )
            line = {"custom_id": asked.custom_id, "method": "POST", "url": URL, "body": body}
            outbox.write(self._endpoint, asked, msgspec.json.encode(line) + b"\n")
        raise AwaitsReply(name)

    async def close(self) -> None:
        """Do nothing: there is no connection."""
