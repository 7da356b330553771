"""The table of ablations by hand from kept files, and settings that a run accepts."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.ablations import ALONE, CONFIG, list_runs, name_file, show
from benchmarks.help_figures import Kept, write_kept
from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.settings import load_settings

CASES, STEPS, SETS = 60, 7, (1, 2, 3)


def test_every_ablation_is_a_run_of_the_quickstart():
    settings = {run: load_settings(CONFIG, **changes) for run, (changes, _) in list_runs().items()}
    assert not settings["without memory"].teacher.memory
    assert settings[ALONE].baseline.form == "student"
    assert {names for _, of in list_runs().values() for names in of.values()} == {"teacher", "student"}


def test_the_table_is_that_by_hand_and_other_chests_are_refused(tmp_path):
    rng, gains = np.random.default_rng(0), []
    variants = [name for _, names in list_runs().values() for name in names]
    for number in SETS:
        labels = rng.integers(0, 2, (CASES, STEPS))
        kept = Kept(labels, (2,) * STEPS)
        right = {name: rng.random((CASES, STEPS)) < 0.8 for name in ("plain", *variants)}
        kept.answers["plain"] = np.where(right["plain"], labels, 1 - labels)
        write_kept(tmp_path / f"{CONFIG}_{number:02}.npz", kept, about={"set": number})
        bits = {name: np.packbits(right[name]) for name in variants}
        np.savez(tmp_path / name_file(number), labels=labels, **bits)
        gains.append(100 * (right["teacher without memory"][:, -1].mean() - right["teacher"][:, -1].mean()))
    low, high = stats.t.interval(0.95, len(SETS) - 1, np.mean(gains), stats.sem(gains))
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ") for line in show(tmp_path).splitlines() if "|" in line}
    assert rows["teacher without memory"][5].startswith(f"{np.mean(gains):.1f} [{low:.1f}, {high:.1f}] (")
    np.savez(tmp_path / name_file(3), labels=1 - labels, **bits)
    with pytest.raises(BadInput, match=r"ablations_03\.npz: other chests than quickstart_03\.npz"):
        show(tmp_path)
