"""BERT against transformers' PyTorch BertModel, and the real MiniLM on real sentences."""

import logging

import jax.numpy as jnp
import numpy as np
import pytest
from refusals import refuse

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "BertModel"):
    pytest.skip("needs transformers' torch classes", allow_module_level=True)

from encoders import torch_checkpoints as tiny

from stepcot_jax.chain import PUBLISHED_STEPS
from stepcot_jax.encoders.load import load_text_encoder
from stepcot_jax.encoders.transformer import Bert


def test_hidden_states(tmp_path):
    model = tiny.make_bert(tmp_path)
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 30522, (2, 12)).astype(np.int32)
    types = generator.integers(0, 2, (2, 12)).astype(np.int32)
    attended = np.arange(12)[None] < np.array([[12], [6]])
    with torch.inference_mode():
        given, mask, kinds = (torch.from_numpy(array).long() for array in (tokens, attended, types))
        expected = model(given, attention_mask=mask, token_type_ids=kinds).last_hidden_state.numpy()
    network, params = tiny.network_of(tmp_path)
    assert isinstance(network, Bert)
    found = network.apply({"params": params}, *map(jnp.asarray, (tokens, attended, types)))
    assert tiny.largest_difference(found.hidden[attended], expected[attended]) <= 1e-4
    assert tiny.largest_difference(found.cls, expected[:, 0]) <= 1e-4
    mean = np.stack([row[seen].mean(0) for row, seen in zip(expected, attended, strict=True)])
    assert tiny.largest_difference(found.mean, mean) <= 1e-4


def test_minilm_on_real_sentences():
    folder = tiny.minilm_folder()
    encoder = load_text_encoder(str(folder))
    sentences = [question for _, question in PUBLISHED_STEPS]
    sentences += ["Small left pleural effusion with bibasilar atelectasis. " * 8, "Normal.", "É à 12% — naïve"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(sentences, padding=True, truncation=True, max_length=128, return_tensors="pt")
    model = transformers.BertModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"][:, :, None]
    assert tiny.largest_difference(encoder.encode(sentences), hidden[:, 0]) <= 1e-5
    assert (
        tiny.largest_difference(encoder.encode(sentences, pooling="mean"), (hidden * mask).sum(1) / mask.sum(1)) <= 1e-5
    )
    assert (encoder.width, encoder.num_parameters) == (384, 22_713_216)


def test_checkpoint_with_pretraining_heads(tmp_path):
    """bert-base-uncased is published with both heads, and with gamma and beta in its LayerNorms."""
    from safetensors.torch import save_file

    tiny.make_bert(tmp_path / "plain")
    config = transformers.BertConfig.from_pretrained(tmp_path / "plain")
    model = tiny.randomise(transformers.BertForPreTraining(config))
    model.save_pretrained(tmp_path / "heads")
    tiny.write_tokenizer(tmp_path / "heads")
    tensors = {
        name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): tensor.clone()
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, tmp_path / "heads" / "model.safetensors")
    model.bert.save_pretrained(tmp_path / "plain")
    texts = ["is there any lesion?", "normal"]
    found, expected = (load_text_encoder(str(tmp_path / name)).encode(texts) for name in ("heads", "plain"))
    np.testing.assert_array_equal(found, expected)


def test_long_texts_are_cut_and_reported_and_a_missing_pooling_is_refused(tmp_path, caplog):
    tiny.make_bert(tmp_path)
    encoder = load_text_encoder(str(tmp_path), max_tokens=10)
    refuse("no projection", encoder.encode, ["normal"], pooling="projected")
    texts = ["normal", "no effusion " * 8, "lesion"]
    with caplog.at_level(logging.WARNING):
        vectors = encoder.encode(texts)
    assert "truncated 1 of 3 texts to 10 tokens; their lengths were 18" in caplog.text
    assert "effusion" not in caplog.text
    np.testing.assert_array_equal(vectors[1], encoder.encode(["no effusion " * 4])[0])


def test_a_text_does_not_depend_on_its_batch(tmp_path):
    tiny.make_bert(tmp_path)
    encoder = load_text_encoder(str(tmp_path))
    texts = ["normal", "no effusion " * 10, "is there any lesion?", "a b c " * 15]
    texts += [f"a {'b ' * k}" for k in range(20)]
    vectors = encoder.encode(texts)
    assert vectors.shape == (24, 32)
    np.testing.assert_array_equal(np.stack([encoder.encode([text])[0] for text in texts[:6]]), vectors[:6])
    assert encoder.encode([]).shape == (0, 32)


def test_tokenizer_missing_or_of_another_model(tmp_path):
    tiny.make_bert(tmp_path)
    (tmp_path / "vocab.txt").write_text("\n".join(["[UNK]", *(f"w{k}" for k in range(30_600))]))
    refuse(r"largest token is 306\d\d, but the network has 30522 embeddings", load_text_encoder, str(tmp_path))
    (tmp_path / "vocab.txt").unlink()
    refuse("no tokenizer", load_text_encoder, str(tmp_path))


def test_clip_text_encoder_with_its_tokenizer(tmp_path):
    tokens = ["<|startoftext|>", "<|endoftext|>", *(letter + end for letter in "abcdefgh" for end in ("", "</w>"))]
    model = tiny.make_clip(tmp_path, vocab_size=len(tokens), bos_token_id=0, eos_token_id=1, pad_token_id=1)
    tokenizer = transformers.CLIPTokenizer(vocab={token: k for k, token in enumerate(tokens)}, merges=[])
    tokenizer.save_pretrained(tmp_path)
    encoder = load_text_encoder(str(tmp_path))
    assert encoder.max_tokens == 20
    texts = ["abc", "a b c d e", "hh gg " * 9]
    batch = transformers.AutoTokenizer.from_pretrained(tmp_path)(
        texts, padding=True, truncation=True, max_length=20, return_tensors="pt"
    )
    with torch.inference_mode():
        text = model.text_model(**batch)
        expected = model.text_projection(text.pooler_output)
    assert tiny.largest_difference(encoder.encode(texts, pooling="projected"), expected) <= 1e-4
    assert tiny.largest_difference(encoder.encode(texts), text.pooler_output) <= 1e-4
