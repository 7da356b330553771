"""Figures of scored replies and their intervals against loops over drawn patients."""

import dataclasses
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from stepcot_jax.evaluation import replies as tested

NAN = math.nan
KINDS = ("open", "closed", "single", "multi")
SCORES = (tested.A_SCORE, tested.V_SCORE, tested.GROUNDING, tested.FORMAT)


def make(kinds, *, a, **columns):
    num = len(kinds)
    unknown = dict.fromkeys(("judged_reply", "judged_reference"), np.full(num, NAN))
    columns = dict.fromkeys(("v_score", "grounding", "format"), np.zeros(num)) | unknown | columns
    return tested.ScoredReplies(
        kinds=np.array(kinds),
        patients=np.array([f"p{k}" for k in range(num)]),
        references=np.array(["findings"] * num),
        a_score=np.array(a, float),
        **{name: np.array(values, float) for name, values in columns.items()},
    )


def draw(num, seed=0):
    rng = np.random.default_rng(seed)
    scores = {name: np.where(rng.random(num) < 0.1, NAN, rng.uniform(0, 1, num)) for name in SCORES[1:]}
    return tested.ScoredReplies(
        kinds=rng.choice(KINDS, num),
        patients=rng.choice([f"p{k}" for k in range(max(2, num // 4))], num),
        references=rng.choice(["findings", "regions", "both", ""], num),
        a_score=np.where(rng.random(num) < 0.1, NAN, rng.integers(0, 2, num)),
        judged_reply=rng.uniform(1, 10, num),
        judged_reference=rng.uniform(1, 10, num),
        **scores,
    )


def take(scored, rows):
    return dataclasses.replace(scored, **{name: values[rows] for name, values in vars(scored).items()})


def naive(rows, scored, open_score):
    """Figures of a list of rows, repeated as often as they were drawn, by loops."""

    def mean(name, chosen):
        values = [float(getattr(scored, name)[row]) for row in rows if chosen(row)]
        known = [value for value in values if not math.isnan(value)]
        return sum(known) / len(known) if known else NAN

    found = {}
    for kind in sorted(set(scored.kinds.tolist())):

        def of(row, kind=kind):
            return scored.kinds[row] == kind

        found[tested.A_SCORE, kind] = mean("a_score", of)
        if kind == "open" and open_score != "exact":
            chosen = [row for row in rows if of(row) and not math.isnan(scored.a_score[row])]
            pairs = [(scored.judged_reply[row], scored.judged_reference[row]) for row in chosen]
            if open_score == "relative":
                found[tested.A_SCORE, kind] = sum(p[0] for p in pairs) / sum(p[1] for p in pairs) if pairs else NAN
            else:
                found[tested.A_SCORE, kind] = sum(abs(p[0] - p[1]) < 2 for p in pairs) / len(pairs) if pairs else NAN
        for name in (tested.V_SCORE, tested.GROUNDING, tested.FORMAT):
            found[name, kind] = mean(name, of)
    averaged = [value for (name, _), value in found.items() if name == tested.A_SCORE and not math.isnan(value)]
    found[tested.A_SCORE, "mean"] = sum(averaged) / len(averaged) if averaged else NAN
    for name in (tested.V_SCORE, tested.GROUNDING, tested.FORMAT):
        found[name, "all"] = mean(name, lambda row: True)
        for group in ("findings", "regions"):
            if group in scored.references:
                found[name, group] = mean(name, lambda row, group=group: scored.references[row] == group)
    return found


def resample(measure, patients, num_resamples=30):
    """The figures of the rows themselves, and their 95 % intervals over drawn patients."""
    names, member = np.unique(patients, return_inverse=True)
    counts = np.random.default_rng(3).multinomial(len(names), np.full(len(names), 1 / len(names)), size=num_resamples)
    rows = range(len(patients))
    drawn = [measure([row for row in rows for _ in range(int(times[member[row]]))]) for times in counts]
    own = measure(rows)
    return {key: (own[key], *np.nanquantile([one[key] for one in drawn], [0.025, 0.975])) for key in own}


def check_same(found, expected):
    assert set(found) == set(expected)
    for key, interval in found.items():
        assert (interval.value, interval.low, interval.high) == pytest.approx(expected[key], rel=1e-9, nan_ok=True), key


@pytest.mark.parametrize("open_score", ["exact", "relative", "within_two"])
def test_figures_and_intervals_agree_with_a_loop_over_drawn_patients(open_score):
    scored = draw(60)
    found = tested.score_models({"m": scored}, open_score=open_score, num_resamples=30, seed=3)["m"]
    check_same(found, resample(lambda rows: naive(rows, scored, open_score), scored.patients))


@pytest.mark.parametrize("open_score", ["exact", "relative"])
def test_differences_are_of_the_same_resamples_and_of_the_replies_that_both_have(open_score):
    first = draw(60)
    shared = {name: getattr(first, name) for name in ("kinds", "patients", "references")}
    second = dataclasses.replace(draw(60, seed=1), **shared)
    found = tested.score_difference(first=first, second=second, open_score=open_score, num_resamples=30, seed=3)
    pair = []
    for one, other in ((first, second), (second, first)):
        columns = {name: np.where(np.isnan(getattr(other, name)), NAN, getattr(one, name)) for name in SCORES}
        pair.append(dataclasses.replace(one, **columns))

    def measure(rows):
        one, other = (naive(rows, scored, open_score) for scored in pair)
        return {key: one[key] - other[key] for key in one}

    check_same(found, resample(measure, first.patients))
    better = dataclasses.replace(first, v_score=first.v_score + 0.25)
    gain = tested.score_difference(first=better, second=first, num_resamples=50)
    assert dataclasses.astuple(gain[tested.V_SCORE, "all"])[:3] == pytest.approx((0.25, 0.25, 0.25))
    assert (gain[tested.A_SCORE, "mean"].low, gain[tested.A_SCORE, "mean"].high) == (0, 0)


def test_the_average_is_over_kinds_and_not_over_questions():
    # Table 4 of GEMeX-RMCoT, row 1: the average of the four is 44.14; over the 3,960 questions it would be 47.80.
    shares = {"open": (0.8513, 1144), "closed": (0.3039, 543), "single": (0.49, 1300), "multi": (0.1202, 973)}
    kinds = [kind for kind, (_, number) in shares.items() for _ in range(number)]
    a = [share for share, number in shares.values() for _ in range(number)]
    found = tested.score_models({"m": make(kinds, a=a)}, num_resamples=1)["m"]
    assert 100 * found[tested.A_SCORE, "mean"].value == pytest.approx(44.14, abs=0.005)


@pytest.mark.parametrize(
    ("open_score", "a", "reply", "reference", "expected"),
    [  # in the first three the third could not be read (0) and the fourth has no usable score (NaN)
        ("relative", [1, 0, 0, NAN], [8, 3, NAN, NAN], [9, 6, NAN, NAN], 11 / 15 * 2 / 3),
        ("within_two", [1, 0, 0, NAN], [8, 3, NAN, NAN], [9, 6, NAN, NAN], 1 / 3),
        ("relative", [0, 0], [NAN, NAN], [NAN, NAN], 0),
        ("relative", [NAN, NAN], [NAN, NAN], [NAN, NAN], NAN),
        ("within_two", [1, 1, 1], [8, 8.01, 4.1], [10, 10, 2.1], 1 / 3),  # 4.1 - 2.1 is below 2 in float64
    ],
)
def test_open_scores_of_a_judge(open_score, a, reply, reference, expected):
    scored = make(["open"] * len(a), a=a, judged_reply=reply, judged_reference=reference)
    found = tested.score_models({"m": scored}, open_score=open_score, num_resamples=1)["m"][
        tested.A_SCORE, "open"
    ].value
    assert found == pytest.approx(expected, nan_ok=True)


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(8, 40))
def test_the_order_of_rows_does_not_matter_and_masked_rows_are_dropped_rows(seed, num):
    scored, rng = draw(num, seed), np.random.default_rng(seed)
    dropped = rng.random(num) < 0.3
    # Patients stay in the draw when one of their replies does.
    for patient in np.unique(scored.patients):
        dropped[np.flatnonzero(scored.patients == patient)[0]] = False
    masked = dataclasses.replace(scored, **{name: np.where(dropped, NAN, getattr(scored, name)) for name in SCORES})
    pairs = ((scored, take(scored, rng.permutation(num))), (masked, take(scored, ~dropped)))
    for pair in pairs:
        first, second = (tested.score_models({"m": one}, open_score="relative", num_resamples=20)["m"] for one in pair)
        for key, interval in second.items():
            expected = pytest.approx(dataclasses.astuple(first[key]), abs=1e-12, nan_ok=True)
            assert dataclasses.astuple(interval) == expected


def test_mcnemar_by_kind():
    kinds = ["closed"] * 6 + ["open"] * 3 + ["multi"] * 2
    first = make(kinds, a=[1, 1, 1, 1, 0, NAN, 1, 1, 0, 0.5, 1])
    second = make(kinds, a=[0, 0, 0, 1, 1, 0, 1, NAN, 0, 1, 1])
    found = tested.compare_answers(first=first, second=second)
    assert set(found) == {"closed", "open"}  # jaccard scores are no counts of right answers
    assert (found["closed"].num_cases, found["closed"].only_first, found["closed"].only_second) == (5, 3, 1)
    assert found["closed"].exact_p == pytest.approx(0.625)
    assert (found["open"].num_cases, found["open"].only_first, found["open"].only_second) == (2, 0, 0)


def test_the_mean_is_over_the_kinds_that_every_model_is_scored_on():
    whole = draw(60)
    whole = dataclasses.replace(whole, a_score=np.nan_to_num(whole.a_score))
    is_open = whole.kinds == "open"
    part = dataclasses.replace(whole, a_score=np.where(is_open, NAN, whole.a_score))
    found = tested.score_models({"whole": whole, "part": part}, num_resamples=20)
    others = [kind for kind in ("closed", "single", "multi") if (whole.kinds == kind).any()]
    expected = np.mean([whole.a_score[whole.kinds == kind].mean() for kind in others])
    assert found["whole"][tested.A_SCORE, "mean"].value == pytest.approx(expected)
    assert found["part"][tested.A_SCORE, "mean"] == found["whole"][tested.A_SCORE, "mean"]
    assert not math.isnan(found["whole"][tested.A_SCORE, "open"].value)
    alone = tested.score_models({"whole": whole}, num_resamples=20)["whole"][tested.A_SCORE, "mean"].value
    assert alone != pytest.approx(expected)
    assert tested.score_difference(first=whole, second=part, num_resamples=20)[tested.A_SCORE, "mean"].value == 0
    nothing = dataclasses.replace(whole, a_score=np.where(is_open, whole.a_score, NAN))
    found = tested.score_models({"part": part, "nothing": nothing}, num_resamples=20)
    assert math.isnan(found["part"][tested.A_SCORE, "mean"].value)
