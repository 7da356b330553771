import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.quick_jit import quick_jit
from oracles.random_params import assert_close
from policies import tiny_policy as tiny

from stepcot_jax.models.prefix_vlm import sinusoids

PACKS, LENGTH = tiny.draw_packs(3, seed=4), 30
PROMPTS = np.array([[5, 6, 7, 8], [4, 9, 0, 0]], np.int32)
LENGTHS = np.array([4, 2], np.int32)
EACH = 3
COMPLETIONS = np.random.default_rng(2).integers(1, tiny.WORDS, (len(PROMPTS) * EACH, 5)).astype(np.int32)
PICTURES = tiny.draw_pictures(3)


@pytest.fixture(scope="module")
def params():
    return tiny.random_params()


def score_completions(params, pictures, prompts, lengths, completions):
    arrays = map(jnp.asarray, (prompts, lengths, completions))
    return tiny.NETWORK.apply({"params": params}, tiny.normalise(jnp.asarray(pictures)), *arrays)


score_replies = quick_jit(score_completions)


def test_a_packed_text_has_the_scores_that_it_has_alone(params):
    assert max(map(len, PACKS)) > 1
    found = tiny.log_softmax(np.asarray(tiny.score_quickly(params, tiny.lay_out(PACKS, LENGTH)), np.float64))
    for row, picture, pack in zip(found, PICTURES, PACKS, strict=True):
        start = 0
        for record in pack:
            expected = tiny.score_alone(params, picture, [*record.prompt, *record.target])
            assert_close(row[start : start + record.length], expected)
            start += record.length


def test_replies_that_share_a_prompt_have_the_scores_of_whole_texts(params):
    found = np.asarray(score_replies(params, PICTURES[:2], PROMPTS, LENGTHS, COMPLETIONS), np.float64)
    assert found.shape == (len(COMPLETIONS), COMPLETIONS.shape[1], tiny.WORDS)
    for place, (row, reply) in enumerate(zip(tiny.log_softmax(found), COMPLETIONS, strict=True)):
        case = place // EACH
        prompt = PROMPTS[case, : LENGTHS[case]].tolist()
        expected = tiny.score_alone(params, PICTURES[case], [*prompt, *reply.tolist()])
        assert_close(row, expected[len(prompt) - 1 : -1])


def test_replies_of_one_token_are_scored_by_the_prompt(params):
    whole = score_replies(params, PICTURES[:2], PROMPTS, LENGTHS, COMPLETIONS)
    prompts = PROMPTS.copy()
    prompts[1, LENGTHS[1] :] = tiny.STOP, tiny.WORDS - 1  # padding reaches no reply
    first = score_replies(params, PICTURES[:2], prompts, LENGTHS, COMPLETIONS[:, :1])
    np.testing.assert_allclose(first, whole[:, :1], atol=1e-6)


@pytest.mark.slow
def test_the_gradient_through_a_shared_prompt_is_that_of_whole_texts(params):
    weights = jnp.asarray(np.random.default_rng(5).standard_normal((*COMPLETIONS.shape, tiny.WORDS)).astype(np.float32))
    texts = [[*PROMPTS[n // EACH, : LENGTHS[n // EACH]].tolist(), *row.tolist()] for n, row in enumerate(COMPLETIONS)]
    length = max(map(len, texts))
    tokens = np.array([text + [0] * (length - len(text)) for text in texts], np.int32)
    segments = np.array([[1] * len(text) + [0] * (length - len(text)) for text in texts], np.int32)
    places = np.where(segments > 0, np.arange(length, dtype=np.int32)[None], 0).astype(np.int32)
    # Row n of `first` .. `first + tokens of a reply` of the whole text are the scores of the reply.
    first = np.repeat(LENGTHS, EACH) - 1
    chosen = jnp.asarray(first[:, None] + np.arange(COMPLETIONS.shape[1])[None])
    images = jnp.asarray(np.repeat(PICTURES[:2], EACH, axis=0))

    def shared(params):
        return jnp.sum(weights * score_completions(params, PICTURES[:2], PROMPTS, LENGTHS, COMPLETIONS))

    def whole(params):
        batch = {"images": images, "tokens": tokens, "segments": segments, "places": places}
        scores = tiny.score_texts(params, {name: jnp.asarray(array) for name, array in batch.items()})
        return jnp.sum(weights * jnp.take_along_axis(scores, chosen[:, :, None], axis=1))

    found, expected = (quick_jit(jax.grad(function))(params) for function in (shared, whole))
    for (path, leaf), wanted in zip(jax.tree_util.tree_leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        scale = float(jnp.abs(wanted).max())
        assert scale > 1e-3, path
        np.testing.assert_allclose(leaf, wanted, atol=2e-5 * scale, err_msg=jax.tree_util.keystr(path))


def test_sinusoids_by_hand():
    found = np.asarray(sinusoids(jnp.array([0.0, 0.5, 0.25]), 4))
    half, quarter = np.pi * 0.5 * np.array([1, 24]), np.pi * 0.25 * np.array([1, 24])
    expected = [[0, 0, 1, 1], [*np.sin(half), *np.cos(half)], [*np.sin(quarter), *np.cos(quarter)]]
    np.testing.assert_allclose(found, expected, atol=1e-5)
