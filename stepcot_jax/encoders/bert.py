"""BERT (Devlin et al., 2019): the base model, MiniLM, PubMedBERT and whatever else has its config.json."""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from stepcot_jax.encoders.assignment import Place, place_dense, place_norm
from stepcot_jax.encoders.transformer import LayerNorm, Transformer, TransformerSizes, exact_gelu


class TextOutput(NamedTuple):
    """What a text network gives; all float32. Compiled code computes only what its caller keeps.

    Attributes:
      hidden: [case, token, width], the last hidden states.
      cls: [case, width], the vector of the token that stands for the text: BERT's first, CLIP's end token.
      mean: [case, width], the average over the tokens that are not padding.
      projected: [case, projected_width], where the network has a projection.
    """

    hidden: Float[Array, "case token width"]
    cls: Float[Array, "case width"]
    mean: Float[Array, "case width"]
    projected: Float[Array, "case feature"] | None = None


class Bert(nn.Module):
    """Tokens -> hidden states.

    Attributes:
      sizes: of the blocks.
      vocabulary_size: number of tokens.
      max_positions: longest text in tokens.
      num_types: number of token types (first and second text).
      pooler: whether the checkpoint has BERT's pooler, a Dense layer behind the first token. It is counted, and
        nothing reads it: Step-CoT takes the first token's last hidden state.
      projection: widths of a projection behind the first token, without biases and with GELU between them
        (BiomedCLIP); empty for none.
      dtype: compute dtype.
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
          tokens: [case, token].
          attended: [case, token], False on padding.
          types: [case, token], 0 for the first text and 1 for the second; None: all 0.
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


def average_tokens(
    hidden: Float[Array, "case token width"], attended: Bool[Array, "case token"]
) -> Float[Array, "case width"]:
    """The mean of `hidden` [case, token, width] over attended tokens [case, token]; zeros where there is none."""
    weights = attended.astype(hidden.dtype)[:, :, None]
    return jnp.sum(hidden * weights, axis=1) / jnp.maximum(jnp.sum(weights, axis=1), 1)


def bert_table(path: str, num_layers: int, *, prefix: str, pooler: bool, legacy_norms: bool) -> dict[str, Place]:
    """Names of transformers' BERT -> places below `path`.

    Args:
      path: where in the parameter tree.
      num_layers: number of blocks.
      prefix: "bert." where the checkpoint is that of a model with heads, "text.transformer." in open_clip's.
      pooler: whether it has a pooler.
      legacy_norms: whether LayerNorms have gamma and beta instead of weight and bias, as in Google's conversions.
    """

    def norm(found: str, place: str) -> dict[str, Place]:
        return place_norm(f"{prefix}{found}", f"{path}{place}", legacy=legacy_norms)

    embeddings = f"{prefix}embeddings."
    table = {
        f"{embeddings}word_embeddings.weight": Place(f"{path}token_embedding/embedding"),
        f"{embeddings}token_type_embeddings.weight": Place(f"{path}type_embedding/embedding"),
        f"{embeddings}position_embeddings.weight": Place(f"{path}positions"),
        **norm("embeddings.LayerNorm", "embedding_norm"),
        **(place_dense(f"{prefix}pooler.dense", f"{path}pooler") if pooler else {}),
    }
    for layer in range(num_layers):
        found, place = f"encoder.layer.{layer}.", f"blocks/layer_{layer}/"
        for part, name in enumerate(("query", "key", "value")):
            table |= place_dense(
                f"{prefix}{found}attention.self.{name}", f"{path}{place}attention/qkv", part=part, parts=3
            )
        table |= place_dense(f"{prefix}{found}attention.output.dense", f"{path}{place}attention/out")
        table |= norm(f"{found}attention.output.LayerNorm", f"{place}attention_norm")
        table |= place_dense(f"{prefix}{found}intermediate.dense", f"{path}{place}up")
        table |= place_dense(f"{prefix}{found}output.dense", f"{path}{place}down")
        table |= norm(f"{found}output.LayerNorm", f"{place}mlp_norm")
    return table
