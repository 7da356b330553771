"""CLIP's text tower (Radford et al., 2021): for the baselines, and for counting parameters as published."""

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.encoders.assignment import Place, place_norm
from stepcot_jax.encoders.bert import TextOutput, average_tokens
from stepcot_jax.encoders.clip_vision import clip_blocks_table
from stepcot_jax.encoders.transformer import LayerNorm, Transformer, TransformerSizes

LEGACY_END = 2
"""`eos_token_id` of the configs that OpenAI's checkpoints were published with. It is wrong: the true end is the
largest number in the vocabulary, and is found as such."""


class CLIPText(nn.Module):
    """Tokens -> vectors of the text, from a causal transformer.

    Attributes:
      sizes: of the blocks.
      vocabulary_size: number of tokens.
      max_positions: longest text in tokens.
      end_token: number of the token that ends a text, whose vector is the text's; see `LEGACY_END`.
      projected_width: size of the projected vector.
      dtype: compute dtype.
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
        # Causal, so that nothing before the end sees the padding behind it.
        visible = jnp.tril(jnp.ones((num_tokens, num_tokens), bool))[None]
        hidden = Transformer(self.sizes, self.dtype, name="blocks")(hidden, visible)
        hidden = LayerNorm(self.sizes.epsilon, name="final_norm")(hidden)
        # The first of equals, since padding may be the end token again.
        end = jnp.argmax(tokens if self.end_token == LEGACY_END else tokens == self.end_token, axis=-1)
        pooled: Float[Array, "case width"] = jnp.take_along_axis(hidden, end[:, None, None], axis=1)[:, 0]
        projection = nn.Dense(self.projected_width, use_bias=False, dtype=self.dtype, name="projection")
        return TextOutput(
            hidden=hidden,
            cls=pooled,
            mean=average_tokens(hidden, attended),
            projected=projection(pooled).astype(jnp.float32),
        )


def clip_text_table(path: str, num_layers: int) -> dict[str, Place]:
    """Names of transformers' CLIP text tower -> places below `path`."""
    return {
        "text_model.embeddings.token_embedding.weight": Place(f"{path}token_embedding/embedding"),
        "text_model.embeddings.position_embedding.weight": Place(f"{path}positions"),
        "text_projection.weight": Place(f"{path}projection/kernel", "dense"),
        **place_norm("text_model.final_layer_norm", f"{path}final_norm"),
        **clip_blocks_table("text_model.", path, num_layers),
    }
