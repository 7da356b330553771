import dataclasses

import numpy as np
import pytest
from policies.policy_workdir import small_settings
from policies.tiny_policy import STOP
from reasoning_records import make_record
from refusals import refuse
from run.small_policy_run import small_run
from systems import policy_step

from stepcot_jax.data.questions.making import write_texts
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.policies.sampling import Replies
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.reasoning.dialects import read_reply, write_reply
from stepcot_jax.run.loading import load_vqa_dataset
from stepcot_jax.systems.grpo import RewardSignal, Rollouts
from stepcot_jax.training.system import COLLECTED_NUMBERS

ONE = policy_step.make_devices()


def collect(rollouts, update=0):
    state = policy_step.start()
    batch = rollouts(state.replace(step=state.step + update), policy_step.make_prompts())
    return batch, batch.pop(COLLECTED_NUMBERS)


def rewards_of(batch):
    rollouts = policy_step.make_rollouts(ONE)
    found = [
        rollouts.reward_all([(record, tokens) for tokens in group])["total"]
        for group, record in zip(batch["completions"], policy_step.RECORDS, strict=True)
    ]
    return np.array(found, np.float64)


def test_advantages_compare_the_rewards_of_each_group():
    batch, numbers = policy_step.sample()
    rewards = rewards_of(batch)
    assert 0 < np.isnan(rewards).sum() < rewards.size / 2
    np.testing.assert_allclose(batch["advantages"][..., 0], policy_step.expected_advantages(rewards), atol=1e-5)
    assert numbers["rollouts/reward/total"] == pytest.approx(np.nanmean(rewards), rel=1e-6)
    assert numbers["rollouts/reward/deviation_in_group"] == pytest.approx(np.nanstd(rewards, axis=1).mean(), rel=1e-6)


def test_shares_of_unread_answers_and_boxes_are_logged_beside_the_rewards():
    rollouts = policy_step.make_rollouts(ONE, Constant)
    texts = [f"<think>x</think><response><answer>{answer}</answer><location>{box}</location></response>"
             for answer in ("Yes", "perhaps") for box in ("<ref>a</ref><box>[1, 1, 9, 9]</box>", "")]  # fmt: skip
    rollouts.read = lambda tokens: read_reply(texts[int(tokens[0]) % 3], "gemex")
    rollouts.records = [make_record()] * policy_step.PROMPTS
    batch, numbers = collect(rollouts)
    drawn = batch["completions"][..., 0] % 3
    assert numbers["rollouts/unread_answers"] == pytest.approx((drawn == 2).mean())
    assert numbers["rollouts/unread_boxes"] == pytest.approx((drawn == 1).mean())
    assert f"{100 * (drawn == 2).mean():.0f} % unread answers" in rollouts.signal.warn("grpo")
    rollouts.records = [make_record(references=())] * policy_step.PROMPTS
    assert "rollouts/unread_boxes" not in collect(rollouts)[1]  # none is asked for


def test_tokens_are_counted_up_to_the_stop_token():
    batch, numbers = policy_step.sample()
    tokens, scored = batch["completions"], ~np.isnan(rewards_of(batch))
    before = np.cumsum(tokens == STOP, axis=-1) - (tokens == STOP)
    np.testing.assert_array_equal(batch["counted"], (before == 0) & scored[..., None])
    assert numbers["rollouts/length"] == pytest.approx((before == 0).sum(axis=-1).mean())


def test_replies_that_were_cut_can_be_left_out():
    batch, _ = policy_step.roll(ONE, policy_step.start(), mask_truncated=True)
    plain, _ = policy_step.sample()
    has_ended = (plain["completions"] == STOP).any(axis=-1)
    assert 0 < has_ended.mean() < 1
    np.testing.assert_array_equal(batch["counted"], plain["counted"] & has_ended[..., None])
    np.testing.assert_array_equal(batch["advantages"], plain["advantages"])


def test_shuffled_rewards_are_those_of_the_batch_elsewhere():
    batch, numbers = policy_step.roll(ONE, policy_step.start(), shuffle_rewards=True, scale="none")
    plain, _ = policy_step.sample()
    np.testing.assert_array_equal(batch["completions"], plain["completions"])
    rewards = rewards_of(batch)
    assert numbers["rollouts/reward/total"] == pytest.approx(np.nanmean(rewards), rel=1e-6)
    shuffled = batch["advantages"][..., 0]
    unscored = np.isnan(rewards)
    np.testing.assert_array_equal(batch["counted"].any(axis=-1), ~unscored)
    assert np.abs(shuffled - np.where(unscored, 0, rewards - np.nanmean(rewards, axis=1, keepdims=True))).max() > 0.1
    again, _ = policy_step.roll(ONE, policy_step.start(), shuffle_rewards=True, scale="none")
    np.testing.assert_array_equal(again["advantages"], batch["advantages"])


class Constant(Rollouts):
    worth = 0.5

    def reward_all(self, replies):
        return dict.fromkeys(("answer", "total"), [self.worth] * len(replies))


class Unscored(Constant):
    worth = float("nan")


def test_rewards_that_are_equal_for_twenty_updates_stop_the_run():
    rollouts = policy_step.make_rollouts(ONE, Constant)
    for update in range(19):
        batch, numbers = collect(rollouts, update)
        assert not batch["advantages"].any()
        assert numbers["rollouts/equal_groups"] == 1
    message = (
        r"^step 19: the rewards of each prompt's replies were equal for 20 updates in a row \(mean 0.500\); .*config"
    )
    refuse(message, collect, rollouts, 19, error=RunStopped)


def test_a_batch_without_a_scored_reply_stops_the_run_at_once():
    with pytest.raises(
        RunStopped, match=rf"^step 3: none of {policy_step.PROMPTS * policy_step.GROUP} replies was scored"
    ):
        collect(policy_step.make_rollouts(ONE, Unscored), 3)


@pytest.mark.filterwarnings("error")
def test_a_group_without_a_scored_reply_is_left_out_without_a_warning():
    rollouts = policy_step.make_rollouts(ONE)
    rewards = np.array([[0.0, 1.0], [np.nan, np.nan]], np.float32)
    replies = Replies(*(np.ones((2, 2, policy_step.LONGEST), kind) for kind in (np.int32, np.float32, bool)))
    numbers = rollouts._describe({"total": rewards}, rollouts.compare(rewards, step=0), replies)
    assert numbers["rollouts/reward/deviation_in_group"] == pytest.approx(0.5)
    assert numbers["rollouts/equal_groups"] == 0.5
    assert numbers["rollouts/scored"] == 0.5


def test_rewards_are_those_of_the_decoded_reply():
    settings = small_settings()
    records = load_vqa_dataset(settings).records[:6]
    texts = [write_reply(record, "gemex") for record in records]
    vocabulary = Vocabulary.count(texts, largest=32)
    rollouts = policy_step.make_rollouts(ONE, Rollouts)
    rewards = dataclasses.replace(settings.rewards, functions=("answer=1", "grounding=1", "well_formed=0.5"))
    rollouts = dataclasses.replace(rollouts, tokenizer=vocabulary, records=records, rewards=rewards)
    for record, text in zip(records, texts, strict=True):
        right = np.array([*vocabulary.encode(text), vocabulary.stop, vocabulary.stop])
        assert list(rollouts.reward_all([(record, right)]).values()) == [[1.0], [1.0], [1.0], [2.5]]
        assert rollouts.reward_all([(record, right[: len(right) // 2])])["total"] == [0]
        brief = np.array([*vocabulary.encode(write_texts(record, "gemex", with_thinking=False)[1]), vocabulary.stop])
        for asked, worth in ((True, 0), (False, 2.5)):
            each = dataclasses.replace(rollouts, with_thinking=asked)
            assert each.reward_all([(record, brief)])["total"] == [worth]


def test_updates_without_a_signal_are_counted_in_a_row():
    signal = RewardSignal()
    for mean, differs in ((0.5, False), (0.2, True), (float("nan"), False), (0.3, False)):
        signal.add(mean=mean, differs=differs)
    assert (signal.num_updates, signal.num_equal, signal.num_unscored, signal.num_in_a_row) == (4, 2, 1, 2)


@pytest.mark.slow
def test_a_run_warns_at_the_end_of_a_short_phase_of_equal_rewards(tmp_path, monkeypatch, capsys):
    changes = {"sft__epochs": 0, "grpo__epochs": 2, "grpo__updates_per_epoch": 2}
    run = small_run(tmp_path, monkeypatch, **changes)
    monkeypatch.setattr(
        Rollouts, "reward_all", lambda self, replies: {"answer": [1.0] * len(replies), "total": [3.0] * len(replies)}
    )
    run.execute()
    lines = [line for line in capsys.readouterr().err.splitlines() if "warning: phase" in line]
    assert len(lines) == 1
    assert lines[0].startswith("warning: phase 'grpo': the rewards of the replies to each prompt were equal in all 4 ")
