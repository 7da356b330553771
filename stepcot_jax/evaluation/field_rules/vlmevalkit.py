"""The counting rule of VLMEvalKit at commit e8e78f0 (2026-08-18), before its judge.

Kind: single. What the rule cannot read goes to a judge in the suite, and is wrong without one; here it is unread.
"""

import re

from stepcot_jax.evaluation.field_rules.verdicts import Asked, Verdict, choose_letter

_TO_BLANKS = str.maketrans(dict.fromkeys(".()[],:;!*#{}", " "))
_NUM_LAST = 4  # words of the end among which a letter alone must stand
_PHRASE = re.compile(r"answer\s+is\s+\**([A-D])", re.IGNORECASE)
_REFUSAL = "Z"


def judge(asked: Asked, reply: str) -> Verdict | None:
    """Judge a reply; None where the suite has no rule."""
    if asked.kind != "single":
        return None
    words = reply.translate(_TO_BLANKS).split()
    read = [letter for letter in asked.letters if letter in words]
    if len(read) == 1 and words.index(read[0]) >= len(words) - _NUM_LAST:
        return choose_letter(read[0], asked, "the only letter, in the last four words")
    if not read and _REFUSAL in words:
        return Verdict(False, "the letter Z is a refusal", _REFUSAL)
    phrase = _PHRASE.search(reply)
    if phrase and phrase[1].upper() in asked.letters:
        return choose_letter(phrase[1].upper(), asked, f"the letters {phrase[0]!r}")
    why = f"{len(read)} letters" if len(read) > 1 else "a letter too early" if read else "no letter"
    if len(reply) > 2 * sum(map(len, asked.options)):
        return Verdict(None, f"{why}, and too long to look for a name: left to a judge, which was not run")
    named = [
        letter for letter, option in zip(asked.letters, asked.options, strict=True) if option.lower() in reply.lower()
    ]
    if len(named) == 1:
        return choose_letter(named[0], asked, "the only option's text")
    return Verdict(None, f"{why}, {len(named)} options' texts: left to a judge, which was not run")
