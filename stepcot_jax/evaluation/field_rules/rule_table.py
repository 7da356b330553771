"""The table of counting rules: names, suites with commit, and the form for a layout."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stepcot_jax.evaluation.field_rules import lmms_eval, medevalkit, vlmevalkit
from stepcot_jax.evaluation.field_rules.verdicts import Asked, Verdict
from stepcot_jax.host.errors import BadInput


class FieldRule(NamedTuple):
    """A counting rule of a suite in one form."""

    name: str
    suite: str  # with commit, form, and what was not run
    judge: Callable[[Asked, str], Verdict | None]


_MEDEVALKIT = "MedEvalKit 9b12e3b (2026-02-24), form of {}, without the suite's judge"
_LMMS_EVAL = "lmms-eval 75571cf (2026-08-06), SLAKE task and MMMU reader, {}, guesses not drawn"
_VLMEVALKIT = "VLMEvalKit e8e78f0 (2026-08-18), one choice, without the suite's judge"
_SLAKE, _PMC = (functools.partial(medevalkit.judge, form=form) for form in ("slake", "pmc"))
_KEPT = functools.partial(lmms_eval.judge, keep_thoughts=True)
SUITES = (
    FieldRule("medevalkit", _MEDEVALKIT.format("VQA-RAD, PathVQA and OmniMedVQA"), medevalkit.judge),
    FieldRule("lmms_eval", _LMMS_EVAL.format("thoughts removed"), lmms_eval.judge),
    FieldRule("vlmevalkit", _VLMEVALKIT, vlmevalkit.judge),
)
FORMS = (
    FieldRule("medevalkit_slake", _MEDEVALKIT.format("SLAKE"), _SLAKE),
    FieldRule("medevalkit_pmc", _MEDEVALKIT.format("PMC-VQA"), _PMC),
    FieldRule("lmms_eval_thoughts_kept", _LMMS_EVAL.format("thoughts kept"), _KEPT),
)
RULES = {rule.name: rule for rule in (*SUITES, *FORMS)}
ALL = "all"
_OF_LAYOUTS = {
    ("medevalkit", "slake"): "medevalkit_slake",
    ("medevalkit", "pmc_vqa"): "medevalkit_pmc",
    ("medevalkit", "pmc_vqa_2"): "medevalkit_pmc",
}


def choose_rules(names: Sequence[str], layout: str = "") -> list[FieldRule]:
    """Return rules by name, each once; a suite's own name takes the form of the layout, if it has one."""
    if unknown := [name for name in names if name not in (ALL, *RULES)]:
        raise BadInput(f"--rule: {unknown[0][:80]!r} is not one of {', '.join((ALL, *RULES))}")
    named = [suite for name in names for suite in ([rule.name for rule in SUITES] if name == ALL else [name])]
    return [RULES[name] for name in dict.fromkeys(_OF_LAYOUTS.get((name, layout), name) for name in named)]
