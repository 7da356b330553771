"""The counting rule of MedEvalKit at commit 9b12e3b (2026-02-24), without its judge.

Kinds: closed, open, single. A choice is never unread: where no letter stands alone, the most similar option is taken.
"""

import difflib
from typing import Literal

from stepcot_jax.evaluation.field_rules.verdicts import Asked, Verdict, choose_letter, compare, take_pairs

Form = Literal["default", "slake", "pmc"]
"""Default: VQA-RAD, PathVQA, OmniMedVQA and MedXpertQA; closed answers in words are SLAKE's in all forms."""

_MARKS = ["**answer**:", "**answer**", "*answer*:", "**answer:**", "answer is", "answer:", "答案:", "final answer"]
_NO_BOX = "None"  # a word of its own: with its capital it holds no "no"
_ENDS = str.maketrans("", "", "\n.")


def judge(asked: Asked, reply: str, *, form: Form = "default") -> Verdict | None:
    """Judge a reply; None where the suite has no rule."""
    if isinstance(asked.answer, tuple):
        return None
    if asked.kind == "single":
        return _judge_choice(asked, reply, form)
    reply, truth = _look_first(reply), asked.answer
    if asked.kind == "closed":
        yes_or_no = truth if form == "slake" else truth.lower().strip()
        if yes_or_no in ("yes", "no"):
            return _judge_yes_no(_core(reply.lower().strip()).translate(_ENDS), yes_or_no)
        return compare(_core(reply).translate(_ENDS), truth.lower())
    if form != "slake":
        reply, truth = reply.strip(), truth.strip()
    core = _core(reply)
    if not core.replace(".", "").strip() or not truth.strip():
        return Verdict(False, "no word is left, and the suite stops with an error", core)
    return compare(core, truth.lower())


def _judge_yes_no(text: str, truth: str) -> Verdict:
    read = [word for word in ("yes", "no") if word in text]
    if len(read) != 1:
        return Verdict(False, "both yes and no occur" if read else "neither yes nor no occurs")
    return Verdict(read[0] == truth, f"the letters {read[0]!r} occur", read[0])


def _judge_choice(asked: Asked, reply: str, form: Form) -> Verdict:
    text = (_take_tag(reply) if form != "pmc" else reply).lower()
    letters = asked.letters.lower()
    parts = text.split("\n\n")
    for part in (parts[0], parts[-1].partition(".")[0]):
        if part in letters and len(part) == 1:
            text = part
            break
    text = _core(text).lower().strip().replace("\n", "")
    head = text.partition(".")[0].rpartition(":")[2]
    if head in letters and len(head) == 1:
        return choose_letter(head.upper(), asked, "a letter alone")
    written = [f"{letter}. {option}" for letter, option in zip(asked.letters, asked.options, strict=True)]
    if form == "pmc":
        written = [f" {letter}: {option}" for letter, option in zip(asked.letters, asked.options, strict=True)]
    matcher, likeness = difflib.SequenceMatcher(None, "", text), list[float]()
    for option in written:
        matcher.set_seq1(option.lower())
        likeness.append(matcher.ratio())
    best = max(likeness)
    read = asked.letters[likeness.index(best)]
    reason = (
        f"no letter alone: the most similar option ({best:.2f})" if best else "nothing is similar: the first option"
    )
    return choose_letter(read, asked, reason)


def _look_first(reply: str) -> str:
    """Return a box, else what stands in tags, else the reply."""
    box = _take_box(reply)
    return box if box != _NO_BOX else _take_tag(reply)


def _core(text: str) -> str:
    text = text.lower()
    text = _take_box(text) if "boxed" in text else _take_tag(text)
    for mark in _MARKS:
        text = text.rpartition(mark)[2]
    return text


def _take_box(text: str) -> str:
    """Return the content of the last box, up to the bracket that closes it."""
    _, command, rest = text.rpartition("\\boxed{")
    depth = 1
    for place, character in enumerate(rest if command else ""):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if not depth:
            return rest[:place].strip()
    return _NO_BOX


def _take_tag(text: str) -> str:
    """Return what stands in closed answer tags, else the whole text."""
    return " ".join(take_pairs(text, "<answer>", "</answer>")[0]).strip() or text
