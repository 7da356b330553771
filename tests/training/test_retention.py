import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from stepcot_jax.training.checkpoints import LatestAndBest, forget_lost


@dataclasses.dataclass
class Info:
    step: int


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=12))
def test_the_two_latest_are_whole_with_the_best_as_of_each(scores):
    policy, kept, best_as_of, best = LatestAndBest(), [], {}, {}
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
    policy = LatestAndBest()
    policy.start({5})
    policy.save({20})
    assert policy.should_preserve([Info(step) for step in (5, 10, 15, 20)], context=None) == [True, False, True, True]
    policy.save({20})
    assert policy.should_preserve([Info(step) for step in (5, 15, 20, 25)], context=None) == [False, False, True, True]


def test_a_best_that_is_gone_is_forgotten_with_a_warning():
    best = {"teacher": {"score": 0.5, "step": 5}, "student": {"score": 0.4, "step": 10}}
    (warning,) = forget_lost(best, [10, 15])
    assert "checkpoint 5" in warning
    assert "teacher" in warning
    assert list(best) == ["student"]
