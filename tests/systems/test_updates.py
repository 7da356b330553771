"""Labels that an update may take for the truth."""

import jax.numpy as jnp
import numpy as np

from stepcot_jax.systems.updates import certain_labels

LABELS = jnp.array([[0, 1], [-100, 2]])


def test_without_soft_targets_every_label_is_certain():
    np.testing.assert_array_equal(certain_labels({"labels": LABELS}), LABELS)


def test_a_target_spread_over_answers_is_not_certain():
    targets = jnp.array([[[1, 0, 0], [0.3, 0.7, 0]], [[0, 0, 0], [0, 0, 1]]], jnp.float32)
    found = np.asarray(certain_labels({"labels": LABELS, "targets": targets}))
    assert (found < 0).tolist() == [[False, True], [True, False]]
    assert (found[0, 0], found[1, 1]) == (0, 2)
