"""Descriptions of a run's training data, for readers of its predictions."""

import collections
import pathlib
from typing import TYPE_CHECKING

from stepcot_jax.run.settings import Settings

if TYPE_CHECKING:
    from stepcot_jax.data.dataset import Dataset

_FRONTAL = frozenset({"AP", "PA"})
_MOST_ORIGINS = 3


def describe_source(settings: Settings) -> str:
    """Return the kind of images that settings name, with the number of cases if they name it.

    >>> from stepcot_jax.run.settings import load_settings
    >>> describe_source(load_settings("quickstart"))
    'phantoms (drawn images), 3,000 cases'
    """
    if settings.data.source == "phantom":
        return f"phantoms (drawn images), {settings.phantom.num_cases:,} cases"
    if settings.data.source == "given":
        return "radiographs that a caller passed to sc.fit"
    return f"radiographs of {pathlib.PurePath(settings.data.root).name or settings.data.root}"


def describe_cases(settings: Settings, dataset: "Dataset") -> str:
    """Return the kind of images of a run, the number of its training cases, their origins and views."""
    train = [dataset.cases[index] for index in dataset.splits.train]
    if settings.data.source == "phantom":
        return f"phantoms (drawn images), {len(train):,} training cases of {settings.phantom.num_cases:,}"
    origins = collections.Counter(case.origin for case in train if case.origin)
    named = ", ".join(origin for origin, _ in origins.most_common(_MOST_ORIGINS))
    more = f" and {len(origins) - _MOST_ORIGINS} more" if len(origins) > _MOST_ORIGINS else ""
    named = f" ({named}{more})" if named else ""
    views = _describe_views([case.view.upper() for case in train])
    return f"{describe_source(settings)}, {len(train):,} training cases{named}, {views}"


def _describe_views(views: list[str]) -> str:
    counts = collections.Counter(views)
    unknown = counts.pop("", 0)
    if not counts:
        return "views not recorded"
    shares = ", ".join(f"{view} {100 * count / len(views):.0f} %" for view, count in counts.most_common(4))
    kind = "frontal" if counts.keys() <= _FRONTAL and not unknown else "views"
    return f"{kind} ({shares}{', others not recorded' if unknown else ''})"
