"""Figures of kept sets against ones by hand, and the round trip of a kept file."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.help_figures import Kept, mean_over_sets, measure, read_kept, shorten, show, write_kept

SIZES = (2, 4, 3)
CASES = 200


def draw_set(seed):
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.integers(0, size, CASES) for size in SIZES], axis=1)
    kept = Kept(labels, SIZES)
    for name, skill in (("teacher", 2.0), ("plain", 1.5)):
        logits = np.full((CASES, 3, 4), -1e9)
        for step, size in enumerate(SIZES):
            logits[:, step, :size] = rng.normal(size=(CASES, size)) + skill * np.eye(size)[labels[:, step]]
        kept.add_network(name, logits)
        hits = rng.random((3, CASES)) < 0.6
        kept.add_reading(name, hits, rng.dirichlet(np.ones(3), CASES))
    return kept


def by_hand(kept, name):
    """The figures with loops; a threshold is tried on every normal case's share."""
    last = np.exp(kept.last[name].astype(float))
    p_normal = last[:, 0] / last.sum(axis=1)
    normal = kept.labels[:, -1] == 0
    rate = np.mean([kept.answers["plain"][case, -1] != 0 for case in np.flatnonzero(normal)])
    allowed = [t for t in p_normal[normal] if np.mean(p_normal[normal] < t) <= rate + 1e-9]
    threshold, right = max(allowed), 0
    for case in np.flatnonzero(~normal):
        answers = [*kept.answers[name][case, :-1], 1 + np.argmax(kept.last[name][case, 1:])]
        right += p_normal[case] < threshold and list(answers) == list(kept.labels[case])
    return 100 * right / (~normal).sum()


def test_figures_are_those_by_hand(tmp_path):
    kept = draw_set(0)
    write_kept(tmp_path / "quickstart_01.npz", kept, about={"set": 1})
    read = read_kept(tmp_path / "quickstart_01.npz")
    assert read.sizes == SIZES
    for own, other in ((kept.answers, read.answers), (kept.last, read.last), (kept.hits, read.hits)):
        assert own.keys() == other.keys()
        assert all(np.array_equal(own[name], other[name]) for name in own)
    found = measure(read)
    for name in ("teacher", "plain"):
        right = kept.answers[name] == kept.labels
        assert found[name]["steps"] == pytest.approx(100 * right.mean())
        assert found[name]["whole chains"] == pytest.approx(100 * right.all(axis=1).mean())
        assert found[name]["diagnosis after two answers"] == pytest.approx(100 * kept.hits[name][2].mean())
        assert found[name]["whole chains of abnormal cases"] == pytest.approx(by_hand(kept, name), abs=1.0)


def test_kept_logits_are_the_networks_to_a_sixteenth():
    logits = np.random.default_rng(1).normal(scale=5, size=(50, 9))
    kept = shorten(logits).astype(float)
    np.testing.assert_allclose(kept, np.maximum(logits - logits.max(axis=1, keepdims=True), -30), atol=1 / 32)
    assert (kept.argmax(axis=1) == logits.argmax(axis=1)).mean() > 0.9


def test_a_mean_over_sets_has_the_interval_of_a_t_test():
    values = [0.4, -0.2, 0.9, 0.3, 0.1]
    mean = mean_over_sets(values, margin=0.5)
    test = stats.ttest_1samp(values, 0.0)
    interval = test.confidence_interval(0.95)
    assert (mean.low, mean.high) == pytest.approx((interval.low, interval.high))
    assert mean.p == pytest.approx(test.pvalue)
    assert mean.p_below == pytest.approx(stats.ttest_1samp(values, -0.5, alternative="greater").pvalue)


def test_sets_are_shown_beside_the_plain_network(tmp_path):
    for number in (1, 2, 3):
        write_kept(tmp_path / f"quickstart_0{number}.npz", draw_set(number), about={"set": number})
    shown = show(tmp_path, "quickstart")
    assert "3 sets of `quickstart` (1, 2, 3)" in shown
    assert "| teacher less plain | **diagnosis after two answers** |" in shown
