import json
import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from policies.qwen.tiny_qwen import IMAGES, TEXT, VISION, draw_tensors, published, write_config, write_qwen
from refusals import refuse
from safetensors.numpy import load_file, save_file

from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.low_rank import LowRankSettings, init_low_rank, merge_low_rank
from stepcot_jax.models.qwen import QwenVl
from stepcot_jax.policies import qwen_weights as qwen_export
from stepcot_jax.policies.qwen_weights import draw_params, load_qwen, qwen_shapes, read_qwen_config, shrink_config

PUBLISHED = {
    "0.5B": (published(896, 24, 14, 2, 4864, 151_936, True, images=False), 494_032_768),
    "VL-3B": (published(2048, 36, 16, 2, 11_008, 151_936, True, images=True), 3_754_622_976),
    "VL-7B": (published(3584, 28, 28, 4, 18_944, 152_064, False, images=True), 8_292_166_656),
}


def count(shapes):
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


@pytest.mark.parametrize(("name", "tower"), [("0.5B", 0), ("VL-7B", 676_550_144)])
def test_published_counts(tmp_path, name, tower):
    """facts_siblings.md, S5.2, without allocating any of it."""
    config, expected = PUBLISHED[name]
    found = read_qwen_config(write_config(tmp_path, config))
    shapes = qwen_shapes(found.sizes, found.vision)
    assert (count(shapes), count(shapes.get("tower", {}))) == (expected, tower)


def test_published_models_shrink(tmp_path):
    config = read_qwen_config(write_config(tmp_path, PUBLISHED["VL-3B"][0]))
    small = shrink_config(config, 8)
    assert count(qwen_shapes(small.sizes, small.vision)) < PUBLISHED["VL-3B"][1] / 7
    assert (small.sizes.num_heads, small.sizes.num_words) == (config.sizes.num_heads, config.sizes.num_words)
    assert shrink_config(config, 1) == config
    tiny = read_qwen_config(write_config(tmp_path, IMAGES))
    for factor in (3, 2):
        refuse(f"shrink: {factor} is not one of", shrink_config, tiny, factor)


def test_random_parameters(tmp_path):
    config = read_qwen_config(write_config(tmp_path, TEXT))
    params = draw_params(QwenVl(config.sizes, config.vision), jax.random.key(0), dtype=jnp.bfloat16)
    shapes = qwen_shapes(config.sizes, config.vision)
    assert jax.tree.map(lambda leaf: leaf.shape, params) == jax.tree.map(lambda leaf: leaf.shape, shapes)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
    gate = np.asarray(params["decoder"]["layer_0"]["gate"]["kernel"], np.float32)
    assert gate.std() == pytest.approx(0.02, rel=0.1)
    assert not np.array_equal(gate, params["decoder"]["layer_1"]["gate"]["kernel"])


@pytest.mark.parametrize(
    ("config", "is_new"), [(TEXT, False), (TEXT | {"tie_word_embeddings": False}, True), (IMAGES, False)]
)
def test_every_tensor_lands_in_its_place(tmp_path, capsys, config, is_new):
    tensors, params = write_qwen(tmp_path, config, is_new=is_new)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 57, "repetition_penalty": 1.05}))
    loaded = load_qwen(str(tmp_path), dtype=np.float32)
    assert jax.tree.structure(loaded.params) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, params)
    assert ("lm_head.weight" in tensors) == (not config["tie_word_embeddings"])
    (note,) = capsys.readouterr().err.splitlines()
    assert note.startswith("note: ")
    assert "repetition_penalty 1.05 is not applied" in note


def test_shards_in_bfloat16(tmp_path):
    _, params = write_qwen(tmp_path, IMAGES, shards=3, bfloat16=True)
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    loaded = load_qwen(str(tmp_path))
    assert {leaf.dtype for leaf in jax.tree.leaves(loaded.params)} == {np.dtype(ml_dtypes.bfloat16)}
    expected = jax.tree.map(lambda leaf: np.asarray(leaf).astype(ml_dtypes.bfloat16), params)
    jax.tree.map(np.testing.assert_array_equal, loaded.params, expected)
    wide = load_qwen(str(tmp_path), param_dtype=np.float32)
    assert {leaf.dtype for leaf in jax.tree.leaves(wide.params)} == {np.dtype(np.float32)}
    assert wide.network.dtype == ml_dtypes.bfloat16


def test_missing_extra_and_wrong_are_all_named(tmp_path):
    tensors, _ = write_qwen(tmp_path, IMAGES)
    del tensors["model.layers.1.self_attn.k_proj.bias"]
    tensors["visual.blocks.3.norm1.weight"] = np.ones(24, np.float32)
    tensors["visual.patch_embed.proj.weight"] = tensors["visual.patch_embed.proj.weight"][:, :, :1]
    tensors["model.norm.weight"] = np.full(32, np.inf, np.float32)
    tensors["lm_head.weight"] = np.ones((60, 32), np.int32)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BadInput) as caught:
        load_qwen(str(tmp_path))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}: the tensors do not match the config: ")
    assert "unexpected: visual.blocks.3.norm1.weight. missing: model.layers.1.self_attn.k_proj.bias" in message
    assert "patch_embed.proj.weight has shape [24, 3, 1, 2, 2], expected [24, 3, 2, 2, 2]" in message
    assert "model.norm.weight has values that are not finite" in message
    assert "lm_head.weight has dtype int32" in message


def test_a_tied_head_may_repeat_the_embedding_only(tmp_path):
    write_qwen(tmp_path, TEXT)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]}, tmp_path / "model.safetensors")
    assert "head" not in load_qwen(str(tmp_path)).params["decoder"]
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"] * 2}, tmp_path / "model.safetensors")
    write_config(tmp_path, TEXT)
    refuse(r"has a head of its own .*config.json.tie_word_embeddings is true", load_qwen, str(tmp_path))


@pytest.mark.parametrize(
    ("top", "inner", "has_head", "message"),
    [
        (False, True, True, r"head of its own \(lm_head.weight\), but \S+json.text_config.tie_word_embeddings is true"),
        (True, False, True, r"head of its own \(lm_head.weight\), but \S+config.json.tie_word_embeddings is true"),
        (None, None, False, r"has no head \(lm_head.weight\), but \S+config.json.tie_word_embeddings is false"),
        (False, True, False, ""),
    ],
)
def test_the_flag_that_ties_is_named(tmp_path, top, inner, has_head, message):
    """As transformers reads them, either flag ties."""
    tensors, _ = write_qwen(tmp_path, IMAGES)
    if not has_head:
        del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    flags = {"tie_word_embeddings": top}, {"tie_word_embeddings": inner}
    config, text = ({key: value for key, value in flag.items() if value is not None} for flag in flags)
    bare = {key: value for key, value in IMAGES.items() if key != "tie_word_embeddings"}
    write_config(tmp_path, bare | config | {"text_config": bare | text})
    if message:
        refuse(message, load_qwen, str(tmp_path))
    else:
        assert ("head" in load_qwen(str(tmp_path)).params["decoder"]) == has_head


def test_layers_are_counted_before_they_are_laid_out(tmp_path, monkeypatch):
    monkeypatch.setattr("stepcot_jax.policies.qwen_weights.qwen_shapes", None)
    config = read_qwen_config(write_config(tmp_path, IMAGES))
    monkeypatch.undo()
    tensors, _ = draw_tensors(config)
    save_file(tensors, tmp_path / "model.safetensors")
    monkeypatch.setattr("stepcot_jax.policies.qwen_weights.qwen_shapes", None)  # not called
    more = {"num_hidden_layers": 256}, {"vision_config": IMAGES["vision_config"] | {"depth": 256}}
    for change in more:
        write_config(tmp_path, IMAGES, **change)
        with pytest.raises(BadInput, match=r"do not match the config: missing: .* and \d{4} more$") as caught:
            load_qwen(str(tmp_path))
        assert len(str(caught.value)) < 2_000


def test_older_and_newer_files_say_the_same(tmp_path):
    old = read_qwen_config(write_config(tmp_path / "old", IMAGES))
    text = {key: value for key, value in TEXT.items() if key not in ("rope_theta", "tie_word_embeddings")}
    rotary = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [1, 2, 1]}
    new = {
        "model_type": "qwen2_5_vl",
        "image_token_id": IMAGES["image_token_id"],
        "vision_config": IMAGES["vision_config"],
        "text_config": text | {"rope_parameters": rotary, "model_type": "qwen2_5_vl_text"},
        "tie_word_embeddings": False,
    }
    assert read_qwen_config(write_config(tmp_path / "new", new)) == old
    assert old.sizes.sections == (1, 2, 1)
    (tmp_path / "old" / "generation_config.json").write_text(json.dumps({"eos_token_id": [57, 58]}))
    assert (old.stops, read_qwen_config(tmp_path / "old").stops) == ((57,), (57, 58))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type: 'llama' is not one of 'qwen2', 'qwen2_5_vl'"),
        ({"hidden_size": None}, r"hidden_size: None is not a whole number from 1 to 65536"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 is not a divisor of 4 heads"),
        ({"num_attention_heads": 3, "num_key_value_heads": 1}, r"hidden_size \(32\) is not a multiple of 6"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: 'small' is not a number"),
        ({"rope_scaling": {"type": "yarn"}}, "type 'yarn' are not supported"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 1]}}, r"mrope_section \[1, 1, 1\] does not add up"),
        ({"eos_token_id": 60}, "eos_token_id: 60 is not a token"),
        ({"eos_token_id": [1] * 10**6}, r"\[1, 1, .{60,80}… is not a token, or 1 to 64 tokens, below 60$"),
        ({"num_hidden_layers": 1024}, "num_hidden_layers: 1024 is not a whole number from 1 to 256"),
        ({"vision_config": VISION | {"depth": 1024}}, "depth: 1024 is not a whole number from 1 to 256"),
        ({"hidden_act": "x" * 12 * 10**6}, r"hidden_act: 'x{79}… is not one of 'silu'$"),
        ({"vision_config": VISION | {"fullatt_block_indexes": [0] * 10**6}}, "a list of at most 3 blocks"),
        ({"vision_config": None}, "out_hidden_size: None is not one of 32"),
        ({"vision_config": VISION | {"fullatt_block_indexes": [3]}}, "not a list of at most 3 blocks"),
        ({"vision_config": VISION | {"window_size": 10}}, "window_size: 10 px is not a multiple of 4"),
    ],
)
def test_bad_configs(tmp_path, change, message):
    refuse(message, read_qwen_config, write_config(tmp_path, IMAGES, **change))


def test_what_is_no_checkpoint(tmp_path):
    refuse(r"no config\.json", load_qwen, str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    for source, message in ((tmp_path, r"config\.json"), (tmp_path / "config.json", "is a file")):
        refuse(message, load_qwen, str(source))


# Writing.


def test_what_was_read_is_written(tmp_path):
    tensors, _ = write_qwen(tmp_path / "a", IMAGES, is_new=True)
    for name in ("processor_config.json", "video_preprocessor_config.json"):
        (tmp_path / "a" / name).write_text(name)
    loaded = load_qwen(str(tmp_path / "a"), dtype=np.float32)
    written = {"dtype": np.float32, "most_bytes": 20_000}
    qwen_export.write_qwen(tmp_path / "b", loaded.params, loaded.network, source=tmp_path / "a", **written)
    assert len(list((tmp_path / "b").glob("model-*-of-*.safetensors"))) > 2
    again = load_qwen(str(tmp_path / "b"), dtype=np.float32)
    jax.tree.map(np.testing.assert_array_equal, again.params, loaded.params)
    assert again.config == loaded.config
    for name in ("processor_config.json", "video_preprocessor_config.json"):
        assert (tmp_path / "b" / name).read_text() == name
    held = [name for file in (tmp_path / "b").glob("*.safetensors") for name in load_file(file)]
    assert len(held) == len(tensors) == len(set(held))
    # Weights are as readable as their siblings.
    assert len({path.stat().st_mode for path in (tmp_path / "b").iterdir()}) == 1
    settings = LowRankSettings(rank=2)
    low_rank = init_low_rank(jax.random.key(0), loaded.params, settings)
    merged = merge_low_rank(loaded.params, jax.tree.map(lambda leaf: leaf + jnp.float32(0.05), low_rank), settings)
    qwen_export.write_qwen(tmp_path / "c", merged, loaded.network, source=tmp_path / "a", dtype=np.float32)
    jax.tree.map(np.testing.assert_array_equal, load_qwen(str(tmp_path / "c"), dtype=np.float32).params, merged)
    kernels = (params["decoder"]["layer_0"]["up"]["kernel"] for params in (merged, loaded.params))
    assert not np.array_equal(*kernels)


def test_what_cannot_be_written(tmp_path):
    write_qwen(tmp_path / "a", IMAGES)
    loaded = load_qwen(str(tmp_path / "a"), dtype=np.float32)
    refuse("a: exists", qwen_export.write_qwen, tmp_path / "a", loaded.params, loaded.network, source=tmp_path / "a")
    refuse(r"no config\.json", qwen_export.write_qwen, tmp_path / "b", loaded.params, loaded.network, source=tmp_path)
    assert not list(tmp_path.glob("b*"))
