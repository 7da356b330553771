"""The system of a policy's run from its settings: fine-tuning, GRPO with its rewards, judge and self-check."""

import dataclasses
import pathlib
from collections.abc import Iterable, Mapping

import jax

from stepcot_jax.annotate.llm.client import Endpoint
from stepcot_jax.annotate.llm.judge import Judge, make_exchange, open_answer_session
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.policies.sampling import Sampling
from stepcot_jax.reasoning.replies import Reply
from stepcot_jax.record import Record
from stepcot_jax.rewards.answers import IllFormed, Judged
from stepcot_jax.rewards.functions import RewardFunction
from stepcot_jax.rewards.presets import RewardSettings
from stepcot_jax.run.policy_data import PolicyData
from stepcot_jax.run.policy_networks import choose_policy, make_normalise
from stepcot_jax.run.sections import RewardsSettings
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.start import given_start, smooth_start
from stepcot_jax.run.stored_policy import StoredPolicy
from stepcot_jax.systems.curriculum import StagedRows
from stepcot_jax.systems.grpo import Rollouts
from stepcot_jax.systems.options import count_updates
from stepcot_jax.systems.policy_system import PolicySystem
from stepcot_jax.systems.self_check import SelfCheck
from stepcot_jax.training.devices import Devices
from stepcot_jax.training.processes import any_process, wait_for_all

# Ratings of open answers by a language model, for rewards (GEMeX-RMCoT, Section 4.2.2).


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


def make_reward_settings(settings: RewardsSettings) -> RewardSettings:
    """Return the rewards of a reply."""
    names = [field.name for field in dataclasses.fields(RewardSettings)]
    return RewardSettings(**{name: getattr(settings, name) for name in names})


def make_policy_system(
    settings: Settings,
    *,
    data: PolicyData,
    num_rows: int,
    staged: StagedRows | None,
    start: StoredPolicy | None,
    devices: Devices,
    functions: Mapping[str, tuple[RewardFunction, float]],
) -> PolicySystem:
    """Return the system of a policy, with rollouts for the job "grpo"."""
    tokens, tokenizer = data.tokens, data.tokens.tokenizer
    longest = tokens.lengths.reply_length
    policy = choose_policy(settings, tokenizer, data.source, mesh=devices.named_mesh)
    normalise = make_normalise(settings)
    rollouts = judge = self_check = None
    if has_grpo := "grpo.epochs" in settings.trains.epochs:
        if settings.rewards.open_answer == "judge":
            judge = JudgedRewards(make_judge(settings.rewards, data.workdir), ill_formed=settings.rewards.ill_formed)
        if settings.self_check.enabled:
            self_check = SelfCheck(
                policy=policy,
                normalise=normalise,
                tokenizer=tokenizer,
                devices=devices,
                settings=settings.self_check,
                group_size=settings.grpo.group_size,
                temperature=settings.grpo.temperature,
                longest=longest,
                longest_check=tokens.longest_check,
            )
        rollouts = Rollouts(
            policy=policy,
            normalise=normalise,
            tokenizer=tokenizer,
            dialect=settings.vqa.dialect,
            with_thinking=settings.vqa.with_thinking,
            records=data.dataset.records,
            devices=devices,
            settings=settings.grpo,
            rewards=make_reward_settings(settings.rewards),
            longest=longest,
            self_check=self_check,
            judge=judge,
            functions=functions,
        )
    num_train = len(data.dataset.splits["train"])
    return PolicySystem(
        policy,
        normalise,
        Sampling(longest=longest, stop=tokenizer.stop, more_stops=tokenizer.more_stops, greedy=True),
        fine_tuning=settings.sft,
        optimising=settings.grpo if has_grpo else None,
        checking=settings.self_check,
        epsilon=settings.training.adam_epsilon,
        clip_norm=settings.training.clip_norm,
        sft_updates=count_updates(settings.sft, num_rows),
        grpo_updates=count_updates(settings.grpo, num_train),
        rollouts=rollouts,
        staged=staged,
        start=given_start(policy, start, data.source),
        begin=smooth_start(policy, tokenizer, largest=tokens.lengths.largest_coordinate),
    )
