"""The policy, tokenizer and pictures that the settings of a run describe: the small decoder, or a Qwen2.5-VL."""

import dataclasses
import functools
import pathlib
import re
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from stepcot_jax.encoders.checkpoints import resolve
from stepcot_jax.encoders.resnet import ResNet
from stepcot_jax.encoders.text_encoder import load_tokenizer
from stepcot_jax.features.patch_input import PatchInput, make_patch_input
from stepcot_jax.features.store import FrozenImageEncoder
from stepcot_jax.host.download import is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.decoder import DecoderSizes
from stepcot_jax.models.low_rank import LowRankSettings, list_layers
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.models.qwen import SquareQwen, VisionSizes
from stepcot_jax.policies.policy import AnyPolicy, PatchMap, normalise, rotary_sections
from stepcot_jax.policies.policy_files import VOCABULARY_FILE, AnyTokenizer, load_pretrained
from stepcot_jax.policies.qwen_inputs import ChatTokenizer, find_control_tokens, read_qwen_preprocessing
from stepcot_jax.policies.qwen_policy import Params, QwenPolicy
from stepcot_jax.policies.qwen_weights import (
    QwenConfig,
    copy_files,
    load_qwen,
    published_config,
    qwen_shapes,
    read_qwen_config,
    shrink_config,
)
from stepcot_jax.policies.tokenizers import PretrainedTokenizer, Vocabulary
from stepcot_jax.run.configs import load_config
from stepcot_jax.run.fields import naming
from stepcot_jax.run.networks import load_frozen_encoder
from stepcot_jax.run.settings import Settings
from stepcot_jax.systems.sft import Normalise

FOLDER = "qwen"
"""Folder of a workdir with config, tokenizer and preprocessing of the checkpoint that the run started from."""

_LONGEST_TEXT = 2**17


@dataclasses.dataclass(frozen=True, kw_only=True)
class QwenSource:
    """A Qwen2.5-VL that a run starts from."""

    folder: pathlib.Path | None  # with its config and tokenizer; None for only the sizes of a published model
    config: QwenConfig  # shrunk as the settings say
    vision: VisionSizes
    grid: int  # tokens on a side of an image

    def read_tokenizer(self, vocabulary: Vocabulary | None = None) -> ChatTokenizer:
        """Return the folder's tokenizer; without a folder, the vocabulary with control tokens."""
        number = self.grid**2
        if self.folder is None:
            if vocabulary is None:
                raise ValueError("vocabulary is required without a folder")
            return ChatTokenizer.around(vocabulary, num_image_tokens=number)
        size = self.config.sizes.num_words
        loaded = load_tokenizer(self.folder, max_tokens=_LONGEST_TEXT, vocabulary_size=size).loaded
        control = find_control_tokens(loaded, source=str(self.folder))
        tokenizer = ChatTokenizer(
            PretrainedTokenizer(loaded), control, num_image_tokens=number, stops=self.config.stops
        )
        if tokenizer.image_token != self.config.image_token:
            raise BadInput(
                f"{self.folder}: the image token is {tokenizer.image_token} in the tokenizer and "
                f"{self.config.image_token} in config.json"
            )
        return tokenizer

    def make_policy(self, settings: Settings, tokenizer: ChatTokenizer, *, mesh: Mesh | None = None) -> QwenPolicy:
        """Return the policy."""
        policy, sizes = settings.policy, self.config.sizes
        if self.folder is None:
            sizes = dataclasses.replace(sizes, num_words=tokenizer.num_words)
        network = SquareQwen(
            sizes,
            self.vision,
            jnp.dtype(settings.training.compute_dtype),
            settings.parallel.remat,
            grid=self.grid,
            image_token=tokenizer.image_token,
        )
        low_rank = None
        if policy.low_rank:
            low_rank = LowRankSettings(
                rank=policy.low_rank, alpha=policy.low_rank_alpha, targets=policy.low_rank_targets
            )
        return QwenPolicy(network, low_rank, mesh, is_given=not policy.random)

    def load(self, policy: QwenPolicy) -> Params:
        """Return the checkpoint's parameters in the parts of the policy, without LoRA's, as stored, all checked."""
        # `training.state.put_given` reads and casts them again, one at a time, so that the host holds a single one.
        loaded = load_qwen(str(self.folder), dtype=policy.dtype, param_dtype="stored")
        return policy.divide(loaded.params)

    def copy_files(self, workdir: pathlib.Path) -> None:
        """Copy config, tokenizer and preprocessing into a workdir, so that the run is read without the checkpoint."""
        if self.folder is not None and not (workdir / FOLDER).exists():
            copy_files(self.folder, workdir / FOLDER)


def _check_targets(targets: str, config: QwenConfig) -> None:
    """Refuse LoRA on no layer, or on the tower, whose layers are frozen and whose projector is trained in full."""
    names = list_layers(qwen_shapes(config.sizes, config.vision))
    matched = [name for name in names if re.fullmatch(targets, name)]
    outside = [name for name in matched if not name.startswith("decoder/")]
    if not matched or outside:
        layers = sorted({re.sub(r"\d+", "N", name) for name in names if name.startswith("decoder/")})
        what = f"{outside[0]}, which is not of the decoder" if outside else "no layer"
        raise BadInput(
            f"config.policy.low_rank_targets: {targets!r} matches {what} (expected a regular expression of whole "
            f"names: {', '.join(layers)}, where N is a number)"
        )


def find_qwen(settings: Settings, *, workdir: pathlib.Path | None = None) -> QwenSource:
    """Return the Qwen2.5-VL that the settings name; a missing Hugging Face id is downloaded."""
    policy = settings.policy
    folder: pathlib.Path | None = pathlib.Path(policy.weights).expanduser()
    with naming("config.policy.weights"):
        if workdir is not None and (workdir / FOLDER).is_dir():
            folder = workdir / FOLDER
        elif not policy.random or is_address(policy.weights):
            folder = resolve(policy.weights)
        elif not pathlib.Path(policy.weights).expanduser().is_dir():
            folder = None
        config = published_config(policy.weights) if folder is None else read_qwen_config(folder)
        if config.vision is None:
            raise BadInput(f"{folder} is a text model; a Qwen2.5-VL is required")
        config = shrink_config(config, policy.shrink)
    vision: Any = config.vision
    unit, size = vision.patch_size * vision.merge_size, settings.image_encoder.image_size
    if size % unit:
        raise BadInput(f"config.image_encoder.image_size: {size} is not a multiple of {unit} px, a token's side")
    if folder is not None:
        _check_pictures(settings, folder, vision)
        if workdir is None and policy.num_merges != (default := load_config("base").policy.num_merges):
            raise BadInput(
                f"config.policy.num_merges: {policy.num_merges} has no effect with the tokenizer of {folder} (leave it "
                f"out: {default})"
            )
    if workdir is None and policy.low_rank:
        _check_targets(policy.low_rank_targets, config)
    return QwenSource(folder=folder, config=config, vision=vision, grid=size // unit)


def _check_pictures(settings: Settings, folder: pathlib.Path, vision: VisionSizes) -> None:
    """Refuse pictures that the checkpoint's own preprocessing would change."""
    expected, encoder = read_qwen_preprocessing(folder, vision), settings.image_encoder
    for name in ("mean", "std"):
        value, required = getattr(encoder, name), getattr(expected, name)
        if not np.allclose(value, required, atol=1e-6):
            raise BadInput(f"config.image_encoder.{name}: {value} is not that of {folder} ({required})")
    if not expected.min_pixels <= encoder.image_size**2 <= expected.max_pixels:
        raise BadInput(
            f"config.image_encoder.image_size: {encoder.image_size} px squared is not {expected.min_pixels} to "
            f"{expected.max_pixels} pixels, the limits of {folder}"
        )


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
        batch_size=settings.features.batch_size,
    )


def read_source(workdir: pathlib.Path, settings: Settings) -> QwenSource | None:
    """Return the Qwen2.5-VL that a run started from; None for the small decoder."""
    return find_qwen(settings, workdir=workdir) if settings.policy.weights else None


def read_tokenizer(workdir: pathlib.Path, settings: Settings) -> AnyTokenizer:
    """Return the tokenizer of a run."""
    if source := read_source(workdir, settings):
        return source.read_tokenizer(None if source.folder else Vocabulary.read(workdir / VOCABULARY_FILE))
    if settings.policy.tokenizer:
        return load_pretrained(settings.policy.tokenizer)
    return Vocabulary.read(workdir / VOCABULARY_FILE)


def choose_policy(
    settings: Settings, tokenizer: AnyTokenizer, source: QwenSource | None, *, mesh: Mesh | None = None
) -> AnyPolicy:
    """Return the policy of a run."""
    if source is not None and hasattr(tokenizer, "image_token"):
        chat: Any = tokenizer
        return source.make_policy(settings, chat, mesh=mesh)
    return make_policy(settings, num_words=tokenizer.num_words)
