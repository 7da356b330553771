"""The policy, tokenizer and pictures that the settings of a run describe: the small decoder, or a Qwen2.5-VL."""

import functools
import pathlib
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import Mesh

from stepcot_jax.encoders.resnet import ResNet
from stepcot_jax.features.patch_input import PatchInput, make_patch_input
from stepcot_jax.features.store import FrozenImageEncoder
from stepcot_jax.models.decoder import DecoderSizes
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.policies.policy import AnyPolicy, PatchMap, normalise, rotary_sections
from stepcot_jax.policies.policy_files import VOCABULARY_FILE, AnyTokenizer, load_pretrained
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.run.networks import load_frozen_encoder
from stepcot_jax.run.settings import Settings
from stepcot_jax.systems.sft import Normalise

if TYPE_CHECKING:
    from stepcot_jax.run.qwen_source import QwenSource


def find_qwen(settings: Settings, *, workdir: pathlib.Path | None = None) -> "QwenSource | None":
    """Return the Qwen2.5-VL that the settings name; None for the small decoder, which needs none of its modules."""
    if not settings.policy.weights:
        return None
    from stepcot_jax.run import qwen_source

    return qwen_source.find_qwen(settings, workdir=workdir)


def make_policy(settings: Settings, *, num_words: int) -> PrefixVlm:
    """Return the vision-prefix decoder that the settings describe, with its own encoder or on given patches."""
    policy, dtype = settings.policy, jnp.dtype(settings.training.compute_dtype)
    encoder: nn.Module = PatchMap(policy.grid)
    if not settings.image_encoder.is_frozen:
        encoder = ResNet(widths=policy.encoder_widths, blocks_per_stage=1, stem_kernel=5, grid=policy.grid, dtype=dtype)
    sizes = DecoderSizes(
        width=policy.width,
        num_layers=policy.num_layers,
        num_heads=policy.num_heads,
        num_kv_heads=policy.num_kv_heads,
        head_width=policy.head_width,
        mlp_width=policy.mlp_width,
        num_words=num_words,
        sections=rotary_sections(policy.head_width),
    )
    return PrefixVlm(encoder=encoder, grid=policy.grid, sizes=sizes, dtype=dtype)


def make_normalise(settings: Settings) -> Normalise:
    """Return a function from pictures, or patches of a frozen encoder, to the network's input."""
    encoder = settings.image_encoder
    return functools.partial(normalise, mean=encoder.mean, std=encoder.std)


def load_patches(settings: Settings) -> PatchInput | None:
    """Return the patches of the frozen encoder that the settings name; None if the policy trains its own encoder."""
    if settings.image_encoder.name != "pretrained":
        return None
    return patches_of(settings, load_frozen_encoder(settings))


def patches_of(settings: Settings, encoder: FrozenImageEncoder) -> PatchInput:
    """Return the patches of an encoder as the settings describe; float32 with `features.patches="none"`."""
    return make_patch_input(
        encoder,
        image_size=settings.image_encoder.image_size,
        grid=settings.policy.grid,
        dtype=settings.features.patches,
        batch_size=settings.features.batch_size or encoder.batch_size,
    )


def read_tokenizer(workdir: pathlib.Path, settings: Settings) -> AnyTokenizer:
    """Return the tokenizer of a run."""
    if source := find_qwen(settings, workdir=workdir):
        return source.read_tokenizer(None if source.folder else Vocabulary.read(workdir / VOCABULARY_FILE))
    if settings.policy.tokenizer:
        return load_pretrained(settings.policy.tokenizer)
    return Vocabulary.read(workdir / VOCABULARY_FILE)


def choose_policy(
    settings: Settings, tokenizer: AnyTokenizer, source: "QwenSource | None", *, mesh: Mesh | None = None
) -> AnyPolicy:
    """Return the policy of a run."""
    if source is not None and hasattr(tokenizer, "image_token"):
        chat: Any = tokenizer
        return source.make_policy(settings, chat, mesh=mesh)
    return make_policy(settings, num_words=tokenizer.num_words)
