"""Replies written by hand in the styles of released models, with the answer and the boxes that a person reads."""

import json
import pathlib

from reasoning_records import make_record

from stepcot_jax.reasoning.dialects import interpret_answer, read_reply

WRITTEN = [
    json.loads(line)
    for line in pathlib.Path(__file__).with_name("replies_by_hand.jsonl").read_text(encoding="utf-8").splitlines()
]
RIGHT = {"single": "A", "closed": "Yes", "multi": ("A",), "open": "mass"}
LEAST_RIGHT = 0.98


def read(written):
    options = tuple(written.get("options", ()))
    record = make_record(written["kind"], options=options, answer=RIGHT[written["kind"]])
    reply = read_reply(written["reply"], written.get("dialect", "free"))
    answer = interpret_answer(reply, record)
    boxes = [list(box.corners) for box in reply.references or ()]
    return list(answer) if isinstance(answer, tuple) else answer, boxes


def test_replies_by_hand_are_read_as_a_person_reads_them():
    unread, others = [], []
    for written in WRITTEN:
        answer, boxes = read(written)
        if boxes != written.get("boxes", boxes) or answer not in (None, written["answer"]):
            others.append((written["reply"], answer, boxes))
        elif answer != written["answer"]:
            unread.append(written["reply"])
    assert not others
    assert len(unread) <= (1 - LEAST_RIGHT) * len(WRITTEN), unread
