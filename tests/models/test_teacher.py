"""The teacher against the equations of D.2, one case and one step at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import reference_numpy as oracle
from oracles.quick_jit import quick_jit
from oracles.random_params import ANSWERS, assert_close, assert_logits, declare, normal, randomise

from stepcot_jax.models import teacher
from stepcot_jax.models.student import Student
from stepcot_jax.models.teacher import Teacher
from stepcot_jax.systems.networks import Networks, init_params
from stepcot_jax.training.state import count_parameters

CASES, WIDTH, HEADS, LAYERS = 4, 8, 2, 2
IMAGES = normal(1, CASES, 5)


def text_of(steps, width=WIDTH, *, shared=True):
    return normal(2, steps, width) if shared else normal(3, CASES, steps, width)


class Reader:
    """A teacher with random parameters, compiled once per set of arguments."""

    def __init__(self, steps, prompts, **settings):
        self.steps, self.text = steps, prompts
        self.module = Teacher(answers_per_step=ANSWERS[steps], width=WIDTH, num_heads=HEADS, **settings)
        self.shapes = declare(self.module, image_features=IMAGES, text_features=prompts, deterministic=True)
        self.params = randomise(self.shapes, seed=steps)
        self.apply = quick_jit(self._apply, static_argnames=("deterministic", "with_attention"))

    def _apply(self, params, inputs, rngs=None, deterministic=True, with_attention=True):
        return self.module.apply(
            {"params": params}, **inputs, deterministic=deterministic, with_attention=with_attention, rngs=rngs
        )

    def read(self, *, params=None, given=None, mask=None, **settings):
        """Deterministic unless a key is given; masks and answers are always explicit, so that it compiles once."""
        num_nodes = self.steps + self.module.memory
        inputs = {
            "image_features": IMAGES,
            "text_features": self.text,
            "given_answers": np.full((CASES, self.steps), -1, np.int32) if given is None else given,
            "node_mask": np.ones((CASES, num_nodes), bool) if mask is None else mask,
            **settings,
        }
        return self.apply(self.params if params is None else params, inputs)

    def expect(self, *, params=None, images=IMAGES, **settings):
        params = oracle.as_float64(self.params if params is None else params)
        return oracle.teacher(params, images, self.text, **settings)


@functools.cache
def reader(steps, *, shared=True, **settings):
    return Reader(steps, text_of(steps, shared=shared), **settings)


def assert_reading(found, expected, tolerance=2e-5):
    assert_logits(found.logits, expected["logits"], tolerance)
    assert_close(found.image_features, expected["image_features"], tolerance)
    assert_close(found.attention, expected["attention"], tolerance)
    if expected["memory"] is None:
        assert found.memory is None
    else:
        assert_close(found.memory, expected["memory"], tolerance)


@pytest.mark.parametrize("steps", [1, 7])
def test_teacher_agrees_with_the_oracle(steps):
    inputs = {"image_features": IMAGES, "text_features": text_of(steps)}
    found = reader(steps).apply(reader(steps).params, inputs)
    assert found.attention.shape == (CASES, steps, LAYERS, HEADS, steps + 1, steps + 1)
    assert_reading(found, reader(steps).expect())
    arrays = jax.tree.map(jnp.asarray, inputs)
    bare = jax.eval_shape(
        lambda params: reader(steps)._apply(params, arrays, with_attention=False), reader(steps).params
    )
    assert bare.attention is None


@pytest.mark.parametrize("shared", [True, False])
def test_hidden_nodes_agree_with_the_oracle(shared):
    mask = np.array([[1, 1, 1, 1], [0, 1, 1, 1], [1, 0, 0, 1], [1, 1, 1, 0]], bool)
    each = reader(3, shared=shared)
    found = each.read(mask=mask)
    assert_reading(found, each.expect(node_mask=mask))
    moved = np.abs(found.logits - each.read().logits).max(axis=(1, 2))
    assert moved[0] == 0
    assert (moved[1:] > 1e-4).all()


def test_given_answers_agree_with_the_oracle():
    given = np.array([[-1, -1, -1], [2, -1, 3], [-1, 1, -1], [0, 0, 0]], np.int32)
    assert_reading(reader(3).read(given=given), reader(3).expect(given=given))


def test_given_answer_changes_later_steps_only():
    step = 1
    given = np.full((CASES, 3), -1, np.int32)
    given[1, step] = 1
    found, plain = reader(3).read(given=given), reader(3).read()
    changed = np.abs(found.logits - plain.logits).max(axis=-1)
    assert not changed[[0, 2, 3]].any()
    assert not changed[1, : step + 1].any()
    assert (changed[1, step + 1 :] > 1e-5).all()


def test_without_memory_agrees_with_the_oracle_and_has_no_memory_parameters():
    bare = reader(3, memory=False)
    assert set(bare.shapes).isdisjoint({"memory_start", "memory_cell", "conclusion"})
    assert bare.shapes["context"]["linear"]["kernel"].shape == (WIDTH, WIDTH)
    mask = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 0]], bool)
    found = bare.read(mask=mask)
    assert found.attention.shape == (CASES, 3, LAYERS, HEADS, 3, 3)
    assert_reading(found, bare.expect(node_mask=mask))
    given = np.ones((CASES, 3), np.int32)
    assert_close(bare.read(given=given, mask=mask).logits, found.logits, 0)


def test_without_write_back_the_memory_is_constant_and_no_answer_reaches_a_later_step():
    bare = reader(3, write_back=False)
    assert set(reader(3).shapes) - set(bare.shapes) == {"memory_cell", "conclusion"}
    assert bare.shapes["context"]["linear"]["kernel"].shape == (2 * WIDTH, WIDTH)  # a step still reads the memory
    none, given = (bare.read(given=np.full((CASES, 3), answer, np.int32)).logits for answer in (-1, 1))
    np.testing.assert_array_equal(none, given)
    assert np.abs(none[:, :, :2]).max() > 1e-3


def test_without_text_agrees_with_the_oracle_and_has_step_vectors():
    bare = Reader(3, None, text=False)
    assert bare.shapes["step_vectors"].shape == (3, WIDTH)
    assert "text_projection" not in bare.shapes
    assert_reading(bare.read(), bare.expect())


def test_steps_start_distinct_and_the_memory_at_zero():
    module = Teacher(answers_per_step=(2, 2), width=WIDTH, num_heads=HEADS, text=False)

    @quick_jit
    def init(images):
        params = module.init(jax.random.key(0), image_features=images, deterministic=True)["params"]
        return params["step_vectors"], params["memory_start"], params["heads"]["fusion_0"]["linear"]["kernel"]

    vectors, memory, kernels = init(IMAGES)
    assert np.abs(vectors[0] - vectors[1]).max() > 0.1
    assert not memory.any()  # facts.md: zero at the start of training
    assert (kernels[0] != kernels[1]).all()


def test_other_text_width_goes_through_a_projection():
    wide = Reader(2, text_of(2, 11))
    assert wide.shapes["text_projection"]["kernel"].shape == (11, WIDTH)
    assert "text_projection" not in reader(2).shapes
    assert_reading(wide.read(), wide.expect())


def keyed(reader, seed=0, **settings):
    inputs = {"image_features": IMAGES, "text_features": reader.text, **settings}
    return reader.apply(reader.params, inputs, {"dropout": jax.random.key(seed)}, deterministic=False)


def test_every_mask_has_its_rate_and_acts_at_its_place_and_step(monkeypatch):
    """With masks of our own, drawn at the rates that the teacher asks for, it agrees with the oracle."""
    rates = {"attention": 0.4, "context": 0.25, "head": 0.5}
    own = Reader(3, text_of(3), **{f"{name}_dropout_rate": rate for name, rate in rates.items()})
    own.params = reader(3).params
    asked, factors = {}, {}

    def draw(key, *, cases, leading, sites):
        asked.update({place: rate for place, (_, rate) in sites.items()})
        rng = np.random.default_rng(0)
        keeps = {place: rng.random((*leading, CASES, *axes)) >= rate for place, (axes, rate) in sites.items()}
        factors.update({place: keep / (1 - asked[place]) for place, keep in keeps.items()})
        return {place: jnp.asarray(keep) for place, keep in keeps.items()}

    monkeypatch.setattr(teacher, "draw_keeps", draw)
    found = keyed(own)
    assert asked == {place: rates[rate] for rate, places in oracle.SILENCED.items() for place in places}
    assert {factor.shape[0] for factor in factors.values()} == {3}
    assert_reading(found, own.expect(factors=factors))


def test_dropout_follows_the_key_and_each_case_has_its_own():
    noisy = reader(2)
    same = np.tile(IMAGES[:1], (CASES, 1))
    first = keyed(noisy, 0, image_features=same)
    assert (first.logits == keyed(noisy, 0, image_features=same).logits).all()
    assert (first.logits[..., :2] != keyed(noisy, 1, image_features=same).logits[..., :2]).any()
    assert len(np.unique(np.asarray(first.logits[:, 0]), axis=0)) == CASES


def test_bfloat16_keeps_float32_parameters_and_logits():
    with jax.numpy_dtype_promotion("standard"):  # Flax's LayerNorm promotes dtypes
        half = reader(3, dtype=jnp.bfloat16)
        found, expected = half.read(), half.expect()["logits"]
    assert {leaf.dtype for leaf in jax.tree.leaves(half.shapes)} == {jnp.dtype(jnp.float32)}
    assert_logits(found.logits, expected, 0.15)
    assert found.image_features.dtype == jnp.bfloat16
    assert found.attention.dtype == jnp.float32
    assert np.abs(np.asarray(found.logits)[:, 0, :3] - expected[0]).max() > 1e-4  # shows that it computed in bfloat16


@pytest.mark.parametrize("text", [None, normal(0, CASES, 4, WIDTH)])
def test_text_without_one_vector_a_step_is_refused(text):
    text = None if text is None else jnp.asarray(text)
    with pytest.raises(ValueError, match=r"text_features must have shape \[3, width\]"):
        reader(3).module.apply(
            {"params": reader(3).params}, image_features=jnp.asarray(IMAGES), text_features=text, deterministic=True
        )


def test_the_networks_train_the_published_numbers():
    answers = ANSWERS[7]
    networks = Networks(teacher=Teacher(answers_per_step=answers), student=Student(answers_per_step=answers))

    def init():
        batch = {"image_features": jnp.zeros((1, 512))}
        return init_params(networks, key=jax.random.key(0), batch=batch, text_features=jnp.zeros((7, 768)))

    shapes = jax.eval_shape(init)
    assert [count_parameters(shapes[name]) for name in ("teacher", "student")] == [22_904_874, 285_226]
