"""Checkpoints of tiny Qwen2.5 and Qwen2.5-VL models with random weights, without torch, and published configs."""

import functools
import json
import pathlib
import tempfile

import ml_dtypes
import numpy as np
from oracles.random_params import randomise
from safetensors.numpy import save_file

from stepcot_jax.models.qwen import QwenVl
from stepcot_jax.policies.qwen_inputs import QwenPreprocessing, cut_image
from stepcot_jax.policies.qwen_weights import NEW_TEXT, OLD_TEXT, name_tensors, qwen_shapes, read_qwen_config

WORDS, IMAGE, STOPS = 60, 55, (57, 58)
TEXT = {
    "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4,
    "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": WORDS,
    "tie_word_embeddings": True, "eos_token_id": 57,
}  # fmt: skip
VISION = {
    "depth": 3, "hidden_act": "silu", "hidden_size": 24, "intermediate_size": 20, "num_heads": 2, "in_chans": 3,
    "out_hidden_size": 32, "patch_size": 2, "spatial_merge_size": 2, "window_size": 8, "temporal_patch_size": 2,
    "fullatt_block_indexes": [1],
}  # fmt: skip
IMAGES = TEXT | {
    "model_type": "qwen2_5_vl", "rope_scaling": {"type": "mrope", "mrope_section": [1, 2, 1]}, "image_token_id": IMAGE,
    "vision_config": VISION, "tie_word_embeddings": False,
}  # fmt: skip
PREPROCESSING = QwenPreprocessing(patch_size=2, min_pixels=16, max_pixels=16 * 60)
TOWER = {
    "depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "in_chans": 3,
    "patch_size": 14, "spatial_merge_size": 2, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31],
    "temporal_patch_size": 2,
}  # fmt: skip


def published(width, layers, heads, kv_heads, mlp, words, tied, *, images):
    """The config.json of a published model, as far as it matters."""
    config = TEXT | {
        "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": mlp,
        "num_key_value_heads": kv_heads, "vocab_size": words, "tie_word_embeddings": tied, "eos_token_id": 151645,
    }  # fmt: skip
    if not images:
        return config
    return config | {
        "model_type": "qwen2_5_vl", "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "image_token_id": 151655, "vision_config": TOWER | {"out_hidden_size": width},
    }  # fmt: skip


def write_config(folder, config, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@functools.cache
def tiny():
    with tempfile.TemporaryDirectory() as folder:
        config = read_qwen_config(write_config(pathlib.Path(folder), IMAGES))
    return config, randomise(qwen_shapes(config.sizes, config.vision), seed=3)


def picture(seed, height, width):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def cut_pictures(*sizes):
    return [cut_image(picture(seed, *size), PREPROCESSING) for seed, size in enumerate(sizes)]


def draw_tensors(config, *, is_new=False, seed=0):
    params = randomise(qwen_shapes(config.sizes, config.vision), seed)
    network = QwenVl(config.sizes, config.vision)
    return name_tensors(params, network, prefix=NEW_TEXT if is_new else OLD_TEXT), params


def write_qwen(folder, config, *, is_new=False, shards=1, bfloat16=False, **changes):
    write_config(folder, config, **changes)
    tensors, params = draw_tensors(read_qwen_config(folder), is_new=is_new)
    if bfloat16:
        tensors = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors.items()}
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return tensors, params
    files = {name: f"model-{place % shards + 1:05}-of-{shards:05}.safetensors" for place, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in names if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return tensors, params


CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>")


def write_tokenizer(folder):
    """Qwen's kind of tokenizer: bytes without merges, then the control tokens, 256 to 261; and its config."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"})
    )


def write_reader(folder, *, images=True, max_pixels=16 * 60):
    config = IMAGES | {"image_token_id": 261} if images else TEXT
    write_qwen(folder, config, vocab_size=262, eos_token_id=258, bfloat16=True)
    write_tokenizer(folder)
    if images:
        limits = {"patch_size": 2, "merge_size": 2, "min_pixels": 16, "max_pixels": max_pixels}
        (folder / "preprocessor_config.json").write_text(json.dumps(limits))
