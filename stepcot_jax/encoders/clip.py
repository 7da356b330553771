"""CLIP's image and text towers (Radford et al., 2021), and timm's vision transformer, BiomedCLIP's image tower."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.encoders.assignment import Place, place_dense, place_norm
from stepcot_jax.encoders.transformer import LayerNorm, TextOutput, Transformer, TransformerSizes, average_tokens

LEGACY_END = 2
"""`eos_token_id` of OpenAI's published configs. It is wrong: the largest token ends a text."""


class VisionTransformer(nn.Module):
    """Vision transformer: images to a projected feature vector and patch vectors.

    Attributes:
      image_size: height and width of the images, px.
      patch_size: height and width of a patch, px.
      timm: False: CLIP (no bias in the patch embedding, LayerNorm before the blocks, none on the patches); True: timm
        (a bias, no LayerNorm before the blocks, the final LayerNorm on patches too).
    """

    sizes: TransformerSizes
    image_size: int
    patch_size: int
    projected_width: int
    timm: bool = False
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self, images: Float[Array, "case height width 3"]
    ) -> tuple[Float[Array, "case feature"], Float[Array, "case patch channel"]]:
        """Encode `images` [case, image_size, image_size, 3], normalised.

        Returns:
          Features float32 [case, projected_width]; patches float32 [case, patch, width] in row-major order.
        """
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
    """Return patches of `images` as rows [case, patch, patch_size * patch_size * channel].

    The patch embedding, a convolution with stride equal to its size, becomes one matmul, faster on CPUs.
    """
    num_cases, height, width, channels = images.shape
    rows, columns = height // patch_size, width // patch_size
    images = images[:, : rows * patch_size, : columns * patch_size]  # a convolution drops the remainder
    cut = images.reshape(num_cases, rows, patch_size, columns, patch_size, channels)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(num_cases, rows * columns, patch_size * patch_size * channels)


def clip_blocks_table(prefix: str, path: str, num_layers: int) -> dict[str, Place]:
    """Map transformers' CLIP block names below `prefix` to places below `path`."""
    table: dict[str, Place] = {}
    for layer in range(num_layers):
        found, place = f"{prefix}encoder.layers.{layer}.", f"{path}blocks/layer_{layer}/"
        for part, name in enumerate(("q_proj", "k_proj", "v_proj")):
            table |= place_dense(f"{found}self_attn.{name}", f"{place}attention/qkv", part=part, parts=3)
        table |= place_dense(f"{found}self_attn.out_proj", f"{place}attention/out")
        table |= place_norm(f"{found}layer_norm1", f"{place}attention_norm")
        table |= place_norm(f"{found}layer_norm2", f"{place}mlp_norm")
        table |= place_dense(f"{found}mlp.fc1", f"{place}up")
        table |= place_dense(f"{found}mlp.fc2", f"{place}down")
    return table


def clip_vision_table(num_layers: int) -> dict[str, Place]:
    """Map transformers' CLIP image tower names to places below "image/"."""
    embeddings = "vision_model.embeddings."
    return {
        f"{embeddings}class_embedding": Place("image/class_token"),
        f"{embeddings}patch_embedding.weight": Place("image/patch_embedding/kernel", "patch"),
        f"{embeddings}position_embedding.weight": Place("image/positions"),
        "visual_projection.weight": Place("image/projection/kernel", "dense"),
        **place_norm("vision_model.pre_layrnorm", "image/pre_norm"),  # sic: transformers writes it without "e"
        **place_norm("vision_model.post_layernorm", "image/post_norm"),
        **clip_blocks_table("vision_model.", "image/", num_layers),
    }


def timm_vision_table(num_layers: int) -> dict[str, Place]:
    """Map the names of timm's vision transformer in open_clip checkpoints to places below "image/"."""
    trunk = "visual.trunk."
    table = {
        f"{trunk}cls_token": Place("image/class_token", "leading"),
        f"{trunk}pos_embed": Place("image/positions", "leading"),
        f"{trunk}patch_embed.proj.weight": Place("image/patch_embedding/kernel", "patch"),
        f"{trunk}patch_embed.proj.bias": Place("image/patch_embedding/bias"),
        "visual.head.proj.weight": Place("image/projection/kernel", "dense"),
        **place_norm(f"{trunk}norm", "image/post_norm"),
    }
    for layer in range(num_layers):
        found, place = f"{trunk}blocks.{layer}.", f"image/blocks/layer_{layer}/"
        table |= place_dense(f"{found}attn.qkv", f"{place}attention/qkv")
        table |= place_dense(f"{found}attn.proj", f"{place}attention/out")
        table |= place_norm(f"{found}norm1", f"{place}attention_norm")
        table |= place_norm(f"{found}norm2", f"{place}mlp_norm")
        table |= place_dense(f"{found}mlp.fc1", f"{place}up")
        table |= place_dense(f"{found}mlp.fc2", f"{place}down")
    return table


class CLIPText(nn.Module):
    """CLIP's causal text transformer: tokens to text vectors.

    Attributes:
      end_token: token whose hidden state represents the text; see `LEGACY_END`.
      projected_width: size of the projected vector.
    """

    sizes: TransformerSizes
    vocabulary_size: int
    max_positions: int
    end_token: int
    projected_width: int
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(self, tokens: Int[Array, "case token"], attended: Bool[Array, "case token"]) -> TextOutput:
        """Encode `tokens` [case, token]; `attended` [case, token] is False on padding, which stands at the end."""
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


def clip_text_table(num_layers: int) -> dict[str, Place]:
    """Map transformers' CLIP text tower names to places below "text/"."""
    return {
        "text_model.embeddings.token_embedding.weight": Place("text/token_embedding/embedding"),
        "text_model.embeddings.position_embedding.weight": Place("text/positions"),
        "text_projection.weight": Place("text/projection/kernel", "dense"),
        **place_norm("text_model.final_layer_norm", "text/final_norm"),
        **clip_blocks_table("text_model.", "text/", num_layers),
    }
