"""Radiographs to try on the demo's page: images of a folder, or phantoms that the run never saw."""

import dataclasses
import os
import pathlib
from typing import Any

from stepcot_jax.data.images.preprocessing import repeat_grey
from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.host.errors import BadInput
from stepcot_jax.pages.pictures import write_picture
from stepcot_jax.pages.shell import make_environment
from stepcot_jax.reading.radiographs import Complaints, find_images, read_pixels
from stepcot_jax.reading.trained_model import Trained

MAX_SHOWN = 12  # Most examples of a folder

NUM_PHANTOMS = 6  # Phantoms to try, each with a different diagnosis

CLICKED = """element.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-example]");
  if (button !== null) trigger("select", { index: Number(button.dataset.example) });
});"""  # Script of the element that holds the examples: a click selects one by its index

_MAX_TRIES = 200
_THUMBNAIL = 144
_TEMPLATES = make_environment(pathlib.Path(__file__).parent)


@dataclasses.dataclass(frozen=True)
class Example:
    """A radiograph to try."""

    name: str
    image: Any
    thumbnail: str


def find_examples(folder: str | os.PathLike[str] | None, trained: Trained) -> tuple[Example, ...]:
    """Return the first images of a folder; of None phantoms that a run on phantoms never saw."""
    if folder is None:
        return _draw_phantoms(trained) if trained.run.settings.data.source == "phantom" else ()
    complaints, examples = Complaints(), list[Example]()
    for path in find_images([pathlib.Path(folder)], refuse=complaints.refuse, note=complaints.note):
        if len(examples) == MAX_SHOWN:
            complaints.note(f"note: --examples: the page shows the first {MAX_SHOWN} images of {folder}")
            break
        try:
            examples.append(_make(path.name, path, max_pixels=trained.max_pixels))
        except BadInput as error:
            complaints.refuse(str(error))
    if not examples:
        raise BadInput(f"--examples: {folder} has no readable image; expected PNG, JPEG or DICOM files")
    return tuple(examples)


def _draw_phantoms(trained: Trained) -> tuple[Example, ...]:
    phantom, by_label = trained.run.settings.phantom, dict[int, Example]()
    for index in range(phantom.num_cases, phantom.num_cases + _MAX_TRIES):
        drawn = draw_case(index, **phantom.drawing)
        label = drawn.case.answers[-1]
        if label not in by_label:
            name = trained.chain.steps[-1].options[label]
            by_label[label] = _make(name, drawn.image, max_pixels=trained.max_pixels)
        if len(by_label) == NUM_PHANTOMS:
            break
    return tuple(by_label.values())


def _make(name: str, image: Any, *, max_pixels: int) -> Example:
    pixels = read_pixels(image, max_pixels=max_pixels)
    thumbnail = write_picture(repeat_grey(pixels) if pixels.ndim == 2 else pixels, max_side=_THUMBNAIL)
    return Example(name, image, thumbnail)


def write_examples(examples: tuple[Example, ...]) -> str:
    """Write the examples as buttons; `CLICKED` is the script that makes them work."""
    return _TEMPLATES.get_template("examples.html.j2").render(examples=examples)
