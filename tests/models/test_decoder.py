"""The decoder against a loop in NumPy, and with a cache against a full pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close, randomise

from stepcot_jax.models.decoder import Decoder, DecoderSizes, empty_cache, rotary_angles

SIZES = DecoderSizes(
    width=24, num_layers=2, num_heads=4, num_kv_heads=2, head_width=6, mlp_width=20, num_words=11, theta=1e4
)
ROLLOUTS, TOKENS = 2, 7


def make(sizes=SIZES):
    decoder = Decoder(sizes)

    def run(module, tokens, positions, visible):
        return module.score(module(module.embed(tokens), positions=positions, visible=visible)[0])

    tokens, visible = jnp.zeros((1, 2), jnp.int32), jnp.ones((1, 2, 2), bool)
    shapes = jax.eval_shape(lambda: decoder.init(jax.random.key(0), tokens, tokens[None], visible, method=run))
    return decoder, randomise(shapes["params"]), run


def causal(num_tokens=TOKENS):
    return jnp.tril(jnp.ones((1, num_tokens, num_tokens), bool))


def places(num_tokens=TOKENS, rollouts=ROLLOUTS):
    return jnp.broadcast_to(jnp.arange(num_tokens)[None, None], (1, rollouts, num_tokens))


def oracle(params, tokens, positions, sizes):
    p = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)

    def norm(x, scale):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + sizes.epsilon) * scale

    def turn(vector, position):
        half = sizes.head_width // 2
        turned = np.empty_like(vector)
        for i in range(half):
            angle = position * sizes.theta ** (-2 * i / sizes.head_width)
            a, b = vector[i], vector[i + half]
            turned[i] = a * np.cos(angle) - b * np.sin(angle)
            turned[i + half] = b * np.cos(angle) + a * np.sin(angle)
        return turned

    out = []
    for row, own in enumerate(tokens):
        hidden = p["embedding"]["embedding"][own]
        for layer in range(sizes.num_layers):
            q = p[f"layer_{layer}"]
            normed = norm(hidden, q["attention_norm"]["scale"])
            attention = q["attention"]
            heads = {n: np.einsum("tw,whd->thd", normed, attention[n]["kernel"]) for n in ("query", "key", "value")}
            heads = {n: head + attention[n]["bias"] for n, head in heads.items()}
            mixed = np.zeros((len(own), sizes.num_heads, sizes.head_width))
            for head in range(sizes.num_heads):
                shared = head // (sizes.num_heads // sizes.num_kv_heads)
                for t in range(len(own)):
                    query = turn(heads["query"][t, head], positions[row, t])
                    scores = np.array([query @ turn(heads["key"][s, shared], positions[row, s]) for s in range(t + 1)])
                    scores /= np.sqrt(sizes.head_width)
                    weights = np.exp(scores - scores.max())
                    mixed[t, head] = (weights / weights.sum()) @ heads["value"][: t + 1, shared]
            hidden = hidden + np.einsum("thd,hdw->tw", mixed, attention["out"]["kernel"])
            normed = norm(hidden, q["mlp_norm"]["scale"])
            gate = normed @ q["gate"]["kernel"]
            hidden = hidden + (gate / (1 + np.exp(-gate)) * (normed @ q["up"]["kernel"])) @ q["down"]["kernel"]
        hidden = norm(hidden, p["norm"]["scale"])
        out.append(hidden @ (p["embedding"]["embedding"].T if sizes.is_tied else p["head"]["kernel"]))
    return np.array(out)


@pytest.mark.parametrize("is_tied", [True, False])
def test_logits_agree_with_the_oracle(is_tied):
    sizes = DecoderSizes(**{**SIZES.__dict__, "is_tied": is_tied})
    decoder, params, run = make(sizes)
    tokens = np.random.default_rng(0).integers(0, sizes.num_words, (ROLLOUTS, TOKENS))
    positions = places() + jnp.array([[[0], [3]]])
    found = quick_jit(lambda *given: decoder.apply({"params": params}, *given, method=run))(tokens, positions, causal())
    assert_close(found, oracle(params, tokens, np.asarray(positions[0]), sizes), 2e-4)


def test_tokens_one_by_one_from_the_cache_agree_with_a_full_pass():
    """Prompts of 2 and 4 tokens, padded to 4; slots of padding hold rubbish that nothing sees."""
    decoder, params, run = make()
    lengths, padded, more = np.array([2, 4]), 4, 3
    rng = np.random.default_rng(1)
    prompt, rest = rng.integers(0, 11, (2, padded)), rng.integers(0, 11, (2, more))
    caches = empty_cache(SIZES, num_rollouts=2, num_slots=padded + more)
    slots, real = np.arange(padded + more), np.arange(padded)[None] < lengths[:, None]

    def read(module, tokens, positions, visible, caches, start):
        hidden, caches = module(module.embed(tokens), positions=positions, visible=visible, caches=caches, start=start)
        return module.score(hidden), caches

    step = quick_jit(lambda *given: decoder.apply({"params": params}, *given, method=read))
    sees = (slots[None, None] <= np.arange(padded)[None, :, None]) & np.pad(real, ((0, 0), (0, more)))[:, None]
    logits, caches = step(prompt, places(padded), sees, caches, 0)
    found = [np.asarray(logits)[np.arange(2), lengths - 1]]
    for place in range(more):
        sees = np.concatenate([real, np.arange(more)[None].repeat(2, 0) <= place], axis=1)[:, None]
        tokens, positions = rest[:, place : place + 1], (lengths + place)[None, :, None]
        logits, caches = step(tokens, positions, sees, caches, padded + place)
        found.append(np.asarray(logits)[:, 0])
    whole = np.zeros((2, padded + more), int)
    for row, length in enumerate(lengths):
        whole[row, : length + more] = [*prompt[row, :length], *rest[row]]
    expected = quick_jit(lambda *given: decoder.apply({"params": params}, *given, method=run))(
        whole, places(padded + more), causal(padded + more)
    )
    for row, length in enumerate(lengths):
        assert_close(np.stack(found)[:, row], expected[row, length - 1 : length + more], 1e-5)


def test_sections_turn_by_their_own_axis():
    sizes = DecoderSizes(**{**SIZES.__dict__, "sections": (1, 1, 1)})
    positions = jnp.asarray(np.random.default_rng(0).integers(0, 9, (3, 1, 4)))
    cosine, _ = rotary_angles(positions, sizes)
    for frequency in range(3):
        angle = np.asarray(positions)[frequency, 0] * 1e4 ** (-2 * frequency / 6)
        assert_close(cosine[0, :, frequency], np.cos(angle), 1e-5)
    same = jnp.broadcast_to(positions[:1], positions.shape)
    np.testing.assert_array_equal(rotary_angles(same, sizes)[1], rotary_angles(positions[:1], SIZES)[1])
