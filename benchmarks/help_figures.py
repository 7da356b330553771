"""Figures of `benchmarks.does_it_help` from its kept files alone: labels, answers and logits of unseen chests.

A kept file is one set, an .npz without pickle: "labels" and "answers/NETWORK" uint8 [case, step]; "last/NETWORK" and
"after two/READING" float16 [case, answer], logits of the diagnosis less their largest, in sixteenths, without answers
and after two true ones; "hits/READING" bits [count, case], whether the diagnosis is right after 0, 1, ... true answers.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from stepcot_jax.evaluation.statistics import correct, interval_over_sets
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.files import writing_whole
from stepcot_jax.host.ranges import Interval

KEPT = pathlib.Path("docs/results/does_it_help")
PLAIN, TOLD = "plain", "plain with answers"
MARGINS = {"quickstart": 0.5, "phantom": 1.0}
"""Points of mean step accuracy that a network may lie below the plain one and still count as not below it."""
SETS = {"quickstart": range(1, 11), "phantom": range(1, 6)}
"""Sets of the comparison, by config."""
PRIMARY, OTHERS = "diagnosis after two answers", ("diagnosis", "whole chains", "whole chains of abnormal cases")
_OURS = ("teacher", "student")
COUNTED, SETTLED = f"{PLAIN} x naive Bayes", "settled"
"""The dumbest rivals: of corrections a count of answers, of whole chains one rule."""
_CALLED, _CONTRADICT = "normal called abnormal, by diagnosis", "detection and diagnosis contradict"
_STEP = 16  # logits are kept in sixteenths
_LEAST = -30.0


@dataclasses.dataclass
class Kept:
    """What is kept of a set."""

    labels: Int[np.ndarray, "case step"]
    sizes: tuple[int, ...]
    answers: dict[str, Int[np.ndarray, "case step"]] = dataclasses.field(default_factory=dict)
    last: dict[str, Float[np.ndarray, "case answer"]] = dataclasses.field(default_factory=dict)
    after_two: dict[str, Float[np.ndarray, "case answer"]] = dataclasses.field(default_factory=dict)
    hits: dict[str, Bool[np.ndarray, "count case"]] = dataclasses.field(default_factory=dict)
    number: int = 0  # of the set
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)  # settings other than the config's

    def add_network(self, name: str, logits: Float[np.ndarray, "case step answer"]) -> None:
        """Add a network's answers, and its logits of the last step."""
        parts = [logits[:, step, :size] for step, size in enumerate(self.sizes)]
        self.answers[name] = np.stack([part.argmax(axis=1) for part in parts], axis=1)
        self.last[name] = shorten(parts[-1])

    def add_reading(
        self, name: str, hits: Bool[np.ndarray, "count case"], after_two: Float[np.ndarray, "case answer"]
    ) -> None:
        """Add what a reading is worth after true answers; distributions are kept for the primary figure alone."""
        self.hits[name] = np.asarray(hits, bool)
        if name in (*_OURS, PLAIN):
            self.after_two[name] = shorten(np.log(np.maximum(after_two, 1e-13)))


def shorten(logits: Float[np.ndarray, "case answer"]) -> Float[np.ndarray, "case answer"]:
    """Return logits less each case's largest, at least -30, in sixteenths, as float16."""
    less = logits - logits.max(axis=1, keepdims=True)
    return (np.round(np.maximum(less, _LEAST) * _STEP) / _STEP).astype(np.float16)


def name_set(config: str, number: int) -> str:
    """Return the file name of a set."""
    return f"{config}_{number:02}.npz"


def write_kept(path: pathlib.Path, kept: Kept, *, about: Mapping[str, Any]) -> None:
    """Write the file of a set."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {"labels": kept.labels.astype(np.uint8)}
    arrays["about"] = np.frombuffer(json.dumps({**about, "sizes": kept.sizes}).encode(), np.uint8)
    arrays |= {f"answers/{name}": values.astype(np.uint8) for name, values in kept.answers.items()}
    arrays |= {f"last/{name}": values for name, values in kept.last.items()}
    arrays |= {f"after two/{name}": values for name, values in kept.after_two.items()}
    arrays |= {f"hits/{name}": np.packbits(values, axis=1) for name, values in kept.hits.items()}
    with writing_whole(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def read_kept(path: pathlib.Path) -> Kept:
    """Read the file of a set."""
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    about = json.loads(arrays["about"].tobytes())
    sizes, changes = tuple(about["sizes"]), about.get("changes", {})
    kept = Kept(arrays["labels"].astype(int), sizes, number=about["set"], changes=changes)
    for name, values in arrays.items():
        kind, _, of = name.partition("/")
        if kind == "hits":
            kept.hits[of] = np.unpackbits(values, axis=1, count=len(kept.labels)).astype(bool)
        elif of:
            {"answers": kept.answers, "last": kept.last, "after two": kept.after_two}[kind][of] = values
    return kept


# Figures of a set, by network and name, in per cent.


def measure(kept: Kept) -> dict[str, dict[str, float]]:
    """Return the figures of every network."""
    normal = kept.labels[:, -1] == 0
    p_normal = {name: _normal_share(last) for name, last in kept.last.items()}
    rate = (kept.answers[PLAIN][normal, -1] != 0).mean() if PLAIN in kept.answers else np.nan
    found = {}
    for name, answers in kept.answers.items():
        right = answers == kept.labels
        detected, diagnosed = answers[normal, 0] != 0, answers[normal, -1] != 0
        found[name] = {
            "steps": right.mean(),
            "diagnosis": right[:, -1].mean(),
            "whole chains": right.all(axis=1).mean(),
            "whole chains of abnormal cases": _abnormal_chains(kept, name, p_normal[name], rate),
            _CALLED: diagnosed.mean(),
            "normal called abnormal, by detection": detected.mean(),
            _CONTRADICT: _contradict(answers).mean(),
            "diagnosis after two answers": kept.hits[name][2].mean(),
        }
    return {name: {figure: 100 * float(value) for figure, value in of.items()} for name, of in found.items()}


def settle(kept: Kept) -> dict[str, dict[str, float]]:
    """Return whole chains and contradictions, in per cent; cases called Normal have the chain of most normal ones."""
    chains, counts = np.unique(kept.labels[kept.labels[:, -1] == 0], axis=0, return_counts=True)
    found = {}
    for name in (*_OURS, PLAIN):
        answers = kept.answers[name].copy()
        answers[answers[:, -1] == 0] = chains[counts.argmax()]
        right = (answers == kept.labels).all(axis=1)
        found[f"{name}, {SETTLED}"] = {
            "whole chains": 100 * float(right.mean()),
            _CONTRADICT: 100 * float(_contradict(answers).mean()),
        }
    return found


def _contradict(answers: Int[np.ndarray, "case step"]) -> Bool[np.ndarray, " case"]:
    return np.asarray((answers[:, 0] == 0) != (answers[:, -1] == 0))


def _normal_share(last: Float[np.ndarray, "case answer"]) -> Float[np.ndarray, " case"]:
    weights = np.exp(np.asarray(last, np.float64))
    return np.asarray(weights[:, 0] / weights.sum(axis=1))


def _abnormal_chains(kept: Kept, name: str, p_normal: Any, rate: float) -> float:
    """Return the share of abnormal cases with a right chain, where a threshold calls as many normals abnormal as plain.

    A case below the threshold of P(Normal) has its most probable abnormal diagnosis and its other answers.
    """
    normal = kept.labels[:, -1] == 0
    threshold = np.quantile(p_normal[normal], rate, method="higher") if np.isfinite(rate) else np.nan
    answers = kept.answers[name].astype(int).copy()
    answers[:, -1] = 1 + np.asarray(kept.last[name][:, 1:], np.float64).argmax(axis=1)
    right = (answers == kept.labels).all(axis=1) & (p_normal < threshold)
    return float(right[~normal].mean())


# Figures over sets.


@dataclasses.dataclass(frozen=True)
class Mean(Interval):
    """A mean over sets with its 95 % t interval, and the p values of its t tests; NaN with one set."""

    p: float = np.nan  # two-sided, of 0
    p_below: float = np.nan  # one-sided, of a mean at most minus the margin


def mean_over_sets(values: Iterable[float], margin: float = 0.0) -> Mean:
    """Return the mean of one figure a set; a single set has no interval."""
    numbers = [float(value) for value in values]
    mean = Mean(**dataclasses.asdict(interval_over_sets(numbers)))
    if mean.deviation is None:
        return mean
    error, freedom = max(mean.deviation / np.sqrt(len(numbers)), 1e-12), len(numbers) - 1
    p = float(2 * stats.t.sf(abs(mean.value) / error, freedom))
    return dataclasses.replace(mean, p=p, p_below=float(stats.t.sf((mean.value + margin) / error, freedom)))


def show(folder: pathlib.Path, config: str) -> str:
    """Return the tables of a config's sets as Markdown."""
    paths = sorted(folder.glob(f"{config}_[0-9]*.npz"))
    if not paths:
        raise BadInput(f"{folder}: no kept set of {config}; expected {config}_01.npz and others")
    sets = [read_kept(path) for path in paths]
    for path, kept in zip(paths, sets, strict=True):
        if kept.changes != sets[0].changes:
            raise BadInput(
                f"{path}: kept with --set {kept.changes}, {paths[0].name} with {sets[0].changes}; expected sets of the "
                "same settings in one folder"
            )
    found = [measure(kept) for kept in sets]
    names, left_out = _split_names({kept.number: of for kept, of in zip(sets, found, strict=True)})
    readings, also_out = _split_names({kept.number: kept.hits for kept in sets})
    lines = [f"{len(sets)} sets of `{config}` ({_list(kept.number for kept in sets)}){_name_changes(sets[0])}"]
    lines += [f"{_count_cases(sets)}; per cent; mean over the sets, 95 % t interval"]
    if lacking := set(SETS.get(config, ())) - {kept.number for kept in sets}:
        of = SETS[config]
        lines.append(f"- Missing of the sets {of[0]} to {of[-1]}: {_list(sorted(lacking))}")
    lines += [f"- Left out, not in every set: {text}" for text in dict.fromkeys((*left_out, *also_out))]
    figures = list(next(iter(found[0].values())))
    later = _differences_named_later(sets, found) if {*_OURS, PLAIN} <= {*names} else []
    rows = [[name, *(to_cell(mean_over_sets(s[name][f] for s in found)) for f in figures)] for name in names]
    lines += ["", *to_rows(["network", *figures], rows), "", *_differences(found, names, MARGINS.get(config, 0.5)), ""]
    lines += later
    counts = [count for count in (0, 1, 2, 3, 6) if count < len(next(iter(sets[0].hits.values())))]
    rows = [
        [name, *(to_cell(mean_over_sets(100 * kept.hits[name][count].mean() for kept in sets)) for count in counts)]
        for name in readings
    ]
    lines += ["Diagnosis right after true answers:", "", *to_rows(["reading", *map(str, counts)], rows), ""]
    by_set = [
        [path.stem, *(f"{of[name]['steps']:.1f} / {of[name]['diagnosis']:.1f}" for name in names)]
        for path, of in zip(paths, found, strict=True)
    ]
    return "\n".join([*lines, "Steps / diagnosis by set:", "", *to_rows(["set", *names], by_set)])


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _name_changes(kept: Kept) -> str:
    return "".join(f", {key}={json.dumps(value)}" for key, value in kept.changes.items())


def _count_cases(sets: Sequence[Kept]) -> str:
    of_number: dict[int, list[int]] = {}
    for kept in sets:
        of_number.setdefault(len(kept.labels), []).append(kept.number)
    if len(of_number) == 1:
        return f"{len(sets[0].labels):,} unseen chests each"
    return f"unseen chests differ: {'; '.join(f'{cases:,} (sets {_list(of)})' for cases, of in of_number.items())}"


def _split_names(of_sets: Mapping[int, Iterable[str]]) -> tuple[list[str], list[str]]:
    """Return the names that every set has, and of the others where they are missing."""
    every = {
        name: [number for number, own in of_sets.items() if name not in own] for own in of_sets.values() for name in own
    }
    lacking = [f"{name} (missing in {_list(missing)})" for name, missing in every.items() if missing]
    return [name for name, missing in every.items() if not missing], lacking


def _differences(found: Sequence[Mapping[str, Mapping[str, float]]], names: Sequence[str], margin: float) -> list[str]:
    """Return what p values are, and the table of differences: the primary figure, steps with their margin, others."""
    if PLAIN not in names:
        return [f"No differences: {PLAIN} is not in every set."]

    def less(name: str, rival: str, figure: str) -> Mean:
        return mean_over_sets((of[name][figure] - of[rival][figure] for of in found), margin)

    rows, networks = [], [name for name in names if name not in (PLAIN, TOLD)]
    for name in _OURS:
        for rival in (PLAIN, TOLD):
            if name in names and rival in names:
                mean = less(name, rival, PRIMARY)
                rows.append([f"{name} less {rival}", f"**{PRIMARY}**", to_cell(mean), _p(mean.p), _verdict(mean)])
    num_primary = len(rows)
    for name in networks:
        mean = less(name, PLAIN, "steps")
        verdict = f"not below by {margin:g}" if mean.p_below < 0.05 else f"not shown to be within {margin:g}"
        rows.append([f"{name} less {PLAIN}", "steps", to_cell(mean), f"{_p(mean.p_below)} (one-sided)", verdict])
    means = {(name, figure): less(name, PLAIN, figure) for name in networks for figure in OTHERS}
    corrected = dict(zip(means, correct([mean.p for mean in means.values()]), strict=True))
    for (name, figure), mean in means.items():
        p = corrected[name, figure]
        rows.append([f"{name} less {PLAIN}", figure, to_cell(mean), f"{_p(p)} (Holm)", _verdict(mean, p)])
    about = (
        f"Differences, paired by set. Primary are the {num_primary} of **{PRIMARY}**: few, and their p values are not "
        f"corrected, nor are those of the steps; the {len(means)} others are corrected together."
    )
    return [about, "", *to_rows(["difference", "figure", "points", "p", "verdict"], rows)]


def _differences_named_later(sets: Sequence[Kept], found: Sequence[Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Return the table of teacher and student beside the dumbest rivals, which were named after all sets were read."""
    whole = [{**of, **settle(kept)} for kept, of in zip(sets, found, strict=True)]
    for kept, of in zip(sets, whole, strict=True):
        if COUNTED in kept.hits:
            of[COUNTED] = {PRIMARY: 100 * float(kept.hits[COUNTED][2].mean())}
    pairs = []
    for name in _OURS:
        pairs += [(name, COUNTED, PRIMARY)] * all(COUNTED in of for of in whole)
        pairs += [(name, f"{PLAIN}, {SETTLED}", figure) for figure in ("whole chains", _CONTRADICT)]
        pairs += [(f"{name}, {SETTLED}", f"{PLAIN}, {SETTLED}", "whole chains"), (name, PLAIN, _CALLED)]
    rows = []
    for name, rival, figure in pairs:
        mean = mean_over_sets(of[name][figure] - of[rival][figure] for of in whole)
        values = (mean_over_sets(of[which][figure] for of in whole) for which in (name, rival))
        shown = " / ".join(f"{value.value:.1f}" for value in values)
        rows.append([f"{name} less {rival}", figure, shown, to_cell(mean), _p(mean.p), _verdict(mean)])
    about = (
        f"Named after all sets had been read, p not corrected. *{SETTLED.capitalize()}*: each case that a network "
        "diagnoses as normal gets the one chain of answers that normal chests have."
    )
    return [about, "", *to_rows(["difference", "figure", "both", "points", "p", "verdict"], rows), ""]


def _verdict(mean: Mean, p: float | None = None) -> str:
    if not (mean.p if p is None else p) < 0.05:
        return "no difference shown"
    return "above" if mean.value > 0 else "below"


def _p(p: float) -> str:
    return "-" if np.isnan(p) else f"{p:.3f}"


def to_cell(mean: Mean) -> str:
    """Return a mean with its interval, where it has one."""
    return f"{mean.value:.1f}" + ("" if np.isnan(mean.low) else f" [{mean.low:.1f}, {mean.high:.1f}]")


def to_rows(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    join: Callable[[Sequence[str]], str] = lambda cells: f"| {' | '.join(cells)} |"  # noqa: E731
    return [join(header), "|---" * len(header) + "|", *map(join, rows)]
