"""Tables `origin` and `released` from finished cells: the choice on validation, and figures from kept replies."""

import functools
import gzip
import json
import pathlib

import jax
import numpy as np
import pytest
from refusals import refuse
from tables.policy_tables import columns_of, finish_policy, make_policy_plan

from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.evaluation.replies import BASELINE
from stepcot_jax.evaluation.statistics import t_interval
from stepcot_jax.reasoning.dialects import write_reply
from stepcot_jax.record import KINDS
from stepcot_jax.rewards.options import PRESETS
from stepcot_jax.tools.evaluate_replies import command as evaluating
from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables import origin_table
from stepcot_jax.tools.tables.command import find_recipe
from stepcot_jax.tools.tables.kept_replies import keep_replies
from stepcot_jax.tools.tables.origin_table import AWAY, HOME, NO_SIGNAL, OURS, PUBLISHED, SFT

WRONG = {SFT: 2, OURS: 5, PUBLISHED: 3}
"""Every how many-th reply of a training is wrong, at home and one more often on the second style."""
READ = {name: getattr(origin_table, name) for name in ("load_policy", "answer_records")}
GROUPS = {OURS: (0.25, 0.5), PUBLISHED: (1.0, 0.5)}
"""Shares of groups without a signal at two updates."""


def name_of(cell):
    return next((name for name in WRONG if cell.name.startswith(name)), SFT)


def finish(plan, cell, done, *, score=0.5):
    if plan.cells.digest(cell) in done:
        return
    done.add(plan.cells.digest(cell))
    shares = GROUPS.get(name_of(cell), (0.5, 0.5))
    metrics = [{"kind": "train", "step": step, "epoch": step, "rollouts/equal_groups": share, "rollouts/pairs": 0.5}
               for step, share in enumerate(shares)]  # fmt: skip
    number, seed = WRONG[name_of(cell)], cell.settings.seed
    finish_policy(plan, cell, lambda place: (place + seed) % number > 0, metrics=metrics, score=score)


def score_of(cell):
    """The published GRPO is best at the highest rate and the lowest temperature, ours at the config's own."""
    grpo = cell.settings.grpo
    if name_of(cell) == PUBLISHED:
        return grpo.learning_rate - grpo.temperature / 100
    return 1 - abs(grpo.learning_rate - 5e-4) - abs(grpo.temperature - 1)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    plan, done = make_policy_plan(tmp_path_factory.mktemp("origin"), seeds=(1, 2)), set()
    recipe = find_recipe("origin")
    for cell in recipe.first(plan):
        finish(plan, cell, done, score=score_of(cell))
    for cell in recipe.list_cells(plan):
        finish(plan, cell, done)
    return plan


@pytest.fixture(scope="module")
def answered(plan):
    """Policies that answer the second style wrongly one more time than at home."""
    patch = pytest.MonkeyPatch()
    names = {str(plan.cells.folder(cell)): (name, seed)
             for seed in plan.seeds for name, cell in origin_table._cells(plan, seed).items()}  # fmt: skip

    def answer(folder, records, dataset):
        assert {record.origin for record in dataset.records} == {"Phantom D"}
        name, seed = names[str(folder)]
        return [write_reply(record, "gemex") if (place + seed) % (WRONG[name] + 1) else "none"
                for place, record in enumerate(records)]  # fmt: skip

    patch.setattr(origin_table, "load_policy", lambda folder: folder)
    patch.setattr(origin_table, "answer_records", answer)
    yield find_recipe("origin").tabulate(plan)
    patch.undo()


def test_rate_and_temperature_are_chosen_on_validation_alone(plan):
    assert origin_table.choose_settings(plan, OURS) == {"learning_rate": 5e-4, "temperature": 1.0}
    assert origin_table.choose_settings(plan, PUBLISHED) == {"learning_rate": 1.25e-3, "temperature": 0.666667}
    first = find_recipe("origin").first(plan)
    assert {cell.settings.seed for cell in first} == {1}
    trials = [cell.settings.grpo for cell in first[1:]]
    assert {grpo.epochs * grpo.updates_per_epoch for grpo in trials} == {80}
    assert len({plan.cells.digest(cell) for cell in first}) == 11  # the start, and five of each: one is in both rows


def test_each_seed_has_its_own_phantoms_and_the_published_objective_is_the_papers(plan):
    for seed in plan.seeds:
        cells = origin_table._cells(plan, seed)
        assert {(cell.settings.seed, cell.settings.phantom.seed) for cell in cells.values()} == {(seed, seed)}
        assert {cell.settings.phantom.style for cell in cells.values()} == {"first"}
        starts = {cell.settings.policy.start for name, cell in cells.items() if name != SFT}
        assert starts == {str(plan.cells.folder(cells[SFT]))}
        grpo = cells[PUBLISHED].settings.grpo
        assert (grpo.scale, grpo.beta, grpo.ratio, grpo.learning_rate) == ("group", 1e-3, "sequence", 1.25e-3)
        assert cells[PUBLISHED].settings.rewards.functions == PRESETS["gemex"].functions
        assert cells[OURS].settings.rewards == plan.settings.rewards
    elsewhere = make_policy_plan(plan.workdir, vqa__source="folder", vqa__root=str(plan.workdir))
    refuse("config.vqa.source: 'folder'; the table origin needs 'phantom'", origin_table._start, elsewhere, 1)


@functools.cache
def read_kinds(path):
    return [record.kind for record in read_vqa_records(path).records]


def share(folder, where, name, seed):
    """The mean over the kinds of the right replies' shares, by the rule that the fixtures follow."""
    path = folder / ("records/test.jsonl" if where == HOME else "second_style/records.jsonl")
    kinds, number = read_kinds(path), WRONG[name] + (where == AWAY)
    return np.mean(
        [np.mean([(place + seed) % number > 0 for place, own in enumerate(kinds) if own == kind]) for kind in KINDS]
    )


def test_figures_are_those_of_the_replies_at_home_and_away(plan, answered):
    found, gains = (columns_of(table) for table in answered)
    assert found["training"] == [BASELINE, SFT, OURS, PUBLISHED] * 2
    folders = {seed: {name: plan.cells.folder(cell) for name, cell in origin_table._cells(plan, seed).items()}
               for seed in plan.seeds}  # fmt: skip
    shares_of = {(where, name): [share(folders[seed][name], where, name, seed) for seed in plan.seeds]
                 for where in (HOME, AWAY) for name in WRONG}  # fmt: skip
    for row, (where, name) in enumerate(zip(found["phantoms"], found["training"], strict=True)):
        if name != BASELINE:
            assert found["mean A"][row].value == pytest.approx(np.mean(shares_of[where, name]))
        silent = {OURS: 0.375, PUBLISHED: 0.75}.get(name)
        assert (found[NO_SIGNAL][row].value if silent else found[NO_SIGNAL][row]) == silent
    assert gains["seed"] == ["all", "1", "2"] * 6
    assert list(zip(gains["training"], gains["less"], strict=True))[::3] == [
        (SFT, BASELINE), (OURS, SFT), (PUBLISHED, SFT),
    ] * 2  # fmt: skip
    for row, (where, name) in enumerate(zip(gains["phantoms"], gains["training"], strict=True)):
        if name == SFT:
            first = row - gains["seed"][: row + 1][::-1].index("all")
            by_seed = [entry.value for entry in gains["mean A"][first + 1 : first + 3]]
            constant, trained = found["mean A"][found["phantoms"].index(where) :][:2]
            assert np.mean(by_seed) == pytest.approx(trained.value - constant.value)
        else:
            by_seed = list(np.subtract(shares_of[where, name], shares_of[where, SFT]))
        if gains["seed"][row] != "all":
            assert gains["mean A"][row].value == pytest.approx(by_seed[int(gains["seed"][row]) - 1])
            assert gains["mean A: verdict"][row] is None
            continue
        over, expected = gains["mean A: over the sets"][row], t_interval(by_seed)
        assert (over.value, over.low, over.high) == pytest.approx((expected.value, expected.low, expected.high))
        assert gains["mean A"][row].value == pytest.approx(np.mean(by_seed))


def test_a_cell_of_the_table_is_recomputed_from_the_kept_replies(plan, answered, tmp_path):
    recipe = find_recipe("origin")
    written = keep_replies(tmp_path, "origin", recipe.replies(plan))
    folder = tmp_path / "replies" / "origin"
    index = [json.loads(line) for line in (folder / "files.jsonl").read_text().splitlines()]
    assert len(index) == 12
    assert len(written) == len(set(written)) == 12 + 4 + 1  # replies, records by seed and condition, and the index
    found = columns_of(answered[0])
    for name, where in ((OURS, AWAY), (SFT, HOME)):
        figures = []
        condition = AWAY if where == AWAY else "test"
        for own in index:
            if (own["cell"], own["condition"]) != (name, condition):
                continue
            lines = gzip.decompress((folder / own["replies"]).read_bytes()).splitlines()
            assert json.loads(lines[0]).keys() == {"id", "seed", "cell", "condition", "reply"}
            out = tmp_path / f"{own['seed']}{where}"
            flags = [f"--dialect={own['dialect']}", "--without-pictures", "--num-resamples=60", f"--out={out}"]
            evaluating.main([str(folder / own["records"]), str(folder / own["replies"]), *flags])
            (model,) = json.loads((out / "metrics.json").read_text())["models"].values()
            figures.append(model)
        row = list(zip(found["phantoms"], found["training"], strict=True)).index((where, name))
        for part in ("value", "low", "high"):
            shares = [model["figures"]["a_score"]["mean"][part] for model in figures]
            assert np.mean(shares) == pytest.approx(getattr(found["mean A"][row], part)), part
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    keep_replies(tmp_path, "origin", recipe.replies(plan))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_broken_or_too_large_file_of_replies_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "replies.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "1", "reply": "x"}\n' * 1000)[:-9])
    refuse("replies.jsonl.gz: cannot be unpacked .*; expected a whole gzip file", read_vqa_records, path,
           on_bad_record="skip")  # fmt: skip
    path.write_bytes(gzip.compress(b"{" * 100_000))
    monkeypatch.setenv("STEPCOT_JAX_LIMITS", "unpacked_bytes=1000")
    refuse("more than 1000 bytes when unpacked", read_vqa_records, path, on_bad_record="skip")


def test_rows_as_released_start_from_one_fine_tuning_and_are_rewarded_alike(tmp_path):
    plan, done = make_policy_plan(tmp_path, seeds=(0,)), set()
    cells = origin_table._released_cells(plan, 0)
    for cell in cells.values():
        finish(plan, cell, done)
    start, grpo, credit, dpo = (cells[name].settings for name in cells)
    assert {own.policy.start for own in (grpo, credit, dpo)} == {str(plan.cells.folder(cells[origin_table.SFT]))}
    assert {own.rewards.functions for own in (grpo, credit, dpo)} == {PRESETS["released"].functions}
    assert (grpo.grpo.group_size, grpo.grpo.beta, grpo.grpo.length_norm) == (6, 0.03, "token_mean")
    assert (grpo.grpo.stage_credit, credit.grpo.stage_credit, dpo.job) == ("none", "released", "dpo")
    assert start.vqa.dialect == "lvkc_released"
    figures, differences = find_recipe("released").tabulate(plan)
    found = columns_of(figures)
    assert found["training"] == [BASELINE, *cells]
    assert [entry and entry.value for entry in found["prompts with a pair"]] == [None, None, None, None, 0.5]
    assert list(zip(*[columns_of(differences)[name] for name in ("training", "less")], strict=True))[4] == (
        origin_table.CREDIT, origin_table.GRPO,
    )  # fmt: skip
    kept = keep_replies(tmp_path, "released", find_recipe("released").replies(plan))
    assert pathlib.PurePath(kept[0]).name == "sft-released-form_seed-0_test.jsonl.gz"


@pytest.mark.slow
def test_both_tables_are_run_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(origin_table, "_SHORT", {"grpo.epochs": 1, "grpo.updates_per_epoch": 1})
    for name, function in READ.items():  # `answered` has others in their place
        monkeypatch.setattr(origin_table, name, function)
    plan = make_policy_plan(
        tmp_path, seeds=(0,), phantom__num_cases=30, policy__longest_reply=64, dpo__updates_per_epoch=1
    )
    with jax.numpy_dtype_promotion("standard"):
        names = making.make_tables(
            ["origin", "released"], plan, command=["python"], folder=tmp_path / "tables", keeps_replies=True
        )
    assert {"origin.csv", "origin_gains.md", "released.csv", "replies/origin/files.jsonl"} <= set(names)
    index = [json.loads(line) for line in (tmp_path / "tables/replies/released/files.jsonl").read_text().splitlines()]
    assert [own["cell"] for own in index][-2:] == ["GRPO with stage credit", "DPO"]
