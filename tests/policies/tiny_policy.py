"""A policy that compiles in seconds, its random parameters, and encoded records about random pictures."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from oracles.quick_jit import quick_jit
from oracles.random_params import randomise

from stepcot_jax.models.decoder import DecoderSizes
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.policies.records import ANSWER, NO_PART, REASONING, EncodedRecord, lay_out_pack, stack_rows

WORDS, PAD, STOP, GRID, SIDE = 13, 0, 1, 2, 4
_LONGEST = 16


class Cells(nn.Module):
    """An image encoder that compiles fast: 3 features of each cell."""

    @nn.compact
    def __call__(self, images):
        return nn.Dense(GRID * GRID * 3)(images.reshape(len(images), -1))


SIZES = {"width": 8, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_width": 8, "mlp_width": 8}
SIZES |= {"num_words": WORDS, "sections": (2, 1, 1)}
NETWORK = PrefixVlm(encoder=Cells(), grid=GRID, sizes=DecoderSizes(**SIZES))


def normalise(pixels):
    return pixels.astype(jnp.float32) / 127.5 - 1.0


def random_params(seed=1):
    tokens, images = jnp.zeros((1, 1), jnp.int32), jnp.zeros((1, SIDE, SIDE, 3))
    shapes = jax.eval_shape(lambda: NETWORK.init(jax.random.key(0), images, tokens, tokens[0] + 1, tokens))["params"]
    return randomise(shapes, seed)


def draw_pictures(number, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (number, SIDE, SIDE, 3), np.uint8)


def draw_record(rng):
    """A record of 1 to 4 tokens of a prompt, and 1 to 5 of a reply that ends with the stop token."""
    prompt, reasoning, answer = (rng.integers(2, WORDS, rng.integers(low, 4)).tolist() for low in (1, 0, 0))
    parts = [REASONING] * len(reasoning) + [ANSWER] * (len(answer) + 1)
    return EncodedRecord(tuple(prompt), (*reasoning, *answer, STOP), tuple(parts))


def draw_packs(number, seed=0):
    rng = np.random.default_rng(seed)
    return [[draw_record(rng) for _ in range(rng.integers(1, 4))] for _ in range(number)]


def lay_out(packs, length, weights=(1.0, 1.0)):
    rows = stack_rows([lay_out_pack(pack, length) for pack in packs])
    part_weights = np.tile(np.array(weights, np.float32), (len(packs), 1))
    return {"images": draw_pictures(len(packs)), **rows, "part_weights": part_weights}


def score_texts(params, batch):
    arrays = (batch[name] for name in ("tokens", "segments", "places"))
    return NETWORK.apply({"params": params}, normalise(batch["images"]), *arrays, method="score_packed")


score_quickly = quick_jit(score_texts)


def score_alone(params, picture, tokens):
    """Log-probabilities [token, word] of the token after each of one text about one picture, in a row of its own."""
    row = np.zeros((3, _LONGEST), np.int32)
    row[:, : len(tokens)] = tokens, np.ones_like(tokens), np.arange(len(tokens))
    batch = {"images": picture[None], "tokens": row[:1], "segments": row[1:2], "places": row[2:]}
    return log_softmax(np.asarray(score_quickly(params, batch), np.float64)[0, : len(tokens)])


def log_softmax(scores):
    shifted = scores - scores.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def loss_alone(params, pictures, packs, *, weights=(1.0, 1.0), reduction="tokens"):
    """The loss of fine-tuning in NumPy, each record scored by itself."""
    summed, divisor, of_rows = 0.0, 0.0, []
    for picture, pack in zip(pictures, packs, strict=True):
        for record in pack:
            found = score_alone(params, picture, [*record.prompt, *record.target])
            first = len(record.prompt) - 1
            losses = -found[np.arange(first, first + len(record.target)), record.target]
            parts = np.array(record.parts)
            assert (parts != NO_PART).all()
            of_tokens = np.array(weights)[parts]
            summed, divisor = summed + (of_tokens * losses).sum(), divisor + of_tokens.sum()
            means = [losses[parts == part].mean() if (parts == part).any() else 0.0 for part in (ANSWER, REASONING)]
            of_rows.append(np.dot(means, weights))
    return summed / divisor if reduction == "tokens" else np.mean(of_rows)
