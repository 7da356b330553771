"""Counting rules of public suites against verdicts that the suites gave, and by hand."""

import json
import re

import numpy as np
import pytest
from reasoning_records import make_record
from refusals import refuse

from stepcot_jax.evaluation.field_rules.made_replies import write_made
from stepcot_jax.evaluation.field_rules.rule_table import RULES, choose_rules
from stepcot_jax.evaluation.field_rules.verdicts import Asked, ask, take_pairs

FORMS = {"medevalkit_pmc": "medevalkit", "medevalkit_slake": "medevalkit", "lmms_eval_thoughts_kept": "lmms_eval"}
STOPS = {"c051", "c346", "c351"}  # MedEvalKit ends with an error, which the rule counts as wrong
OPTIONS = ("Nodule", "Pleural effusion", "Effusion", "Mass")
TEXTS = {"single": "B", "closed": "Yes", "open": "pneumonia"}


def test_every_verdict_of_the_suites(shared):
    """All cases by each suite in each form: verdict, letter and chance; the only differences are named."""
    lines = (shared / "data" / "counting" / "verdicts.jsonl").read_text(encoding="utf-8").splitlines()
    cases, differing = [json.loads(line) for line in lines], set()
    assert len(cases) == 361
    for case in cases:
        asked = Asked(case["kind"], tuple(case["options"]), case["answer"])
        for name, rule in RULES.items():
            suite = FORMS.get(name, name)
            wanted = case.get("variants", {}).get(name, case[suite])
            verdict = rule.judge(asked, case["reply"])
            if (verdict and verdict.right) is not wanted:
                differing.add((case["id"], suite))
            if name in case.get("read", {}):
                assert verdict.read == case["read"][name], (case["id"], name)
            if name == "lmms_eval":
                assert verdict.chance == pytest.approx(case.get("chance", 0), abs=1e-4), case["id"]
    assert differing == {(name, "medevalkit") for name in STOPS}
    for case in cases:
        if case["id"] in STOPS:
            verdict = RULES["medevalkit"].judge(Asked(case["kind"], (), case["answer"]), case["reply"])
            assert verdict.right is False
            assert "stops with an error" in verdict.reason


@pytest.mark.parametrize(
    ("kind", "reply", "rights"),
    [  # MedEvalKit, lmms-eval, VLMEvalKit; None: unread, or no rule; ...: by difflib, not by hand
        ("single", "B", [True, True, True]),
        ("single", "(B)", [True, True, True]),
        ("single", "b", [True, None, None]),
        ("single", "The lung was seen in the PA view, and it is B", [..., True, True]),
        ("single", "B, as the blunt angle on the left and the meniscus tell", [True, None, None]),
        ("single", "<think>A.</think>B", [..., True, None]),
        ("single", "Z", [False, None, False]),
        ("single", "It is not B.", [False, True, True]),
        ("single", "The answer is *believed* to be fluid in both lungs, as far as seen", [False, None, True]),
        ("single", "pleural effusion", [True, None, None]),
        ("single", "\\boxed{B}", [True, None, True]),
        ("single", "<answer>B</answer>", [True, None, None]),
        ("closed", "Yes, there is a nodule.", [False, False, None]),  # "nodule" has the letters "no"
        ("closed", "YES!", [True, True, None]),
        ("closed", "是的", [False, True, None]),
        ("closed", "(perhaps) yes", [True, True, None]),
        ("open", "Pneumonia.", [False, True, None]),
        ("open", "<answer>Pneumonia</answer>", [True, False, None]),
        ("open", "Final answer: pneumonia", [False, False, None]),  # the blank behind the mark stays
    ],
)
def test_verdicts_by_hand(kind, reply, rights):
    asked = Asked(kind, OPTIONS if kind == "single" else (), TEXTS[kind])
    for name, right in zip(("medevalkit", "lmms_eval", "vlmevalkit"), rights, strict=True):
        verdict = RULES[name].judge(asked, reply)
        assert right is ... or (verdict and verdict.right) is right, name


def test_a_guess_has_its_chance_and_a_long_reply_goes_to_the_judge():
    asked = Asked("single", OPTIONS, "B")
    assert RULES["lmms_eval"].judge(asked, "**B**").chance == 1 / 4
    assert "judge, which was not run" in RULES["vlmevalkit"].judge(asked, "<answer>B</answer>" + " so" * 40).reason
    assert "the first option" in RULES["medevalkit"].judge(asked, "").reason
    assert all(rule.judge(Asked("multi", OPTIONS, ("A", "B")), "A, B") is None for rule in RULES.values())


def test_a_suite_takes_the_form_of_the_layout():
    assert [rule.name for rule in choose_rules(["all"])] == ["medevalkit", "lmms_eval", "vlmevalkit"]
    assert [rule.name for rule in choose_rules(["medevalkit", "medevalkit_slake"], "slake")] == ["medevalkit_slake"]
    assert [rule.name for rule in choose_rules(["medevalkit"], "pmc_vqa_2")] == ["medevalkit_pmc"]
    for rule in RULES.values():
        assert ("guesses not drawn" if "lmms_eval" in rule.name else "without the suite's judge") in rule.suite
    refuse("--rule: 'medeval' is not one of all, medevalkit, ", choose_rules, ["medeval"])


@pytest.mark.parametrize("kind", TEXTS)
def test_made_replies(kind):
    """Ten right forms and ten kinds of non-answer; the plainest form is right by every rule."""
    record = make_record(kind, **({"answer": "Yes"} if kind == "closed" else {}))
    made = write_made(record, [record])
    assert [sort for sort, _ in made] == ["right"] * 10 + ["non-answer"] * 10
    left_out = {form for (_, form), reply in made.items() if reply is None}
    assert left_out == {"single": {"normal"}, "closed": set(), "open": {"first option", "all options"}}[kind]
    for rule in RULES.values():
        verdict = rule.judge(ask(record), made["right", "alone"])
        assert verdict is None or verdict.right
    assert made["non-answer", "denial"] == f"The answer is not {record.answer}."


def test_pairs_are_those_of_a_non_greedy_pattern_and_hostile_replies_take_linear_time():
    draw = np.random.default_rng(0)
    for _ in range(500):
        text = "".join(draw.choice(["<a>", "</a>", "x", "\n", "<"], size=draw.integers(12)))
        pattern = re.compile("<a>(.*?)</a>", re.DOTALL)
        assert take_pairs(text, "<a>", "</a>") == (pattern.findall(text), pattern.sub("", text))
    for mark in ("<think>", "<analysis>", "<answer>", "\\boxed{", "(", "（", ":", ".", "answer is "):  # noqa: RUF001
        for kind, answer in TEXTS.items():
            for rule in RULES.values():  # with patterns minutes a reply
                rule.judge(Asked(kind, OPTIONS if kind == "single" else (), answer), mark * 40_000)
