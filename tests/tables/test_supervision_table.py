import contextlib
import dataclasses
import threading
import time

import numpy as np
import pytest
from refusals import refuse
from scipy import stats
from tables import finished_cells as made

from benchmarks.supervision import join
from benchmarks.supervision import main as recompute
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run.inputs import load_inputs
from stepcot_jax.run.plain_network import name_plain_command
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables import supervision_table
from stepcot_jax.tools.tables.cells import Cells, vary
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.plan import Grid
from stepcot_jax.tools.tables.supervision_table import CURVES

SETS = (3, 4, 5)


def make_plan(workdir, seeds=SETS, sizes=None, **arguments):
    """A grid of two sizes, of which the larger has two sets."""
    grid = Grid({60: 3, 120: 2} if sizes is None else sizes, withhold_at=60, num_updates=10, num_unseen=40)
    return dataclasses.replace(made.make_plan(workdir, seeds, **arguments), grid=grid)


def finish(plan, cell, truth, rng):
    """Write what a cell leaves behind: answers that are right in some cases."""
    folder = plan.cells.folder(cell)
    made.write_finished(folder, val=made.make_split({}), test=made.make_split({}))
    names = cell.settings.trains.names
    answers = {name: np.where(rng.random(truth.shape) < 0.6, truth, 99) for name in names}
    arrays = {name: array.astype(np.uint8) for name, array in answers.items()}
    np.savez(folder / "unseen_40.npz", labels=truth, **arrays)
    return answers


def test_the_table_is_recomputed_by_hand_from_the_kept_answers(tmp_path, monkeypatch, capsys):
    plan, rng = make_plan(tmp_path), np.random.default_rng(0)
    monkeypatch.setattr(supervision_table, "read_members", lambda path: {"train": ("image",) * 61})
    truths = {number: rng.integers(0, 3, (40, 7)).astype(np.uint8) for number in SETS}
    cells = {(number, *key): cell for number in SETS for key, cell in supervision_table._list(plan, number).items()}
    assert len(cells) == len({plan.cells.digest(cell) for cell in cells.values()}) == 3 * (5 + 3 * 3) + 2 * 5
    found = {
        key: finish(plan, cell, truths[key[0]], rng) for key, cell in cells.items() if key != (4, 120, "none", "all")
    }
    partial = dataclasses.replace(plan, partial=True)
    making.make_tables(["supervision"], partial, command=["stepcot"], folder=tmp_path / "tables")
    kept = np.load(tmp_path / "tables" / "supervision.npz")
    np.testing.assert_array_equal(kept["labels"], [truths[number] for number in SETS])
    rows = made.read_rows(tmp_path / "tables", "supervision")
    by_name = {(row["training cases"], row["withheld"], row["network"]): row for row in rows}
    assert len(by_name) == len(rows) == 6 + 3 * 4 + 6

    def by_hand(size, withheld, network):
        places = np.flatnonzero((kept["size"] == size) & (kept["withheld"] == withheld) & (kept["network"] == network))
        bits = np.unpackbits(kept["right"][places], axis=1)[:, : 40 * 7].reshape(-1, 40, 7)
        return dict(zip(kept["set"][places].tolist(), bits, strict=True))

    plain, alone = by_hand(60, "none", "plain, seven labels"), by_hand(60, "none", "diagnosis alone")
    for number in SETS:
        np.testing.assert_array_equal(plain[number], found[number, 60, "none", "all"]["plain"] == truths[number])
        np.testing.assert_array_equal(
            alone[number][:, -1], (found[number, 60, "none", "last"]["plain"] == truths[number])[:, -1]
        )
    row = by_name["60", "none", "plain, seven labels"]
    gains = [plain[number][:, -1].mean() - alone[number][:, -1].mean() for number in SETS]
    low, high = stats.t.interval(0.95, 2, np.mean(gains), stats.sem(gains))
    for name, expected in (("", np.mean(gains)), (" low", low), (" high", high), (" deviation", np.std(gains, ddof=1))):
        assert float(row[f"above diagnosis alone{name}"]) == pytest.approx(expected)
    assert float(row["steps"]) == pytest.approx(np.mean([bits.mean() for bits in plain.values()]))
    assert (row["sets"], row["answers paid for"]) == ("3", str(61 * 7))
    assert by_name["60", "50 % of chains", "teacher"]["answers paid for"] == str(61 * 7 - 30 * 6)
    missing = by_name["120", "none", "plain, seven labels"]
    assert (missing["sets"], missing["Diagnosis low"]) == ("1", "")
    text = (tmp_path / "tables" / "supervision.md").read_text()
    assert "Not finished, left out: all, 120 cases, withheld: none (sets 4)." in text
    assert (tmp_path / "tables" / "supervision.png").stat().st_size > 10_000
    assert recompute([str(tmp_path / "tables" / "supervision.npz")]) == 0
    assert capsys.readouterr().out.strip() in text
    parts = {str(number): {**kept} for number in SETS}
    for number, part in parts.items():
        rows, sets = kept["set"] == int(number), kept["sets"] == int(number)
        part |= {key: kept[key][rows] for key in ("size", "withheld", "network", "set", "answers", "right")}
        part |= {key: kept[key][sets] for key in ("sets", "labels")}
    assert supervision_table.tabulate(join(parts)).rows == supervision_table.tabulate(kept).rows
    refuse(r"other: set 4 is in 4 too", join, {**parts, "other": parts["4"]})
    more = dataclasses.replace(plan, grid=dataclasses.replace(plan.grid, num_unseen=50))
    assert not any(map(plan.cells.is_finished, find_recipe("supervision").list_cells(more)))  # other chests are asked


def test_two_processes_share_the_cells_and_one_takes_over_from_one_that_is_killed(tmp_path, monkeypatch):
    plan, ran = make_plan(tmp_path, sizes={60: 1}), []
    cells = find_recipe("supervision").list_cells(plan)[:6]
    monkeypatch.setattr("stepcot_jax.tools.tables.cells._POLL_SECONDS", 0.05)
    monkeypatch.setattr(Cells, "_run", lambda self, cell: work(cell))

    def work(cell):
        ran.append((threading.current_thread().name, cell.name))
        number = len(ran)
        time.sleep(0.1)
        if number == 2:
            raise KeyboardInterrupt
        finish(plan, cell, np.zeros((40, 7), np.uint8), np.random.default_rng(0))

    def take():
        with contextlib.suppress(KeyboardInterrupt):
            Cells(tmp_path, Terminal()).run(cells)

    threads = [threading.Thread(target=take, name=name) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(plan.cells.is_finished, cells))
    names = [name for _, name in ran]
    assert sorted(names) == sorted([*(cell.name for cell in cells), ran[1][1]])  # the second cell begins twice
    assert ran[0][0] != ran[1][0]


@pytest.mark.slow
def test_runs_are_scored_on_chests_that_none_of_them_draws(tmp_path, small_networks, monkeypatch):
    plan = make_plan(tmp_path, seeds=(3,), sizes={60: 1})
    monkeypatch.setattr(supervision_table, "NUM_EPOCHS", 2)
    wanted = [(60, "none", run) for run in ("last", "shuffled", "student", "distill")] + [
        (60, "50 % of answers", "all")
    ]
    chosen = {key: supervision_table._list(plan, 3)[key] for key in wanted}
    monkeypatch.setattr(supervision_table, "_list", lambda *_: chosen)
    ((table, *_),) = [find_recipe("supervision").tabulate(run_all(plan))]
    assert [row[2] for row in table.rows] == [name for name in CURVES if "seven" not in name] + ["plain, seven labels"]
    folder = plan.cells.folder(chosen[60, "none", "distill"])
    total = 60 + 500 + 200
    drawn = [draw_case(765 + index, seed=3, size=32, prevalence="flat").case for index in range(40)]
    np.testing.assert_array_equal(np.load(folder / "unseen_40.npz")["labels"], [case.answers for case in drawn])
    inputs = load_inputs(chosen[60, "50 % of answers", "all"].settings, tmp_path, Terminal())
    assert len(inputs.dataset.cases) == total
    assert not {case.patient for case in drawn} & set(inputs.dataset.cases.patient_ids)
    paid = int((inputs.dataset.training_targets >= 0).sum())
    assert {row[4] for row in table.rows if row[1] == "50 % of answers"} == {paid}
    assert 480 <= inputs.dataset.num_cases["val"] <= 520


def run_all(plan):
    plan.cells.run(find_recipe("supervision").list_cells(plan))
    return plan


def test_the_plain_network_is_that_of_its_config():
    settings, plain = load_settings("quickstart"), load_settings("plain")
    own = vary(settings, {**supervision_table._run_changes(settings, "all"), "baseline.epochs": plain.baseline.epochs})
    assert own == plain


def test_the_plain_network_of_a_teacher_alone_has_its_epochs_and_constant_rate(tmp_path):
    path, changes = tmp_path / "mine.py", {"job": "teacher", "training.teacher_job_epochs": 9}
    path.write_text(
        "from configs import quickstart\n\n\ndef get_config():\n    config = quickstart.get_config()\n"
        f"    config.update_from_flattened_dict({changes})\n    return config\n"
    )
    plain = load_settings(f"plain:{path}")
    assert (plain.baseline.epochs, plain.baseline.schedule) == (9, "constant")
    command = name_plain_command(load_settings("quickstart", **changes))
    assert "--config.baseline.epochs=9 " in command + " "
    assert "--config.baseline.schedule=constant " in command + " "


def test_a_size_may_have_fewer_sets_and_other_data_are_refused(tmp_path):
    assert making.read_sizes(["300", "10000:5"], 10) == {300: 10, 10000: 5}
    refuse(r"--sizes: '10:0' is not a number of training cases, or SIZE:SETS", making.read_sizes, ["10:0"], 3)
    plan = make_plan(tmp_path)
    with pytest.raises(BadInput, match=r"--withhold_at: 60 is not among --sizes; expected one of 120, 300"):
        find_recipe("supervision").list_cells(make_plan(tmp_path, sizes={120: 2, 300: 2}))
    plan = dataclasses.replace(plan, settings=vary(plan.settings, {"data.source": "folder", "data.root": "x"}))
    with pytest.raises(BadInput, match=r"config\.data\.source: 'folder' .* supervision needs 'phantom'"):
        find_recipe("supervision").list_cells(plan)
