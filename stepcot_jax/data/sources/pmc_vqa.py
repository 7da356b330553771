"""PMC-VQA (Zhang et al., 2023): figures of papers, each question with four choices.

Two versions lie side by side on the hub: train.csv and test.csv, whose Answer is the text of a choice (its letter is
Answer_label), and train_2.csv and test_2.csv, whose Answer is the letter. The caption, which tells the answer, is left
out.
"""

from pathlib import Path

from stepcot_jax.chain import fold
from stepcot_jax.data.sources.listed import How, Source
from stepcot_jax.data.sources.question_files import Asked, Place, Row, get_text, list_tables, strip_own_letters
from stepcot_jax.host.errors import BadInput

_CHOICES = tuple(f"Choice {letter}" for letter in "ABCD")


def list_pmc_vqa(root: Path, how: How, files: list[Path]) -> Source:
    """List the questions of the first version."""
    return _list(root, how, files, folders=("images", "figures", "."))


def list_pmc_vqa_2(root: Path, how: How, files: list[Path]) -> Source:
    """List the questions of the second version, of single figures."""
    return _list(root, how, files, folders=("figures", "images_2", "images", "."))


def _list(root: Path, how: How, files: list[Path], *, folders: tuple[str, ...]) -> Source:
    return list_tables(root, how, files, _read, origin="PMC-VQA", licence="of each paper (PMC OA)", folders=folders)


def _read(fields: Row, _: Place) -> Asked:
    if missing := [name for name in _CHOICES[:2] if fields.get(name) is None]:
        raise BadInput(f"column {missing[0]}: missing; expected {', '.join(_CHOICES)}")
    options = [get_text(fields, name) for name in _CHOICES]
    letter, text = get_text(fields, "Answer_label"), get_text(fields, "Answer")
    named = [fold(option) for option in strip_own_letters(options)]
    if letter and fold(text) in named and named.index(fold(text)) != "ABCD".find(letter.upper()):
        raise BadInput(f"Answer_label: {letter[:20]!r} is not the letter of the Answer {text[:80]!r}")
    return Asked(
        image=get_text(fields, "Figure_path"),
        question=get_text(fields, "Question"),
        answer=letter or text,
        options=options,
        kind="single",
    )
