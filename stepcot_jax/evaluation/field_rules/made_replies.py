"""Replies made from a question and its answer: the right answer in ten forms, and ten kinds of non-answer."""

import json
from collections.abc import Sequence

from stepcot_jax.record import YES_NO, Record


def write_made(record: Record, records: Sequence[Record]) -> dict[tuple[str, str], str | None]:
    """Return replies to a question with one answer, by sort and form; open questions among `records` name others.

    None: "normal" where the question or its answer mentions it, and the first and all options where it has none.
    """
    short = text = str(record.answer)
    options = [f"{letter}. {option}" for letter, option in zip(record.letters, record.options, strict=True)]
    if options:
        text, other = (
            record.options[record.letters.index(short)],
            next(each for each in record.letters if each != short),
        )
    elif short in YES_NO:
        options, other = list(YES_NO), YES_NO[short == YES_NO[0]]
    else:
        other = _name_other(record, records)
    right = {
        "alone": short,
        "full stop": f"{short}.",
        "bold": f"**{short}**",
        "Answer:": f"Answer: {short}",
        "The answer is": f"The answer is {short}.",
        "answer tag": f"<answer>{short}</answer>",
        "box": f"\\boxed{{{short}}}",
        "JSON": json.dumps({"answer": short}, ensure_ascii=False),
        "sentence": f"{short}, this is what I see." if record.kind == "closed" else f"The picture shows {text}.",
        "behind thoughts": f"<think>I compare both sides.</think>\n{short}",
    }
    mentioned = " ".join((record.question, *record.options, *record.accepted_texts))
    wrong = {
        "empty": "",
        "refusal": "I am sorry, but I cannot interpret medical pictures.",
        "normal": None if "normal" in mentioned.lower() else "This looks normal.",
        "two answers": f"{short} and {other}",
        "hedge": f"It may be {short}, but {other} is just as possible.",
        "denial": f"The answer is not {short}.",
        "first option": options[0] if options else None,
        "question repeated": record.question,
        "all options": "\n".join(options) or None,
        "truth in thoughts alone": f"<think>This fits {text}{f', option {short}' * (text != short)}.</think>",
    }
    made: dict[tuple[str, str], str | None] = {("right", form): reply for form, reply in right.items()}
    return made | {("non-answer", form): reply for form, reply in wrong.items()}


def _name_other(record: Record, records: Sequence[Record]) -> str:
    """Return another answer in words, of the same topic if there is one; "another finding" without any."""
    others = [each for each in records if each.is_answered_in_words and each.answer not in record.accepted_texts]
    alike = [each for each in others if each.topic == record.topic]
    return str((alike or others)[0].answer) if others else "another finding"
