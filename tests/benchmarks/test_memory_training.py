"""A teacher whose memory is worth reading learns to read it: the image tells nothing, the earlier answer tells all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training.small_run import small_settings

from benchmarks import memory_training
from benchmarks.memory_use import OF_ANOTHER, OWN, TRUE
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.experiments.weights import Weights
from stepcot_jax.systems import make_networks

CHAIN = Chain(tuple(Step(name, "?", ("yes", "no", "perhaps")) for name in ("first", "second")))


@pytest.fixture(scope="module")
def weights():
    settings = small_settings(
        teacher__width=24, teacher__head_dropout=0.0, teacher__context_dropout=0.0, teacher__attention_dropout=0.0,
        training__batch_size=16, training__teacher_learning_rate=3e-3,
    )  # fmt: skip
    text = jax.random.normal(jax.random.key(1), (2, 24))
    return Weights(settings, CHAIN, make_networks(settings, CHAIN, None), {}, text)


def draw(num_cases, seed):
    """Images that are noise, and a second answer that follows from the first one, which nothing tells."""
    generator = np.random.default_rng(seed)
    first = generator.integers(0, 3, num_cases)
    labels = np.stack([first, (first + 1) % 3], axis=1).astype(np.int32)
    labels[::9, 1] = NOT_ANNOTATED
    return generator.standard_normal((num_cases, 6)).astype(np.float32), labels


@pytest.fixture(scope="module")
def found(weights):
    with jax.numpy_dtype_promotion("standard"):
        return memory_training.compare(weights, training=draw(100, 0), test=draw(90, 1), num_epochs=25, seed=2)


def test_a_teacher_that_was_given_answers_reads_the_second_from_the_first(found):
    assert found[TRUE, TRUE][1] == 1.0
    for read_with in (OWN, OF_ANOTHER):
        assert found[TRUE, read_with][1] < 0.6
    for accuracy in found.values():
        assert accuracy[0] < 0.6


def test_the_table_has_means_and_deviations(found):
    other = {names: accuracy - 0.1 for names, accuracy in found.items()}
    one, two = (memory_training.format_table(parts, CHAIN).splitlines() for parts in ([found], [found, other]))
    assert one[0] == "| written in training | written in reading | first | second |"
    cells = next(line for line in one if line.startswith("| true | true |")).split(" | ")
    assert cells[-1] == "100.0 |"
    cells = next(line for line in two if line.startswith("| true | true |")).split(" | ")
    assert cells[-1] == "95.0 ± 7.1 |"


def test_every_epoch_has_all_its_cases_once_but_those_that_fill_no_batch():
    batches = list(memory_training._draw(10, 4, num_epochs=3, seed=0))
    assert [batch.shape for batch in batches] == [(4,)] * 6
    epochs = [np.concatenate(batches[start : start + 2]) for start in (0, 2, 4)]
    assert all(len(set(epoch.tolist())) == 8 for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()
    assert jnp.asarray(epochs).max() < 10
