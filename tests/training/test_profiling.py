import jax
import jax.numpy as jnp
import pytest

from stepcot_jax.training.loop import Profiler


@jax.jit
def update(x):
    return x * 2.0


def traces(folder):
    return sorted(folder.rglob("*.xplane.pb"))


def run(folder, updates, *, steps):
    said, value = [], jnp.ones(3)
    profiler = Profiler(folder, updates, say=said.append)
    for step in steps:
        profiler.before(step)
        value = update(value)
        profiler.after(step, value)
    count = len(traces(folder))
    profiler.close()
    return count, said


@pytest.mark.parametrize(
    ("updates", "steps", "written_before_the_end", "written"),
    [
        ((2, 3), range(1, 5), 1, 1),
        ((2, 3), range(3, 5), 1, 1),  # resumed between the two
        ((2, 9), range(1, 4), 0, 1),  # the run ends before
        ((2, 3), range(4, 6), 0, 0),  # resumed after them
        ((), range(1, 3), 0, 0),
    ],
)
def test_what_was_asked_for_is_traced(tmp_path, updates, steps, written_before_the_end, written):
    count, said = run(tmp_path, updates, steps=steps)
    assert (count, len(traces(tmp_path)), len(said)) == (written_before_the_end, written, written)
    assert all(f"xprof --logdir={tmp_path}" in line for line in said)
