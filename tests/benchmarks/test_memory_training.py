"""A teacher whose memory is worth reading learns to read it: the image tells nothing, the earlier answer tells all."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run.small_run import small_settings

from benchmarks import memory_training
from benchmarks.memory_use import OF_ANOTHER, OWN, TRUE
from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.host.errors import BadInput
from stepcot_jax.systems.networks import make_networks
from stepcot_jax.tables.cell_networks import Weights

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
    accuracy = {(one, two): found[one].accuracy[two] for one in (OWN, TRUE) for two in (OWN, TRUE, OF_ANOTHER)}
    assert accuracy[TRUE, TRUE][1] > 0.95
    # A teacher that wrote its own has learned from the cases that it knew by heart that its memory is worth something.
    assert accuracy[OWN, TRUE][1] < accuracy[TRUE, TRUE][1] - 0.1
    for names in [(TRUE, OWN), (TRUE, OF_ANOTHER), (OWN, OWN), (OWN, OF_ANOTHER)]:
        assert accuracy[names][1] < 0.6
    assert all(steps[0] < 0.6 for steps in accuracy.values())


def test_the_table_has_means_and_deviations(found):
    def lower(use):
        accuracy = {name: [own - 0.1 for own in steps] for name, steps in use.accuracy.items()}
        return dataclasses.replace(use, accuracy=accuracy, cosine_after=[0.5, 0.25])

    fixed = {name: dataclasses.replace(use, cosine_after=[0.5, 0.75]) for name, use in found.items()}
    other = {name: lower(use) for name, use in fixed.items()}
    second = 100 * found[TRUE].accuracy[TRUE][1]
    one, two = (memory_training.format_table(parts, CHAIN).splitlines() for parts in ([fixed], [fixed, other]))
    assert one[0] == "| written in training | written at test time | first | second |"
    assert len(one) == 2 + 6
    cells = next(line for line in one if line.startswith("| true | true |")).split(" | ")
    assert cells[-1] == f"{second:.1f} |"
    cells = next(line for line in two if line.startswith("| true | true |")).split(" | ")
    assert cells[-1] == f"{second - 5:.1f} ± 7.1 |"
    assert memory_training.format_cosines([fixed, other]).endswith("0.5000 ± 0.3536 (own), 0.5000 ± 0.3536 (true).")


def test_fewer_cases_than_a_batch_are_refused(weights):
    with pytest.raises(BadInput, match="train split: 15 cases are fewer than one batch of 16"):
        memory_training.compare(weights, training=draw(15, 0), test=draw(9, 1), num_epochs=1, seed=2)
    with pytest.raises(BadInput, match="--epochs: 0 is not 1 or more"):
        memory_training.main(["nowhere", "--epochs", "0"])


def test_every_epoch_has_all_its_cases_once_but_those_that_fill_no_batch():
    batches = list(memory_training._draw(10, 4, num_epochs=3, seed=0))
    assert [batch.shape for batch in batches] == [(4,)] * 6
    epochs = [np.concatenate(batches[start : start + 2]) for start in (0, 2, 4)]
    assert all(len(set(epoch.tolist())) == 8 for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist()
    assert jnp.asarray(epochs).max() < 10
