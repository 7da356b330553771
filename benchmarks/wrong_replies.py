"""What wrong replies earn: `python -m benchmarks.wrong_replies [--num-cases=100] [--seed=0]`.

Phantoms are drawn and asked a question of each kind. Every right reply, in the dialect of the preset's paper, is turned
into ten kinds that are wrong, or unjustified, by how they are made. Prints the table of docs/rewards.md: mean reward
[lowest, highest], one number where all are equal, in bold above that of the honest "I am not sure" without a box.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import astuple, replace

from stepcot_jax.box import Box, iou
from stepcot_jax.data.questions.making import ground_phantom
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.questions.vocabulary import NORMAL_PHRASES, TERMS, canonical, term_of
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.reasoning.dialects import answer_start, read_reply, write_reply
from stepcot_jax.reasoning.replies import Reply, write_answer
from stepcot_jax.record import Record, Stages
from stepcot_jax.rewards.functions import answer
from stepcot_jax.rewards.options import PRESETS, RewardSettings
from stepcot_jax.rewards.presets import apply_settings, make_functions, reward

DIALECTS = {"gemex": "gemex", "paper": "lvkc", "released": "lvkc_released", "supported": "gemex"}
"""The dialect of each preset's paper or code, and of the reward that docs/rewards.md adds."""

NOT_SURE = '"I am not sure", no box'
_THOUGHTS = re.compile(r"<(think|VISUAL|KNOWLEDGE|CON|VIS|KNO)>.*?</\1>", re.DOTALL)
_BOXES = re.compile(r'(?<=<location>).*(?=</location>)| ?\{"box_2d"[^{}]*\}|(?<=\[)\[.*\](?=\])')
_MOST_COVERED = 0.5  # share of the picture; a box that covers more is not replaced by that of the whole picture


class Asked(NamedTuple):
    """A question about a phantom, and the name of a finding that the phantom certainly lacks."""

    record: Record
    absent: str


def ask(num_cases: int, seed: int = 0) -> list[Asked]:
    """Draw phantoms and ask a question of each kind about each; the findings that a phantom lacks take turns."""
    asked = []
    for index in range(num_cases):
        image, _ = ground_phantom(index, seed=seed)
        for record in ask_questions(image, seed=seed):
            absent = [label for label in image.absent if label != canonical(record.facts.get("asked", ""))]
            asked.append(Asked(record, term_of(absent[index % len(absent)]).name))
    return asked


def find_wrong(asked: Asked) -> str:
    """Return a wrong answer: the other of yes and no, letters that are not right, or a finding that is absent."""
    record = asked.record
    if record.kind == "open":
        return asked.absent
    if record.kind == "closed":
        return "No" if record.answer == "Yes" else "Yes"
    wrong = [letter for letter in record.letters if letter not in record.answer]
    return wrong[0] if record.kind == "single" else ", ".join(wrong)


def think(record: Record, text: str) -> Record:
    """Return the record with another thinking; dialects with stages write it as their analysis."""
    localisation, *_ = _stages_of(record)
    return replace(record, thinking=text, stages=Stages(localisation, text, text, text))


def _stages_of(record: Record) -> tuple[str, ...]:
    assert record.stages is not None  # noqa: S101 - phantoms have stages
    return astuple(record.stages)


def _conclude(record: Record, text: str, *, seen: str = "") -> Record:
    return think(record, f"{seen}Therefore the answer is {text}.")


def say(record: Record, text: str) -> Record:
    """Return the record with an answer in words that no record of its kind may have."""
    return replace(record, kind="open", options=(), synonyms=(), answer=text)


def turn_negation(asked: Asked) -> Record | None:
    """Yes for no, no for yes, and "no pneumonia" for "pneumonia"; the thinking ends so, too."""
    record = asked.record
    if record.options or record.answer in NORMAL_PHRASES:
        return None
    turned = find_wrong(asked) if record.kind == "closed" else f"no {record.answer}"
    return say(_conclude(record, turned), turned)


def change_lung(asked: Asked) -> Record | None:
    """Boxes and words of the other side; None unless no such box touches a true one."""
    record, width = asked.record, asked.record.image_size[0]
    boxes = [Box(_swap(box.label), (width - box.x2, box.y1, width - box.x1, box.y2)) for box in record.references]
    if iou([box.corners for box in record.references], [box.corners for box in boxes]).any():
        return None
    stages = Stages(*map(_swap, _stages_of(record)))
    return replace(record, references=tuple(boxes), thinking=_swap(record.thinking), stages=stages)


def _swap(text: str) -> str:
    return re.sub(r"\b(left|right)\b", lambda match: "right" if match[0] == "left" else "left", text)


def box_the_picture(asked: Asked) -> Record | None:
    """One box of the whole picture; None where a true box covers more than half of it."""
    record, (width, height) = asked.record, asked.record.image_size
    whole = Box(record.references[0].label, (0.0, 0.0, float(width), float(height)))
    if iou([box.corners for box in record.references], [whole.corners]).max() > _MOST_COVERED:
        return None
    return replace(record, references=(whole,))


def list_all(asked: Asked) -> Record:
    """Every option, both yes and no, or every finding that phantoms can have."""
    options = {"open": [term_of(label).name for label in TERMS], "closed": ["Yes", "No"]}
    return say(asked.record, ", ".join(options.get(asked.record.kind, asked.record.letters)))


def _doubt(asked: Asked) -> Record:
    return say(think(asked.record, "I cannot tell from this picture."), "I am not sure")


MAKE: dict[str, Callable[[Asked], Record | None]] = {
    "right": lambda asked: asked.record,
    NOT_SURE: _doubt,
    '"I am not sure", right boxes': _doubt,
    "negation turned": turn_negation,
    "other lung": change_lung,
    "right for a wrong reason": lambda asked: _conclude(
        asked.record, write_answer(asked.record), seen=f"I see {asked.absent}. "
    ),
    "hedge": lambda asked: say(asked.record, f"{write_answer(asked.record)}, but possibly {find_wrong(asked)}"),
    "box of the whole picture": box_the_picture,
    "repeated boxes": lambda asked: replace(asked.record, references=asked.record.references * 2),
    "empty thinking": lambda asked: asked.record,
    "thinking that contradicts": lambda asked: _conclude(asked.record, find_wrong(asked)),
    "answer before thinking": lambda asked: asked.record,
    "all options": list_all,
}
"""The record that is written for each kind of reply, None where the kind cannot be made of a question."""

EDIT: dict[str, Callable[[str, int], str]] = {
    NOT_SURE: lambda text, _: _BOXES.sub("", text),
    "empty thinking": lambda text, start: _THOUGHTS.sub(r"<\1></\1>", text[:start]) + text[start:],
    "answer before thinking": lambda text, start: f"{text[start:]}\n{text[:start]}".rstrip(),
}
"""What is done to the text, whose answer begins at a position."""


def write(name: str, asked: Asked, dialect: str) -> str | None:
    """Return a reply of a kind to a question; None where that kind cannot be made of it."""
    record = MAKE[name](asked)
    if record is None:
        return None
    text = write_reply(record, dialect)
    return EDIT[name](text, answer_start(text, dialect)) if name in EDIT else text


def supported(replies: Sequence[Reply], records: Sequence[Record]) -> list[float]:
    """Return 1 for each reply whose answer, boxes and end of the thinking are right, else 0; as in docs/rewards.md."""
    earned = []
    for reply, record in zip(replies, records, strict=True):
        parts = reward(reply, record, RewardSettings(choice_reading="strict"))
        concluded = answer([read_reply(reply.thinking, "free")], [record])[0]
        earned.append(parts["answer"] * parts["grounding"] * concluded)
    return earned


Earned = dict[str, dict[str, list[float]]]
"""Rewards by the kind of reply, and by the preset."""


def measure(asked: Sequence[Asked]) -> Earned:
    """Return what every reply of each kind earns from each preset."""
    earned: Earned = {name: {} for name in MAKE}
    for name, by_preset in earned.items():
        for preset, dialect in DIALECTS.items():
            pairs = [(write(name, each, dialect), each.record) for each in asked]
            replies = [read_reply(text, dialect) for text, _ in pairs if text is not None]
            records = [record for text, record in pairs if text is not None]
            if settings := PRESETS.get(preset):
                by_preset[preset] = apply_settings(settings, make_functions(settings), replies, records)["total"]
            else:
                by_preset[preset] = supported(replies, records)
    return earned


def tabulate(earned: Earned) -> str:
    """Return the table as Markdown."""
    honest = {preset: np.mean(values) for preset, values in earned[NOT_SURE].items()}
    lines = [f"| reply | number | {' | '.join(f'`{preset}`' for preset in honest)} |", "|---" * (2 + len(honest)) + "|"]
    for name, by_preset in earned.items():
        cells = [name, str(len(by_preset["gemex"]))]
        for preset, values in by_preset.items():
            low, high = (f"{end(values):.2f}" for end in (min, max))
            cell = low if low == high else f"{np.mean(values):.2f} [{low}, {high}]"
            cells.append(f"**{cell}**" if name != "right" and np.mean(values) > honest[preset] + 1e-9 else cell)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--num-cases", type=int, default=100, help="phantoms, default %(default)s")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.num_cases < 1:
        raise BadInput(f"--num-cases must be at least 1; got {options.num_cases}")
    print(tabulate(measure(ask(options.num_cases, options.seed))))
    return 0


if __name__ == "__main__":
    run_tool(main)
