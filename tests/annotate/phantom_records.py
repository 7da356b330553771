"""A folder of phantoms with masks and 240 reasoning records, drawn once per process."""

import atexit
import functools
import pathlib
import shutil
import tempfile

from stepcot_jax.annotate.recipes.items import read_questions
from stepcot_jax.data.phantom.phantom import write_pictures
from stepcot_jax.data.questions.making import ground_phantom
from stepcot_jax.data.questions.questions import ask_questions
from stepcot_jax.data.questions.record_files import write_vqa_records

NUM_CASES = 60


def write_folder(root, indices):
    records = []
    for folder in ("images", "masks/lung", "masks/heart"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for index in indices:
        image, drawn = ground_phantom(index, seed=0, size=64)
        write_pictures(root, drawn)
        records += ask_questions(image, seed=0)
    write_vqa_records(root / "records.jsonl", records)
    return root


@functools.cache
def phantom_folder():
    root = pathlib.Path(tempfile.mkdtemp(prefix="phantom_records"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return write_folder(root, range(NUM_CASES))


@functools.cache
def phantom_questions():
    return tuple(read_questions(phantom_folder(), seed=0, box_size=None, require_images=True, set_aside=[])[0])
