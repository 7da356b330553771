"""Stages of fine-tuning: schedules, draws, state, and MedCLM's adaptive formulas against NumPy."""

import dataclasses

import numpy as np
import pytest

from stepcot_jax.data.questions.stage_views import STAGES
from stepcot_jax.systems.curriculum import CurriculumState, after_epoch, draw_stages, first_epochs, stage_shares
from stepcot_jax.systems.options import CurriculumOptions

DOMAINS = ("Mass_xray", "Nodule_xray", "Mass_ct")


def _settings(schedule, **changes):
    return CurriculumOptions(schedule=schedule, **changes)


def _draw(state, settings, domains, *, num_epochs=10, seed=0, update=0):
    return draw_stages(state, settings, num_epochs=num_epochs, seed=seed, update=update, domains=domains)


@pytest.mark.parametrize(
    ("num_epochs", "shares", "expected"),
    [
        (10, (0.4, 0.4, 0.2), (4, 8)),
        (8, (0.4, 0.4, 0.2), (3, 6)),
        (5, (0.1, 0.6, 0.3), (1, 4)),  # 0.5 and 3.5 are rounded up
        (1, (0.4, 0.4, 0.2), (0, 1)),
        (6, (0.0, 1.0, 0.0), (0, 6)),
        (6, (0.0, 0.0, 1.0), (0, 0)),
    ],
)
def test_epochs_change_stage_at_rounded_cumulative_shares(num_epochs, shares, expected):
    settings = _settings("epochs", shares=shares)
    assert first_epochs(settings, num_epochs=num_epochs) == expected
    state, seen = CurriculumState(), []
    for _ in range(num_epochs):
        (stage,) = set(_draw(state, settings, ["Mass_xray"] * 3, num_epochs=num_epochs))
        seen.append(stage)
        state = after_epoch(state, settings, {("Mass_xray", stage): 1.0})
    first, second = expected
    assert seen == ["easy"] * first + ["medium"] * (second - first) + ["hard"] * (num_epochs - second)


@pytest.mark.parametrize("schedule", ["none", "epochs", "adaptive", "mixed"])
def test_rows_without_domain_are_always_medium(schedule):
    state = CurriculumState(epoch=25, hard_share=0.3)
    for update in range(20):
        drawn = _draw(state, _settings(schedule), ["", "Mass_xray", ""], update=update)
        assert (drawn[0], drawn[2]) == ("medium", "medium")
        assert schedule != "none" or drawn[1] == "medium"


def test_draws_are_a_function_of_seed_update_and_row():
    settings, state = _settings("mixed"), CurriculumState()
    drawn = _draw(state, settings, ["Mass_xray"] * 64)
    assert _draw(state, settings, ["Mass_xray"] * 64) == drawn
    assert _draw(state, settings, ["Mass_xray"] * 10) == drawn[:10]
    assert _draw(state, settings, ["", *["Mass_xray"] * 63])[1:] == drawn[1:]  # other rows do not matter
    assert _draw(state, settings, ["Mass_xray"] * 64, update=1) != drawn
    assert _draw(state, settings, ["Mass_xray"] * 64, seed=1) != drawn


class _Oracle:
    """The printed formulas of MedCLM's public code, with arrays [domain]."""

    def __init__(self):
        self.easy, self.medium = np.full(len(DOMAINS), 1e-3), np.full(len(DOMAINS), 1e-3)
        self.mean, self.values, self.hard, self.epoch = 1e-4, [], 0.0, 0

    def gaps(self):
        return np.where(self.easy < 1e-8, 0, (self.easy - self.medium) / (self.easy + 1e-8))

    def shares(self):
        ramp = 0 if self.epoch <= 4 else min(1, (self.epoch - 4) / 10)
        medium = ramp / (1 + np.exp(-(self.gaps() - 0.5) / 0.1))
        if self.epoch < 4:
            return np.array([[1.0, 0, 0]] * len(DOMAINS))
        hard = self.hard if self.epoch >= 19 else 0.0
        return np.stack([(1 - hard) * (1 - medium), (1 - hard) * medium, np.full(len(DOMAINS), hard)], axis=1)

    def end(self, losses):
        self.easy = 0.1 * self.easy + 0.9 * losses[:, 0]
        self.medium = 0.1 * self.medium + 0.9 * losses[:, 1]
        self.mean = 0.1 * self.mean + 0.9 * losses.mean()
        self.values.append(self.mean)
        self.epoch += 1
        last = np.array(self.values)
        plateau = len(last) >= 5 and (np.abs(np.diff(last)[-4:]) <= 0.01).all()
        rise = len(last) >= 2 and last[-1] - last[-2] >= 0.05
        if plateau and np.median(self.gaps()) >= 0.6:
            self.hard = min(self.hard + 0.05, 0.3)
        elif rise:
            self.hard *= 0.9


@pytest.mark.parametrize("seed", range(2))
def test_adaptive_is_the_printed_formulas(seed):
    rng = np.random.default_rng(seed)
    settings, oracle = _settings("adaptive"), _Oracle()
    state = CurriculumState.first(settings)
    hard_shares = []
    for epoch in range(60):
        # Falling losses, a long plateau with a wide gap, then jumps.
        base = 2 * 0.8**epoch + 0.5 if epoch < 45 else rng.uniform(0.3, 1.5)
        losses = base * np.array([[1.0, 0.25, 0.4], [1.0, 0.9, 0.4], [1.0, 0.3, 0.4]])
        losses = losses * (1 + 0.003 * rng.standard_normal((3, 3)))
        shares = [stage_shares(state, settings, domain, num_epochs=60) for domain in DOMAINS]
        np.testing.assert_allclose(shares, oracle.shares(), rtol=1e-9, atol=1e-12)
        seen = {(d, s): losses[i, j] for i, d in enumerate(DOMAINS) for j, s in enumerate(STAGES)}
        state = after_epoch(state, settings, seen)
        oracle.end(losses)
        assert state.hard_share == pytest.approx(oracle.hard, rel=1e-12)
        hard_shares.append(state.hard_share)
    assert max(hard_shares) == pytest.approx(0.3)
    assert 0 < hard_shares[-1] < 0.3  # rises lowered it


def test_every_constant_is_a_setting():
    settings = _settings(
        "adaptive", easy_epochs=1, ramp_epochs=4, hard_epoch=2, gap_centre=0.2, gap_width=0.4, decay=0.5,
        plateau_values=3, plateau_tolerance=0.2, rise=0.3, hard_gap=0.1, hard_increase=0.25, most_hard=0.4,
        hard_factor=0.5,
    )  # fmt: skip
    state = CurriculumState(
        epoch=3, easy={"a": 1.0}, medium={"a": 0.6}, overall=0.8, history=(0.8, 0.8), hard_share=0.3
    )
    medium = 0.5 / (1 + np.exp(-(0.4 - 0.2) / 0.4))  # half of the ramp; the gap is 0.4
    for epoch, shares in ((1, (1.0, 0.0, 0.0)), (3, (0.7 * (1 - medium), 0.7 * medium, 0.3))):
        found = stage_shares(dataclasses.replace(state, epoch=epoch), settings, "a", num_epochs=9)
        assert found == pytest.approx(shares, abs=1e-7)
    assert stage_shares(dataclasses.replace(state, epoch=2), settings, "a", num_epochs=9)[2] == 0.3
    ended = after_epoch(state, settings, {("a", "easy"): 1.0, ("a", "medium"): 0.6})
    assert (ended.epoch, ended.easy["a"], ended.overall) == (4, 1.0, 0.8)
    assert ended.hard_share == 0.4  # a plateau of three values: 0.3 + 0.25, at most 0.4
    risen = after_epoch(ended, settings, {("a", "easy"): 1.6, ("a", "medium"): 1.6})
    assert (risen.overall, risen.medium["a"], risen.hard_share) == pytest.approx((1.2, 1.1, 0.2))
    starts = dataclasses.replace(settings, first_loss=0.6, first_overall=2.0, least_loss=0.5)
    first = CurriculumState.first(starts)
    assert (first.overall, first.gap("a", starts)) == (2.0, 0.0)
    assert first.gap("a", dataclasses.replace(starts, least_loss=0.7)) == 0
    seen = after_epoch(first, starts, {("a", "easy"): 1.0})
    assert (seen.easy["a"], seen.overall, seen.gap("a", starts)) == pytest.approx((0.8, 1.5, 0.2 / 1.3))


def test_stages_that_were_not_drawn_keep_their_means():
    settings = _settings("adaptive")
    state = after_epoch(CurriculumState.first(settings), settings, {("a", "easy"): 1.0})
    assert dict(state.medium) == {}
    assert state.easy["a"] == pytest.approx(0.9001)
    assert state.overall == pytest.approx(0.90001)
    assert state.history == (state.overall,)
    assert state.gap("a", settings) == pytest.approx((0.9001 - 0.001) / 0.9001, rel=1e-6)
    assert after_epoch(state, settings, {}) == dataclasses.replace(state, epoch=2)
    with pytest.raises(ValueError, match=r"losses must be finite; got nan for \('a', 'easy'\)"):
        after_epoch(state, settings, {("a", "easy"): float("nan")})


def _simulate(factor, *, num_rows=250, num_seeds=8):
    """Shares [epoch, stage] of 100 epochs in which easy loss is 2 x 0.97^e and the others `factor` times that."""
    settings, total = _settings("adaptive"), np.zeros((100, 3))
    for seed in range(num_seeds):
        state, rng = CurriculumState(), np.random.default_rng(seed)
        for epoch in range(100):
            shares = stage_shares(state, settings, "Mass_xray", num_epochs=100)
            drawn = rng.multinomial(num_rows, shares)
            total[epoch] += drawn / (num_rows * num_seeds)
            losses = 2 * 0.97**epoch * np.array([1, factor, factor])
            seen = {("Mass_xray", STAGES[place]): losses[place] for place in np.flatnonzero(drawn)}
            state = after_epoch(state, settings, seen)
    return total


@pytest.mark.parametrize(
    ("factor", "medium", "tolerance"), [(1.3, 0.0, 5e-5), (1.0, 0.005, 0.002), (0.7, 0.12, 0.01), (0.5, 0.49, 0.02)]
)
def test_the_adaptive_schedule_rarely_leaves_the_easy_stage(factor, medium, tolerance):
    """Simulated shares of the medium stage after the ramp; k = 1 depends on the rows a domain has in an epoch."""
    shares = _simulate(factor)
    assert shares[14:, 1].mean() == pytest.approx(medium, abs=tolerance)
    assert not shares[:, 2].any()  # no hard stage
    assert (shares[:5, 0] == 1).all()  # the ramp is 0 up to epoch 4


def test_the_hard_stage_needs_a_medium_loss_below_two_fifths():
    assert not _simulate(0.4)[:, 2].any()  # the gap stays just below 0.6
    shares = _simulate(0.3)[:, 2]
    assert shares[4:].mean() == pytest.approx(0.14, abs=0.01)
    assert np.flatnonzero(shares)[0] == 50  # the first plateau: 2 x 0.97^e falls by less than 0.01 an epoch


def test_mixed_draws_the_shares_in_every_epoch():
    settings = _settings("mixed", shares=(0.5, 0.3, 0.2))
    for epoch in (0, 30):
        drawn = _draw(CurriculumState(epoch=epoch), settings, ["Mass_xray"] * 4000)
        assert [drawn.count(stage) / 4000 for stage in STAGES] == pytest.approx([0.5, 0.3, 0.2], abs=0.025)
