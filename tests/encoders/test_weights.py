import itertools
import json
import sys
import types
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from refusals import refuse
from run.small_run import small_settings
from safetensors.numpy import save_file

from stepcot_jax.data.images.preprocessing import Preprocessing, normalise
from stepcot_jax.encoders.checkpoints import Architecture, read_preprocessing, recognise, resolve
from stepcot_jax.encoders.load import (
    ImageEncoder,
    _encode_images,
    count_parameters,
    load_image_encoder,
    load_text_encoder,
)
from stepcot_jax.encoders.weights import assign, assign_later, dense_slots, read_tensors, weights_digest
from stepcot_jax.features.encode import image_keys
from stepcot_jax.host.errors import BadInput
from stepcot_jax.policies.qwen_weights import load_qwen
from stepcot_jax.run.networks import load_frozen_encoder

SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}


def write_clip(folder, **vision):
    folder.mkdir(exist_ok=True)
    config = {"model_type": "clip_vision_model", "projection_dim": 12, "image_size": 32, "patch_size": 16}
    (folder / "config.json").write_text(json.dumps(config | SIZES | vision))
    tensors = random_tensors(recognise(folder, {}, jnp.float32))
    save_file(tensors, folder / "model.safetensors")
    return tensors


def random_tensors(architecture: Architecture):
    """Tensors of a checkpoint, drawn in PyTorch's shapes by way of the error messages' own expectations."""
    generator = np.random.default_rng(0)
    zeros = {name: np.zeros((0,) * 9, np.float32) for name in architecture.table}
    with pytest.raises(BadInput) as caught:
        assign(architecture.table, zeros, shapes=architecture.shapes())
    parts = str(caught.value).partition("wrong: ")[2].split("; ")
    shapes = {part.split(" has shape")[0]: json.loads(part.rpartition("expected ")[2]) for part in parts}
    return {name: generator.standard_normal(shape).astype(np.float32) * 0.2 for name, shape in shapes.items()}


IMAGES = np.random.default_rng(1).standard_normal((3, 32, 32, 3)).astype(np.float32)


def test_features_without_torch(tmp_path):
    for name, change in {"a": {}, "b": {"hidden_act": "gelu"}, "c": {"num_attention_heads": 4}}.items():
        write_clip(tmp_path / name, **change)
    assert len({load_image_encoder(str(tmp_path / name)).digest for name in "abc"}) == 3
    encoder = load_image_encoder(str(tmp_path / "a"))
    features, patches = encoder.encode_patches(IMAGES)
    assert (features.shape, patches.shape, encoder.width) == ((3, 12), (3, 4, 16), 12)
    alone = np.concatenate([encoder.encode(IMAGES[k : k + 1]) for k in range(3)])
    np.testing.assert_allclose(features, alone, atol=1e-5)
    refuse("has no text encoder", load_text_encoder, str(tmp_path / "a"))
    coarse = np.asarray(load_image_encoder(str(tmp_path / "a"), dtype="bfloat16").encode(IMAGES))
    assert np.abs(coarse - features).max() <= 0.05 * np.abs(features).max()


class Echo(nn.Module):
    """Returns the input that it computes with."""

    dtype: Any

    def __call__(self, images):
        images = images.astype(self.dtype).astype(jnp.float32)
        return images.mean((1, 2)), images.reshape(len(images), -1, 3)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("colours", [{}, {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}])
def test_the_network_gets_pixels_normalised_as_on_the_host_bit_for_bit(dtype, colours):
    preprocessing = Preprocessing(size=16, **colours)
    about = {"name": "echo", "width": 3, "digest": "", "num_parameters": 0, "read_params": dict}
    encoder = ImageEncoder(preprocessing=preprocessing, network=Echo(dtype), **about)
    pixels = np.stack([np.arange(256, dtype=np.uint8).reshape(16, 16, 1).repeat(3, 2)] * 16)
    for number in (16, 3):  # 3 cannot be divided among the devices
        found = encoder.encode_patches(pixels[:number])[1]
        assert len(found.devices()) == (jax.local_device_count() if number == 16 else 1)
        expected = normalise(pixels[:number], preprocessing).reshape(number, 256, 3)
        np.testing.assert_array_equal(found, expected.astype(dtype).astype(np.float32))


def test_pixels_reach_the_device_as_bytes_and_several_devices_encode_as_one(tmp_path):
    write_clip(tmp_path / "a")
    encoder = load_image_encoder(str(tmp_path / "a"))
    pixels = np.random.default_rng(2).integers(0, 256, (16, 32, 32, 3), dtype=np.uint8)
    program = _encode_images.lower(*encoder._lay_out(pixels), encoder.network).as_text()
    (arguments,) = [line for line in program.splitlines() if "@main" in line]
    assert ("16x32x32x3xui8" in arguments, "16x32x32x3xf32" in arguments) == (True, False)
    images = normalise(pixels, encoder.preprocessing)
    assert len(encoder.encode(pixels).devices()) == jax.local_device_count() > len(encoder.encode(images).devices())
    np.testing.assert_allclose(encoder.encode(pixels), encoder.encode(images), atol=1e-5)
    np.testing.assert_allclose(encoder.encode_patches(pixels)[1], encoder.encode_patches(images)[1], atol=1e-5)


def test_a_run_that_reduces_jpeg_has_other_keys(tmp_path):
    write_clip(tmp_path / "a")
    changes = {"image_encoder__name": "pretrained", "image_encoder__weights": str(tmp_path / "a")}
    runs = small_settings(**changes), small_settings(**changes, image_encoder__reduced_jpeg=True)
    plain, reduced = map(load_frozen_encoder, runs)
    assert image_keys(plain, ["file:x"]) != image_keys(reduced, ["file:x"])


def test_shards_read_as_the_whole(tmp_path):
    tensors = write_clip(tmp_path / "whole")
    write_clip(tmp_path / "shards")
    (tmp_path / "shards" / "model.safetensors").unlink()
    names, shards = sorted(tensors), {}
    for k in range(2):
        part = {name: tensors[name] for name in names[k::2]}
        save_file(part, tmp_path / "shards" / f"model-{k}.safetensors")
        shards |= dict.fromkeys(part, f"model-{k}.safetensors")
    index = tmp_path / "shards" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": shards}))
    whole, sharded = (load_image_encoder(str(tmp_path / name)) for name in ("whole", "shards"))
    assert whole.digest == sharded.digest
    np.testing.assert_array_equal(whole.encode(IMAGES), sharded.encode(IMAGES))

    without = {name: shard for name, shard in shards.items() if name != names[0]}
    outside = ("../whole/model.safetensors", str(tmp_path / "whole" / "model.safetensors"), "..", "model.bin")
    for weights, message in (
        (shards | {"ghost": "model-0.safetensors"}, "index and files disagree on ghost"),
        (without, f"index and files disagree on {names[0]}"),
        *((without | {names[0]: path}, r"not a \.safetensors file name in the same folder") for path in outside),
    ):
        index.write_text(json.dumps({"weight_map": weights}))
        refuse(message, read_tensors, tmp_path / "shards")


def test_leftover_missing_and_misshapen_are_all_listed(tmp_path):
    tensors = write_clip(tmp_path)
    del tensors["vision_model.encoder.layers.1.mlp.fc1.bias"]
    tensors["surprise"] = np.zeros(3, np.float32)
    tensors["visual_projection.weight"] = tensors["visual_projection.weight"].T.copy()
    tensors["vision_model.pre_layrnorm.bias"] = np.zeros(16, np.int32)
    tensors["vision_model.post_layernorm.bias"] = np.full(16, np.nan, np.float32)
    tensors["vision_model.embeddings.position_ids"] = np.arange(5)[None]  # a buffer, which may be there
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(BadInput) as caught:
        load_image_encoder(str(tmp_path))
    assert str(caught.value).startswith(
        f"{tmp_path}: the tensors do not match the config: unexpected: surprise. missing"
    )
    for words in (
        "missing: vision_model.encoder.layers.1.mlp.fc1.bias. wrong",
        "visual_projection.weight has shape [16, 12], expected [12, 16]",
        "vision_model.pre_layrnorm.bias has dtype int32",
        "vision_model.post_layernorm.bias has values that are not finite",
    ):
        assert words in str(caught.value)


def test_broken_and_truncated_files_are_refused_and_a_bin_needs_torch(tmp_path, monkeypatch):
    index = tmp_path / "model.safetensors.index.json"
    for text in ("", "[]", "{}", '{"weight_map": []}', "{" * 10_000):
        index.write_text(text)
        refuse(r"index\.json: .*; expected a weight_map", read_tensors, tmp_path)
    index.unlink()
    write_clip(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    for size in (0, 5, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        refuse("not a complete safetensors file", read_tensors, tmp_path)
    path.rename(tmp_path / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    refuse(r"need torch.*pip install.*\.safetensors", load_image_encoder, str(tmp_path))


def test_pickle_is_never_run(tmp_path):
    torch = pytest.importorskip("torch")

    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "trapped"), "w"))

    torch.save({"tensor": Trap()}, tmp_path / "pytorch_model.bin")
    refuse(r"state_dict written by torch\.save", read_tensors, tmp_path)
    assert not (tmp_path / "trapped").exists()


def test_downloads(tmp_path, monkeypatch):
    """What is needed, PyTorch's files last; paths are never asked for, and without a network two ways out are named."""
    import huggingface_hub

    asked = []

    def download(repository, *, revision, allow_patterns):
        asked.append((repository, revision, [name for name in allow_patterns if name.endswith(".bin")]))
        return str(tmp_path)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for source in ("./nowhere", "/nowhere/at/all", "a/b/c", "../x"):
        refuse("no such folder or file", resolve, source)
    assert resolve("owner/name@abc") == tmp_path
    torch_files = ["pytorch_model.bin", "open_clip_pytorch_model.bin"]
    assert asked == [("owner/name", "abc", []), ("owner/name", "abc", torch_files)]
    (tmp_path / "model.safetensors").touch()
    resolve("owner/name")
    assert asked[2:] == [("owner/name", None, [])]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **named: 1 / 0)
    refuse(r"hf download openai/clip .*or import features made elsewhere$", load_image_encoder, "openai/clip")
    refuse(r"hf download owner/qwen --local-dir FOLDER\) and name the folder$", load_qwen, "owner/qwen")


def test_digest():
    tensors = {"b": np.arange(3, dtype=np.float32), "a": np.ones((2, 2), np.float32)}
    digest = weights_digest(tensors)
    assert digest == weights_digest(dict(reversed(tensors.items())))
    assert digest == weights_digest(tensors | {"a": np.asfortranarray(tensors["a"])})
    changed = [tensors | {"b": b} for b in (tensors["b"] + np.float32(1e-6), tensors["b"].astype(np.float64))]
    changed += [tensors | {"a": np.ones(4, np.float32)}, {"b": tensors["b"], "c": tensors["a"]}, {"b": tensors["b"]}]
    assert len({digest, *map(weights_digest, changed)}) == 6
    # Stored features are found by it: it may not change between versions or machines.
    assert digest == "73133731ed6a951cb4f1033833e8707b8d9cee2d32216d68e44e39f864a5b8ee"


BAD_CONFIGS = {
    r"config\.json\.hidden_act: 'swish' is not one of 'quick_gelu', 'gelu'": {"hidden_act": "swish"},
    r"num_attention_heads: 3 is not a divisor of hidden_size \(16\)": {"num_attention_heads": 3},
    "not a whole number from 1 to 256": {"num_hidden_layers": 10**9},
    "hidden_size: '16' is not": {"hidden_size": "16"},
    "layer_norm_eps: None is not": {"layer_norm_eps": None},
    "model_type 'llama' is not supported": {"model_type": "llama"},
}
BAD_PREPROCESSING = {
    "expected a short side": {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}},
    "image size 64 is not the network's 32": {"size": 64, "crop_size": 64},
    "resample: 2 is not one of 3": {"resample": 2},
    "image_mean: .* is not 3 numbers": {"image_mean": [0.5]},
    **{
        f"do_{key}: {value} is not one of True": {f"do_{key}": value}
        for key, value in (("normalize", False), ("normalize", 1), ("rescale", 1), ("resize", 1))
    },
    "rescale_factor: 1.0 is not a number from": {"rescale_factor": 1.0},
}


def test_configs(tmp_path):
    write_clip(tmp_path)
    good = json.loads((tmp_path / "config.json").read_text())
    for name, known, bad in (
        ("preprocessor_config.json", {"size": 32}, BAD_PREPROCESSING),
        ("config.json", good, BAD_CONFIGS),
    ):
        for message, change in bad.items():
            (tmp_path / name).write_text(json.dumps(known | change))
            refuse(message, load_image_encoder, str(tmp_path))
        (tmp_path / name).write_text(json.dumps(known))
    for config, fit in [
        ({"size": 32, "crop_size": 32, "resample": 3}, "crop"),
        ({"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}, "crop"),
        ({"size": {"height": 32, "width": 32}, "do_center_crop": False}, "stretch"),
    ]:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(config | {"image_mean": [0.1, 0.2, 0.3]}))
        preprocessing = read_preprocessing(tmp_path, size=32)
        assert (preprocessing.fit, preprocessing.mean, preprocessing.size) == (fit, (0.1, 0.2, 0.3), 32)
    (tmp_path / "preprocessor_config.json").unlink()
    inside = {"image_processor": {"size": 32, "crop_size": 32, "image_mean": [0.4, 0.5, 0.6]}}
    (tmp_path / "processor_config.json").write_text(json.dumps(inside))  # as transformers 5 saves a processor
    assert read_preprocessing(tmp_path, size=32).mean == (0.4, 0.5, 0.6)


def test_published_counts(tmp_path):
    """facts.md: the whole CLIP (both towers) and BERT with its pooler, without allocating any of it."""
    counts = {}
    for name in ("clip", "bert"):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": name}))
        with_pooler = {"pooler.dense.weight": np.zeros((768, 768), np.float32)}
        counts[name] = count_parameters(recognise(tmp_path, with_pooler, jnp.float32).shapes())
    assert counts == {"clip": 151_277_313, "bert": 109_482_240}
    assert counts["clip"] + counts["bert"] + 22_904_874 == 283_664_427
    assert counts["clip"] + 285_226 == 151_562_539


BFLOAT16 = ml_dtypes.bfloat16
SHAPES = {"qkv": {name: types.SimpleNamespace(shape=shape) for name, shape in (("kernel", (4, 6)), ("bias", (6,)))}}
TABLE = {
    name: place
    for part, letter in enumerate("qkv")
    for name, place in dense_slots(letter, "qkv", part=part, parts=3).items()
}


def draw(dtypes):
    """Tensors of each part in its dtype, in PyTorch's shapes."""
    rng = np.random.default_rng(0)
    shapes = (("weight", (2, 4)), ("bias", (2,)))
    return {
        f"{letter}.{name}": rng.standard_normal(shape).astype(dtype)
        for letter, dtype in zip("qkv", dtypes, strict=True)
        for name, shape in shapes
    }


def fuse(tensors, dtype):
    """The parameters by NumPy alone."""
    weights, biases = ([tensors[f"{letter}.{name}"].astype(dtype) for letter in "qkv"] for name in ("weight", "bias"))
    return {"kernel": np.concatenate(weights).T, "bias": np.concatenate(biases)}


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ((np.float16, np.float16, np.float16), np.float16),
        ((BFLOAT16, BFLOAT16, BFLOAT16), BFLOAT16),
        ((BFLOAT16, BFLOAT16, np.float32), np.float32),
        ((np.float16, np.float16, BFLOAT16), np.float32),
        ((np.float16, BFLOAT16, np.float64), np.float64),
    ],
)
def test_parts_of_several_dtypes_keep_their_values_in_any_order(dtypes, expected):
    for order in set(itertools.permutations(dtypes)):
        tensors = draw(order)
        found = assign(TABLE, tensors, shapes=SHAPES, dtype=None)["qkv"]
        assert {leaf.dtype for leaf in found.values()} == {np.dtype(expected)}, order
        for name, values in fuse(tensors, np.float64).items():
            np.testing.assert_array_equal(found[name].astype(np.float64), values, err_msg=f"{order} {name}")


def test_values_are_read_when_they_are_asked_for():
    tensors = draw((np.float16, BFLOAT16, np.float16))
    found, expected = assign_later(TABLE, tensors, shapes=SHAPES)["qkv"], fuse(tensors, np.float32)
    for name, values in expected.items():
        assert found[name].shape == values.shape
        np.testing.assert_array_equal(np.asarray(found[name]), values)
        np.testing.assert_array_equal(np.asarray(found[name], np.float64), values.astype(np.float64))
    tensors["k.bias"] = tensors["k.bias"] * 2
    np.testing.assert_array_equal(np.asarray(found["bias"])[2:4], expected["bias"][2:4] * 2)
    tensors["k.bias"] = np.full(2, np.nan)
    with pytest.raises(BadInput, match=r"weights: .* changed since they were checked: k\.bias has values that are not"):
        np.asarray(found["bias"])
    tensors = draw((np.float32, np.float32, np.float32)) | {"v.bias": np.full(2, np.inf), "more": np.zeros(1)}
    del tensors["q.bias"]
    with pytest.raises(BadInput, match=r"unexpected: more\. missing: q\.bias\. wrong: v\.bias has values"):
        assign_later(TABLE, tensors, shapes=SHAPES)
