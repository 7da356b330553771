import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some
from policies.policy_workdir import small_settings
from policies.tiny_policy import STOP, WORDS
from refusals import refuse

from stepcot_jax.data.questions.check_examples import CheckExample
from stepcot_jax.data.questions.making import write_texts
from stepcot_jax.policies import records as tested
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.run.loading import load_vqa_dataset

TOKENS = some.lists(some.integers(2, WORDS - 1), min_size=1, max_size=4)


@some.composite
def encoded(draw):
    reasoning, answer = draw(TOKENS), [*draw(TOKENS), STOP]
    parts = [tested.REASONING] * len(reasoning) + [tested.ANSWER] * len(answer)
    return tested.EncodedRecord(tuple(draw(TOKENS)), (*reasoning, *answer), tuple(parts))


@given(some.lists(some.tuples(some.integers(1, 9), some.integers(0, 3)), max_size=30), some.integers(0, 12))
def test_packs_hold_every_record_once_of_one_image_and_are_not_too_long(records, longest):
    lengths, image_of = [length for length, _ in records], [image for _, image in records]
    packs = tested.pack_records(lengths, image_of, longest=longest)
    assert sorted(place for pack in packs for place in pack) == list(range(len(records)))
    for pack in packs:
        assert list(pack) == sorted(pack)
        assert len({image_of[place] for place in pack}) == 1
        assert len(pack) == 1 or sum(lengths[place] for place in pack) <= longest
    for first, second in itertools.pairwise(packs):  # no pack ends before it must
        if image_of[first[0]] == image_of[second[0]]:
            assert sum(lengths[place] for place in first) + lengths[second[0]] > longest


@given(some.lists(encoded(), min_size=1, max_size=4), some.integers(0, 3))
def test_a_row_predicts_every_token_of_every_reply_and_nothing_else(records, room):
    length = sum(record.length for record in records) + room
    row = tested.lay_out_pack(records, length)
    assert {(array.shape, array.dtype) for array in row.values()} == {((length,), np.dtype(np.int32))}
    counted = row["parts"] != tested.NO_PART
    # The target at t is the token at t + 1 of the same text; a pack's last target is followed by no token.
    following = np.append(row["tokens"][1:], 0)
    same_text = np.append(row["segments"][1:], 0) == row["segments"]
    assert (same_text[counted]).all()
    np.testing.assert_array_equal(row["targets"][counted], following[counted])
    for segment, record in enumerate(records, start=1):
        own = row["segments"] == segment
        assert row["tokens"][own].tolist() == [*record.prompt, *record.target]
        assert row["places"][own].tolist() == list(range(record.length))
        assert row["targets"][own & counted].tolist() == list(record.target)
        assert row["parts"][own & counted].tolist() == list(record.parts)
    padding = row["segments"] == 0
    assert padding.sum() == room
    assert not row["tokens"][padding].any()
    assert not counted[padding].any()


def test_prompts_are_padded_on_the_right():
    found = tested.lay_out_prompts([(5, 6), (7,)], 3, pad=9)
    np.testing.assert_array_equal(found["prompts"], [[5, 6, 9], [7, 9, 9]])
    np.testing.assert_array_equal(found["lengths"], [2, 1])
    refuse("a prompt has 4 tokens; at most 3", tested.lay_out_prompts, [(5, 6, 7, 8)], 3, pad=9)


@pytest.fixture(scope="module")
def records():
    return load_vqa_dataset(small_settings()).records


@pytest.mark.parametrize(
    ("dialect", "with_thinking"),
    [(name, True) for name in ("gemex", "lvkc", "gemex_plain", "plain")]
    + [(name, False) for name in ("gemex", "medclm", "plain")],
)
def test_an_encoded_record_is_its_prompt_its_reasoning_and_its_answer(records, dialect, with_thinking):
    texts = [text for record in records for text in write_texts(record, dialect, with_thinking=with_thinking)]
    vocabulary = Vocabulary.count(texts, largest=32, num_merges=50, least_count=2)
    encoder = tested.RecordEncoder(vocabulary, dialect, with_thinking=with_thinking)
    for record in records:
        prompt, reply = write_texts(record, dialect, with_thinking=with_thinking)
        found = encoder.encode(record)
        assert vocabulary.decode(found.prompt) == prompt
        assert vocabulary.decode(found.target) == reply
        assert found.target.index(vocabulary.stop) == len(found.target) - 1
        assert found.parts == tuple(sorted(found.parts, reverse=True))  # reasoning, then the answer
        answer = vocabulary.decode(
            [t for t, part in zip(found.target, found.parts, strict=True) if part == tested.ANSWER]
        )
        assert reply.endswith(answer)
        assert answer


def test_a_record_that_the_dialect_cannot_write_is_named(records):
    refuse(f"record '{records[0].id}', thinking: blank", write_texts, records[0], "gemex_plain", with_thinking=False)


# Self-checks.

EXAMPLES = {0: CheckExample(1, "The heart is wide."), 2: CheckExample(0, "Not there.", shows_check=False)}
REPLIES = ["So it is. Yes", "It is not. No", "Maybe. Yes"]


@pytest.fixture(scope="module")
def tokenizer():
    texts = [*tested.check_texts(EXAMPLES), *REPLIES, *["<CHECK> The heart is wide.</CHECK><think>"] * 20]
    return Vocabulary.count(texts, largest=3, num_merges=50)


@pytest.fixture(scope="module")
def replies(tokenizer):
    found = {}
    for place, reply in enumerate(REPLIES):
        reasoning, answer = (tokenizer.encode(text) for text in (reply[:-4], reply[-4:]))
        answer = [*answer, tokenizer.stop]
        parts = (*(tested.REASONING,) * len(reasoning), *(tested.ANSWER,) * len(answer))
        found[place] = tested.EncodedRecord((5, 6), (*reasoning, *answer), parts)
    return found


def test_a_check_is_learnt_and_the_wrong_attempt_is_not(tokenizer, replies):
    found = tested.encode_checks(EXAMPLES, replies, tokenizer)
    assert set(found) == {0, 2}
    shown, marks = found[0], tested.CheckMarks.of(tokenizer)
    given = len(replies[1].target) + len(marks.opens)
    assert shown.prompt == replies[0].prompt
    assert shown.target[:given] == (*replies[1].target, *marks.opens)
    assert set(shown.parts[:given]) == {tested.NO_PART}
    check = tokenizer.encode("The heart is wide.")
    end = given + len(check) + len(marks.closes)
    assert shown.target[given:end] == (*check, *marks.closes)
    assert set(shown.parts[given:end]) == {tested.REASONING}
    assert (shown.target[end:], shown.parts[end:]) == (replies[0].target, replies[0].parts)
    assert shown.target[len(replies[1].target) - 1] == tokenizer.stop
    hidden, given = found[2], (*replies[0].target, *marks.opens, *marks.closes)
    assert hidden.target == (*given, *replies[2].target)
    assert hidden.parts == (*(tested.NO_PART,) * len(given), *replies[2].parts)


def test_marks_are_tokens_of_their_own_and_are_found(tokenizer):
    marks = tested.CheckMarks.of(tokenizer)
    tokens = (*marks.opens, *tokenizer.encode("The heart is wide."), *marks.closes, 7, *marks.closes)
    assert marks.find_close(tokens) == len(tokens) - 2 * len(marks.closes) - 1
    assert marks.find_close(tokens[: len(marks.opens) + 1]) == -1
    assert tested.CheckMarks((1,), (2, 3)).find_close([2, 2, 3, 3]) == 1
    assert tested.longest_check(EXAMPLES, tokenizer) == max(
        len(tokenizer.encode(text)) for text in ("The heart is wide.", "Not there.")
    )
    assert tested.longest_check({}, tokenizer) == 0
    refuse("'<CHECK>' is not among", tested.CheckMarks.of, Vocabulary.count(REPLIES, largest=3))
