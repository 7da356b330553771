"""BiomedCLIP's checkpoint layout against a small re-implementation of timm's ViT, and transformers' BERT."""

import json

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
if not hasattr(transformers, "BertModel"):
    pytest.skip("needs transformers' torch classes", allow_module_level=True)

from encoders.torch_checkpoints import as_torch, largest_difference, pictures, randomise, write_tokenizer
from refusals import refuse
from safetensors.torch import load_file, save_file
from torch import nn

from stepcot_jax.encoders.load import load_image_encoder, load_text_encoder


class Attention(nn.Module):
    def __init__(self, width, num_heads):
        super().__init__()
        self.num_heads, self.qkv, self.proj = num_heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        cases, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(cases, tokens, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(cases, tokens, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(nn.functional.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, eps=1e-6), Attention(width, width // 64)
        self.norm2, self.mlp = nn.LayerNorm(width, eps=1e-6), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Trunk(nn.Module):
    def __init__(self, width, num_layers, image_size, patch_size):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (image_size // patch_size) ** 2 + 1, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch_size, patch_size)})
        self.blocks = nn.Sequential(*(Block(width) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x):
        x = self.patch_embed["proj"](x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.norm(self.blocks(x))


class BiomedCLIP(nn.Module):
    def __init__(self, width, num_layers, image_size, patch_size):
        super().__init__()
        head = nn.ModuleDict({"proj": nn.Linear(width, 512, bias=False)})
        self.visual = nn.ModuleDict({"trunk": Trunk(width, num_layers, image_size, patch_size), "head": head})
        sizes = {"hidden_size": width, "num_hidden_layers": num_layers, "num_attention_heads": width // 64}
        config = transformers.BertConfig(**sizes, intermediate_size=4 * width)
        hidden = (width + 512) // 2
        project = (nn.Linear(width, hidden, bias=False), nn.GELU(), nn.Linear(hidden, 512, bias=False))
        bert = transformers.BertModel(config, add_pooling_layer=False)
        self.text = nn.ModuleDict({"transformer": bert, "proj": nn.Sequential(*project)})
        self.logit_scale = nn.Parameter(torch.tensor(4.0))


def save(folder, *, file="open_clip_model.safetensors"):
    model = randomise(BiomedCLIP(128, 2, 36, 8))
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    tensors["text.transformer.embeddings.position_ids"] = torch.arange(512)[None]
    save_file(tensors, folder / file) if file.endswith("safetensors") else torch.save(tensors, folder / file)
    vision = {"timm_model_name": "vit_base_patch16_224", "timm_proj": "linear", "image_size": 36}
    text = {"hf_model_name": "microsoft/...", "hf_proj_type": "mlp", "context_length": 256}
    colours = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.25]}
    sizes = {"embed_dim": 512, "vision_cfg": vision, "text_cfg": text}
    config = {"model_cfg": sizes, "preprocess_cfg": colours}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return model


@pytest.mark.slow
def test_both_towers(tmp_path):
    model = save(tmp_path, file="open_clip_pytorch_model.bin")
    images, texts = load_image_encoder(str(tmp_path)), load_text_encoder(str(tmp_path), max_tokens=300)
    assert (images.preprocessing.mean, texts.max_tokens) == ((0.4, 0.5, 0.6), 256)
    assert images.num_parameters == texts.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    pixels = pictures(1, 3, images.preprocessing.size)
    prompts = ["is there any lesion?", "normal", "no effusion " * 40]
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    batch = tokenizer(prompts, padding="max_length", max_length=256, truncation=True, return_tensors="pt")
    attended = batch["attention_mask"]
    with torch.inference_mode():
        tokens = model.visual["trunk"](as_torch(pixels))
        hidden = model.text["transformer"](input_ids=batch["input_ids"], attention_mask=attended).last_hidden_state
        pairs = zip(
            images.encode_patches(pixels), (model.visual["head"]["proj"](tokens[:, 0]), tokens[:, 1:]), strict=True
        )
        pairs = [*pairs, (texts.encode(prompts), hidden[:, 0])]
        pairs.append((texts.encode(prompts, pooling="projected"), model.text["proj"](hidden[:, 0])))
    for found, expected in pairs:
        assert largest_difference(found, expected) <= 1e-4


def test_a_missing_tensor_is_named_and_another_open_clip_model_is_refused(tmp_path):
    save(tmp_path)
    tensors = load_file(tmp_path / "open_clip_model.safetensors")
    del tensors["visual.trunk.blocks.1.norm2.bias"]
    save_file(tensors, tmp_path / "open_clip_model.safetensors")
    refuse(r"missing: visual\.trunk\.blocks\.1\.norm2\.bias", load_image_encoder, str(tmp_path))
    save_file({"visual.class_embedding": torch.zeros(4)}, tmp_path / "open_clip_model.safetensors")
    refuse("not a timm ViT with a BERT", load_image_encoder, str(tmp_path))
