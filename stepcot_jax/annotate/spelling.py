"""Slips of the pen in the names of findings: a letter left out, typed twice, or swapped with the next.

A report that says "small efusion" means an effusion. Only long words are taken, whose slips are no other words.
"""

_SHORTEST = 6
_NUM_KEPT = 2
"""First letters that a slip leaves as they are: there, slips are rare and other words near ("infusion")."""


def find_slips(word: str) -> frozenset[str]:
    """The forms that one slip makes of a word, without the word itself.

    >>> sorted(find_slips("nodule"))[:4]
    ['noddule', 'nodle', 'nodlue', 'nodue']
    """
    if len(word) < _SHORTEST or not word.isalpha():
        raise ValueError(f"found the word {word!r}, accepted are {_SHORTEST} letters or more")
    slips = set()
    for place in range(_NUM_KEPT, len(word)):
        before, letter, after = word[:place], word[place], word[place + 1 :]
        slips |= {before + letter + letter + after, before + after[:1] + letter + after[1:]}
        if after:  # a word without its last letter may be another form of it
            slips.add(before + after)
    return frozenset(slips - {word})


def match_slips(*words: str) -> str:
    """A regular expression of the slips of words, in which each letter is looked at once.

    >>> import re
    >>> bool(re.fullmatch(match_slips("effusion"), "efusion"))
    True
    """
    return _factor(sorted(set().union(*map(find_slips, words)) - set(words)))


def _factor(words: list[str]) -> str:
    """Words as an expression that shares what they begin with."""
    first = sorted({word[0] for word in words if word})
    branches = [letter + _factor([word[1:] for word in words if word[:1] == letter]) for letter in first]
    if "" not in words:
        return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{'|'.join(branches)})?" if branches else ""
