"""Write explanations of image files as pictures and JSON to a folder."""

import json
import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from stepcot_jax.explain.figure import attention_table, draw_attention, draw_explanation, save, step_attention
from stepcot_jax.explain.geometry import change_a_step, describe_change, spread
from stepcot_jax.explain.saliency import PREDICTED, Explainer, Explanation
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import write_whole
from stepcot_jax.predict.answers import ChainReading, make_readings
from stepcot_jax.predict.corrections import Given, check_given, give_answers
from stepcot_jax.predict.radiographs import Pixels, read_pictures, to_input
from stepcot_jax.predict.trained_model import Trained

BATCH_SIZE = 4


def write_explanations(
    trained: Trained,
    paths: Iterable[pathlib.Path],
    *,
    model: str,
    given: Given,
    out: pathlib.Path,
    refuse: Callable[[str], None],
) -> list[pathlib.Path]:
    """Write `NAME.png` with the maps, `NAME.json` with the numbers, and the teacher's `NAME.attention.png`.

    Args:
      trained: the run.
      paths: of radiographs.
      model: "teacher" or "student".
      given: answers in place of the network's, by step (`corrections.give_answers`).
      out: the folder; files of these names are replaced.
      refuse: called with a message for each file that cannot be read.

    Returns:
      The paths of the maps' pictures.

    Raises:
      BadInput: the network cannot be explained or does not take given answers, or the folder is not writable.
    """
    shares = give_answers(given, trained.chain)
    paths = list(paths)
    explainer = Explainer(trained, model=model, batch_size=min(BATCH_SIZE, max(len(paths), 1)))
    check_given(shares[None], trained, model=model, num_cases=1)
    batches = read_pictures(
        paths, trained.preprocessing, batch_size=explainer.batch_size, max_pixels=trained.max_pixels, refuse=refuse
    )
    written: list[pathlib.Path] = []
    taken: set[str] = set()
    for names, pictures in batches:
        sources = [str(name) for name in names]
        explained, readings = explain_pictures(explainer, names=sources, pictures=pictures, given=shares)
        for case, reading in enumerate(readings):
            name = _free_name(names[case].name, taken)
            try:
                written.append(_write(out / name, trained, explained, case, pictures[case], reading))
            except OSError as error:
                raise BadInput(f"{out} is not writable ({error.strerror})") from None
    return written


def explain_pictures(
    explainer: Explainer, *, names: list[str], pictures: list[Pixels], given: np.ndarray
) -> tuple[Explanation, list[ChainReading]]:
    """Return maps of the answers to pictures, and the answers; the map of a given answer explains that answer.

    Args:
      explainer: of a network.
      names: of the pictures.
      pictures: at the encoder's size.
      given: answers as distributions [step, answer], the same for all pictures, zeros for none.
    """
    trained = explainer.trained
    images = to_input(pictures, trained.preprocessing)
    labels = np.where(given.any(axis=-1), given.argmax(axis=-1), PREDICTED)
    every = [np.repeat(rows[None], len(pictures), axis=0) for rows in (given, labels)]
    explained = explainer.explain(images, given_answers=every[0], labels=every[1])
    uncorrected = explainer.reader.read(images) if given.any() else None
    readings = make_readings(
        explained.reading,
        trained.chain,
        sources=names,
        model=explainer.model,
        calibration=trained.calibration,
        given=given,
        uncorrected=uncorrected,
    )
    return explained, readings


def _free_name(name: str, taken: set[str]) -> str:
    """Return a name that no file of this call has yet; several folders may hold files of one name."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    taken.add(free)
    return free


def _write(
    stem: pathlib.Path, trained: Trained, explained: Explanation, case: int, picture: Pixels, reading: ChainReading
) -> pathlib.Path:
    maps = explained.maps[case]
    spreads = spread(maps)
    change = float(change_a_step(spreads))
    facts: dict[str, Any] = reading.as_dict()
    facts["focus"] = {
        "spread": [float(each) for each in spreads],
        "change_a_step": change,
        "words": describe_change(change),
    }
    facts["maps"] = [[[round(float(cell), 6) for cell in row] for row in each] for each in maps]
    path = stem.with_name(f"{stem.name}.png")
    save(draw_explanation(picture, maps, reading), path)
    if explained.reading.attention is not None:
        weights = step_attention(explained.reading.attention)[case]
        facts["attention"] = attention_table(weights, trained.chain)
        save(draw_attention(weights, trained.chain), stem.with_name(f"{stem.name}.attention.png"))
    write_whole(stem.with_name(f"{stem.name}.json"), (json.dumps(facts, indent=1) + "\n").encode())
    return path
