"""Misspellings of the names of findings: one letter omitted, doubled, or swapped with the next ("efusion").

Only for words of six letters or more, whose misspellings are not other words.
"""

_NUM_KEPT = 2
"""Leading letters that stay intact: errors there are rare and lead to other words ("infusion")."""


def find_slips(word: str) -> frozenset[str]:
    """Return every form of a word with one misspelling.

    >>> sorted(find_slips("nodule"))[:4]
    ['noddule', 'nodle', 'nodlue', 'nodue']
    """
    slips = set()
    for place in range(_NUM_KEPT, len(word)):
        before, letter, after = word[:place], word[place], word[place + 1 :]
        slips |= {before + letter + letter + after, before + after[:1] + letter + after[1:]}
        if after:  # without its last letter a word may be another inflection
            slips.add(before + after)
    return frozenset(slips - {word})


def match_slips(*words: str) -> str:
    """Return a regular expression for the misspellings of words, factored by common prefixes.

    >>> import re
    >>> bool(re.fullmatch(match_slips("effusion"), "efusion"))
    True
    """
    return _factor(sorted(set().union(*map(find_slips, words)) - set(words)))


def _factor(words: list[str]) -> str:
    first = sorted({word[0] for word in words if word})
    branches = [letter + _factor([word[1:] for word in words if word[:1] == letter]) for letter in first]
    if "" not in words:
        return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
    return f"(?:{'|'.join(branches)})?" if branches else ""
