"""Ratings of open answers by a language model, for rewards (GEMeX-RMCoT, Section 4.2.2)."""

import pathlib
from collections.abc import Iterable

import jax

from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.judge import Judge, make_exchange, open_answer_session
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.reasoning.replies import Judged, Reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.options import IllFormed
from stepcot_jax.run.sections import RewardsSettings
from stepcot_jax.training.processes import any_process, wait_for_all

_SETTINGS = {"--max-tokens": "judge_cap", "--base-url": "judge_url", "--model": "judge_model"}


def make_judge(settings: RewardsSettings, workdir: pathlib.Path) -> Judge:
    """Return the judge of this process, with its ledger in the workdir and its share of the cap."""
    number, folder = jax.process_count(), workdir / "judge"
    if 0 < settings.judge_cap < number:
        raise BadInput(f"config.rewards.judge_cap: {settings.judge_cap} is below the number of processes, {number}")
    try:
        endpoint = Endpoint(settings.judge_model, settings.judge_url)
    except BadInput as error:
        raise BadInput(_name_settings(error)) from None
    return Judge(
        endpoint,
        folder if number == 1 else folder / f"process-{jax.process_index()}-of-{number}",
        cap=settings.judge_cap // number or None,
    )


class JudgedRewards:
    """Asks a judge for ratings of open answers; every process asks for its own replies.

    Equal replies to a question are judged once, also across starts: a resumed run reads the ledger.

    Args:
      ill_formed: option of the rewards; with "nothing" ill-formed replies are not judged, since they earn nothing.
    """

    def __init__(self, judge: Judge, *, ill_formed: IllFormed = "nothing") -> None:
        self.judge, self.ill_formed = judge, ill_formed
        self._session = open_answer_session(judge)

    def __call__(self, replies: Iterable[tuple[Record, Reply]]) -> list[Judged | None]:
        """Return the rating of each reply; None if there is no usable one or none is needed. Collective."""
        exchanges = [
            make_exchange(record, reply) if self._is_judged(record, reply) else None for record, reply in replies
        ]
        asked = {exchange.text: exchange for exchange in exchanges if exchange is not None}
        ratings, stopped = list[Judged | None](), None
        try:
            ratings = self._session.ask(list(asked.values())) if asked else []
        except (BadInput, RunStopped) as error:
            stopped = type(error)(_name_settings(error, self.judge.endpoint))
        wait_for_all("judge")  # processes differ in how long their endpoints take
        if any_process(stopped is not None):
            raise stopped or RunStopped("the judge of another process stopped; its message says why")
        rated = dict(zip(asked, ratings, strict=True))
        return [None if exchange is None else rated[exchange.text] for exchange in exchanges]

    def _is_judged(self, record: Record, reply: Reply) -> bool:
        is_read = reply.answer is not None and (reply.counts or self.ill_formed == "parts")
        return record.kind == "open" and is_read

    def close(self) -> None:
        """Close the connection and the ledger."""
        self._session.close()


def _name_settings(error: Exception, endpoint: Endpoint | None = None) -> str:
    """Return an error's message with names of settings instead of the flags of `annotate`."""
    message = str(error)
    for flag, name in _SETTINGS.items():
        message = message.replace(flag, f"config.rewards.{name}")
    return message if endpoint is None else f"judge {endpoint.model!r} at {endpoint.base_url}: {message}"
