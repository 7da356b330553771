"""Transformer blocks shared by CLIP's towers, timm's vision transformer and BERT.

The layers are a Python loop: a scan would copy each layer's weights on every call, a third of the time for one image.
"""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.encoders.weights import Slot, dense_slots, norm_slots
from stepcot_jax.host.errors import BadInput


def quick_gelu(hidden: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Return CLIP's approximation of GELU: x * sigmoid(1.702 x)."""
    return hidden * jax.nn.sigmoid(hidden * jnp.asarray(1.702, hidden.dtype))


def exact_gelu(hidden: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """Return GELU with the error function, as BERT and timm compute it."""
    return jax.nn.gelu(hidden, approximate=False)


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = MappingProxyType({"quick_gelu": quick_gelu, "gelu": exact_gelu})


class TextOutput(NamedTuple):
    """Output of a text network, all float32; XLA drops the fields that the caller does not use."""

    hidden: Float[Array, "case token width"]
    cls: Float[Array, "case width"]  # of BERT's first token or CLIP's end token
    mean: Float[Array, "case width"]  # over all tokens except padding
    projected: Float[Array, "case feature"] | None = None


Size = Annotated[int, msgspec.Meta(ge=1, le=2**16)]
Depth = Annotated[int, msgspec.Meta(ge=1, le=2**8)]


@dataclasses.dataclass(frozen=True)
class TransformerSizes:
    """Sizes and arithmetic of a stack of blocks."""

    width: Size
    num_layers: Depth
    num_heads: Size
    mlp_width: Size
    activation: Literal["quick_gelu", "gelu"]
    epsilon: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    norm_first: bool  # LayerNorm before attention and MLP (CLIP, timm), or after each sum (BERT)


class LayerNorm(nn.Module):
    """LayerNorm in float32, with the two-pass variance, which avoids cancellation."""

    epsilon: float

    @nn.compact
    def __call__(self, hidden: Float[Array, "*token width"]) -> Float[Array, "*token width"]:
        """Return `hidden` [*token, width] of any float dtype, normalised, as float32."""
        scale = self.param("scale", nn.initializers.ones, hidden.shape[-1:])
        bias = self.param("bias", nn.initializers.zeros, hidden.shape[-1:])
        hidden = hidden.astype(jnp.float32)
        centred = hidden - jnp.mean(hidden, axis=-1, keepdims=True)
        inverse = jax.lax.rsqrt(jnp.mean(jnp.square(centred), axis=-1, keepdims=True) + self.epsilon)
        axes = tuple(range(hidden.ndim - 1))
        return centred * inverse * jnp.expand_dims(scale, axes) + jnp.expand_dims(bias, axes)


class SelfAttention(nn.Module):
    """Multi-head self-attention with one matrix for queries, keys and values; scores and softmax stay float32."""

    num_heads: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "case token width"], visible: Bool[Array, "#case #token key"] | None
    ) -> Float[Array, "case token width"]:
        """Attend among the tokens of each case; `visible` is True where a token sees a key, None for every key."""
        num_cases, num_tokens, width = hidden.shape
        head_width = width // self.num_heads
        # One matmul [width, 3 * width] instead of three: the same arithmetic in larger pieces.
        fused = nn.Dense(3 * width, dtype=self.dtype, name="qkv")(hidden)
        fused = fused.reshape(num_cases, num_tokens, 3, self.num_heads, head_width)
        query, key, value = fused[:, :, 0], fused[:, :, 1], fused[:, :, 2]
        query = query * jnp.asarray(head_width**-0.5, query.dtype)
        # query [case, token, head, width], key [case, key, head, width] -> scores [case, head, token, key]
        scores = jnp.einsum("cthw,ckhw->chtk", query, key, preferred_element_type=jnp.float32)
        if visible is not None:
            scores = jnp.where(visible[:, None], scores, jnp.finfo(jnp.float32).min)
        weights = jax.nn.softmax(scores, axis=-1).astype(self.dtype)
        # weights [case, head, token, key], value [case, key, head, width] -> mixed [case, token, head, width]
        mixed = jnp.einsum("chtk,ckhw->cthw", weights, value)
        return nn.Dense(width, dtype=self.dtype, name="out")(mixed.reshape(num_cases, num_tokens, width))


class TransformerBlock(nn.Module):
    """Self-attention and a two-layer MLP, each with a residual sum and a LayerNorm."""

    sizes: TransformerSizes
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "case token width"], visible: Bool[Array, "#case #token key"] | None
    ) -> Float[Array, "case token width"]:
        """Return the output [case, token, width]; arguments as for `SelfAttention`."""
        attention = SelfAttention(self.sizes.num_heads, self.dtype, name="attention")
        attention_norm = LayerNorm(self.sizes.epsilon, name="attention_norm")
        mlp_norm = LayerNorm(self.sizes.epsilon, name="mlp_norm")
        if self.sizes.norm_first:
            hidden = hidden + attention(attention_norm(hidden).astype(self.dtype), visible)
            return hidden + self._mlp(mlp_norm(hidden).astype(self.dtype))
        hidden = attention_norm(hidden + attention(hidden, visible)).astype(self.dtype)
        return mlp_norm(hidden + self._mlp(hidden)).astype(self.dtype)

    def _mlp(self, hidden: Float[Array, "case token width"]) -> Float[Array, "case token width"]:
        hidden = nn.Dense(self.sizes.mlp_width, dtype=self.dtype, name="up")(hidden)
        hidden = ACTIVATIONS[self.sizes.activation](hidden)
        return nn.Dense(self.sizes.width, dtype=self.dtype, name="down")(hidden)


class Transformer(nn.Module):
    """A stack of blocks."""

    sizes: TransformerSizes
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, hidden: Float[Array, "case token width"], visible: Bool[Array, "#case #token key"] | None = None
    ) -> Float[Array, "case token width"]:
        """Return the output [case, token, width]; arguments as for `SelfAttention`."""
        for layer in range(self.sizes.num_layers):
            hidden = TransformerBlock(self.sizes, self.dtype, name=f"layer_{layer}")(hidden, visible)
        return hidden


def average_tokens(
    hidden: Float[Array, "case token width"], attended: Bool[Array, "case token"]
) -> Float[Array, "case width"]:
    """Return the mean of `hidden` [case, token, width] over `attended` tokens [case, token]; zeros without any."""
    weights = attended.astype(hidden.dtype)[:, :, None]
    return jnp.sum(hidden * weights, axis=1) / jnp.maximum(jnp.sum(weights, axis=1), 1)


# CLIP's image and text towers (Radford et al., 2021), and timm's vision transformer, BiomedCLIP's image tower.


LEGACY_END = 2
"""`eos_token_id` of OpenAI's published configs. It is wrong: the largest token ends a text."""


class VisionTransformer(nn.Module):
    """Vision transformer: images to a projected feature vector and patch vectors."""

    sizes: TransformerSizes
    image_size: int
    patch_size: int
    projected_width: int
    timm: bool = False  # a bias in the patch embedding, no LayerNorm before the blocks, the final LayerNorm on patches
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, images: Float[Array, "case height width 3"]
    ) -> tuple[Float[Array, "case feature"], Float[Array, "case patch channel"]]:
        """Encode normalised images; patches [case, patch, width] are in row-major order."""
        if images.shape[1:] != (self.image_size, self.image_size, 3):
            raise ValueError(f"images must be {(self.image_size, self.image_size, 3)}; got {images.shape[1:]}")
        patches = nn.Dense(self.sizes.width, use_bias=self.timm, dtype=self.dtype, name="patch_embedding")(
            cut_patches(images.astype(self.dtype), self.patch_size)
        )
        num_cases, num_patches, width = patches.shape
        zeros = nn.initializers.zeros
        class_token = self.param("class_token", zeros, (width,)).astype(self.dtype)
        positions = self.param("positions", zeros, (num_patches + 1, width)).astype(self.dtype)
        class_tokens = jnp.broadcast_to(class_token[None, None], (num_cases, 1, width))
        hidden = jnp.concatenate([class_tokens, patches], axis=1) + positions[None]
        if not self.timm:
            hidden = LayerNorm(self.sizes.epsilon, name="pre_norm")(hidden).astype(self.dtype)
        hidden = Transformer(self.sizes, self.dtype, name="blocks")(hidden)
        post_norm = LayerNorm(self.sizes.epsilon, name="post_norm")
        projection = nn.Dense(self.projected_width, use_bias=False, dtype=self.dtype, name="projection")
        features = projection(post_norm(hidden[:, 0])).astype(jnp.float32)
        patches = post_norm(hidden[:, 1:]) if self.timm else hidden[:, 1:].astype(jnp.float32)
        return features, patches


def cut_patches(images: Float[Array, "case height width channel"], patch_size: int) -> Float[Array, "case patch pixel"]:
    """Return patches as rows: the embedding, a convolution of its own stride, becomes a matmul, faster on CPUs."""
    num_cases, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    images = images[:, : rows * patch_size, : columns * patch_size]  # a convolution drops the remainder
    cut = images.reshape(num_cases, rows, patch_size, columns, patch_size, channels)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(num_cases, rows * columns, patch_size * patch_size * channels)


class BlockNames(NamedTuple):
    """A checkpoint's names of the layers of a block."""

    qkv: tuple[str, ...]
    out: str
    norms: tuple[str, str]  # of attention and MLP
    mlp: tuple[str, str]

    def table(self, source: str, target: str, num_layers: int, *, legacy: bool = False) -> dict[str, Slot]:
        """Map the names of all blocks, below `source` and the layer's number, to slots below `target`."""
        table: dict[str, Slot] = {}
        for layer in range(num_layers):
            name, path = f"{source}{layer}.", f"{target}blocks/layer_{layer}/"
            for part, projection in enumerate(self.qkv):
                table |= dense_slots(f"{name}{projection}", f"{path}attention/qkv", part=part, parts=len(self.qkv))
            for dense, slot in zip((self.out, *self.mlp), ("attention/out", "up", "down"), strict=True):
                table |= dense_slots(f"{name}{dense}", f"{path}{slot}")
            for norm, slot in zip(self.norms, ("attention_norm", "mlp_norm"), strict=True):
                table |= norm_slots(f"{name}{norm}", f"{path}{slot}", legacy=legacy)
        return table


_CLIP_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_CLIP = BlockNames(_CLIP_QKV, "self_attn.out_proj", ("layer_norm1", "layer_norm2"), ("mlp.fc1", "mlp.fc2"))
_TIMM = BlockNames(("attn.qkv",), "attn.proj", ("norm1", "norm2"), ("mlp.fc1", "mlp.fc2"))
_BERT = BlockNames(
    ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention.output.dense",
    ("attention.output.LayerNorm", "output.LayerNorm"),
    ("intermediate.dense", "output.dense"),
)


def clip_vision_table(num_layers: int) -> dict[str, Slot]:
    """Map transformers' CLIP image tower names to slots below "image/"."""
    embeddings = "vision_model.embeddings."
    return {
        f"{embeddings}class_embedding": Slot("image/class_token"),
        f"{embeddings}patch_embedding.weight": Slot("image/patch_embedding/kernel", "patch"),
        f"{embeddings}position_embedding.weight": Slot("image/positions"),
        "visual_projection.weight": Slot("image/projection/kernel", "dense"),
        **norm_slots("vision_model.pre_layrnorm", "image/pre_norm"),  # sic: transformers writes it without "e"
        **norm_slots("vision_model.post_layernorm", "image/post_norm"),
        **_CLIP.table("vision_model.encoder.layers.", "image/", num_layers),
    }


class CLIPText(nn.Module):
    """CLIP's causal text transformer: tokens to text vectors."""

    sizes: TransformerSizes
    vocabulary_size: int
    max_positions: int
    end_token: int  # whose hidden state represents the text; see `LEGACY_END`
    projected_width: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, tokens: Int[Array, "case token"], attended: Bool[Array, "case token"]) -> TextOutput:
        """Encode `tokens` [case, token]; `attended` [case, token] is False on padding, which comes last."""
        width = self.sizes.width
        embedding = nn.Embed(self.vocabulary_size, width, dtype=self.dtype, name="token_embedding")
        positions = self.param("positions", nn.initializers.zeros, (self.max_positions, width)).astype(self.dtype)
        num_tokens = tokens.shape[1]
        hidden = embedding(tokens) + positions[None, :num_tokens]
        # Causal: no token before the end attends to padding.
        visible = jnp.tril(jnp.ones((num_tokens, num_tokens), bool))[None]
        hidden = Transformer(self.sizes, self.dtype, name="blocks")(hidden, visible)
        hidden = LayerNorm(self.sizes.epsilon, name="final_norm")(hidden)
        # argmax takes the first match: padding may repeat the end token.
        end = jnp.argmax(tokens if self.end_token == LEGACY_END else tokens == self.end_token, axis=-1)
        pooled: Float[Array, "case width"] = jnp.take_along_axis(hidden, end[:, None, None], axis=1)[:, 0]
        projection = nn.Dense(self.projected_width, use_bias=False, dtype=self.dtype, name="projection")
        return TextOutput(
            hidden=hidden,
            cls=pooled,
            mean=average_tokens(hidden, attended),
            projected=projection(pooled).astype(jnp.float32),
        )


def clip_text_table(num_layers: int) -> dict[str, Slot]:
    """Map transformers' CLIP text tower names to slots below "text/"."""
    return {
        "text_model.embeddings.token_embedding.weight": Slot("text/token_embedding/embedding"),
        "text_model.embeddings.position_embedding.weight": Slot("text/positions"),
        "text_projection.weight": Slot("text/projection/kernel", "dense"),
        **norm_slots("text_model.final_layer_norm", "text/final_norm"),
        **_CLIP.table("text_model.encoder.layers.", "text/", num_layers),
    }


# BERT (Devlin et al., 2019) in transformers' layout, and BiomedCLIP (Zhang et al., 2023), whose text tower is a BERT.


HEAD_WIDTH = 64
"""Attention-head width of all timm ViTs and BERTs in open_clip's published configs."""

TEXT_PREFIX = "text.transformer."
MAX_LAYERS = 256
_PROJECTION = {1: ("",), 2: (".0", ".2")}
"""Number of projection layers -> their suffixes in open_clip; with two layers, index 1 is the GELU."""


class Bert(nn.Module):
    """BERT encoder: tokens to hidden states."""

    sizes: TransformerSizes
    vocabulary_size: int
    max_positions: int
    num_types: int
    pooler: bool = True  # counts as parameters but is not used: Step-CoT takes the first token's last hidden state
    projection: tuple[int, ...] = ()  # widths of the layers that project the first token (BiomedCLIP)
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        tokens: Int[Array, "case token"],
        attended: Bool[Array, "case token"],
        types: Int[Array, "case token"] | None = None,
    ) -> TextOutput:
        """Encode texts; `attended` is False on padding, `types` are 0 or 1 for first and second text (0 by default)."""
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


def bert_table(num_layers: int, *, prefix: str, pooler: bool, legacy_norms: bool) -> dict[str, Slot]:
    """Map transformers' BERT tensor names to slots below "text/"."""
    embeddings = f"{prefix}embeddings."
    return {
        f"{embeddings}word_embeddings.weight": Slot("text/token_embedding/embedding"),
        f"{embeddings}token_type_embeddings.weight": Slot("text/type_embedding/embedding"),
        f"{embeddings}position_embeddings.weight": Slot("text/positions"),
        **norm_slots(f"{embeddings}LayerNorm", "text/embedding_norm", legacy=legacy_norms),
        **(dense_slots(f"{prefix}pooler.dense", "text/pooler") if pooler else {}),
        **_BERT.table(f"{prefix}encoder.layer.", "text/", num_layers, legacy=legacy_norms),
    }


def make_biomedclip(
    tensors: Mapping[str, np.ndarray], *, image_size: int, max_tokens: int, dtype: DTypeLike, source: str
) -> tuple[VisionTransformer, Bert]:
    """Return the image and text towers, with sizes read from the tensors."""

    def shape(name: str, num_axes: int) -> tuple[int, ...]:
        if name not in tensors or tensors[name].ndim != num_axes:
            actual = f"shape {list(tensors[name].shape)}" if name in tensors else "no tensor"
            raise BadInput(f"{source}: {name} must be a tensor with {num_axes} axes; got {actual}")
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


def biomedclip_table(vision: VisionTransformer, text: Bert) -> dict[str, Slot]:
    """Map open_clip's tensor names to slots below "image/" and "text/", and "logit_scale"."""
    trunk = "visual.trunk."
    return {
        "logit_scale": Slot("logit_scale"),
        f"{trunk}cls_token": Slot("image/class_token", "leading"),
        f"{trunk}pos_embed": Slot("image/positions", "leading"),
        f"{trunk}patch_embed.proj.weight": Slot("image/patch_embedding/kernel", "patch"),
        f"{trunk}patch_embed.proj.bias": Slot("image/patch_embedding/bias"),
        "visual.head.proj.weight": Slot("image/projection/kernel", "dense"),
        **norm_slots(f"{trunk}norm", "image/post_norm"),
        **_TIMM.table(f"{trunk}blocks.", "image/", vision.sizes.num_layers),
        **bert_table(text.sizes.num_layers, prefix=TEXT_PREFIX, pooler=text.pooler, legacy_norms=False),
        **{
            f"text.proj{suffix}.weight": Slot(f"text/projection_{layer}/kernel", "dense")
            for layer, suffix in enumerate(_PROJECTION.get(len(text.projection), ()))
        },
    }
