"""A Qwen2.5-VL that a run starts from, as its settings name it: sizes, tokenizer, pictures and weights."""

import dataclasses
import pathlib
import re
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from stepcot_jax.encoders.checkpoints import resolve
from stepcot_jax.encoders.text_encoder import load_tokenizer
from stepcot_jax.host.download import is_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.low_rank import LowRankSettings, list_layers
from stepcot_jax.models.qwen import SquareQwen, VisionSizes
from stepcot_jax.policies.qwen_inputs import FRAME, ChatTokenizer, find_control_tokens, read_qwen_preprocessing
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
from stepcot_jax.run.fields import naming
from stepcot_jax.run.settings import Settings

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

    @property
    def frame(self) -> tuple[str, ...]:
        """Texts around a prompt, which a closed vocabulary needs words for."""
        return FRAME

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
        parallel = settings.parallel
        return QwenPolicy(network, low_rank, mesh, not policy.random, parallel.gather_once, parallel.scan_layers)

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
