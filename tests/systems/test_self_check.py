import copy
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from policies.tiny_policy import NETWORK, draw_pictures, normalise, random_params
from reasoning_records import make_record
from systems.policy_step import Words, expected_advantages

from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.rewards.options import PRESETS
from stepcot_jax.run.settings import load_settings
from stepcot_jax.systems import self_check
from stepcot_jax.systems.grpo import REFERENCE, GrpoUpdate, Rollouts
from stepcot_jax.systems.self_check import (
    CHECK,
    CLOSE,
    FIRST,
    GIVEN,
    NOTHING,
    SECOND,
    SelfCheck,
    describe_checks,
    token_advantages,
)
from stepcot_jax.systems.sft import POLICY
from stepcot_jax.training.devices import ONE_DEVICE, Devices
from stepcot_jax.training.optimizers import make_optimizer
from stepcot_jax.training.state import TrainState
from stepcot_jax.training.system import COLLECTED_NUMBERS

PROMPTS, GROUP, LONGEST, LONGEST_CHECK = 4, 12, 5, 6
STOP, OPENS, CLOSES = 1, 11, 12


class Letters(Words):
    def encode(self, text):
        return [{"<CHECK>": OPENS, "</CHECK>": CLOSES}[text]]


@functools.cache
def settings(**changes):
    names = {name.replace("__", "."): value for name, value in changes.items()}
    fixed = {"job": "grpo", "grpo.group_size": GROUP, "grpo.batch_size": PROMPTS, "self_check.enabled": True}
    fixed["grpo.temperature"] = 2.0
    return load_settings("base", **fixed | names)


@functools.cache
def devices(number=1):
    return Devices(num_devices=number)


@functools.cache
def make_check(*, num_devices=1, **changes):
    found = settings(**changes)
    return SelfCheck(
        policy=NETWORK,
        normalise=normalise,
        tokenizer=Letters(),
        devices=devices(num_devices),
        settings=found.self_check,
        group_size=GROUP,
        temperature=found.grpo.temperature,
        longest=LONGEST,
        longest_check=LONGEST_CHECK,
    )


class FirstLetter(Rollouts):
    def reward_all(self, replies):
        found = [WORTH.get(int(tokens[0]), 0.0) for _, tokens in replies]
        return {"answer": found, "grounding": [1.0] * len(found), "total": [worth + 1 for worth in found]}


WORTH = {2: 1.0, 3: 1.0, 4: 1.0, 5: 0.6, 7: 0.6, 0: np.nan, 6: np.nan}  # 0.6 is wrong


SAMPLERS = {}


@functools.cache
def make_rollouts(*, num_devices=1, kind=FirstLetter, rewards="gemex", **changes):
    """Those that sample alike share the samplers, which are compiled once."""
    found, alike = settings(**changes), ("self_check__context", "self_check__chunk")
    check = make_check(num_devices=num_devices, **{name: changes[name] for name in alike if name in changes})
    made = kind(
        policy=NETWORK,
        normalise=normalise,
        tokenizer=Letters(),
        dialect="gemex",
        with_thinking=True,
        records=[make_record()] * PROMPTS,
        devices=devices(num_devices),
        settings=found.grpo,
        rewards=PRESETS[rewards],
        longest=LONGEST,
        self_check=copy.copy(check),
    )
    made.self_check.settings = found.self_check
    made._sample = SAMPLERS.setdefault(num_devices, made._sample)
    return made


def make_update(**changes):
    found = settings(**changes)
    optimizer = make_optimizer(learning_rate=1e-3, weight_decay=0.0, epsilon=1e-8, clip_norm=1.0)
    return GrpoUpdate(NETWORK, normalise, optimizer, found.grpo, found.self_check)


@functools.cache
def state(seed=0):
    params = random_params()
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params={POLICY: params, REFERENCE: random_params(2)},
        optimizers={},
        key=jax.random.key_data(jax.random.key(seed)),
    )


def prompts():
    rng = np.random.default_rng(3)
    return {
        "images": draw_pictures(PROMPTS),
        "prompts": rng.integers(2, 11, (PROMPTS, 4)).astype(np.int32),
        "lengths": np.array([4, 1, 3, 2], np.int32),
        "index": np.arange(PROMPTS),
    }


@functools.cache
def collected(num_devices=1, **changes):
    return make_rollouts(num_devices=num_devices, **changes)(state(), prompts())


@pytest.mark.slow
def test_a_right_answer_in_a_broken_format_is_accepted_and_not_retried():
    """MEDSAGE's base reward: it earns 0.9; a wrong one keeps its format's 0.1; what cannot be read earns nothing."""
    form = "<think>I look.</think><response><answer>{}</answer><location><ref>a</ref><box>[1, 2, 3, 4]</box>{}"
    good = "</location></response>"
    texts = [form.format("Yes", good), form.format("Yes", ""), form.format("No", good), form.format("No", ""), "Yes"]
    rollouts = make_rollouts(kind=Rollouts, rewards="paper")
    rollouts.read = lambda tokens: read_reply(texts[int(tokens[0]) % len(texts)], "gemex")
    earned = rollouts.reward_all([(make_record(), np.array([number])) for number in range(len(texts))])
    assert earned["total"] == pytest.approx([1, 0.9, 0.1, 0, 0])
    batch = rollouts(state(), prompts())
    kinds = batch["completions"][..., 0] % len(texts)
    assert set(np.unique(kinds)) == set(range(len(texts)))
    np.testing.assert_array_equal(batch["check"].any(axis=-1), kinds > 1)


def first_attempts(number=1):
    rollouts = make_rollouts(num_devices=number)
    return jax.tree.map(lambda rows: rows.reshape(PROMPTS, GROUP, -1), rollouts.sample(state(), prompts()))


def attempts(wrong, *, num_devices=1, **changes):
    return make_check(num_devices=num_devices, **changes).try_again(
        state(), prompts(), first_attempts(num_devices), wrong
    )


UNEVEN = np.arange(PROMPTS * GROUP).reshape(PROMPTS, GROUP) > PROMPTS * GROUP // 2 - 4
"""Hardly any of the first prompts' replies are wrong, and all of the last ones'."""

EVERY = np.ones((PROMPTS, GROUP), bool)


@pytest.mark.parametrize("first_attempt", ["zero", "outcome"])
def test_who_gets_what(first_attempt):
    row = [FIRST, FIRST, GIVEN, CHECK, CLOSE, SECOND, NOTHING]
    right = [FIRST, FIRST, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING]
    kinds = np.array([[right, row, row]], np.int8)
    relative = np.array([[0.5, -2.0, 3.0]])
    found = token_advantages(
        relative,
        kinds=kinds,
        wrong=np.array([[False, True, True]]),
        settings=settings(self_check__first_attempt=first_attempt).self_check,
    )
    failed = (lambda a: a) if first_attempt == "outcome" else (lambda a: 0.0)
    expected = [[0.5, 0.5, 0, 0, 0, 0, 0]]
    expected += [[failed(a), failed(a), 0, 0, 0, a, 0] for a in (-2.0, 3.0)]
    np.testing.assert_array_equal(found, np.array([expected], np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("context", ["check", "first"])
def test_a_completion_is_attempt_check_and_attempt(context):
    wrong = np.random.default_rng(0).random((PROMPTS, GROUP)) < 0.7
    replies, found = first_attempts(), attempts(wrong, self_check__context=context)
    seen = set()
    for place in np.ndindex(wrong.shape):
        kinds, tokens = found.kinds[place].tolist(), found.tokens[place].tolist()
        first = replies.tokens[place][replies.counted[place]].tolist()
        assert tokens[: len(first)] == first
        assert kinds[: len(first)] == [FIRST] * len(first)
        rest = list(zip(kinds[len(first) :], tokens[len(first) :], strict=True))
        if not wrong[place]:
            assert set(rest) == {(NOTHING, STOP)}
            assert found.last[place][: len(first)].tolist() == first
            continue
        given = [] if first[-1] == STOP else [STOP]
        given = [*given, OPENS]
        assert [token for kind, token in rest if kind == GIVEN] == given
        assert kinds[len(first) : len(first) + len(given)] == [GIVEN] * len(given)
        check = [token for kind, token in rest if kind == CHECK]
        close = [token for kind, token in rest if kind == CLOSE]
        second = [token for kind, token in rest if kind == SECOND]
        order = [kind for kind in kinds if kind != NOTHING]
        assert order == sorted(order)
        assert CLOSES not in check
        assert close in ([], [CLOSES])
        assert close or not second
        assert STOP not in check[:-1]
        assert found.last[place][: len(second)].tolist() == second
        assert set(found.last[place][len(second) :].tolist()) == {STOP}
        assert found.ended[place] == ((second or close or check)[-1] == STOP)
        seen.add((bool(close), bool(second), len(given)))
    closed, given = ({each[place] for each in seen} for place in (0, 2))
    assert (closed, given) == ({False, True}, {1, 2})
    np.testing.assert_array_equal(found.log_probs == 0, ~found.counted)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["check", "first"])
def test_sampled_log_probabilities_are_those_of_the_full_pass(context):
    batch = dict(collected(self_check__context=context))
    assert ("hidden" in batch) == (context == "first")
    del batch[COLLECTED_NUMBERS]
    rows = {name: jnp.asarray(each) for name, each in batch.items()}
    found = np.asarray(quick_jit(make_update(self_check__context=context).log_probs)(state().params[POLICY], rows))
    counted = batch["counted"].reshape(found.shape)
    sampled = batch["old_log_probs"].reshape(found.shape)
    assert counted.sum() > 100
    np.testing.assert_allclose(found[counted], sampled[counted], atol=1e-5)


@pytest.mark.slow
def test_a_hidden_check_changes_nothing_after_it():
    """The second attempt's log-probabilities are those of a completion whose check is empty."""
    batch = collected(self_check__context="first")
    update, rows = make_update(), {name: jnp.asarray(batch[name]) for name in ("images", "prompts", "lengths")}
    flat = lambda name: np.asarray(batch[name]).reshape(PROMPTS * GROUP, -1)  # noqa: E731
    tokens, hidden, sampled, counted = (flat(name) for name in ("completions", "hidden", "old_log_probs", "counted"))
    shorter, kept = np.full_like(tokens, STOP), np.zeros_like(counted)
    expected = np.zeros_like(sampled)
    for row in range(len(tokens)):
        left = np.flatnonzero(~hidden[row])
        after = hidden[row].any() & (left > np.flatnonzero(hidden[row]).max(initial=0) + 1)  # not </CHECK> itself
        shorter[row, : len(left)] = tokens[row, left]
        kept[row, : len(left)] = counted[row, left] & after
        expected[row, : len(left)] = sampled[row, left]
    shape = (PROMPTS, GROUP, -1)
    rows |= {"completions": jnp.asarray(shorter.reshape(shape)), "counted": jnp.asarray(kept.reshape(shape))}
    found = np.asarray(quick_jit(update.log_probs)(state().params[POLICY], rows))
    assert kept.sum() > 20
    np.testing.assert_allclose(found[kept], expected[kept], atol=1e-5)


@pytest.mark.slow
def test_completions_do_not_depend_on_other_rollouts():
    wrong = np.random.default_rng(1).random((PROMPTS, GROUP)) < 0.5
    some, every = (attempts(chosen, self_check__context="first") for chosen in (wrong, EVERY))
    for name in ("tokens", "kinds", "last", "ended"):
        np.testing.assert_array_equal(getattr(every, name)[wrong], getattr(some, name)[wrong], err_msg=name)


def test_a_batch_has_the_rewards_of_last_attempts():
    batch, replies = collected(), first_attempts()
    first = np.vectorize(lambda token: WORTH.get(token, 0.0))(replies.tokens[:, :, 0])
    wrong = first < 1
    tried = attempts(wrong)
    second = np.vectorize(lambda token: WORTH.get(token, 0.0))(tried.last[:, :, 0])
    totals = np.where(wrong, second, first)
    relative = expected_advantages(totals)
    success = wrong & (second == 1)
    assert np.isnan(first).any()
    assert np.isnan(second[wrong]).any()
    assert success.any()
    assert (wrong & ~success).any()
    expected = np.zeros(tried.kinds.shape)
    for place in np.ndindex(wrong.shape):
        for token, kind in enumerate(tried.kinds[place]):
            if kind == SECOND or (kind == FIRST and not wrong[place]):
                expected[place][token] = relative[place]
    np.testing.assert_allclose(batch["advantages"], expected, atol=1e-5)
    np.testing.assert_array_equal(batch["completions"], tried.tokens)
    np.testing.assert_array_equal(batch["check_success"], success)
    is_scored = ~np.isnan(totals)[..., None]
    checks = np.isin(tried.kinds, (CHECK, CLOSE)) & is_scored
    np.testing.assert_array_equal(batch["check"], checks)
    np.testing.assert_array_equal(batch["counted"], np.isin(tried.kinds, (FIRST, CHECK, CLOSE, SECOND)) & is_scored)
    numbers = batch[COLLECTED_NUMBERS]
    assert numbers["rollouts/self_check_rate"] == pytest.approx(wrong.mean())
    assert numbers["rollouts/self_check_success"] == pytest.approx(success.sum() / wrong.sum())
    assert numbers["rollouts/first_answer"] == pytest.approx(np.nanmean(first))
    assert numbers["rollouts/reward/answer"] == pytest.approx(np.nanmean(totals))


def test_without_a_check_there_is_no_success_rate():
    nothing = np.zeros((2, 3), bool)
    found = describe_checks(wrong=nothing, success=nothing, first=np.ones((2, 3)))
    assert found["rollouts/self_check_rate"] == 0
    assert np.isnan(found["rollouts/self_check_success"])


def test_cut_attempts_can_be_left_out():
    batch, masked = collected(), collected(grpo__mask_truncated=True)
    wrong = batch["advantages"].shape[:2]
    kept = masked["counted"].any(axis=-1)
    assert 0 < kept.sum() < np.prod(wrong)
    np.testing.assert_array_equal(masked["counted"], batch["counted"] & kept[..., None])
    np.testing.assert_array_equal(masked["check"], batch["check"] & kept[..., None])


def test_without_alpha_a_batch_has_no_checks_to_weigh():
    batch, without = dict(collected()), dict(collected(self_check__alpha=0.0))
    assert batch[COLLECTED_NUMBERS] == pytest.approx(without[COLLECTED_NUMBERS], nan_ok=True)  # the retry stays
    assert set(batch) - set(without) == {"check", "check_success"}


@pytest.mark.slow
def test_alpha_adds_the_loss_and_the_gradient_of_its_term():
    """Against the weighed log-probabilities of checks that ended in a right answer, differentiated on their own."""
    batch, params, norm = dict(collected()), state().params, "mean"
    batch.pop(COLLECTED_NUMBERS)
    check = batch["check"] & batch["check_success"][..., None]
    weights = check / np.maximum(batch["check"].sum(axis=-1, keepdims=True), 1)
    rows = {name: jnp.asarray(each) for name, each in batch.items()}

    def losses(rows, **changes):
        update = make_update(**changes)
        frozen = update.freeze(params, rows, ONE_DEVICE)
        numbers, gradients = quick_jit(lambda rows: update.gradients(params, rows, ONE_DEVICE))(frozen)
        return jax.device_get(numbers), gradients[POLICY]

    @quick_jit
    @jax.value_and_grad
    def term(policy):
        log_probs = make_update().log_probs(policy, rows).reshape(weights.shape)
        return -0.2 * (log_probs * weights).sum() / (PROMPTS * GROUP)

    expected, gradients = jax.device_get(term(params[POLICY]))
    plain_rows = {name: row for name, row in rows.items() if name not in ("check", "check_success")}
    plain, without = losses(plain_rows, self_check__alpha=0.0)
    found, added = losses(rows, self_check__norm=norm, self_check__alpha=0.2)
    assert expected > 0
    assert "self_check_loss" not in plain
    assert found["self_check_loss"] == pytest.approx(expected, rel=1e-5)
    assert found["loss"] == pytest.approx(plain["loss"] + expected, rel=1e-4)
    for one, two, leaf in zip(*map(jax.tree.leaves, (added, without, gradients)), strict=True):
        np.testing.assert_allclose(one - two, leaf, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "num_devices"), [(5, 1), (20, 4), (0, 1)])
def test_completions_are_the_same_in_chunks_of_any_size(chunk, num_devices, monkeypatch):
    """Of 5 rows, of 20 on 4 devices, and of as many as fit; each picture is encoded once for both samplers."""
    wrong = np.random.default_rng(1).random((PROMPTS, GROUP)) < 0.5
    expected = attempts(wrong, self_check__context="first")
    changes = {"self_check__context": "first", "self_check__chunk": chunk}
    check = make_check.__wrapped__(num_devices=num_devices, **changes)
    encoded, embed = [], check._embed
    check._embed = lambda params, images: [encoded.append(len(images)), embed(params, images)][1]
    if not chunk:
        (program, number), *_ = make_check(num_devices=1, self_check__context="first")._plans.values()
        assert number == PROMPTS * GROUP  # on CPUs all at once
        needed = program.memory_analysis().temp_size_in_bytes
        monkeypatch.setattr(self_check, "_free_bytes", lambda: 0.4 * needed)
    found = check.try_again(state(), prompts(), first_attempts(num_devices), wrong)
    sizes = {size for _, size in check._plans.values()}
    assert sizes == {chunk} if chunk else 1 <= max(sizes) < PROMPTS * GROUP / 2
    assert encoded == [PROMPTS]
    for name in ("tokens", "kinds", "last", "ended"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=1e-5)
