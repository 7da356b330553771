import dataclasses
import json
import random
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse

from stepcot_jax.training import checkpoints as tested
from stepcot_jax.training.state import TrainState


def make_state(step):
    values = jax.random.normal(jax.random.key(step), (40, 50))
    key = jax.random.key_data(jax.random.key(0))
    return TrainState(step=jnp.array(step), params={"student": {"kernel": values}}, optimizers={}, key=key)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = tested.Checkpoints(folder)
    for step in (1, 2):
        checkpoints.save(make_state(step), {"epoch": step}, {"student": tested.Best(0.5, 1)})
    checkpoints.close()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


def files_with_digests(checkpoint):
    return sorted(json.loads((checkpoint / tested.DIGESTS).read_bytes()))


def test_every_file_has_a_digest_but_those_about_the_commit(saved):
    files = {path.relative_to(saved / "1").as_posix() for path in (saved / "1").rglob("*") if path.is_file()}
    rest = files - set(files_with_digests(saved / "1"))
    assert {name.rpartition("/")[2] for name in rest} == {tested.DIGESTS, "_CHECKPOINT_METADATA", "commit_success.txt"}


def test_a_flipped_bit_or_a_blank_sector_of_any_file_is_refused(folder):
    draw = random.Random(0)  # noqa: S311
    for name in files_with_digests(folder / "1"):
        path = folder / "1" / name
        content = path.read_bytes()
        flipped, blank = bytearray(content), bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        blank[:512] = bytes(min(512, len(blank)))
        for damaged in (flipped, blank, content[:-1]):
            path.write_bytes(damaged)
            refuse(f"{name} has changed", tested.check_digests, folder / "1", error=tested.Changed)
            if not name.startswith("progress/"):
                refuse("has changed since it was saved", tested.restore_params, folder, 1)
        path.write_bytes(content)
    tested.check_digests(folder / "1")
    np.testing.assert_array_equal(
        tested.restore_params(folder, 1)["student"]["kernel"], make_state(1).params["student"]["kernel"]
    )


def test_processes_that_divide_the_files_see_every_change_once(folder):
    names = files_with_digests(folder / "2")
    for name in names:
        path = folder / "2" / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        seen = 0
        for part in range(3):
            try:
                tested.check_digests(folder / "2", part=part, num_parts=3)
            except tested.Changed:
                seen += 1
        assert seen == 1
        path.write_bytes(content)


def test_a_resumed_run_falls_back_to_the_checkpoint_before(folder):
    arrays = max((folder / "2" / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
    content = bytearray(arrays.read_bytes())
    content[len(content) // 2] ^= 1
    arrays.write_bytes(content)
    checkpoints = tested.Checkpoints(folder)
    state, progress, warnings = checkpoints.restore_latest(make_state(0))
    checkpoints.close()
    assert (int(state.step), progress["epoch"]) == (1, 1)
    assert len(warnings) == 1
    assert "has changed since it was saved" in warnings[0]
    assert tested.saved_steps(folder) == [1]


def test_progress_that_was_changed_is_not_believed(folder):
    path = folder / "2" / "progress" / "metadata"
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.6"))
    refuse("progress/metadata has changed", tested.read_best, folder)


def test_an_added_file_and_missing_digests_are_damage(folder):
    (folder / "1" / "state" / "more").write_text("x")
    refuse("state/more was added since", tested.check_digests, folder / "1", error=tested.Changed)
    (folder / "2" / tested.DIGESTS).unlink()
    refuse(f"{tested.DIGESTS} is missing", tested.restore_params, folder, 2)


@pytest.mark.parametrize("removed", ["state", "progress", "_CHECKPOINT_METADATA", "state/_METADATA"])
def test_a_half_removed_checkpoint_does_not_count_as_saved(folder, removed):
    path = folder / "2" / removed
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert tested.saved_steps(folder) == [1]


@dataclasses.dataclass
class Info:
    step: int


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12))
def test_the_two_latest_are_whole_with_the_best_as_of_each(scores):
    policy, kept, best_as_of, best = tested.LatestAndBest(), [], {}, {}
    for step, pair in enumerate(scores):
        for name, score in enumerate(pair):
            if name not in best or score > best[name][0]:
                best[name] = (score, step)
        best_as_of[step] = {at for _, at in best.values()}
        policy.save(best_as_of[step])
        kept.append(step)
        keep = policy.should_preserve([Info(each) for each in kept], context=None)
        kept = [each for each, is_kept in zip(kept, keep, strict=True) if is_kept]
        latest = kept[-2:]
        assert latest == list(range(step + 1))[-2:]
        for each in latest:
            assert best_as_of[each] <= set(kept)
        assert len(kept) <= 2 + 4


def test_a_restored_run_keeps_what_is_best_by_then():
    policy = tested.LatestAndBest()
    policy.start({5})
    policy.save({20})
    assert policy.should_preserve([Info(step) for step in (5, 10, 15, 20)], context=None) == [True, False, True, True]
    policy.save({20})
    assert policy.should_preserve([Info(step) for step in (5, 15, 20, 25)], context=None) == [False, False, True, True]


def test_a_best_that_is_gone_is_forgotten_with_a_warning():
    best = {"teacher": {"score": 0.5, "step": 5}, "student": {"score": 0.4, "step": 10}}
    (warning,) = tested.forget_lost(best, [10, 15])
    assert "checkpoint 5" in warning
    assert "teacher" in warning
    assert list(best) == ["student"]
