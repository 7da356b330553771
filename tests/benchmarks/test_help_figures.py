"""Figures of kept sets against ones by hand, and the round trip of a kept file."""

import collections
import pathlib
import re

import numpy as np
import pytest
from scipy import stats

from benchmarks.does_it_help import is_kept, read_changes
from benchmarks.help_figures import KEPT, Kept, mean_over_sets, measure, read_kept, shorten, show, write_kept
from stepcot_jax.host.errors import BadInput

ROOT = pathlib.Path(__file__).parents[2]
SIZES = (2, 4, 3)
CASES = 200
NETWORKS = ("plain", "teacher", "student", "plain heads of the teacher")


def draw_set(seed, networks=NETWORKS, num_cases=CASES):
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.integers(0, size, num_cases) for size in SIZES], axis=1)
    kept = Kept(labels, SIZES)
    for name in networks:
        logits = np.full((num_cases, 3, 4), -1e9)
        for step, size in enumerate(SIZES):
            skill = 2.0 if name == "teacher" else 1.5
            logits[:, step, :size] = rng.normal(size=(num_cases, size)) + skill * np.eye(size)[labels[:, step]]
        kept.add_network(name, logits)
        hits = rng.random((3, num_cases)) < 0.6
        kept.add_reading(name, hits, rng.dirichlet(np.ones(3), num_cases))
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


def keep_sets(folder, sets, config="quickstart"):
    for number, (kept, changes) in sets.items():
        about = {"config": config, "set": number, "changes": changes}
        write_kept(folder / f"{config}_{number:02}.npz", kept, about=about)


def test_sets_are_shown_beside_the_plain_networks(tmp_path):
    """Primary rows of teacher and student alone, uncorrected; Holm over all other figures, by hand."""
    drawn = {number: draw_set(number, (*NETWORKS, "plain with answers")) for number in (1, 2, 3)}
    keep_sets(tmp_path, {number: (kept, {}) for number, kept in drawn.items()})
    shown = show(tmp_path, "quickstart")
    assert "3 sets of `quickstart` (1, 2, 3)\n200 unseen chests each;" in shown
    assert "- Missing of the sets 1 to 10: 4, 5, 6, 7, 8, 9, 10\n" in shown
    shown, later = shown.split("Named after all sets")
    rows = [line.strip("| ").split(" | ") for line in shown.splitlines() if " less " in line]
    primary = {row[0]: row for row in rows if row[1] == "**diagnosis after two answers**"}
    assert [*primary] == [f"{n} less {r}" for n in ("teacher", "student") for r in ("plain", "plain with answers")]
    hits = [{name: kept.hits[name][2].mean() for name in kept.hits} for kept in drawn.values()]
    test = stats.ttest_1samp([100 * (of["student"] - of["plain with answers"]) for of in hits], 0.0)
    assert primary["student less plain with answers"][3] == f"{test.pvalue:.3f}"
    assert [row[0] for row in rows if row[1] == "steps"] == [
        f"{name} less plain" for name in NETWORKS if name != "plain"
    ]
    right = [{n: 100 * (a == kept.labels) for n, a in kept.answers.items()} for kept in drawn.values()]
    values = [measure(kept) for kept in drawn.values()]
    others = ("whole chains", "whole chains of abnormal cases")
    tests = {
        (name, figure): stats.ttest_1samp([of[name][figure] - of["plain"][figure] for of in values], 0.0).pvalue
        for name in NETWORKS
        if name != "plain"
        for figure in others
    }
    for name in NETWORKS[1:]:
        tests[name, "diagnosis"] = stats.ttest_1samp(
            [of[name][:, -1].mean() - of["plain"][:, -1].mean() for of in right], 0.0
        ).pvalue
    running = 0.0
    for rank, key in enumerate(sorted(tests, key=tests.get)):
        running = max(running, min(1.0, (len(tests) - rank) * tests[key]))
        (row,) = [row for row in rows if row[:2] == [f"{key[0]} less plain", key[1]]]
        assert row[3] == f"{running:.3f} (Holm)"
    assert len(rows) == 4 + 3 + len(tests)
    gains = [100 * (settle_by_hand(kept, "teacher") - settle_by_hand(kept, "plain")) for kept in drawn.values()]
    test = stats.ttest_1samp(gains, 0.0)
    (row,) = [line for line in later.splitlines() if line.startswith("| teacher, settled less plain, settled | whole")]
    assert f"| {np.mean(gains):.1f} [" in row
    assert f"| {test.pvalue:.3f} |" in row


def settle_by_hand(kept, name):
    """The share of whole chains, with the commonest true chain of normal cases wherever a network says normal."""
    truth = [tuple(chain) for chain in kept.labels]
    normal = collections.Counter(chain for chain in truth if chain[-1] == 0).most_common(1)[0][0]
    said = [normal if answers[-1] == 0 else tuple(answers) for answers in kept.answers[name]]
    return np.mean([one == other for one, other in zip(said, truth, strict=True)])


def test_what_sets_lack_is_named_and_other_settings_are_refused(tmp_path):
    without = draw_set(3, ("plain", "teacher"), num_cases=120)
    keep_sets(tmp_path, {1: (draw_set(1), {}), 2: (draw_set(2), {}), 3: (without, {})}, "phantom")
    shown = show(tmp_path, "phantom")
    assert "unseen chests differ: 200 (sets 1, 2); 120 (sets 3); per cent" in shown
    assert "- Missing of the sets 1 to 5: 4, 5\n" in shown
    assert "- Left out, not in every set: student (missing in 3)\n" in shown
    assert "| student" not in shown
    keep_sets(tmp_path, {2: (draw_set(2), {"teacher.width": 48})}, "phantom")
    with pytest.raises(
        BadInput, match=r"phantom_02\.npz: kept with --set {'teacher\.width': 48}, phantom_01\.npz with {}"
    ):
        show(tmp_path, "phantom")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["training.batch_size=64"], r"training\.batch_size would change teacher and student and not every rival"),
        (["phantom.seed=3"], r"phantom\.seed is the number of the set"),
        (["teacher.width=wide"], r"'teacher\.width=wide' is not KEY=VALUE"),
        (["teacher.width=48"], r"expected a --workdir and a --keep of their own"),
    ],
)
def test_settings_that_would_mislead_are_refused(tmp_path, entries, message):
    with pytest.raises(BadInput, match=message):
        read_changes(entries, tmp_path, KEPT)


def test_a_set_kept_of_other_settings_is_not_taken_for_this_one(tmp_path):
    changes = read_changes(["teacher.width=48"], tmp_path, tmp_path)
    keep_sets(tmp_path, {1: (draw_set(1), changes)})
    path = tmp_path / "quickstart_01.npz"
    assert is_kept(path, {"teacher.width": 48}, CASES)
    assert not is_kept(tmp_path / "quickstart_02.npz", {}, CASES)
    for other, num_cases in (({}, CASES), (changes, 100)):
        with pytest.raises(BadInput, match=r"quickstart_01\.npz: kept with --set .* and 200 chests"):
            is_kept(path, other, num_cases)


def test_figures_of_the_readme_are_those_of_the_kept_files():
    """Without the package's own functions: hits counted from the arrays, the interval by SciPy."""
    paths = sorted((ROOT / "docs/results/does_it_help").glob("quickstart_*.npz"))
    assert len(paths) > 5
    assert sum(path.stat().st_size for path in paths[0].parent.iterdir()) < 8 * 2**20
    readme = (ROOT / "README.md").read_text()
    for name, row in (("teacher", "| teacher | "), ("plain", "| **plain network** | ")):
        means = []
        for path in paths:
            with np.load(path) as kept:
                means.append(100 * np.mean(kept[f"answers/{name}"] == kept["labels"]))
        interval = stats.ttest_1samp(means, 0.0).confidence_interval(0.95)
        assert f"{row}{np.mean(means):.1f} [{interval.low:.1f}, {interval.high:.1f}] |" in readme
    labels = [np.load(path)["labels"] for path in paths]
    most = [np.mean([np.bincount(step).max() / len(step) for step in of.T]) for of in labels]
    assert f"The most frequent answers get {100 * np.mean(most):.0f} % of the steps" in readme


def test_the_primary_figure_of_phantom_is_that_of_the_kept_files():
    paths = sorted((ROOT / "docs/results/does_it_help").glob("phantom_*.npz"))
    for name, quoted in (("teacher", "+1.3 [0.5, 2.0]"), ("student", "+0.3 [-0.6, +1.3]")):
        gains = []
        for path in paths:
            with np.load(path) as kept:
                ours, plain = (np.unpackbits(kept[f"hits/{of}"][2], count=4000) for of in (name, "plain"))
            gains.append(100 * (ours.mean() - plain.mean()))
        interval = stats.ttest_1samp(gains, 0.0).confidence_interval(0.95)
        found = (np.mean(gains), interval.low, interval.high)
        assert found == pytest.approx([float(part) for part in re.findall(r"[-\d.]+", quoted)], abs=0.051)
        for page in ("README.md", "docs/does_it_help.md"):
            assert quoted in " ".join((ROOT / page).read_text().split())


def test_the_gain_of_step_labels_is_that_of_the_kept_answers():
    """Bits counted here; the page quotes the means, the mean gain at each size, and its interval at the largest."""
    gains: dict[int, list[float]] = {}
    right: dict[str, dict[int, list[float]]] = {}
    for path in sorted((ROOT / "docs/results/does_it_help").glob("supervision_*.npz")):
        with np.load(path) as kept:
            facts = zip(*(kept[name].tolist() for name in ("size", "withheld", "network", "set")), strict=True)
            hits = np.unpackbits(kept["right"], axis=1, count=kept["labels"][0].size)
            shares = dict(zip(facts, hits[:, 6::7].mean(axis=1), strict=True))
        for (size, withheld, network, number), share in shares.items():
            if withheld == "none":
                right.setdefault(network, {}).setdefault(size, []).append(100 * share)
            if (withheld, network) == ("none", "plain, seven labels"):
                gains.setdefault(size, []).append(100 * (share - shares[size, "none", "diagnosis alone", number]))
    page = " ".join((ROOT / "docs/does_it_help.md").read_text().split())
    table = page.partition("| diagnoses right, % |")[2]
    for network, found in right.items():
        cells = re.findall(r"[\d.]+", table.partition(f"| {network} |")[2])[: len(found)]
        assert [float(cell) for cell in cells] == pytest.approx(
            [np.mean(found[size]) for size in sorted(found)], abs=0.051
        )
    quoted = ", ".join(f"{np.mean(gains[size]):+.1f}" for size in (300, 1000, 3000, 10000))
    assert f"With seven labels the gain is {quoted} points" in page
    interval = stats.ttest_1samp(gains[10000], 0.0).confidence_interval(0.95)
    assert f"{np.mean(gains[10000]):+.1f} points [{interval.low:.1f}, {interval.high:.1f}] of the diagnoses" in page
    lost = f"loses {np.mean(gains[10000]):.1f} points [{interval.low:.1f}, {interval.high:.1f}] of the diagnoses"
    assert lost in " ".join((ROOT / "README.md").read_text().split())
