import dataclasses
import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles.random_params import apart
from policies.policy_workdir import small_settings
from refusals import refuse
from systems import policy_step
from systems.test_policy_parallel import assert_same

from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.reasoning import dialects
from stepcot_jax.reasoning.dialects import find_stages
from stepcot_jax.systems import stage_credit as tested
from stepcot_jax.systems.options import STAGED
from stepcot_jax.systems.stage_credit import StageCredit, credit_tokens, similarity, stage_multipliers
from stepcot_jax.training.system import COLLECTED_NUMBERS


def longest_common(first, second):
    """The textbook table."""
    table = np.zeros((len(first) + 1, len(second) + 1), int)
    for i, j in np.ndindex(len(first), len(second)):
        same = first[i] == second[j]
        table[i + 1, j + 1] = table[i, j] + 1 if same else max(table[i, j + 1], table[i + 1, j])
    return int(table[-1, -1])


words = st.lists(st.sampled_from("abcd"), max_size=12)


@given(words, words)
def test_similarity_is_rouge_l(first, second):
    common = longest_common(first, second)
    expected = 0.0
    if common:
        precision, recall = common / len(first), common / len(second)
        expected = 2 * precision * recall / (precision + recall)
    assert similarity(first, second) == pytest.approx(expected)


def test_words_are_lower_cased_letters_digits_and_four_marks():
    alike = tested.compare_texts(["A 2.5-cm mass_x, c+", "a 2.5-CM mass_x! (C+)", "2 5 cm", ","])
    assert alike[0, 1] == 1
    assert alike[0, 2] == alike[0, 3] == 0


def oracle(texts, right, wrong, advantages, *, gamma=1.25, mix=0.25, lower=0.85, upper=1.15):
    """Reply by reply and pair by pair, as S4.7 says it."""
    number, found = len(texts), []
    alike = [tested.compare_texts([reply[stage] for reply in texts]) for stage in range(3)]
    for i in range(number):
        scores = []
        for stage in range(3):
            filled = [j for j in range(number) if texts[j][stage]]
            pairs = [alike[stage][a, b] for a, b in itertools.combinations(filled, 2)]
            d = 1 - sum(pairs) / len(pairs) if pairs else 0.0
            likes = [[alike[stage][i, j] for j in range(number) if j != i and chosen[j]] for chosen in (right, wrong)]
            if stage < 2 and texts[i][stage] and all(likes):
                c = min(max(np.mean(likes[0]) - np.mean(likes[1]), -1), 1)
                d = min(max(d * (1 + np.sign(advantages[i]) * c), 0), 1)
            scores.append(np.exp(gamma * d))
        row = [min(max(1 + mix * (3 * score / sum(scores) - 1), lower), upper) for score in scores]
        for _ in range(4):
            free = [place for place in range(3) if lower < row[place] < upper]
            rest = 3 - sum(row)
            for place in free:
                row[place] = min(max(row[place] + rest / len(free), lower), upper)
        found.append(row)
    return np.array(found)


def test_a_group_by_hand():
    """Two right replies say the same of the picture, the wrong one nothing like it; knowledge is the same for all."""
    texts = [("a b", "k", "x"), ("a b", "k", "x"), ("c d", "k", "y")]
    given = {"right": np.array([True, True, False]), "wrong": np.array([False, False, True])}
    found = stage_multipliers(texts, advantages=np.array([1.0, 1.0, -2.0]), **given)
    # Visual: d = 1 - 1/3, c = 1 - 0 of a right reply, so d' = clamp(4/3) = 1; knowledge d = 0; conclusion d = 2/3.
    shares = np.exp(1.25 * np.array([1, 0, 2 / 3]))
    shares /= shares.sum()
    assert shares == pytest.approx([0.51393, 0.14725, 0.33882], abs=1e-4)
    assert found[0] == pytest.approx(np.maximum(1 + 0.25 * (3 * shares - 1), 0.85))
    # The wrong reply has no other wrong one to be compared with: its credit is 0, and d' = d.
    shares = np.exp(1.25 * np.array([2 / 3, 0, 2 / 3]))
    assert found[2] == pytest.approx(1 + 0.25 * (3 * shares / shares.sum() - 1))
    assert found == pytest.approx(oracle(texts, advantages=np.array([1.0, 1.0, -2.0]), **given))


replies = st.lists(
    st.tuples(*[st.sampled_from(["", "a", "a b", "c d e", "b c"])] * 3, st.sampled_from([0.0, 1.0, 0.5]),
              st.sampled_from([-1.5, 0.0, 0.7])),
    min_size=2, max_size=6,
)  # fmt: skip


def test_correction_spreads_the_rest_over_entries_at_no_bound_in_rounds():
    # 3 - 2.93 = 0.07 over two entries; then the second is at its bound, and the third takes what is left.
    row = tested._correct(np.array([0.85, 1.14, 0.94]), StageCredit())
    assert row == pytest.approx([0.85, 1.15, 1.0])


@given(replies, st.sampled_from([StageCredit(), StageCredit(gamma=8.0, mix=1.0)]))
def test_multipliers_are_the_formulas_within_bounds_and_add_up_to_three(group, settings):
    texts, answers = [reply[:3] for reply in group], np.array([reply[3] for reply in group])
    given = {"right": answers == 1, "wrong": answers < 1, "advantages": np.array([reply[4] for reply in group])}
    found = stage_multipliers(texts, settings=settings, **given)
    assert found == pytest.approx(oracle(texts, gamma=settings.gamma, mix=settings.mix, **given))
    assert found.min() >= 0.85
    assert found.max() <= 1.15
    if settings == StageCredit():
        assert found.sum(axis=1) == pytest.approx(np.full(len(group), 3.0))


def test_stages_with_tags_or_twice_are_none():
    text = "<LOC>{}</LOC><VIS>dense <KNO>x</VIS></KNO><CON>Yes</CON>"
    assert {name: text[slice(*span)] for name, span in find_stages(text, "lvkc_released").items()} == {
        "localisation": "{}", "conclusion": "Yes",
    }  # fmt: skip
    assert "visual" not in find_stages("<VIS>a</VIS><VIS>b</VIS>", "lvkc_released")
    assert tuple(dialects._MARKED_STAGES) == STAGED


def write(visual, answer):
    return f"<LOC>[1]</LOC><VIS>{visual}</VIS><KNO>rule</KNO><CON>{answer}</CON>"


@pytest.mark.parametrize("third", [1.0, 0.6])  # 0.6 is not right
def test_tokens_have_the_multiplier_of_their_stage(third):
    texts = [write("a dense mass", "Yes"), write("no mass", "No"), write("a mass", "Yes"), "no stages"]
    tokenizer = Vocabulary.count(texts, largest=1)
    encoded = [[*tokenizer.encode(text), tokenizer.stop] for text in texts]
    longest = max(map(len, encoded))
    tokens = np.array([row + [tokenizer.stop] * (longest - len(row)) for row in encoded])
    relative, answers = np.array([[1.0, -1.0, 0.5, -0.5]]), np.array([[1.0, 0.0, third, np.nan]])
    found = credit_tokens(relative, tokens=tokens[None], answers=answers, tokenizer=tokenizer, dialect="lvkc_released")[
        0
    ]
    parts = [
        tuple((re.search(f"<{tag}>(.*)</{tag}>", text) or [""] * 2)[1] for tag in ("VIS", "KNO", "CON"))
        for text in texts
    ]
    expected = oracle(parts, answers[0] == 1, answers[0] < 1, relative[0])
    for row, text in enumerate(texts):
        tag, places = "", dict(zip(("VIS", "KNO", "CON"), expected[row], strict=True))
        for place, token in enumerate(encoded[row]):
            piece = tokenizer.decode([token])
            if match := re.fullmatch("<(/?)(.+)>", piece):
                tag = "" if match[1] else match[2]
            multiplier = places.get(tag, 1.0) if tag and not match else 1.0
            assert found[row, place] == pytest.approx(relative[0, row] * multiplier), (text, piece)
    assert np.ptp(expected[0]) > 0.05
    assert found[3] == pytest.approx(-0.5)


class StagedWords(policy_step.Words):
    """Texts in which the first two tokens of a longer reply are the visual analysis."""

    def decode(self, tokens):
        kept = super().decode(tokens).split()
        return "<VIS>" + " ".join(kept[:2]) + "".join(["</VIS>", *kept[2:]] if len(kept) > 2 else [])


class StagedRollouts(policy_step.NumberRollouts):
    def reward(self, tokens, record):
        return float((int(tokens.sum()) + len(record.id)) % 2)


def collect(transform="pmap", num_devices=1, **changes):
    devices = policy_step.make_devices(transform, num_devices)
    rollouts = policy_step.make_rollouts(devices, StagedRollouts, **changes)
    rollouts.tokenizer, rollouts.dialect = StagedWords(), "lvkc_released"
    batch = rollouts(devices.replicate(policy_step.start()), policy_step.make_prompts())
    batch.pop(COLLECTED_NUMBERS)
    return batch


@pytest.mark.slow
def test_several_devices_have_the_credit_and_the_gradients_of_one():
    plain, expected, found = (
        collect(),
        collect(stage_credit="released"),
        collect("shard_map", 8, stage_credit="released"),
    )
    assert expected["advantages"].shape == (policy_step.PROMPTS, policy_step.GROUP, policy_step.LONGEST)
    np.testing.assert_array_equal(found["advantages"], expected["advantages"])
    ratio = expected["advantages"] / np.where(plain["advantages"] == 0, 1, plain["advantages"])
    ratio = ratio[plain["advantages"][..., 0] != 0]
    assert np.ptp(ratio[..., :2]) > 0.05
    assert (ratio[..., 2:] == 1).all()
    update = policy_step.make_update("grpo", stage_credit="released")
    gradients, _ = policy_step.descend(update, expected)
    assert_same(policy_step.descend(update, expected, devices=policy_step.make_devices("shard_map", 8))[0], gradients)
    without = policy_step.descend(update, {**expected, "advantages": plain["advantages"]})[0]
    assert apart(gradients, without) > 1e-3


def test_what_has_no_stages_or_no_answer_reward_is_refused():
    refuse("config.grpo.stage_credit: .* expected config.vqa.dialect of", small_settings, grpo__stage_credit="released")
    rollouts = policy_step.make_rollouts(policy_step.make_devices(), stage_credit="released")
    refuse("need the reward 'answer'", dataclasses.replace, rollouts, functions={"brief": (len, 1.0)})
