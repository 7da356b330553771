"""Agreement: kappas against published figures and scikit-learn, and annotators matched by image."""

import dataclasses
import json
import math
import re

import msgspec
import numpy as np
import pytest
from host.test_pages import Seen
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuse
from report.browser import Watched, find_violations, open_browser
from sklearn.metrics import cohen_kappa_score

from stepcot_jax.annotate.agreement import (
    PAGE_NAME,
    align,
    as_markdown,
    cohen_kappa,
    compare,
    find_disagreements,
    fleiss_kappa,
    write_agreement,
)
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain
from stepcot_jax.data.records.records import write_records
from stepcot_jax.record import Record

NORMAL = (0, 3, 5, 6, 4, 6, 0)
MASS = (1, 0, 2, 0, 2, 6, 7)

# Fleiss 1971, table 1: 30 patients, 6 psychiatrists, 5 diagnoses. Published: kappa = .430.
FLEISS_1971 = """
00060 03003 01401 00006 03030 20400 00402 20310 20040 00006 10050 11040 03300 10050 02031
00501 30012 51000 02040 10203 00006 01050 02013 20040 10041 05010 40002 02040 10500 00006
"""


def make_case(name, labels=NORMAL, **changes):
    about = {"patient": f"p{name}", "image": f"images/{name}.png", "origin": "here", "report": f"Report of {name}."}
    return Record(**{**about, "answers": labels, "reasoning": ("why",) * 7, **changes})


def write(tmp_path, cases_of, chain=DEFAULT_CHAIN):
    """Folders of annotators with these cases."""
    for name, cases in cases_of.items():
        write_records(tmp_path / name, chain=chain, cases=cases)
    return [tmp_path / name for name in cases_of]


def test_kappas_are_the_published_ones():
    counts = np.array([[int(digit) for digit in row] for row in FLEISS_1971.split()])
    assert (counts.shape, set(counts.sum(axis=1))) == ((30, 5), {6})
    assert list(counts.sum(axis=0)) == [26, 26, 30, 55, 43]  # the shares in the paper are .144 .144 .167 .306 .239
    assert round(fleiss_kappa(counts), 3) == 0.430
    # Fleiss, Levin and Paik, Statistical Methods for Rates and Proportions, table 18.1: kappa = .676.
    assert round(cohen_kappa(np.array([[75, 1, 4], [5, 4, 1], [0, 0, 10]])), 3) == 0.676


answers = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


@given(answers)
def test_cohen_kappa_is_that_of_scikit_learn(pairs):
    one, two = (list(each) for each in zip(*pairs, strict=True))
    confusion = np.zeros((4, 4), np.int64)
    np.add.at(confusion, (one, two), 1)
    if len({*one, *two}) == 1:
        assert math.isnan(cohen_kappa(confusion))
    else:
        np.testing.assert_allclose(cohen_kappa(confusion), cohen_kappa_score(one, two), atol=1e-12)


@given(st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=2, max_size=30))
def test_fleiss_kappa_is_chance_corrected_agreement_of_pairs(ratings):
    # Written as the definition says it: two annotators of a case drawn at random, against two of all at random.
    counts = np.array([[row.count(answer) for answer in range(4)] for row in ratings])
    agree = [row[a] == row[b] for row in ratings for a in range(3) for b in range(3) if a != b]
    flat = [answer for row in ratings for answer in row]
    chance = np.mean([a == b for a in flat for b in flat])
    if len(set(flat)) == 1:
        assert math.isnan(fleiss_kappa(counts))
    else:
        np.testing.assert_allclose(fleiss_kappa(counts), (np.mean(agree) - chance) / (1 - chance), atol=1e-12)


def test_annotators_are_compared_on_what_all_have(tmp_path):
    folders = write(
        tmp_path,
        {
            "a": [make_case("1"), make_case("2", MASS), make_case("3"), make_case("only a")],
            "b": [make_case("3"), make_case("2", MASS), make_case("1", MASS)],
            "c": [make_case("1"), make_case("2", (NOT_ANNOTATED, *MASS[1:])), make_case("3"), make_case("only c")],
        },
    )
    aligned = align([folders[0] / "data.json", *folders[1:]])
    assert aligned.names == ("a", "b", "c")
    assert [unit.image_paths for unit in aligned.units] == [(f"images/{name}.png",) for name in "123"]
    assert aligned.num_missing == (1, 2, 1)
    detection, *_, diagnosis = compare(aligned)
    assert (detection.num_cases, detection.agreement) == (2, 0.5)
    assert [pair.num_cases for pair in detection.pairs] == [3, 2, 2]
    assert (diagnosis.num_cases, diagnosis.agreement) == (3, 2 / 3)
    a_and_b, a_and_c, b_and_c = diagnosis.pairs
    assert (a_and_c.names, a_and_c.agreement, a_and_c.kappa) == (("a", "c"), 1.0, 1.0)
    np.testing.assert_allclose(a_and_b.kappa, cohen_kappa_score([0, 7, 0], [7, 7, 0]))
    assert b_and_c.agreement == 2 / 3
    np.testing.assert_allclose(diagnosis.kappa, fleiss_kappa(np.array([[2, 1], [0, 3], [3, 0]])))
    table = as_markdown(compare(aligned))
    assert "| a / b " in table
    assert "Fleiss' of all" in table


def test_two_annotators_have_cohens_kappa_and_the_same_step_has_none(tmp_path):
    cases = {"a": [make_case("1"), make_case("2", MASS)], "b": [make_case("1"), make_case("2")]}
    comparison = compare(align(write(tmp_path, cases)))
    assert comparison[-1].kappa == comparison[-1].pairs[0].kappa == 0.0
    aligned = align(write(tmp_path, {"c": [make_case("1")], "d": [make_case("1")]}))
    assert all(math.isnan(step.kappa) and step.agreement == 1.0 for step in compare(aligned))
    assert "n/a" in as_markdown(compare(aligned))
    write_agreement(tmp_path / "out", aligned, compare(aligned))
    found = json.loads((tmp_path / "out" / "agreement.json").read_text(), parse_constant=pytest.fail)
    assert (found["steps"][0]["kappa"], found["steps"][0]["agreement"]) == (None, 1.0)
    assert found["num_missing"] == {"c": 0, "d": 0}
    assert (tmp_path / "out" / "agreement.md").read_text() == as_markdown(compare(aligned))


def test_images_of_one_report_are_one_unit(tmp_path):
    first, second = make_case("1"), make_case("1", image="images/1b.png")
    other = make_case("2", MASS)
    aligned = align(write(tmp_path, {"a": [first, other, second], "b": [first, other, second]}))
    assert [unit.image_paths for unit in aligned.units] == [("images/1.png", "images/1b.png"), ("images/2.png",)]
    corrected = msgspec.structs.replace(second, answers=MASS)
    aligned = align(write(tmp_path, {"c": [first, second], "d": [first, corrected]}))
    assert len(aligned.units) == 2
    blank = [msgspec.structs.replace(case, report="") for case in (first, second)]
    assert len(align(write(tmp_path, {"e": blank})).units) == 2


def test_what_cannot_be_compared_is_refused(tmp_path):
    others = {"b": make_case("1", report="Another."), "c": make_case("1", patient="another"), "d": make_case("2")}
    a, b, c, d = write(tmp_path, {"a": [make_case("1")], **{name: [case] for name, case in others.items()}})
    last = dataclasses.replace(DEFAULT_CHAIN.steps[-1], options=("Normal", "Mass"))
    (e,) = write(tmp_path, {"e": [make_case("1")]}, Chain((*DEFAULT_CHAIN.steps[:-1], last)))
    (f,) = write(tmp_path, {"f": [make_case("1"), make_case("2"), make_case("x")]})
    bad = re.sub(r"images/(?=\d)", "../", (f / "data.json").read_text())
    (f / "data.json").write_text(bad)
    for folders, words in (
        *(([a, b], "'images/1.png', field 'report'"), ([a, c], "field 'patient_id'"), ([a], "got only a")),
        *(([a, d], "no image_path in common"), ([a, e], ", step 7: the options"), ([a, a / "none"], "cannot be read")),
        ([f], r"record 0 \(image_path '../1.png'\).*1 more of the 3 records are bad"),
    ):
        assert "Report of" not in refuse(words, lambda folders=folders: compare(align(folders)))
    assert align([a, a], names=["x", "y"]).names == ("x", "y")


HOSTILE = (
    "<script>alert(1)</script> </pre><img src=x onerror=alert(2)> &lt;b&gt; \" ' "
    "</style><!-- \u202egnidaer\u200b \x1b[31m javascript:alert(3)"
)


def test_the_page_shows_hostile_text_as_text_and_runs_nothing(tmp_path):
    hostile = {"report": HOSTILE, "patient": HOSTILE, "reasoning": (HOSTILE,) * 7}
    cases = {"a": [make_case("1", **hostile), make_case("2")], "b": [make_case("1", MASS, **hostile), make_case("2")]}
    aligned = align(write(tmp_path, cases), names=["<script>a", "b"])
    write_agreement(tmp_path / "out", aligned, compare(aligned))
    content = (tmp_path / "out" / PAGE_NAME).read_text(encoding="utf-8")
    page = Seen(content)
    assert not {"img", "b"} & set(page.tags)
    assert page.tags.count("script") == 1  # that of every page
    attributes = "lang charset http-equiv content name class rel href scope tabindex role aria-label aria-labelledby id"
    assert {name for name, _ in page.attributes} <= set(attributes.split())
    shown = page.text
    assert "<script>alert(1)</script> </pre><img src=x onerror=alert(2)> &lt;b&gt;" in shown
    assert "[U+202E]gnidaer[U+200B] [U+001B][31m" in shown
    assert not re.search(r"[\u202e\u200b\x1b]", content)
    assert "1 of 2 reports with a disagreement" in shown
    assert len(find_disagreements(aligned)) == 1
    assert content.count('<tr class="differs">') == sum(one != two for one, two in zip(NORMAL, MASS, strict=True))


@pytest.mark.slow
def test_axe_finds_nothing_on_the_page_of_disagreements(tmp_path):
    aligned = align(write(tmp_path, {"a": [make_case("1")], "b": [make_case("1", labels=MASS)]}))
    write_agreement(tmp_path / "out", aligned, compare(aligned))
    with open_browser() as browser:
        watched = Watched(browser, width=390, scheme="dark")
        watched.tab.goto(f"file://{tmp_path}/out/{PAGE_NAME}")
        assert watched.tab.locator("tr.differs").count() > 0
        assert (find_violations(watched.tab), watched.overflow) == ([], 0)
        watched.close()
