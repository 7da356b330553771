import json
import shutil
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies.qwen.test_qwen_loading import PUBLISHED
from policies.qwen.tiny_qwen import IMAGES, write_config, write_qwen, write_reader
from refusals import refuse

from stepcot_jax.models.qwen import SquareQwen
from stepcot_jax.policies import qwen_weights as qwen_export
from stepcot_jax.policies import qwen_weights as qwen_published
from stepcot_jax.policies.qwen_chat import Turn, load_qwen_reader
from stepcot_jax.policies.qwen_inputs import FRAME, IMAGE_TOKEN, ChatTokenizer
from stepcot_jax.policies.qwen_policy import QwenPolicy
from stepcot_jax.policies.qwen_weights import load_qwen, read_qwen_config
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.run.qwen_source import FOLDER, QwenSource, find_qwen
from stepcot_jax.run.settings import load_settings
from stepcot_jax.training.state import put_given

BASE = {"job": "sft", "sft.pack_length": 0, "image_encoder.image_size": 32}
ID = "Qwen/Qwen2.5-VL-7B-Instruct"


def settings_of(weights, **changes):
    return load_settings("base", **{**BASE, "policy.weights": str(weights), **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    write_reader(folder, max_pixels=4096)
    return folder


@pytest.mark.parametrize("name", ["VL-3B", "VL-7B"])
def test_built_in_sizes_are_those_of_the_published_files(tmp_path, name):
    expected = read_qwen_config(write_config(tmp_path, PUBLISHED[name][0]))
    found = qwen_published.published_config(f"Qwen/Qwen2.5-{name}-Instruct")
    assert (found.sizes, found.vision, found.image_token) == (expected.sizes, expected.vision, expected.image_token)
    assert found.stops[:1] == expected.stops


def test_prompts_are_turns_of_the_published_template(folder, tmp_path):
    source = find_qwen(settings_of(folder))
    tokenizer = source.read_tokenizer()
    picture = np.zeros((32, 32, 3), np.uint8)
    expected = load_qwen_reader(str(folder)).write_prompt([Turn("user", "Is there a mass?", [picture])]).tokens
    image = tokenizer.image_token
    place = expected.index(image)
    assert tokenizer.encode_prompt("Is there a mass?") == [
        *expected[:place], *[image] * 64, *expected[place + 1 :]
    ]  # fmt: skip
    text = "<think>A mass.</think> [1, 2]"
    assert tokenizer.decode([*tokenizer.encode(text), tokenizer.stop, 65]) == text
    assert tokenizer.more_stops == ()
    shutil.copytree(folder, tmp_path / "several")
    (tmp_path / "several" / "generation_config.json").write_text(json.dumps({"eos_token_id": [258, 256]}))
    several = find_qwen(settings_of(tmp_path / "several")).read_tokenizer()
    assert (several.stop, several.more_stops) == (258, (256,))
    assert several.decode([*several.encode("a mass"), 256, 258, 65]) == "a mass"
    refuse(r"special token|control token", tokenizer.encode, f"x{IMAGE_TOKEN}")


def test_a_closed_vocabulary_takes_the_tokenizers_place():
    vocabulary = Vocabulary.count([*FRAME, "Is there a mass? [1]"], largest=3)
    tokenizer = ChatTokenizer.around(vocabulary, num_image_tokens=4)
    assert tokenizer.num_words == vocabulary.num_words + 4
    prompt = tokenizer.encode_prompt("Is there a mass?")
    assert prompt.count(tokenizer.image_token) == 4
    assert tokenizer.decode(prompt).startswith("system\nYou are a helpful assistant.")  # up to the turn's end
    assert tokenizer.decode([tokenizer.image_token, *tokenizer.encode(" mass"), tokenizer.stop, 3]) == " mass"
    assert tokenizer.closed is vocabulary


def test_parameters_of_the_checkpoint_in_their_parts(folder):
    settings = settings_of(folder, **{"training.compute_dtype": "bfloat16"})
    source = find_qwen(settings)
    policy = source.make_policy(settings, source.read_tokenizer())
    parts = source.load(policy)
    assert {np.asarray(leaf).dtype for leaf in jax.tree.leaves(parts)} == {jnp.dtype(jnp.bfloat16)}  # as stored
    blank = jax.tree.map(jnp.zeros_like, policy.init(jax.random.key(0))["params"])
    placed = put_given(blank, parts)
    assert {leaf.dtype for leaf in jax.tree.leaves(placed["trained"])} == {np.dtype(np.float32)}
    assert {leaf.dtype for leaf in jax.tree.leaves(placed["frozen"])} == {jnp.dtype(jnp.bfloat16)}
    jax.tree.map(lambda one, two: np.testing.assert_array_equal(one, np.asarray(two, one.dtype)), placed, parts)
    expected = load_qwen(str(folder), dtype=np.float32).params
    jax.tree.map(np.testing.assert_array_equal, policy.merge(parts), expected)
    shapes = jax.eval_shape(lambda: policy.init(jax.random.key(0)))["params"]
    assert jax.tree.map(lambda leaf: leaf.shape, shapes) == jax.tree.map(lambda leaf: leaf.shape, parts)


def test_loading_takes_the_memory_of_one_tensor(tmp_path):
    """And of what is computed of it, whatever the size of the checkpoint."""
    wide = {"hidden_size": 64, "intermediate_size": 20_000}
    vision = IMAGES["vision_config"] | {"out_hidden_size": 64}
    rotary = {"type": "mrope", "mrope_section": [2, 4, 2]}
    tensors, _ = write_qwen(tmp_path, IMAGES, bfloat16=True, **wide, vision_config=vision, rope_scaling=rotary)
    stored, largest = (total(tensor.nbytes for tensor in tensors.values()) for total in (sum, max))
    config = read_qwen_config(tmp_path)
    source = QwenSource(folder=tmp_path, config=config, vision=config.vision, grid=8)
    policy = QwenPolicy(SquareQwen(config.sizes, config.vision, jnp.dtype(jnp.bfloat16), grid=8), is_given=True)
    source.load(policy)  # imports
    tracemalloc.start()
    found = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(source.load(policy)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == stored
    assert largest <= peak <= 3 * largest < 0.6 * stored


def test_a_copy_that_was_interrupted_is_no_folder(folder, tmp_path, monkeypatch):
    copy = qwen_export.shutil.copyfile
    copied = []

    def copy_two(source, target):
        copied.append(target)
        if len(copied) > 2:
            raise OSError("no space")
        copy(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(qwen_export.shutil, "copyfile", copy_two)
        with pytest.raises(OSError, match="no space"):
            find_qwen(settings_of(folder)).copy_files(tmp_path)
    assert not (tmp_path / FOLDER).exists()
    find_qwen(settings_of(folder)).copy_files(tmp_path)
    find_qwen(settings_of(folder)).copy_files(tmp_path)  # of a run that goes on
    assert {path.name for path in tmp_path.iterdir()} == {FOLDER}
    assert (tmp_path / FOLDER / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()


def test_a_run_has_what_it_is_read_with(folder, tmp_path):
    find_qwen(settings_of(folder)).copy_files(tmp_path)
    gone = settings_of(tmp_path / "gone")
    source = find_qwen(gone, workdir=tmp_path)
    assert source.folder == tmp_path / FOLDER
    assert source.read_tokenizer().num_words == 262
    refuse(r"config.policy.weights: .*gone: no such folder", find_qwen, gone)


RANDOM, RANK = {"policy.random": True}, {"policy.low_rank": 2}
REFUSED = [
    ("Qwen/other", RANDOM, r"config.policy.weights: 'Qwen/other' is neither a folder nor one of Qwen/"),
    (ID, {**RANDOM, "image_encoder.image_size": 100}, r"image_size: 100 is not a multiple of 28 px"),
    ("folder", {"image_encoder.image_size": 68}, r"image_size: 68 px squared is not 16 to 4096 pixels"),
    ("folder", {"image_encoder.mean": (0.5, 0.5, 0.5)}, r"config.image_encoder.mean: .* is not that of"),
    ("text", {}, r"is a text model; a Qwen2.5-VL is required"),
    ("folder", {**RANK, "policy.low_rank_targets": r"model\.layers.*q_proj"}, "'model.*q_proj' matches no layer"),
]  # fmt: skip


@pytest.mark.parametrize(("weights", "changes", "message"), REFUSED)
def test_what_is_refused(folder, tmp_path, weights, changes, message):
    if weights == "text":
        write_reader(tmp_path, images=False)
    weights = {"folder": folder, "text": tmp_path}.get(weights, weights)
    refuse(message, find_qwen, settings_of(weights, **changes))
