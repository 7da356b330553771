import dataclasses
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from stepcot_jax.evaluation.replies import (
    A_SCORE,
    FORMAT,
    GROUNDING,
    V_SCORE,
    ScoredReplies,
    compare_answers,
    score_difference,
    score_models,
)

NAN = math.nan
KINDS = ("open", "closed", "single", "multi")


def make(kinds, *, a, patients=None, v=None, references=None, **columns):
    num = len(kinds)
    scores = {name: np.zeros(num) for name in ("grounding", "format")}
    scores |= {name: np.full(num, NAN) for name in ("judged_reply", "judged_reference")}
    scores |= {name: np.array(values, float) for name, values in columns.items()}
    return ScoredReplies(
        kinds=np.array(kinds),
        patients=np.array(patients or [f"p{k}" for k in range(num)]),
        references=np.array(references or ["findings"] * num),
        a_score=np.array(a, float),
        v_score=np.array(v if v is not None else [0.0] * num, float),
        **scores,
    )


def draw(num, seed=0):
    rng = np.random.default_rng(seed)

    def column(low=0.0):
        values = rng.uniform(low, 1, num)
        values[rng.random(num) < 0.1] = NAN
        return values

    return ScoredReplies(
        kinds=rng.choice(KINDS, num),
        patients=rng.choice([f"p{k}" for k in range(max(2, num // 4))], num),
        references=rng.choice(["findings", "regions", "both", ""], num),
        a_score=np.where(rng.random(num) < 0.1, NAN, rng.integers(0, 2, num)),
        v_score=column(),
        grounding=column(),
        format=column(),
        judged_reply=rng.uniform(1, 10, num),
        judged_reference=rng.uniform(1, 10, num),
    )


def take(scored, rows):
    return dataclasses.replace(
        scored, **{field.name: getattr(scored, field.name)[rows] for field in dataclasses.fields(scored)}
    )


def naive(rows, scored, open_score):
    """Figures of a list of rows, repeated as often as they were drawn, by loops."""

    def mean(name, chosen):
        values = [
            getattr(scored, name)[row] for row in rows if chosen(row) and not math.isnan(getattr(scored, name)[row])
        ]
        return sum(values) / len(values) if values else NAN

    found = {}
    for kind in sorted(set(scored.kinds.tolist())):

        def of(row, kind=kind):
            return scored.kinds[row] == kind

        found[A_SCORE, kind] = mean("a_score", of)
        if kind == "open" and open_score != "exact":
            chosen = [row for row in rows if of(row) and not math.isnan(scored.a_score[row])]
            pairs = [(scored.judged_reply[row], scored.judged_reference[row]) for row in chosen]
            if open_score == "relative":
                found[A_SCORE, kind] = sum(p[0] for p in pairs) / sum(p[1] for p in pairs) if pairs else NAN
            else:
                found[A_SCORE, kind] = sum(abs(p[0] - p[1]) < 2 for p in pairs) / len(pairs) if pairs else NAN
        for name in (V_SCORE, GROUNDING, FORMAT):
            found[name, kind] = mean(name, of)
    averaged = [value for (name, _), value in found.items() if name == A_SCORE and not math.isnan(value)]
    found[A_SCORE, "mean"] = sum(averaged) / len(averaged) if averaged else NAN
    for name in (V_SCORE, GROUNDING, FORMAT):
        found[name, "all"] = mean(name, lambda row: True)
        for group in ("findings", "regions"):
            if group in scored.references:
                found[name, group] = mean(name, lambda row, group=group: scored.references[row] == group)
    return found


@pytest.mark.parametrize("open_score", ["exact", "relative", "within_two"])
def test_figures_and_intervals_agree_with_a_loop_over_drawn_patients(open_score):
    scored, num_resamples = draw(60), 40
    found = score_models({"m": scored}, open_score=open_score, num_resamples=num_resamples, seed=3)["m"]
    names, member = np.unique(scored.patients, return_inverse=True)
    counts = np.random.default_rng(3).multinomial(len(names), np.full(len(names), 1 / len(names)), size=num_resamples)
    drawn = [
        naive([row for row in range(60) for _ in range(int(times[member[row]]))], scored, open_score)
        for times in counts
    ]
    own = naive(range(60), scored, open_score)
    assert set(found) == set(own)
    for key, interval in found.items():
        assert interval.value == pytest.approx(own[key], rel=1e-12)
        low, high = np.nanquantile([each[key] for each in drawn], [0.025, 0.975])
        assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-12)


@pytest.mark.parametrize("open_score", ["exact", "relative"])
def test_differences_are_of_the_same_resamples_and_of_the_replies_that_both_have(open_score):
    first, second = draw(60), dataclasses.replace(draw(60, seed=1))
    second = dataclasses.replace(second, **{n: getattr(first, n) for n in ("kinds", "patients", "references")})
    found = score_difference(first=first, second=second, open_score=open_score, num_resamples=30, seed=3)
    names, member = np.unique(first.patients, return_inverse=True)
    counts = np.random.default_rng(3).multinomial(len(names), np.full(len(names), 1 / len(names)), size=30)
    pair = []
    for one, other in ((first, second), (second, first)):
        shared = {n: getattr(one, n).copy() for n in ("a_score", "v_score", "grounding", "format")}
        for name, column in shared.items():
            column[np.isnan(getattr(other, name))] = NAN
        pair.append(dataclasses.replace(one, **shared))
    drawn = [
        [naive([row for row in range(60) for _ in range(int(times[member[row]]))], one, open_score) for one in pair]
        for times in counts
    ]
    for key, interval in found.items():
        own = [naive(range(60), one, open_score)[key] for one in pair]
        assert interval.value == pytest.approx(own[0] - own[1], rel=1e-9)
        low, high = np.nanquantile([one[key] - other[key] for one, other in drawn], [0.025, 0.975])
        assert (interval.low, interval.high) == pytest.approx((low, high), rel=1e-9)


def test_the_average_is_over_kinds_and_not_over_questions():
    # Table 4 of GEMeX-RMCoT, row 1: the average of the four is 44.14; over the 3,960 questions it would be 47.80.
    shares = {"open": (0.8513, 1144), "closed": (0.3039, 543), "single": (0.49, 1300), "multi": (0.1202, 973)}
    kinds = [kind for kind, (_, number) in shares.items() for _ in range(number)]
    a = [share for share, number in shares.values() for _ in range(number)]
    found = score_models({"m": make(kinds, a=a)}, num_resamples=1)["m"]
    assert 100 * found[A_SCORE, "mean"].value == pytest.approx(44.14, abs=0.005)
    two = score_models({"m": make(["closed", "single", "single"], a=[1, 0, 0])}, num_resamples=1)["m"]
    assert two[A_SCORE, "mean"].value == 0.5
    assert (A_SCORE, "open") not in two


def test_open_scores_of_a_judge():
    kinds = ["open"] * 4
    judged = {"judged_reply": [8, 3, NAN, NAN], "judged_reference": [9, 6, NAN, NAN]}
    # The third could not be read (0), the fourth has no usable score (NaN).
    scored = make(kinds, a=[1, 0, 0, NAN], **judged)
    figures = {
        how: score_models({"m": scored}, open_score=how, num_resamples=1)["m"][A_SCORE, "open"].value
        for how in ("relative", "within_two", "exact")
    }
    assert figures["relative"] == pytest.approx(11 / 15 * 2 / 3)
    assert figures["within_two"] == pytest.approx(1 / 3)
    assert figures["exact"] == pytest.approx(1 / 3)
    unread = make(["open", "open"], a=[0, 0])
    assert score_models({"m": unread}, open_score="relative", num_resamples=1)["m"][A_SCORE, "open"].value == 0
    unscored = make(["open", "open"], a=[NAN, NAN])
    assert math.isnan(score_models({"m": unscored}, open_score="relative", num_resamples=1)["m"][A_SCORE, "open"].value)
    near = make(["open"] * 3, a=[1, 1, 1], judged_reply=[8, 8.01, 4.1], judged_reference=[10, 10, 2.1])
    found = score_models({"m": near}, open_score="within_two", num_resamples=1)["m"][A_SCORE, "open"].value
    assert found == pytest.approx(1 / 3)  # 4.1 - 2.1 is below 2 in float64


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(8, 40))
def test_the_order_of_rows_does_not_matter(seed, num):
    scored = draw(num, seed)
    order = np.random.default_rng(seed).permutation(num)
    found = [score_models({"m": one}, num_resamples=20)["m"] for one in (scored, take(scored, order))]
    assert list(found[0]) == list(found[1])
    for key, interval in found[0].items():
        assert dataclasses.astuple(interval) == pytest.approx(
            dataclasses.astuple(found[1][key]), abs=1e-12, nan_ok=True
        )


@hypothesis.given(st.integers(0, 2**32 - 1))
def test_masked_rows_are_dropped_rows(seed):
    scored = draw(40, seed)
    dropped = np.random.default_rng(seed).random(40) < 0.3
    # Patients stay in the draw when one of their replies does.
    for patient in np.unique(scored.patients):
        dropped[np.flatnonzero(scored.patients == patient)[0]] = False
    names = ("a_score", "v_score", "grounding", "format")
    masked = dataclasses.replace(scored, **{n: np.where(dropped, NAN, getattr(scored, n)) for n in names})
    first = score_models({"m": masked}, open_score="relative", num_resamples=20)["m"]
    second = score_models({"m": take(scored, ~dropped)}, open_score="relative", num_resamples=20)["m"]
    for key, interval in second.items():
        assert dataclasses.astuple(interval) == pytest.approx(dataclasses.astuple(first[key]), abs=1e-12, nan_ok=True)


def test_a_model_differs_from_itself_by_nothing_and_from_a_better_one_as_expected():
    scored = draw(200)
    same = score_difference(first=scored, second=scored, num_resamples=50)
    assert all((each.value, each.low, each.high) == (0, 0, 0) for each in same.values())
    better = dataclasses.replace(scored, v_score=scored.v_score + 0.25)
    gain = score_difference(first=better, second=scored, num_resamples=50)[V_SCORE, "all"]
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.25, 0.25, 0.25))


def test_mcnemar_by_kind():
    kinds = ["closed"] * 6 + ["open"] * 3 + ["multi"] * 2
    first = make(kinds, a=[1, 1, 1, 1, 0, NAN, 1, 1, 0, 0.5, 1])
    second = make(kinds, a=[0, 0, 0, 1, 1, 0, 1, NAN, 0, 1, 1])
    found = compare_answers(first=first, second=second)
    assert set(found) == {"closed", "open"}  # jaccard scores are no counts of right answers
    assert (found["closed"].num_cases, found["closed"].only_first, found["closed"].only_second) == (5, 3, 1)
    assert found["closed"].exact_p == pytest.approx(0.625)
    assert (found["open"].num_cases, found["open"].only_first, found["open"].only_second) == (2, 0, 0)


def test_the_mean_is_over_the_kinds_that_every_model_is_scored_on():
    whole = draw(60)
    whole = dataclasses.replace(whole, a_score=np.nan_to_num(whole.a_score))
    is_open = whole.kinds == "open"
    part = dataclasses.replace(whole, a_score=np.where(is_open, NAN, whole.a_score))
    found = score_models({"whole": whole, "part": part}, num_resamples=20)
    others = [kind for kind in ("closed", "single", "multi") if (whole.kinds == kind).any()]
    expected = np.mean([whole.a_score[whole.kinds == kind].mean() for kind in others])
    assert found["whole"][A_SCORE, "mean"].value == pytest.approx(expected)
    assert found["part"][A_SCORE, "mean"] == found["whole"][A_SCORE, "mean"]
    assert not math.isnan(found["whole"][A_SCORE, "open"].value)
    alone = score_models({"whole": whole}, num_resamples=20)["whole"][A_SCORE, "mean"].value
    assert alone != pytest.approx(expected)
    assert score_difference(first=whole, second=part, num_resamples=20)[A_SCORE, "mean"].value == 0
    nothing = dataclasses.replace(whole, a_score=np.where(is_open, whole.a_score, NAN))
    found = score_models({"part": part, "nothing": nothing}, num_resamples=20)
    assert math.isnan(found["part"][A_SCORE, "mean"].value)
    assert math.isnan(score_difference(first=part, second=nothing, num_resamples=20)[A_SCORE, "mean"].value)
