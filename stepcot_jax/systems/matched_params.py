"""Parameters of one chain's networks for another chain: steps and answers are matched by name.

Teacher and student have a head for each step and a column for each answer; everything else is shared by all steps. What
has no counterpart, or one of another shape, keeps its fresh values.
"""

import dataclasses
import math
import re
from collections.abc import Iterator

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from stepcot_jax.chain import Chain, fold
from stepcot_jax.training.state import Params

_STACKED = re.compile(r"teacher/(?:heads/|image_projections/|step_vectors$)")
"""Parameters of all steps, stacked on the leading axis."""

_OF_STEP = re.compile(r"((?:teacher/classifier|student/head)_)(\d+)(/.*)")
"""Classifiers of one step, with the answers on the last axis."""


@dataclasses.dataclass(frozen=True)
class Matched:
    """Parameters, some of them taken over.

    Attributes:
      num_taken: numbers that were taken over.
      answers: by step that both chains have, the answers that both have.
      fresh: steps, answers, and networks that have no counterpart, as lines of text.
      misfits: parameters whose counterpart has another shape, with both shapes.
    """

    params: Params
    num_taken: int
    num_all: int
    answers: dict[str, tuple[str, ...]]
    fresh: tuple[str, ...]
    misfits: tuple[str, ...]


def match_params(found: Params, like: Params, *, found_chain: Chain, chain: Chain) -> Matched:
    """Return fresh parameters with those of other networks put in wherever name and shape fit."""
    source, fresh = flatten_dict(found, sep="/"), flatten_dict(like, sep="/")
    places = _match_steps(found_chain, chain)
    leaves, misfits, taken = {}, [], 0
    for path, leaf in fresh.items():
        values, number, misfit = _fill(path, np.asarray(leaf), source, places)
        leaves[path], taken = values, taken + number
        misfits += [misfit] if misfit else []
    return Matched(
        params=unflatten_dict(leaves, sep="/"),
        num_taken=taken,
        num_all=sum(math.prod(leaf.shape) for leaf in leaves.values()),
        answers={chain.steps[place].name: tuple(own) for place, (_, own) in places.items()},
        fresh=tuple(_list_fresh(found, like, chain, places)),
        misfits=tuple(misfits),
    )


_Places = dict[int, tuple[int, dict[str, tuple[int, int]]]]
"""New step -> (found step, answer -> (label among the found answers, label among the new ones))."""


def _match_steps(found: Chain, chain: Chain) -> _Places:
    there = {fold(step.name): place for place, step in enumerate(found.steps)}
    places: _Places = {}
    for place, step in enumerate(chain.steps):
        other = there.get(fold(step.name))
        if other is not None:
            labels = {fold(option): label for label, option in enumerate(found.steps[other].options)}
            own = {
                option: (labels[fold(option)], label)
                for label, option in enumerate(step.options)
                if fold(option) in labels
            }
            places[place] = (other, own)
    return places


def _fill(
    path: str, leaf: np.ndarray, source: dict[str, np.ndarray], places: _Places
) -> tuple[np.ndarray, int, str | None]:
    """Return a parameter with what fits, how many numbers were taken over, and the shapes that do not fit."""
    of_step, is_stacked = _OF_STEP.fullmatch(path), _STACKED.match(path) is not None
    place = None if of_step is None else places.get(int(of_step[2]))
    if of_step is not None and place is None:
        return leaf, 0, None
    name = path if of_step is None or place is None else f"{of_step[1]}{place[0]}{of_step[3]}"
    if name not in source:
        is_missing = path.partition("/")[0] in {each.partition("/")[0] for each in source}
        return leaf, 0, f"{path}: not there" if is_missing else None
    other = np.asarray(source[name])
    shapes = [leaf.shape, other.shape]
    if is_stacked:
        shapes = [shape[1:] for shape in shapes]
    elif place is not None:
        shapes = [shape[:-1] for shape in shapes]
    if shapes[0] != shapes[1]:
        return leaf, 0, f"{path}: shape {other.shape} there, {leaf.shape} here"
    values = leaf.copy()
    if is_stacked:
        for new, (old, _) in places.items():
            values[new] = other[old]
        return values, len(places) * math.prod(leaf.shape[1:]), None
    if place is not None:
        for old, new in place[1].values():
            values[..., new] = other[..., old]
        return values, len(place[1]) * math.prod(leaf.shape[:-1]), None
    values[...] = other
    return values, leaf.size, None


def _list_fresh(found: Params, like: Params, chain: Chain, places: _Places) -> Iterator[str]:
    for name in like:
        if name not in found:
            yield f"network {name}"
    for place, step in enumerate(chain.steps):
        if place not in places:
            yield f"step {step.name!r}"
            continue
        own = [option for option in step.options if option not in places[place][1]]
        if own:
            yield f"answers of {step.name!r}: {', '.join(own)}"
