"""A visitor's radiograph, its reading with corrections as markup, and phantoms to try."""

import base64
import json
import pathlib
from typing import Any, NamedTuple

from jaxtyping import UInt8
from numpy import ndarray

from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.pages.pictures import write_overlay, write_picture
from stepcot_jax.pages.shell import make_environment
from stepcot_jax.reading import corrections
from stepcot_jax.reading.asking import find_next_steps
from stepcot_jax.reading.explain import Explainer
from stepcot_jax.reading.image_reader import explain_pictures
from stepcot_jax.reading.radiographs import Header, read_radiograph, to_input
from stepcot_jax.reading.readings import ChainReading, describe_shifts
from stepcot_jax.reading.trained_model import Trained

_NUM_PHANTOMS, _MAX_TRIES = 6, 200  # phantoms to try, each with a different diagnosis
TEMPLATES = make_environment(pathlib.Path(__file__).parent)


class Session(NamedTuple):
    """A visitor's radiograph, and the answers that were given in place of the network's."""

    picture: UInt8[ndarray, "size size 3"]
    header: Header = Header()
    given: dict[str, str] = {}  # noqa: RUF012 (never changed)


def start_session(image: Any, explainer: Explainer) -> Session:
    """Return the session of a radiograph, a file or pixels."""
    trained = explainer.trained
    return Session(*read_radiograph(image, trained.preprocessing, max_pixels=trained.run.max_pixels))


def read_session(session: Session, explainer: Explainer) -> tuple[str, str, list[dict[str, Any]]]:
    """Return a reading and the effect of corrections as markup, and the value, choices and label of each step."""
    trained, chain, asked = explainer.trained, explainer.trained.chain, None
    given = corrections.given_distributions(session.given, chain)
    explained, (reading,) = explain_pictures(
        explainer, names=["radiograph"], pictures=[session.picture], given=given, headers=[session.header]
    )
    if takes_corrections(explainer) and follows_corrections(explainer):
        read = explainer.reader.given_reader(to_input([session.picture], trained.preprocessing))
        costs, least = trained.run.step_costs, trained.run.least_gain
        (asked,) = find_next_steps(read, given[None], chain, costs=costs, least_gain=least)
    marks = dict.fromkeys(session.given, " (corrected)") | ({asked.step.name: " (worth checking)"} if asked else {})
    steps = []
    for answer in reading.steps:
        was = "was " if answer.given else ""
        shares = zip(answer.step.options, answer.probabilities, strict=True)
        told = [(option, f"{was}{100 * share:.0f} %") for option, share in shares]
        choices = [
            (f"{option}  ({'corrected' if was and option == answer.answer else share})", option)
            for option, share in told
        ]
        label = answer.step.name + marks.get(answer.step.name, "")
        steps.append({"value": answer.answer, "choices": choices, "label": label})
    view = TEMPLATES.get_template("reading.html.j2").render(
        reading=reading,
        saved=_save(reading) if session.given else "",
        asked=asked,
        picture=write_picture(session.picture),
        overlays=[write_overlay(session.picture, values) for values in explained.maps[0]],
        claims=explained.claims[0],
        has_sets=any(answer.answer_set is not None for answer in reading.steps),
        flipped={flip.step: flip.before for flip in reading.flipped},
    )
    changes = _describe_changes(reading) if session.given else ""
    effect = TEMPLATES.get_template("effect.html.j2").render(last=reading.steps[-1], changes=changes, asked=asked)
    return view, effect, steps


def _describe_changes(reading: ChainReading) -> str:
    if reading.flipped:
        flips = "; ".join(f"{flip.step}: {flip.before} → {flip.after}" for flip in reading.flipped)
        return f"Changed by the correction: {flips}."
    moved = describe_shifts(reading.shifted)
    return f"The correction changed no other answer{moved and '; '}{moved}."


def _save(reading: ChainReading) -> str:
    """Return a reading as a data URI of the file that `predict --given` takes."""
    content = json.dumps(reading.as_dict(), indent=1, ensure_ascii=False)
    return "data:application/json;base64," + base64.b64encode(content.encode()).decode()


def takes_corrections(explainer: Explainer) -> bool:
    """Return whether the network takes given answers."""
    return explainer.reader.joint is not None or corrections.accepts_answers(explainer.trained, model=explainer.model)


def follows_corrections(explainer: Explainer) -> bool:
    """Return whether other answers follow given ones: by the joint model, or as the run measured."""
    measured = corrections.follows_corrections(explainer.trained, model=explainer.model)
    return explainer.reader.joint is not None or measured


def draw_examples(trained: Trained) -> dict[str, Any]:
    """Return phantoms that a run on phantoms never saw, by diagnosis; none for another run."""
    phantom, examples = trained.run.settings.phantom, dict[str, Any]()
    num_tries = _MAX_TRIES if trained.run.settings.data.source == "phantom" else 0
    for index in range(phantom.num_cases, phantom.num_cases + num_tries):
        drawn = draw_case(index, **phantom.drawing)
        examples.setdefault(trained.chain.steps[-1].options[drawn.case.answers[-1]], drawn.image)
        if len(examples) == _NUM_PHANTOMS:
            break
    return examples
