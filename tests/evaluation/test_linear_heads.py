import numpy as np
import pytest
from evaluation.small_splits import CHAIN, draw_labels, draw_logits, make_split
from sklearn.linear_model import LogisticRegression

from stepcot_jax.evaluation.chains import bootstrap, bootstrap_differences
from stepcot_jax.evaluation.linear_heads import PENALTIES, compare_with_heads, fit_linear_heads
from stepcot_jax.evaluation.predictions import softmax

SIZES = (2, 3, 4, 2)


def draw(rng, num_cases):
    """Features of unlike scales, one of them constant, and labels, some of them missing."""
    features = rng.normal(size=(num_cases, 6)) * [1, 10, 0.1, 1, 1, 0] + [0, 5, 0, -3, 0, 7]
    noisy = features[:, :3] / [1, 10, 0.1] + rng.normal(0, [1, 2, 4], (num_cases, 3))
    labels = np.stack([noisy[:, 0] > 0, np.digitize(noisy[:, 1], [-1, 1]), np.digitize(noisy[:, 2], [0, 1])], axis=1)
    labels[rng.random(labels.shape) < 0.2] = -100
    return features, np.concatenate([labels, np.zeros((num_cases, 1), int)], axis=1)  # a step with one answer


def test_heads_are_those_of_scikit_learn_with_the_best_l2():
    rng = np.random.default_rng(0)
    (features, labels), (unseen, truth) = draw(rng, 300), draw(rng, 200)
    for rows, own in ((features, labels), (unseen, truth)):
        own[:, 0] = np.where(own[:, 0] >= 0, rows[:, 4] > 0, -100)  # separable
    heads = fit_linear_heads({"train": features, "val": unseen}, {"train": labels, "val": truth}, SIZES)
    found = [softmax(own[:, :size]) for own, size in zip(np.moveaxis(heads.read(unseen), 1, 0), SIZES, strict=True)]
    spread = features.std(axis=0)
    standard = [(rows - features.mean(axis=0))[:, spread > 0] / spread[spread > 0] for rows in (features, unseen)]
    for step in range(3):
        own, scored, fits = labels[:, step] >= 0, np.flatnonzero(truth[:, step] >= 0), []
        for penalty in PENALTIES:
            share = 2 if SIZES[step] == 2 else 1  # of two answers scikit-learn fits one vector, the difference of ours
            model = LogisticRegression(C=share / (own.sum() * penalty), tol=1e-8, max_iter=10_000)
            fits.append(model.fit(standard[0][own], labels[own, step]).predict_proba(standard[1]))
        losses = [-np.log(shares[scored, truth[scored, step]]).mean() for shares in fits]
        assert heads.penalties[step] == PENALTIES[int(np.argmin(losses))]
        np.testing.assert_allclose(found[step][:, : fits[0].shape[1]], fits[int(np.argmin(losses))], atol=5e-3)
    assert len(set(heads.penalties[:3])) > 1
    assert (found[2][:, 3] == 0).all()  # no training case has this answer
    np.testing.assert_array_equal(found[3], np.tile([1.0, 0.0], (200, 1)))


def test_differences_are_those_of_all_figures():
    split, rng = make_split(1), np.random.default_rng(5)
    logits = draw_logits(rng, draw_labels(rng, len(split.predictions.labels)))
    found = compare_with_heads(split, logits, CHAIN, name="heads", num_resamples=100)
    both = split.change(logits={**split.predictions.logits, "heads": logits})
    own = bootstrap(both, CHAIN, num_resamples=100)["heads"]
    assert found.pop("heads") == (own.mean_accuracy, own.steps[-1].accuracy)
    for model, (mean, last) in found.items():
        less = bootstrap_differences(both, CHAIN, first=model, second="heads", num_resamples=100)
        for figure, expected in ((mean, less.mean_accuracy), (last, less.steps[-1].accuracy)):
            assert [figure.value, figure.low, figure.high] == pytest.approx(
                [expected.value, expected.low, expected.high], abs=1e-12
            )
    for mean, last in compare_with_heads(split, logits, CHAIN, name="heads", num_resamples=0).values():
        assert np.isnan([mean.low, mean.high, last.low, last.high]).all()
