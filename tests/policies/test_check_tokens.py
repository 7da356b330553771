import pytest
from refusals import refuse

from stepcot_jax.data.questions.check_examples import CheckExample
from stepcot_jax.policies import records as tested
from stepcot_jax.policies.tokenizers import Vocabulary

EXAMPLES = {0: CheckExample(1, "The heart is wide."), 2: CheckExample(0, "Not there.", shows_check=False)}
REPLIES = ["So it is. Yes", "It is not. No", "Maybe. Yes"]


@pytest.fixture(scope="module")
def tokenizer():
    texts = [*tested.check_texts(EXAMPLES), *REPLIES, *["<CHECK> The heart is wide.</CHECK><think>"] * 20]
    return Vocabulary.count(texts, largest=3, num_merges=50)


@pytest.fixture(scope="module")
def encoded(tokenizer):
    found = {}
    for place, reply in enumerate(REPLIES):
        reasoning, answer = (tokenizer.encode(text) for text in (reply[:-4], reply[-4:]))
        answer = [*answer, tokenizer.stop]
        parts = (*(tested.REASONING,) * len(reasoning), *(tested.ANSWER,) * len(answer))
        found[place] = tested.EncodedRecord((5, 6), (*reasoning, *answer), parts)
    return found


def test_a_check_is_learnt_and_the_wrong_attempt_is_not(tokenizer, encoded):
    found = tested.encode_checks(EXAMPLES, encoded, tokenizer)
    assert set(found) == {0, 2}
    shown, marks = found[0], tested.CheckMarks.of(tokenizer)
    given = len(encoded[1].target) + len(marks.opens)
    assert shown.prompt == encoded[0].prompt
    assert shown.target[:given] == (*encoded[1].target, *marks.opens)
    assert set(shown.parts[:given]) == {tested.NO_PART}
    check = tokenizer.encode("The heart is wide.")
    end = given + len(check) + len(marks.closes)
    assert shown.target[given:end] == (*check, *marks.closes)
    assert set(shown.parts[given:end]) == {tested.REASONING}
    assert (shown.target[end:], shown.parts[end:]) == (encoded[0].target, encoded[0].parts)
    assert shown.target[len(encoded[1].target) - 1] == tokenizer.stop
    hidden, given = found[2], (*encoded[0].target, *marks.opens, *marks.closes)
    assert hidden.target == (*given, *encoded[2].target)
    assert hidden.parts == (*(tested.NO_PART,) * len(given), *encoded[2].parts)


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
