"""The networks and encoders that settings describe, also for readers of a run: of chains, then of policies."""

import dataclasses
import functools
import pathlib
from typing import TYPE_CHECKING, Any

import flax.linen as nn
import jax.numpy as jnp
from jax.sharding import Mesh

from stepcot_jax.chain import Chain
from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.encoders.resnet import ResNet
from stepcot_jax.run.settings import Settings

if TYPE_CHECKING:
    from stepcot_jax.features.patch_input import PatchInput
    from stepcot_jax.features.store import FrozenImageEncoder
    from stepcot_jax.models.prefix_vlm import PrefixVlm
    from stepcot_jax.policies.policy import AnyPolicy
    from stepcot_jax.policies.policy_files import AnyTokenizer
    from stepcot_jax.run.qwen_source import QwenSource
    from stepcot_jax.systems.networks import Networks
    from stepcot_jax.systems.sft import Normalise

TEACHER = {
    **{name: name for name in ("width", "num_layers", "num_heads", "negative_slope", "memory", "write_back", "text")},
    **{f"{part}_dropout": f"{part}_dropout_rate" for part in ("attention", "context", "head")},
}
"""Settings of the teacher -> fields of `Teacher`."""


def make_networks(settings: Settings, chain: Chain, image_encoder: nn.Module | None) -> "Networks":
    """Return the modules that the settings describe."""
    from stepcot_jax.models.form_reader import LinearHeads  # policies need no networks of chains
    from stepcot_jax.models.student import Baseline, Student
    from stepcot_jax.models.teacher import Teacher
    from stepcot_jax.systems.networks import Networks

    teacher, student, dtype = settings.teacher, settings.student, jnp.dtype(settings.training.compute_dtype)
    if image_encoder is not None and dtype != jnp.float32:
        image_encoder = image_encoder.clone(dtype=dtype)
    return Networks(
        teacher=Teacher(
            answers_per_step=chain.answers_per_step,
            **{field: getattr(teacher, name) for name, field in TEACHER.items()} | {"text": settings.reads_prompts},
            remat=settings.parallel.remat,
            dtype=dtype,
        ),
        student=Student(
            answers_per_step=chain.answers_per_step, width=student.width, dropout_rate=student.dropout, dtype=dtype
        ),
        image_encoder=image_encoder,
        remat=settings.parallel.remat,
        projection_width=settings.loss.projection_width,
        baseline=Baseline(answers_per_step=chain.answers_per_step, hidden=settings.baseline.hidden, dtype=dtype),
        plain=LinearHeads(chain.answers_per_step) if "plain" in settings.trains.names else None,
    )


def trained_preprocessing(settings: Settings) -> Preprocessing:
    """Return the preprocessing of images for a trained encoder."""
    encoder = settings.image_encoder
    mean, std = encoder.mean, encoder.std
    reduced_jpeg = encoder.reduced_jpeg
    return Preprocessing(size=encoder.image_size, mean=mean, std=std, fit=encoder.fit, reduced_jpeg=reduced_jpeg)


def load_frozen_encoder(settings: Settings) -> "FrozenImageEncoder":
    """Return the encoder that `image_encoder.weights` names: of this package, or of transformers in PyTorch."""
    from stepcot_jax.features.frozen_encoders import load_encoder  # the readers of every kind of weights

    encoder: Any = load_encoder(settings.image_encoder.weights, settings.image_encoder.dtype)
    if not settings.image_encoder.reduced_jpeg:
        return encoder
    preprocessing = dataclasses.replace(encoder.preprocessing, reduced_jpeg=True)
    return dataclasses.replace(encoder, preprocessing=preprocessing)


# The policy, tokenizer and patches of a policy's run: the small decoder, or a Qwen2.5-VL.


def find_qwen(settings: Settings, *, workdir: pathlib.Path | None = None) -> "QwenSource | None":
    """Return the Qwen2.5-VL that the settings name; None for the small decoder, which needs none of its modules."""
    if not settings.policy.weights:
        return None
    from stepcot_jax.run import qwen_source

    return qwen_source.find_qwen(settings, workdir=workdir)


def make_policy(settings: Settings, *, num_words: int) -> "PrefixVlm":
    """Return the vision-prefix decoder that the settings describe, with its own encoder or on given patches."""
    from stepcot_jax.models.decoder import DecoderSizes  # runs of chains need no policy
    from stepcot_jax.models.prefix_vlm import PrefixVlm
    from stepcot_jax.policies.policy import PatchMap, rotary_sections

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


def make_normalise(settings: Settings) -> "Normalise":
    """Return a function from pictures, or patches of a frozen encoder, to the network's input."""
    from stepcot_jax.policies.policy import normalise

    encoder = settings.image_encoder
    return functools.partial(normalise, mean=encoder.mean, std=encoder.std)


def load_patches(settings: Settings) -> "PatchInput | None":
    """Return the patches of the frozen encoder that the settings name; None if the policy trains its own encoder."""
    if settings.image_encoder.name != "pretrained":
        return None
    return patches_of(settings, load_frozen_encoder(settings))


def patches_of(settings: Settings, encoder: "FrozenImageEncoder") -> "PatchInput":
    """Return the patches of an encoder as the settings describe; float32 with `features.patches="none"`."""
    from stepcot_jax.features.patch_input import make_patch_input

    return make_patch_input(
        encoder,
        image_size=settings.image_encoder.image_size,
        grid=settings.policy.grid,
        dtype=settings.features.patches,
        batch_size=settings.features.batch_size or encoder.batch_size,
    )


def read_tokenizer(workdir: pathlib.Path, settings: Settings) -> "AnyTokenizer":
    """Return the tokenizer of a run."""
    from stepcot_jax.policies.policy_files import VOCABULARY_FILE, load_pretrained
    from stepcot_jax.policies.tokenizers import Vocabulary

    if source := find_qwen(settings, workdir=workdir):
        return source.read_tokenizer(None if source.folder else Vocabulary.read(workdir / VOCABULARY_FILE))
    if settings.policy.tokenizer:
        return load_pretrained(settings.policy.tokenizer)
    return Vocabulary.read(workdir / VOCABULARY_FILE)


def choose_policy(
    settings: Settings, tokenizer: "AnyTokenizer", source: "QwenSource | None", *, mesh: Mesh | None = None
) -> "AnyPolicy":
    """Return the policy of a run."""
    if source is not None and hasattr(tokenizer, "image_token"):
        chat: Any = tokenizer
        return source.make_policy(settings, chat, mesh=mesh)
    return make_policy(settings, num_words=tokenizer.num_words)
