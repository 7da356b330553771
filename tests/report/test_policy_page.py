import dataclasses
import json
import re

import numpy as np
import pytest
from policies.policy_workdir import SIDE, make_policy_workdir
from refusals import refuse
from report.browser import find_broken_words, find_violations, watch

from stepcot_jax.evaluation.replies import BASELINE, ScoringSettings, encode, score_text, summarise, to_json
from stepcot_jax.evaluation.reply_page import judge
from stepcot_jax.evaluation.scored_baseline import score_baseline
from stepcot_jax.host.ranges import Interval
from stepcot_jax.reasoning.dialects import write_reply
from stepcot_jax.tools.report.command import main
from stepcot_jax.tools.report.replies import write_charts


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy_page") / "a <run>"
    _, records, _ = make_policy_workdir(folder)
    assert main([str(folder)]) == 0
    tests = [record for record in records if record.split == "test"]
    return folder, tests, (folder / "report.html").read_text()


def data_of(page):
    return json.loads(re.search(r'id="reply-data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_figures_are_those_of_the_replies(run):
    _, records, page = run
    scores = [score_text(write_reply(record, "gemex"), record, ScoringSettings()).v_score for record in records]
    kept = [score if index % 3 else 0.0 for index, score in enumerate(scores)]  # the others end before their boxes
    assert "a &lt;run&gt;" in page
    figures, differences = page.split('<h2 id="differences-title">Differences to sft</h2>')
    sft, grpo, difference = read_row(figures, "sft"), read_row(figures, "grpo"), read_row(differences, "grpo")
    assert grpo[:2] == ["100.0", f"{100 * np.mean(scores):.1f}"]
    assert sft[1] == f"{100 * np.mean(kept):.1f}"
    assert difference[1] == f"{100 * (np.mean(scores) - np.mean(kept)):+.1f}"
    assert "Best weights on validation: SFT at update 2, GRPO at update 3." in page
    assert set(re.findall(r'scope="row">(\w+)</th>', page.partition('id="settings"')[2])).isdisjoint({"teacher", "dpo"})
    for title in ("Validation", "Rewards in training", "Loss", "kl"):
        assert f'aria-label="{title}"' in page
    entries = [{"kind": "train", "epoch": 0, "step": 1, **{f"reward_{place}": 1.0 for place in range(8)}}]
    assert write_charts(entries).body.count("<svg") == 2


def test_replies_with_true_and_predicted_boxes(run):
    _, records, page = run
    data = data_of(page)
    assert [model["name"] for model in data["models"]] == ["sft", "grpo"]
    assert [record["id"] for record in data["records"]] == [record.id for record in records]
    for shown, reply, record in zip(data["records"], data["models"][1]["replies"], records, strict=True):
        assert shown["size"] == [SIDE, SIDE]
        assert [box[0] for box in shown["boxes"]] == [box[0] for box in reply["boxes"]]
        assert reply["passed"] == 1
        assert data["pictures"][shown["picture"]].startswith("data:image/jpeg;base64,")
        assert len(shown["boxes"]) == len(record.references)


@pytest.mark.slow
def test_axe_finds_nothing_and_boxes_are_drawn(run, browser):
    folder, how = run[0], {"ready": "#gallery li", "width": 390, "scheme": "light"}
    with watch(browser, f"file://{folder}/report.html", **how) as watched:
        tab = watched.tab
        assert find_violations(tab) == []
        assert find_broken_words(tab) == []
        tab.select_option("select[name=model]", "1")
        tab.click("#gallery li button")
        assert tab.locator("dialog rect.predicted").count() == tab.locator("dialog rect.true").count() > 0
        assert find_violations(tab) == []
        assert find_broken_words(tab) == []
        assert watched.overflow <= 0


def test_without_data_no_reply_is_on_the_page(run, tmp_path, capsys):
    folder, records, _ = run
    main([str(folder), "--without-data", f"--out={tmp_path / 'new' / 'small.html'}"])
    page = (tmp_path / "new" / "small.html").read_text()
    assert "small.html: 0." in capsys.readouterr().out
    nothing = [{"name": "sft", "replies": []}, {"name": "grpo", "replies": []}]
    assert data_of(page) == {"records": [], "models": nothing, "pictures": []}
    assert records[0].question not in page
    assert "100.0" in page


def read_row(page, name):
    row = re.search(rf'<tr><th scope="row">{re.escape(name)}</th>(.*?)</tr>', page)[1]
    return re.findall(r'class="value">([^<]*)<', row)


def test_the_baseline_and_the_notes_of_the_run_are_on_the_page(run, tmp_path):
    folder = tmp_path / "other"
    _, records, _ = make_policy_workdir(folder)
    tests, scoring = [record for record in records if record.split == "test"], ScoringSettings()
    scores, _ = score_baseline(records, tests, scoring)
    results = summarise(tests, {"sft": scores}, scoring, baseline=scores, num_resamples=20)
    (folder / "statistics.json").write_bytes(encode(to_json(results)))
    report = json.loads((folder / "report.json").read_text())
    (folder / "report.json").write_text(json.dumps({**report, "notes": ["GRPO began at <update> 4."]}))
    assert main([str(folder), "--without-data"]) == 0
    page = (folder / "report.html").read_text()
    assert "GRPO began at &lt;update&gt; 4." in page
    found = results.figures[BASELINE]
    expected = [found["a_score", "mean"], found["v_score", "all"]]
    assert read_row(page, BASELINE)[:2] == [f"{100 * figure.value:.1f}" for figure in expected]
    assert page.index(BASELINE) < page.index('scope="row">sft<')
    assert BASELINE not in run[2]  # of a run that did not write it
    assert page.index("<b>sft</b>: too few patients for a verdict.") < page.index(BASELINE)
    many = dataclasses.replace(results, num_patients=30, num_boxed=10)
    better, worse = Interval(0.1, 0.05, 0.2), Interval(-0.1, -0.2, -0.05)
    grpo = {("a_score", "mean"): better, ("v_score", "all"): Interval(0.0, -0.1, 0.1)}
    (section,) = judge(
        dataclasses.replace(many, differences={BASELINE: {}, "<g>": grpo}), {("a_score", "mean"): better}
    )
    assert f"<b>sft</b>: A below the {BASELINE} (-10.0 [-20.0, -5.0] points).</li>" in section.body
    assert "<b>&lt;g&gt;</b>: A better than sft (+10.0 [+5.0, +20.0] points); V not shown to beat sft (" in section.body
    few = dataclasses.replace(many, num_boxed=9, differences={BASELINE: {}, "g": grpo})  # few have boxes
    assert "points); V of too few patients for a verdict.</li>" in judge(few, {})[0].body
    assert "better than the" in judge(many, {("a_score", "mean"): worse})[0].body
    assert judge(many, {}) == judge(many, {("a_score", "mean"): Interval(0.1)}) == []


def test_what_is_refused(run, tmp_path):
    folder = tmp_path / "other"
    make_policy_workdir(folder)
    refuse("--model and --without-maps do not apply", main, [str(folder), "--model=teacher"])
    replies = folder / "replies" / "grpo_test.jsonl"
    replies.write_text("".join(replies.read_text().splitlines(keepends=True)[1:]))
    refuse(r"grpo_test\.jsonl: no reply to 1 of", main, [str(folder)])
