"""BERT (Devlin et al., 2019) in transformers' layout, and BiomedCLIP (Zhang et al., 2023), whose text tower is a BERT.

BiomedCLIP's open_clip_config.json names its networks without their sizes, which are read from the tensors instead.
"""

from collections.abc import Mapping

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.encoders.assignment import Place, place_dense, place_norm
from stepcot_jax.encoders.clip import VisionTransformer, timm_vision_table
from stepcot_jax.encoders.transformer import (
    LayerNorm,
    TextOutput,
    Transformer,
    TransformerSizes,
    average_tokens,
    exact_gelu,
)
from stepcot_jax.host.errors import BadInput

HEAD_WIDTH = 64
"""Attention-head width of all timm ViTs and BERTs in open_clip's published configs."""

TEXT_PREFIX = "text.transformer."
MAX_LAYERS = 256
_PROJECTION = {1: ("",), 2: (".0", ".2")}
"""Suffixes of open_clip's projection layers, by their number; of two layers, index 1 is the GELU."""


class Bert(nn.Module):
    """BERT encoder: tokens to hidden states.

    Attributes:
      num_types: number of token types (first and second text).
      pooler: whether the checkpoint has BERT's pooler, a Dense layer on the first token. It counts as parameters but
        is not used: Step-CoT takes the first token's last hidden state.
      projection: widths of the bias-free layers that project the first token, with GELU between them (BiomedCLIP);
        empty for none.
    """

    sizes: TransformerSizes
    vocabulary_size: int
    max_positions: int
    num_types: int
    pooler: bool = True
    projection: tuple[int, ...] = ()
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "case token"],
        attended: Bool[Array, "case token"],
        types: Int[Array, "case token"] | None = None,
    ) -> TextOutput:
        """Encode texts.

        Args:
          attended: [case, token], False on padding.
          types: [case, token], 0 for the first text and 1 for the second; all 0 by default.
        """
        width = self.sizes.width
        words = nn.Embed(self.vocabulary_size, width, dtype=self.dtype, name="token_embedding")(tokens)
        zeros = nn.initializers.zeros
        positions = self.param("positions", zeros, (self.max_positions, width)).astype(self.dtype)
        type_embedding = nn.Embed(self.num_types, width, dtype=self.dtype, name="type_embedding")
        types = jnp.zeros_like(tokens) if types is None else types
        hidden = words + type_embedding(types) + positions[None, : tokens.shape[1]]
        hidden = LayerNorm(self.sizes.epsilon, name="embedding_norm")(hidden).astype(self.dtype)
        hidden = Transformer(self.sizes, self.dtype, name="blocks")(hidden, attended[:, None, :])
        cls = hidden[:, 0]
        if self.pooler:
            nn.Dense(width, dtype=self.dtype, name="pooler")(cls)
        hidden = hidden.astype(jnp.float32)
        return TextOutput(
            hidden=hidden, cls=hidden[:, 0], mean=average_tokens(hidden, attended), projected=self._project(cls)
        )

    def _project(self, vector: Float[Array, "case width"]) -> Float[Array, "case feature"] | None:
        if not self.projection:
            return None
        for layer, width in enumerate(self.projection):
            vector = exact_gelu(vector) if layer else vector
            vector = nn.Dense(width, use_bias=False, dtype=self.dtype, name=f"projection_{layer}")(vector)
        return vector.astype(jnp.float32)


def bert_table(num_layers: int, *, prefix: str, pooler: bool, legacy_norms: bool) -> dict[str, Place]:
    """Map transformers' BERT tensor names to places below "text/"."""

    def norm(found: str, place: str) -> dict[str, Place]:
        return place_norm(f"{prefix}{found}", f"text/{place}", legacy=legacy_norms)

    embeddings = f"{prefix}embeddings."
    table = {
        f"{embeddings}word_embeddings.weight": Place("text/token_embedding/embedding"),
        f"{embeddings}token_type_embeddings.weight": Place("text/type_embedding/embedding"),
        f"{embeddings}position_embeddings.weight": Place("text/positions"),
        **norm("embeddings.LayerNorm", "embedding_norm"),
        **(place_dense(f"{prefix}pooler.dense", "text/pooler") if pooler else {}),
    }
    for layer in range(num_layers):
        found, place = f"encoder.layer.{layer}.", f"blocks/layer_{layer}/"
        for part, name in enumerate(("query", "key", "value")):
            table |= place_dense(
                f"{prefix}{found}attention.self.{name}", f"text/{place}attention/qkv", part=part, parts=3
            )
        table |= place_dense(f"{prefix}{found}attention.output.dense", f"text/{place}attention/out")
        table |= norm(f"{found}attention.output.LayerNorm", f"{place}attention_norm")
        table |= place_dense(f"{prefix}{found}intermediate.dense", f"text/{place}up")
        table |= place_dense(f"{prefix}{found}output.dense", f"text/{place}down")
        table |= norm(f"{found}output.LayerNorm", f"{place}mlp_norm")
    return table


def make_biomedclip(
    tensors: Mapping[str, np.ndarray], *, image_size: int, max_tokens: int, dtype: DTypeLike, source: str
) -> tuple[VisionTransformer, Bert]:
    """Return the image and text towers, with sizes read from the tensors."""

    def shape(name: str, num_axes: int) -> tuple[int, ...]:
        if name not in tensors or tensors[name].ndim != num_axes:
            found = f"shape {list(tensors[name].shape)}" if name in tensors else "no tensor"
            raise BadInput(f"{source}: {name} must be a tensor with {num_axes} axes; got {found}")
        return tuple(tensors[name].shape)

    def blocks(prefix: str, up: str, *, epsilon: float, norm_first: bool) -> TransformerSizes:
        num_layers = next((n for n in range(MAX_LAYERS) if f"{prefix}{n}.{up}" not in tensors), MAX_LAYERS)
        mlp_width, width = shape(f"{prefix}0.{up}", 2)
        if width % HEAD_WIDTH:
            raise BadInput(f"{source}: the width of {prefix}0.{up} must be a multiple of {HEAD_WIDTH}; got {width}")
        return TransformerSizes(width, num_layers, width // HEAD_WIDTH, mlp_width, "gelu", epsilon, norm_first)

    vision = VisionTransformer(
        sizes=blocks("visual.trunk.blocks.", "mlp.fc1.weight", epsilon=1e-6, norm_first=True),
        image_size=image_size,
        patch_size=shape("visual.trunk.patch_embed.proj.weight", 4)[-1],
        projected_width=shape("visual.head.proj.weight", 2)[0],
        timm=True,
        dtype=dtype,
    )
    max_positions = shape(f"{TEXT_PREFIX}embeddings.position_embeddings.weight", 2)[0]
    if max_tokens > max_positions:
        raise BadInput(f"{source}: context_length must be at most {max_positions} tokens; got {max_tokens}")
    text = Bert(
        sizes=blocks(f"{TEXT_PREFIX}encoder.layer.", "intermediate.dense.weight", epsilon=1e-12, norm_first=False),
        vocabulary_size=shape(f"{TEXT_PREFIX}embeddings.word_embeddings.weight", 2)[0],
        max_positions=max_positions,
        num_types=shape(f"{TEXT_PREFIX}embeddings.token_type_embeddings.weight", 2)[0],
        pooler=f"{TEXT_PREFIX}pooler.dense.weight" in tensors,
        projection=tuple(
            shape(name, 2)[0] for name in map("text.proj{}.weight".format, ("", ".0", ".2")) if name in tensors
        ),
        dtype=dtype,
    )
    return vision, text


def biomedclip_table(vision: VisionTransformer, text: Bert) -> dict[str, Place]:
    """Map open_clip's tensor names to places below "image/" and "text/", and "logit_scale"."""
    return {
        "logit_scale": Place("logit_scale"),
        **timm_vision_table(vision.sizes.num_layers),
        **bert_table(text.sizes.num_layers, prefix=TEXT_PREFIX, pooler=text.pooler, legacy_norms=False),
        **{
            f"text.proj{suffix}.weight": Place(f"text/projection_{layer}/kernel", "dense")
            for layer, suffix in enumerate(_PROJECTION.get(len(text.projection), ()))
        },
    }
