"""transformers' Qwen2.5 and Qwen2.5-VL with random weights, saved in a folder."""

import json

import pytest
from encoders.torch_checkpoints import randomise
from policies.qwen.tiny_qwen import IMAGE, TEXT, VISION, WORDS

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "Qwen2_5_VLForConditionalGeneration"):
    pytest.skip("needs transformers' torch classes", allow_module_level=True)

ROTARY = {"rope_type": "default", "rope_theta": 1e6}
SPECIAL = {"bos_token_id": 56, "eos_token_id": 57, "pad_token_id": 0}
_NOT_TEXT = ("model_type", "rope_theta", "eos_token_id", "tie_word_embeddings")


def make_text(folder, *, shards=None, **changes):
    sizes = {key: value for key, value in TEXT.items() if key not in _NOT_TEXT}
    config = transformers.Qwen2Config(**sizes | SPECIAL | {"rope_parameters": ROTARY} | changes)
    return _save(transformers.Qwen2ForCausalLM(config), folder, shards)


def make_vl(folder, *, shards=None, vision=None, tied=False, **changes):
    sizes = {key: value for key, value in TEXT.items() if key not in _NOT_TEXT}
    rotary = ROTARY | {"mrope_section": [1, 2, 1]}
    config = transformers.Qwen2_5_VLConfig(
        text_config=sizes | SPECIAL | {"rope_parameters": rotary} | changes,
        vision_config={key: value for key, value in VISION.items() if key != "in_chans"} | (vision or {}),
        image_token_id=IMAGE,
        video_token_id=IMAGE - 1,
        vision_start_token_id=IMAGE - 2,
        vision_end_token_id=IMAGE - 3,
        tie_word_embeddings=tied,
    )
    patch_size = config.vision_config.patch_size
    unit = (2 * patch_size) ** 2
    limits = {"patch_size": patch_size, "merge_size": 2, "min_pixels": 4 * unit, "max_pixels": 64 * unit}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "preprocessor_config.json").write_text(json.dumps(limits))
    return _save(transformers.Qwen2_5_VLForConditionalGeneration(config), folder, shards)


def _save(model, folder, shards):
    torch.manual_seed(0)
    randomise(model).save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    assert WORDS == 60
    return model


def torch_inputs(tokens, images=(), *, image_token=IMAGE):
    tokens = torch.tensor([tokens])
    found = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    if not images:
        return found
    sizes = [[1, 2 * image.num_rows, 2 * image.num_columns] for image in images]
    patches = torch.cat([torch.from_numpy(image.patches) for image in images])
    kinds = (tokens == image_token).int()
    return found | {"pixel_values": patches, "image_grid_thw": torch.tensor(sizes), "mm_token_type_ids": kinds}
