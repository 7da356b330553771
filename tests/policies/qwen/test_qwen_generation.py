import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles.random_params import assert_close, randomise
from policies.qwen.tiny_qwen import IMAGE, TEXT, cut_pictures, tiny, write_config

from stepcot_jax.losses.sequence import token_log_probs
from stepcot_jax.models.qwen import QwenVl
from stepcot_jax.policies.qwen_inputs import QwenPrompt, lay_out_prompts
from stepcot_jax.policies.qwen_weights import qwen_shapes, read_qwen_config
from stepcot_jax.policies.sampling import Sampling, generate, rollout_keys

LONGEST = 6
CUT = cut_pictures((12, 20), (36, 8), (8, 8))
PROMPTS = [QwenPrompt([3, IMAGE, 4, 5, 6, 7], CUT[:1]), QwenPrompt([6]), QwenPrompt([IMAGE, 8, IMAGE, 9], CUT[1:])]


def lay_out(config, prompts):
    return jax.tree.map(jnp.asarray, lay_out_prompts(prompts, image_token=IMAGE, vision=config.vision))


def roll(network, params, batch, *, each=1, **how):
    sampling = Sampling(longest=LONGEST, stop=57, **how)
    keys = rollout_keys(jax.random.key(5), first=0, number=each * len(batch[2].lengths))
    return generate(network, params, *batch, sampling=sampling, keys=keys)


@functools.partial(jax.jit, static_argnames="network")
def full_pass(network, params, batch, completions):
    return network.apply({"params": params}, *batch, completions)


def test_greedy_replies_in_bfloat16_are_the_likeliest_tokens_of_a_full_pass():
    config, params = tiny()
    network, batch = QwenVl(config.sizes, config.vision, jnp.bfloat16), lay_out(config, PROMPTS)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
    found = roll(network, params, batch, greedy=True)
    scores = np.asarray(full_pass(network, params, batch, found.tokens))
    assert scores.dtype == np.float32
    tokens, counted = np.asarray(found.tokens), np.asarray(found.counted)
    assert counted.sum() > 2 * len(PROMPTS)
    chosen = np.take_along_axis(scores, tokens[..., None], axis=-1)[..., 0]
    # The orders of summation differ: two tokens that nearly tie may change places.
    assert (scores.max(axis=-1) - chosen)[counted].max() <= 0.05


@pytest.mark.slow
def test_several_replies_to_each_prompt_share_its_pass():
    config, params = tiny()
    network, batch = QwenVl(config.sizes, config.vision), lay_out(config, PROMPTS)
    found = roll(network, params, batch, each=2)
    assert found.tokens.shape == (2 * len(PROMPTS), LONGEST)
    logits = full_pass(network, params, batch, found.tokens)
    assert_close(found.log_probs, token_log_probs(logits=logits, tokens=found.tokens, counted=found.counted), 1e-4)
    assert len({tuple(row) for row in np.asarray(found.tokens).tolist()}) > len(PROMPTS)
    alone = roll(network, params, lay_out(config, PROMPTS[:1]), each=2)  # whatever else is in the batch
    np.testing.assert_array_equal(alone.tokens, found.tokens[:2])
    assert_close(alone.log_probs, found.log_probs[:2], 1e-4)


def test_any_of_the_stop_tokens_ends_a_reply(tmp_path):
    config = read_qwen_config(write_config(tmp_path, TEXT))
    params, network = randomise(qwen_shapes(config.sizes, None), seed=1), QwenVl(config.sizes)
    batch = jax.tree.map(jnp.asarray, lay_out_prompts([QwenPrompt([1, 2, 3]), QwenPrompt([4])]))
    free = np.asarray(roll(network, params, batch, greedy=True).tokens)
    ends = roll(network, params, batch, greedy=True, more_stops=(int(free[0, 2]), int(free[1, 0])))
    counted = np.asarray(ends.counted).sum(axis=1)
    assert counted[0] <= 3
    assert counted[1] == 1
    np.testing.assert_array_equal(ends.tokens[0, : counted[0]], free[0, : counted[0]])
    assert (np.asarray(ends.tokens)[~np.asarray(ends.counted)] == 57).all()
