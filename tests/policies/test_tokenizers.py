import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse

from stepcot_jax.policies.tokenizers import PretrainedTokenizer, Vocabulary


@given(st.lists(st.text(st.sampled_from("a B_9٣½é<>/[], \n\t.ⅷ")) | st.text(), max_size=4))
def test_texts_of_the_vocabulary_come_back(texts):
    vocabulary = Vocabulary.count(texts, largest=5)
    for text in texts:
        tokens = vocabulary.encode(text)
        assert all(vocabulary.stop < token < vocabulary.num_words for token in tokens)
        assert vocabulary.decode(tokens) == text
        assert vocabulary.decode([*tokens, vocabulary.stop, *tokens]) == text
        assert vocabulary.decode([vocabulary.pad, *tokens, vocabulary.pad]) == text


@given(st.lists(st.text(st.sampled_from("ab 12.,<x>/[]\n")), min_size=1, max_size=6), st.integers(0, 12))
def test_merged_texts_come_back_in_fewer_tokens(texts, num_merges):
    plain = Vocabulary.count(texts, largest=3)
    merged = Vocabulary.count(texts, largest=3, num_merges=num_merges, least_count=1)
    assert merged.num_words <= plain.num_words + num_merges
    for text in texts:
        assert merged.decode(merged.encode(text)) == text
        assert len(merged.encode(text)) <= len(plain.encode(text))


def test_frequent_phrases_become_one_token_and_numbers_stay_alone():
    texts = ["<a></a><b>So it is, Yes. [1, 2]</b>"] * 12 + ["<a></a><b>So it was, No. [3, 2]</b>"] * 12
    vocabulary = Vocabulary.count(texts, largest=3, num_merges=20)
    pieces = [vocabulary.pieces[token - 2] for token in vocabulary.encode(texts[0])]
    assert pieces == ["<a></a><b>", "So it is,", " Yes.", " [", "1", ", 2", "]", "</b>"]
    rare = Vocabulary.count(texts[:2], largest=3, num_merges=20)
    assert rare.merges == ()


def test_a_written_vocabulary_reads_back(tmp_path):
    vocabulary = Vocabulary.count(["Is there a mass?\nNo."] * 10, largest=9, num_merges=3)
    vocabulary.write(tmp_path / "vocabulary.json")
    read = Vocabulary.read(tmp_path / "vocabulary.json")
    assert (read.pieces, read.merges, len(read.merges)) == (vocabulary.pieces, vocabulary.merges, 3)


@pytest.mark.parametrize("content", ['{"pieces": ["a", "a"]}', '{"pieces": ["a"], "merges": [["a", "b"]]}'])
def test_bad_files_are_refused(tmp_path, content):
    (tmp_path / "v.json").write_text(content)
    refuse("", Vocabulary.read, tmp_path / "v.json")
    refuse("' gravel' is not among the", Vocabulary.count(["some words"], largest=2).encode, "some gravel")


def test_a_pretrained_tokenizer():
    """A word-level tokenizer of the `tokenizers` library, wrapped as transformers wraps the published ones."""
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    words = {word: place for place, word in enumerate(["[END]", "the", "heart", "is", "large", "?"])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))  # noqa: S106
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    names = {"eos_token": "[END]", "unk_token": "?"}
    found = PretrainedTokenizer(transformers.PreTrainedTokenizerFast(tokenizer_object=model, **names))
    tokens = found.encode("the heart is large")
    assert (tokens, found.stop, found.pad, found.num_words) == ([1, 2, 3, 4], 0, 0, 6)
    assert found.decode([*tokens, found.stop, 4]) == "the heart is large"
    for text, named in (("heart lungs", "?"), ("heart [END]", "[END]")):
        message = f"text {text!r}: the tokenizer reads a part as its special token '{named}'"
        refuse(re.escape(message), found.encode, text)
    refuse("end-of-sequence", PretrainedTokenizer, transformers.PreTrainedTokenizerFast(tokenizer_object=model))
