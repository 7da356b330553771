"""Random parameters without zeros, which would hide missing terms, and finite-difference gradients."""

import jax
import jax.numpy as jnp
import numpy as np

ANSWERS = {1: (3,), 2: (4, 2), 3: (3, 2, 4), 7: (4, 4, 6, 7, 5, 7, 9)}
"""Answer counts of the test chains, by number of steps."""


def declare(module, **inputs):
    static = {name: value for name, value in inputs.items() if not isinstance(value, np.ndarray)}
    arrays = {name: value for name, value in inputs.items() if isinstance(value, np.ndarray)}
    return jax.eval_shape(lambda arrays: module.init(jax.random.key(0), **arrays, **static), arrays)["params"]


def randomise(shapes, seed=0):
    """Random float32 values in every leaf, including biases, norms and initial states."""
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        noise = rng.standard_normal(leaf.shape)
        if path[-1].key == "kernel":
            fan_in = leaf.shape[-2] if len(leaf.shape) < 4 else np.prod(leaf.shape[:-1])
            noise = noise / np.sqrt(fan_in)
        elif path[-1].key == "scale":
            noise = 1 + 0.3 * noise
        else:
            noise = 0.5 * noise
        return jnp.asarray(noise, jnp.float32)

    return jax.tree_util.tree_map_with_path(fill, shapes)


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def with_arrays(function):
    """The function with NumPy arguments as JAX arrays, which the run-time type checks require."""

    def as_array(value):
        return jnp.asarray(value) if isinstance(value, np.ndarray) else value

    def call(*args, **named):
        return function(*map(as_array, args), **{name: as_array(value) for name, value in named.items()})

    return call


def random_labels(seed, num_cases, answers, missing=0.3):
    """int32 labels [case, step]; -100 where not annotated."""
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.integers(0, count, num_cases) for count in answers], axis=1)
    return np.where(rng.random(labels.shape) < missing, -100, labels).astype(np.int32)


def leaves(tree, path=()):
    """(path, array) of every leaf of nested dicts, in a fixed order."""
    for name in sorted(tree):
        if hasattr(tree[name], "items"):
            yield from leaves(tree[name], (*path, name))
        else:
            yield (*path, name), tree[name]


def check_gradients(function, tree, gradients, *, entries=2, step=1e-5, tolerance=2e-5, seed=0):
    """Compare `gradients` with central differences of `function(tree)` at random entries of every leaf.

    `tree` has float64 leaves, which are changed in place and put back. Returns the largest gradient met.
    """
    rng, found, largest = np.random.default_rng(seed), dict(leaves(gradients)), 0.0
    assert set(found) == {path for path, _ in leaves(tree)}
    for path, array in leaves(tree):
        for flat in rng.choice(array.size, min(entries, array.size), replace=False):
            index = np.unravel_index(flat, array.shape)
            values, kept = [], array[index]
            for side in (+1, -1):
                array[index] = kept + side * step
                values.append(function(tree))
            array[index] = kept
            numeric, ours = (values[0] - values[1]) / (2 * step), float(found[path][index])
            assert abs(ours - numeric) <= tolerance * max(1.0, abs(numeric)), (path, index, ours, numeric)
            largest = max(largest, abs(numeric))
    return largest


def largest(tree):
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def apart(one, other):
    """The largest difference of two trees."""
    return largest(jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), one, other))


def assert_close(found, expected, tolerance=2e-5):
    """Absolute or relative error, whichever is smaller; shapes must agree."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    error = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    assert error.size
    assert error.max() <= tolerance, (
        f"largest error {error.max():.3g} at {np.unravel_index(error.argmax(), error.shape)}"
    )


def assert_logits(found, expected, tolerance=2e-5):
    """Padded logits [case, step, answer] against a list of [case, answer]; absent answers are at -1e9 exactly."""
    found = np.asarray(found)
    assert found.dtype == np.float32
    assert found.shape == (len(expected[0]), len(expected), max(step.shape[1] for step in expected))
    for step, logits in enumerate(expected):
        assert_close(found[:, step, : logits.shape[1]], logits, tolerance)
        assert (found[:, step, logits.shape[1] :] == -1e9).all()
