"""Qwen2.5 and Qwen2.5-VL against transformers' PyTorch classes, with random weights in every tensor."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from encoders.torch_checkpoints import largest_difference
from policies.qwen.tiny_qwen import IMAGE, picture
from policies.qwen.torch_qwen import make_text, make_vl, torch_inputs, transformers

from stepcot_jax.losses.sequence import sequence_loss
from stepcot_jax.policies import qwen_inputs as tested
from stepcot_jax.policies.qwen_policy import DECODER_AND_PROJECTOR, divide_params, join_params
from stepcot_jax.policies.qwen_weights import load_qwen, name_tensors, write_qwen
from stepcot_jax.policies.records import NO_PART
from stepcot_jax.policies.sampling import Sampling, generate, rollout_keys


def words(seed, number):
    return np.random.default_rng(seed).integers(1, IMAGE - 3, number).tolist()


def logits(model, prompts, **sizes):
    config = model.config
    images, laid, ends = tested.lay_out_prompts(prompts, image_token=config.image_token, vision=config.vision, **sizes)
    run = jax.jit(lambda params, *given: model.network.apply({"params": params}, *given, method="score_texts"))
    return run(model.params, *jax.tree.map(jnp.asarray, (images, laid))), jax.tree.map(np.asarray, (laid, ends))


def test_logits_of_text(tmp_path):
    model = make_text(tmp_path, tie_word_embeddings=True, shards="20KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    prompts = [words(1, 12), words(2, 7)]
    found, _ = logits(load_qwen(str(tmp_path), dtype=jnp.float32), [tested.QwenPrompt(tokens) for tokens in prompts])
    for row, tokens in zip(found, prompts, strict=True):
        with torch.inference_mode():
            expected = model(**torch_inputs(tokens)).logits[0]
        assert expected.abs().mean() > 0.05
        assert largest_difference(row[: len(tokens)], expected) <= 1e-4


@pytest.fixture(scope="module")
def vl(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vl")
    model = make_vl(folder)
    ours = load_qwen(str(folder), dtype=jnp.float32)
    return model, ours, tested.read_qwen_preprocessing(folder, ours.config.vision)


SIZES = [(8, 8), (20, 12), (13, 30), (40, 9)]


def test_logits_with_no_one_and_two_images(vl):
    model, ours, preprocessing = vl
    cut = [tested.cut_image(picture(seed, *size), preprocessing) for seed, size in enumerate(SIZES)]
    a, b, c = words(3, 4), words(4, 5), words(5, 3)
    prompts = [
        tested.QwenPrompt(a + b),
        tested.QwenPrompt([*a, IMAGE, *b], cut[1:2]),
        tested.QwenPrompt([*a, IMAGE, *c, IMAGE, *b], cut[2:]),
        tested.QwenPrompt([IMAGE, *a], cut[:1]),
    ]
    found, (laid, ends) = logits(ours, prompts)
    for row, prompt in enumerate(prompts):
        tokens = laid.tokens[row, : ends.lengths[row]].tolist()
        inputs = torch_inputs(tokens, prompt.images)
        with torch.inference_mode():
            expected = model(**inputs).logits[0]
            if prompt.images:
                places, delta = model.model.get_rope_index(
                    inputs["input_ids"], inputs["mm_token_type_ids"], inputs["image_grid_thw"]
                )
                np.testing.assert_array_equal(laid.positions[:, row, : len(tokens)], places[:, 0])
                assert ends.starts[row] == len(tokens) + int(delta)
        assert expected.abs().mean() > 0.05
        assert largest_difference(found[row, : len(tokens)], expected) <= 1e-4


def test_a_tied_head_with_images(tmp_path):
    """VL-3B's head is its embedding, in the file and in the config of transformers too."""
    model = make_vl(tmp_path, tied=True)
    ours = load_qwen(str(tmp_path), dtype=jnp.float32)
    assert ours.config.sizes.is_tied
    assert "head" not in ours.params["decoder"]
    preprocessing = tested.read_qwen_preprocessing(tmp_path, ours.config.vision)
    prompt = tested.QwenPrompt([1, IMAGE, 2, 3], [tested.cut_image(picture(6, 13, 30), preprocessing)])
    found, (laid, ends) = logits(ours, [prompt])
    inputs = torch_inputs(laid.tokens[0, : ends.lengths[0]].tolist(), prompt.images)
    with torch.inference_mode():
        expected = model(**inputs).logits[0]
    assert largest_difference(found[0, : ends.lengths[0]], expected) <= 1e-4
    write_qwen(tmp_path / "out", ours.params, ours.network, source=tmp_path, dtype=np.float32)
    again = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(tmp_path / "out")
    with torch.inference_mode():
        assert torch.equal(again(**inputs).logits[0], expected)


def test_preprocessing_agrees_with_transformers(vl, tmp_path):
    vision = dataclasses.replace(vl[1].config.vision, patch_size=14, window_size=112)
    for least, most in [(56 * 56, 28 * 28 * 16), (28 * 28 * 20, 28 * 28 * 1280)]:
        processor = transformers.Qwen2VLImageProcessorPil(size={"shortest_edge": least, "longest_edge": most})
        preprocessing = tested.QwenPreprocessing(min_pixels=least, max_pixels=most)
        inside = {"image_processor": processor.to_dict()}  # as a processor is saved
        (tmp_path / "processor_config.json").write_text(json.dumps(inside))
        assert tested.read_qwen_preprocessing(tmp_path, vision) == preprocessing
        for seed, (height, width) in enumerate([(28, 28), (42, 70), (333, 97), (90, 400), (3, 500), (56, 84)]):
            pixels = picture(seed, height, width)
            expected = processor(pixels, return_tensors="np", input_data_format="channels_last")
            found = tested.cut_image(pixels, preprocessing)
            assert [[1, 2 * found.num_rows, 2 * found.num_columns]] == expected["image_grid_thw"].tolist()
            assert largest_difference(found.patches, expected["pixel_values"]) <= 1e-6


def generated(model, prompts, *, longest, stops):
    config = model.config
    images, laid, ends = tested.lay_out_prompts(prompts, image_token=config.image_token, vision=config.vision)
    sampling = Sampling(longest=longest, stop=stops[0], more_stops=stops[1:], greedy=True)
    keys = rollout_keys(jax.random.key(0), first=0, number=len(prompts))
    given = jax.tree.map(jnp.asarray, (images, laid, ends))
    replies = generate(model.network, model.params, *given, sampling=sampling, keys=keys)
    rows = zip(np.asarray(replies.tokens), np.asarray(replies.counted), strict=True)
    return [tokens[counted].tolist() for tokens, counted in rows], (laid, ends)


@pytest.mark.slow
def test_greedy_replies_of_20_tokens(vl):
    model, ours, preprocessing = vl
    cut = [tested.cut_image(picture(seed, *size), preprocessing) for seed, size in enumerate(SIZES)]
    a, b = words(3, 4), words(4, 5)
    prompts = [
        tested.QwenPrompt([*a, IMAGE, *b], cut[1:2]),
        tested.QwenPrompt([1, 2]),
        tested.QwenPrompt([*a, IMAGE, 3, IMAGE, *b], cut[2:]),
        tested.QwenPrompt(b + a + b),
    ]
    found, (laid, ends) = generated(ours, prompts, longest=20, stops=(57,))
    stops = (found[0][7], found[3][12])
    stopped, _ = generated(ours, prompts, longest=20, stops=stops)
    for row, prompt in enumerate(prompts):
        inputs = torch_inputs(laid.tokens[row, : ends.lengths[row]].tolist(), prompt.images)
        for replies, ids in ((found, [57]), (stopped, list(stops))):
            with torch.inference_mode():
                expected = model.generate(**inputs, max_new_tokens=20, do_sample=False, eos_token_id=ids)
            assert replies[row] == expected[0, len(inputs["input_ids"][0]) :].tolist()
    assert max(map(len, found)) == 20
    assert len(stopped[0]) <= 8
    assert len({tuple(reply) for reply in found}) == 4


def test_loss_and_gradients_of_a_reply(vl):
    model, ours, preprocessing = vl
    reply = [8, 9, 10, 57]
    prompt = tested.QwenPrompt([1, IMAGE, 2, 3, *reply], [tested.cut_image(picture(1, 20, 12), preprocessing)])
    images, texts, ends = tested.lay_out_prompts([prompt], image_token=IMAGE, vision=ours.config.vision)
    length = int(ends.lengths[0])
    inputs = torch_inputs(texts.tokens[0][:length].tolist(), prompt.images)
    labels = inputs["input_ids"].clone()
    labels[:, : -len(reply)] = -100
    model.zero_grad()
    expected = model(**inputs, labels=labels).loss
    expected.backward()
    wanted = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    chosen, frozen = divide_params(ours.params, DECODER_AND_PROJECTOR)
    parts = np.full_like(texts.tokens, NO_PART)
    parts[0, length - 1 - len(reply) : length - 1] = 0
    given = jax.tree.map(jnp.asarray, (images, texts, np.roll(texts.tokens, -1, axis=1), parts))

    def compute(chosen, images, texts, tokens, parts):
        params = join_params(chosen, frozen)
        logits = ours.network.apply({"params": params}, images, texts, method="score_texts")
        return sequence_loss(logits=logits, tokens=tokens, parts=parts, part_weights=jnp.ones((1, 1)))

    loss, gradients = jax.jit(jax.value_and_grad(compute))(chosen, *given)
    assert abs(float(loss) - expected.item()) <= 1e-4
    found = name_tensors(join_params(gradients, frozen), ours.network, prefix="model.language_model.")
    trained = [name for name in found if ".visual." not in name or ".merger." in name]
    assert len(trained) == len(chosen)
    for name in trained:
        scale = wanted[name].abs().max()
        assert largest_difference(found[name], wanted[name]) <= 1e-4 * max(1.0, float(scale)), name
    assert wanted["model.visual.merger.mlp.2.weight"].abs().max() > 1e-2
