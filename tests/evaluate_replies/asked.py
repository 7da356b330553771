"""Folders of phantom records with replies, for the tests of this room."""

import json

import msgspec
from PIL import Image

from stepcot_jax.data.questions.making import ground_phantom
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.questions.record_files import write_vqa_records
from stepcot_jax.reasoning.dialects import write_reply


def ask(num_images, *, num_train=0, size=64):
    """Records of the first phantoms; those of the first `num_train` are of split "train", the others of "test"."""
    records, pictures = [], {}
    for index in range(num_images):
        image, drawn = ground_phantom(index, seed=0, size=size)
        pictures[image.image] = drawn.image
        image = msgspec.structs.replace(image, split="train" if index < num_train else "test")
        records += ask_questions(image, seed=0)
    return records, pictures


def write_folder(folder, records, pictures=None):
    write_vqa_records(folder / "records.jsonl", records)
    for path, pixels in (pictures or {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / path)
    return folder


def write_replies(path, records, *, dialect="gemex", change=lambda text, place: text, keep=lambda place: True):
    """Write the true replies of the test records, changed and left out as asked; return the path."""
    lines = [
        {"id": record.id, "reply": change(write_reply(record, dialect), place)}
        for place, record in enumerate(records)
        if record.split == "test" and keep(place)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
