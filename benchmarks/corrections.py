"""Measure the joint reading against its bounds: `python -m benchmarks.corrections WORKDIR...`.

Each WORKDIR is a finished run on phantoms with its own phantom set, split and training seed: one *set*. Test cases are
those of the run and `--further` new chests of its collection. A difference is a mean over a set's cases; its interval
is a t interval over the sets, with the bootstrap by patient beside it (mean of the sets). Within a bound the p values
are corrected by Holm's method. Joint models, baselines and choices use training labels and validation cases alone.
"""

import argparse
import dataclasses
import json
import pathlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int
from scipy import stats

from benchmarks.correction_ways import Cases, as_published, fit_pairs
from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.data.phantom.anatomy import draw_anatomy, draw_pose, draw_style
from stepcot_jax.data.phantom.answers import draw_answers, generator
from stepcot_jax.data.phantom.findings import plan_scene
from stepcot_jax.data.phantom.phantom import PATIENT_BLOCK, PlannedCase, draw_case, draw_planned
from stepcot_jax.evaluation.calibration import compare_error
from stepcot_jax.evaluation.counting import Counting, NaiveBayes, choose_counting, fit_joints
from stepcot_jax.evaluation.interventions import Policy, ReadGiven, as_probabilities, correct_in_turn
from stepcot_jax.evaluation.joint import AnswerTree, JointModel, as_evidence, learn_tree
from stepcot_jax.evaluation.joint_fit import read_written_back
from stepcot_jax.evaluation.predictions import Predictions
from stepcot_jax.evaluation.statistics import correct, percentiles, resample, weighted_mean
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reading.radiographs import read_picture, to_input
from stepcot_jax.record import Record
from stepcot_jax.run.networks import trained_preprocessing
from stepcot_jax.run.results import NUM_GIVEN
from stepcot_jax.run.settings import read_settings
from stepcot_jax.systems.networks import encode_in_parts, make_read_given
from stepcot_jax.tools.tables.cell_networks import load_weights

NETWORKS = ("teacher", "student")
NOISE = (0.1, 0.2)
BAYES = "own diagnosis x naive Bayes"
"""The network's own distribution of the diagnosis times naive Bayes of the given answers."""
_CURVES = ("joined", "joined, random questions", "without picture", BAYES, "another case's picture")
_NUMBER = re.compile(r"phantom_(\d+)\.png$")

# The cases of a set, and what its networks say of them.


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A network's cases, and what is fitted on those of validation."""

    chain: Chain
    training: Int[np.ndarray, "case step"]
    tree: AnswerTree
    joint: JointModel
    counting: Counting
    parts: Mapping[str, Cases]  # "val", "test", "conflict", "prevalence"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of answers of each step."""
        return self.chain.answers_per_step


def load_set(workdir: pathlib.Path, *, further: int, num_conflicts: int, terminal: Terminal) -> dict[str, Fitted]:
    """Return the networks of a run with their cases."""
    settings, weights = read_settings(workdir / "settings.json"), load_weights(workdir, NETWORKS)
    if settings.data.source != "phantom" or weights.networks.image_encoder is None:
        raise BadInput(f"{workdir}: expected a run on phantoms that trained its image encoder")
    splits = json.loads((workdir / "splits.json").read_text())["splits"]
    numbers = {name: [int(_NUMBER.search(image)[1]) for image in images] for name, images in splits.items()}  # type: ignore[index]
    phantom, chain = settings.phantom, weights.chain
    first = -(-phantom.num_cases // PATIENT_BLOCK) * PATIENT_BLOCK
    size, seed = phantom.image_size, phantom.seed

    def draw(indices: Iterable[int], what: str, prevalence: str = phantom.prevalence) -> list[Any]:
        wanted = list(indices)
        return [
            draw_case(index, seed=seed, size=size, prevalence=prevalence)  # type: ignore[arg-type]
            for index in terminal.watch(wanted, f"{workdir.name}: drawing {what}")
        ]

    training = np.array([draw_answers(index, seed=seed, prevalence=phantom.prevalence) for index in numbers["train"]])
    others = {"flat": "published", "published": "flat"}
    planned = plan_conflicts(training, num_conflicts, seed=seed, chain=chain)
    drawn = {
        "val": draw(numbers["val"], "validation cases"),
        "test": draw([*numbers["test"], *range(first, first + further)], "test cases"),
        "prevalence": draw(range(first, first + num_conflicts), "another prevalence", others[phantom.prevalence]),
        "conflict": [draw_planned(shot, size=size) for shot in planned],
    }
    tree, found = learn_tree(training, chain.answers_per_step), {}
    for name in NETWORKS:
        parts = {part: read_cases(weights, name, cases) for part, cases in drawn.items() if cases}
        val = parts["val"]
        joint = fit(tree, val, chain)
        counting = choose_counting(tree, training, val.labels, chain)
        found[name] = Fitted(chain, training, tree, joint, counting, parts)
    return found


def fit(tree: AnswerTree, val: Cases, chain: Chain) -> JointModel:
    """Return the joint model of validation cases, fitted as a run does."""
    rows = np.unique(np.linspace(0, len(val.labels) - 1, min(NUM_GIVEN, len(val.labels))).round().astype(int))
    some = val.take(rows)
    predictions = Predictions(np.arange(len(val.labels)), val.labels, {"": val.logits})
    written = read_written_back(some.read, some.labels, chain.answers_per_step)
    return fit_joints(tree, predictions, {"": written}, chain)[""]


def read_cases(weights: Any, name: str, drawn: Sequence[Any]) -> Cases:
    """Return drawn chests with the logits of a network."""
    preprocessing = trained_preprocessing(weights.settings)
    images = to_input([read_picture(case.image, preprocessing) for case in drawn], preprocessing)
    features = encode_in_parts(weights.networks, weights.params[name], {"images": images})
    read = make_read_given(weights.networks, name, weights.params[name], features, weights.text_features)
    labels = np.array([case.case.answers for case in drawn])
    patients = np.unique([case.case.patient for case in drawn], return_inverse=True)[1]
    nothing = np.zeros((1, *labels.shape, max(weights.chain.answers_per_step)), np.float32)
    return Cases(read, np.asarray(read(nothing))[0], labels, patients)


def plan_conflicts(
    training: Int[np.ndarray, "case step"], number: int, *, seed: int, chain: Chain
) -> list[PlannedCase]:
    """Plan abnormal chests whose steps are drawn from their marginals, redrawn until they can be planned."""
    abnormal, rng = training[training[:, -1] != 0], np.random.default_rng((seed, 7))
    planned: list[PlannedCase] = []
    while len(planned) < number:
        index = 10_000_000 + len(planned)  # far from the collection's own
        answers = tuple(int(rng.choice(abnormal[:, step])) for step in range(chain.num_steps))
        texts = tuple(step.options[answer] for step, answer in zip(chain.steps, answers, strict=True))
        of_patient, of_image = generator(seed, index, stream=3), generator(seed, index, stream=4)
        style, anatomy = draw_style(of_patient), draw_anatomy(of_patient)
        pose = draw_pose(of_image, style)
        try:
            shot = PlannedCase(
                index,
                seed,
                Record(image=f"images/conflict_{index}.png", patient=f"C{index}", answers=answers),
                plan_scene(texts, anatomy, of_image),
                style,
                pose,
            )
            draw_planned(shot, size=32)
        except (KeyError, ValueError, IndexError):
            continue
        planned.append(shot)
    return planned


# What readings are worth, case by case.


def ask(
    read: ReadGiven, labels: Any, chain: Chain, policy: Policy = "expected gain"
) -> tuple[Float64[np.ndarray, "count case"], Any]:
    """Return the hits of the last step after 0, 1, ... answers that the policy asks for, and its distributions."""
    readings, _ = correct_in_turn(policy, read, labels, chain)
    last = readings[:, :, -1, : chain.answers_per_step[-1]]
    return (last.argmax(axis=-1) == labels[:, -1]).astype(float), last


def prefix(labels: Any, count: int, sizes: Sequence[int]) -> Any:
    """Return the first true answers as given ones."""
    return as_evidence(np.where(np.arange(labels.shape[1]) < count, labels, NOT_ANNOTATED), sizes)


def later_hits(read: ReadGiven, labels: Any, count: int, sizes: Sequence[int]) -> Float64[np.ndarray, "case"]:
    """Return the share of each case's later steps that are right after the first true answers."""
    answers = read(prefix(labels, count, sizes)[None].astype(np.float32))[0].argmax(axis=-1)
    return (answers == labels)[:, count:].mean(axis=1)


def draw_careless(
    labels: Any, noise: float, sizes: Sequence[int], *, reliability: float, seed: int = 0
) -> Float[np.ndarray, "case step answer"]:
    """Return answers to all steps before the last by readers who err at a rate, given at a reliability."""
    rng, counts = np.random.default_rng(seed), np.asarray(sizes)
    others = (labels + rng.integers(1, np.maximum(counts, 2), labels.shape)) % counts
    told = np.where(rng.random(labels.shape) < noise, others, labels)
    told[:, -1] = NOT_ANNOTATED
    return as_evidence(told, sizes, reliability=reliability).astype(np.float32)


def choose_today(found: Fitted, given: Callable[[Any, float], Any], reliabilities: Sequence[float]) -> Any:
    """Return the best way of before on validation cases: (cases -> reader, reliability, name)."""
    val, temperatures = found.parts["val"], found.joint.temperatures
    pairs = fit_pairs(found.training, val, found.chain, temperatures)
    ways = {
        "as published": lambda cases: as_published(cases, temperatures),
        "counted pairs": lambda cases: as_probabilities(pairs.follow(cases.read), temperatures),
    }

    def score(choice: tuple[str, float]) -> float:
        read = ways[choice[0]](val)(given(val.labels, choice[1])[None])[0, :, -1]
        return float((read.argmax(axis=-1) == val.labels[:, -1]).mean())

    name, reliability = max(((name, share) for name in ways for share in reliabilities), key=score)
    return ways[name], reliability, name


# Bounds: differences case by case, judged over the sets.


@dataclasses.dataclass(frozen=True)
class Row:
    """A difference that a bound is about.

    Attributes:
      values: for each set the difference of each case, and the patients.
      least: the bound is met if the difference is above it; 0: two-sided test, below 0: a margin, one-sided.
      most: in place of `least`, the bound is met unless the difference is significantly above it.
    """

    bound: int
    network: str
    what: str
    values: tuple[tuple[Any, Any], ...]
    least: float | None = 0.0
    most: float | None = None


def judge(rows: Sequence[Row], *, num_resamples: int = 1000) -> list[tuple[Any, ...]]:
    """Return for each row mean, t interval, bootstrap interval, corrected p, and whether the bound is met."""
    tested = [_test(row) for row in rows]
    corrected = [np.nan] * len(rows)
    for bound in {row.bound for row in rows}:
        places = [place for place, row in enumerate(rows) if row.bound == bound and row.least is not None]
        for place, p in zip(places, correct([tested[place][2] for place in places]), strict=True):
            corrected[place] = p
    judged = []
    for row, (mean, interval, p), of_bound in zip(rows, tested, corrected, strict=True):
        boot = _bootstrap(row, num_resamples)
        low = boot[0] if np.isnan(p) else interval[0]  # one set has no t interval
        if row.most is not None:
            met = low <= row.most
        else:
            met = mean > row.least and (of_bound < 0.05 if not np.isnan(p) else low > row.least)
        judged.append((row.bound, row.network, row.what, mean, interval, boot, of_bound, row, met))
    return judged


def _test(row: Row) -> tuple[float, tuple[float, float], float]:
    means = np.array([np.mean(values) for values, _ in row.values])
    mean, border = float(means.mean()), row.least if row.least is not None else row.most
    if len(means) < 2:
        return mean, (np.nan, np.nan), np.nan
    error = means.std(ddof=1) / np.sqrt(len(means))
    half = stats.t.ppf(0.975, len(means) - 1) * error
    t = (mean - border) / error if error > 0 else np.inf * np.sign(mean - border)
    p = stats.t.sf(t, len(means) - 1)
    return mean, (mean - half, mean + half), float(p if row.least else 2 * min(p, 1 - p))


def _bootstrap(row: Row, num_resamples: int) -> tuple[float, float]:
    of_sets = []
    for number, (values, patients) in enumerate(row.values):
        rows = np.asarray(values, float)[:, None]

        def compute(weights: Any, rows: Any = rows) -> dict[str, Any]:
            return {"": weighted_mean(weights, values=rows, counted=np.ones(rows.shape, bool))[:, 0]}

        names = np.array([str(patient) for patient in patients])
        of_sets.append(resample(compute, names, num_resamples=num_resamples, seed=number)[""])
    mean = float(np.mean([np.mean(values) for values, _ in row.values]))
    interval = percentiles(mean, np.mean(of_sets, axis=0))
    return interval.low, interval.high


def measure_network(found: Fitted, *, say: Callable[[str], None]) -> tuple[dict[tuple[Any, ...], Any], dict[str, Any]]:
    """Return the differences of a set's network by (bound, what, least, most), and facts for printing."""
    chain, sizes, test = found.chain, found.sizes, found.parts["test"]
    labels, patients = test.labels, test.patients
    joined, counting_of = found.joint.join(test.logits, test.read), found.counting
    hits, last = ask(joined, labels, chain)
    without, _ = ask(counting_of.read, labels, chain)
    foreign = test.take(np.random.default_rng(0).permutation(len(labels)))
    of_others, _ = ask(found.joint.join(foreign.logits, foreign.read), labels, chain)
    bayes, _ = ask(counting_of.bayes.beside(np.exp(found.joint.calibrate(test.logits)[-1])), labels, chain)
    random, _ = ask(joined, labels, chain, "random")
    values: dict[tuple[Any, ...], Any] = {}

    def add(bound: int, what: str, difference: Any, least: float | None = 0.0, most: float | None = None) -> None:
        values[bound, what, least, most] = (difference, patients)

    for count in range(1, chain.num_steps):
        border = 0.0 if count <= 3 else -0.01
        add(1, f"{count} answers, less {found.counting.name}", hits[count] - without[count], border)
        add(1, f"{count} answers, another case's picture", of_others[count] - without[count], None, 0.0)
        add(2, f"{count} answers, less {BAYES}", hits[count] - bayes[count], -0.01)
    true = lambda labels, share: as_evidence(  # noqa: E731
        np.where(np.arange(len(sizes)) < len(sizes) - 1, labels, NOT_ANNOTATED), sizes, reliability=share
    ).astype(np.float32)
    make_today, reliability, name = choose_today(found, true, (1.0,))
    today = make_today(test)(true(labels, reliability)[None])[0, :, -1].argmax(axis=-1) == labels[:, -1]
    add(2, f"{chain.num_steps - 1} answers, less {name}", hits[-1] - today, -0.01)
    for count in range(1, 5):
        least_wrong = max(
            (found.counting.read, NaiveBayes(found.training, chain)),
            key=lambda read, count=count: later_hits(read, found.parts["val"].labels, count, sizes).mean(),
        )
        difference = later_hits(joined, labels, count, sizes) - later_hits(least_wrong, labels, count, sizes)
        add(3, f"later steps after the first {count}, less counting", difference)
    facts = _measure_alone(found, joined, test, add, values)
    for noise in NOISE:
        _measure_careless(found, joined, noise, add)
    asked = {count: last[count] for count in (0, 1, 3, 6) if count < len(last)}
    facts |= {"curves": [of.mean(axis=1) for of in (hits, random, without, bayes, of_others)]}
    facts |= {"asked": asked, "labels": labels[:, -1], "baseline": found.counting.name, "today": name}
    facts |= {"conflict": _measure_conflict(found, values)}
    facts |= {"warned": [float(warn(found, test, count).mean()) for count in range(chain.num_steps)]}
    exponents = np.round(found.joint.exponents, 2).tolist()
    say(f"exponents {exponents}; baseline {found.counting.name}; today's best {name}")
    return values, facts


def _measure_alone(found: Fitted, joined: ReadGiven, test: Cases, add: Any, values: Any) -> dict[str, Any]:
    """Add the figures without any answer."""
    labels, nothing = test.labels, np.zeros((1, *test.labels.shape, max(found.sizes)), np.float32)
    own, read = answer_alone(found, test), joined(nothing)[0].argmax(axis=-1)
    abnormal = labels[:, -1] != 0
    add(4, "step mean, less each step alone", (read == labels).mean(axis=1) - (own == labels).mean(axis=1), -0.01)
    called = (own[:, -1] == 0).astype(float) - (read[:, -1] == 0)
    whole = (read == labels).all(axis=1).astype(float) - (own == labels).all(axis=1)
    for what, difference in (("abnormal called normal, fewer by", called), ("whole chains, abnormal", whole)):
        values[4, what, -0.01, None] = (difference[abnormal], test.patients[abnormal])
    p_normal = np.exp(found.joint.calibrate(test.logits)[-1][:, 0])
    most, count = np.unique(found.training[found.training[:, -1] == 0], axis=0, return_counts=True)
    normal = most[count.argmax()]
    rules = {"each step alone": own, "joined": read}
    rules |= {
        f"normal chain where P(Normal) > {limit}": np.where((p_normal > limit)[:, None], normal, own)
        for limit in (0.05, 0.1, 0.2)
    }
    return {"alone": {name: _describe_chains(answers, labels) for name, answers in rules.items()}}


def answer_alone(found: Fitted, cases: Cases) -> Int[np.ndarray, "case step"]:
    """Return each step's own answer."""
    return np.stack([logs.argmax(axis=1) for logs in found.joint.calibrate(cases.logits)], axis=1)


def _describe_chains(answers: Any, labels: Any) -> tuple[float, ...]:
    right, abnormal = answers == labels, labels[:, -1] != 0
    whole = right.all(axis=1)
    called = (answers[abnormal, -1] == 0).mean()
    return float(right.mean()), float(whole.mean()), float(whole[abnormal].mean()), float(called)


def _measure_careless(found: Fitted, joined: ReadGiven, noise: float, add: Any) -> None:
    """Add the figures with answers of readers who err at a stated rate."""
    test, sizes = found.parts["test"], found.sizes

    def given(labels: Any, share: float) -> Any:
        return draw_careless(labels, noise, sizes, reliability=share)

    def hit(read: ReadGiven, share: float) -> Any:
        return read(given(test.labels, share)[None])[0, :, -1].argmax(axis=-1) == test.labels[:, -1]

    make_today, share, name = choose_today(found, given, (1.0, 1 - noise))
    own = hit(joined, 1 - noise).astype(float)
    stated = "stated" if share < 1 else "as certain"
    add(5, f"{noise:.0%} wrong, less {name}, {stated}", own - hit(make_today(test), share), -0.01)
    add(5, f"{noise:.0%} wrong, less {found.counting.name}", own - hit(found.counting.read, 1 - noise), -0.01)


def _measure_conflict(found: Fitted, values: Any) -> dict[str, Any]:
    """Add the figures of conflicting chests and of another prevalence; return what readings follow."""
    facts = {}
    for part in ("conflict", "prevalence"):
        if part not in found.parts:
            continue
        cases, sizes = found.parts[part], found.sizes
        joined, own = found.joint.join(cases.logits, cases.read), answer_alone(found, cases)
        for count in (0, 3):
            given = prefix(cases.labels, count, sizes)[None].astype(np.float32)
            read, counted = (reader(given)[0].argmax(axis=-1)[:, count:] for reader in (joined, found.counting.read))
            alone, truth = own[:, count:], cases.labels[:, count:]
            difference = (read == truth).mean(axis=1) - (alone == truth).mean(axis=1)
            warned = warn(found, cases, count)
            what = f"{part}, {count} answers, without a warning, less each step alone"
            values[7, what, -0.02, None] = (difference[~warned], cases.patients[~warned])
            differ = alone != counted
            facts[f"{part}, {count} answers"] = (
                float(warned.mean()),
                float((read == truth).mean()),
                float((alone == truth).mean()),
                float(differ.mean()),
                float((read == alone)[differ].mean()),
                float((read == counted)[differ].mean()),
            )
    return facts


def warn(found: Fitted, cases: Cases, count: int) -> Any:
    """Return whether the readings under the first true answers warn that picture and answers disagree."""
    conflicts = found.joint.measure_conflict(cases.logits, prefix(cases.labels, count, found.sizes))
    return conflicts > (np.inf if found.joint.conflict_limit is None else found.joint.conflict_limit)


# Printing.


def main(arguments: list[str] | None = None) -> int:
    """Measure runs and print Markdown tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corrections", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("workdirs", nargs="+", type=pathlib.Path, metavar="WORKDIR", help="finished runs, one a set")
    parser.add_argument("--further", type=int, default=4000, help="new test chests of each set (default: %(default)s)")
    parser.add_argument("--conflicts", type=int, default=1000, help="chests of each special set (default: %(default)s)")
    options = parser.parse_args(arguments)
    terminal = Terminal()
    sizes = {"further": options.further, "num_conflicts": options.conflicts}
    rows: dict[tuple[Any, ...], list[Any]] = {}
    facts: dict[str, list[dict[str, Any]]] = {name: [] for name in NETWORKS}
    for workdir in options.workdirs:
        for name, found in load_set(workdir, **sizes, terminal=terminal).items():
            values, of_set = measure_network(found, say=lambda text, name=name: terminal.say(f"{name}: {text}"))
            facts[name].append(of_set)
            for (bound, what, least, most), value in values.items():
                # Sets may differ in their baseline, whose name ends the words.
                rows.setdefault((bound, name, what.partition(", less ")[0], least, most, _name_kind(what)), []).append(
                    (what, value)
                )
    print(describe_bounds(rows, facts))
    return 0


def _name_kind(what: str) -> str:
    """Return what distinguishes rows of the same bound and words: the kind of baseline."""
    other = what.partition(", less ")[2]
    kinds = {BAYES: "bayes", "each step alone": "alone", "counting": "counting"}
    if "published" in other or "pairs" in other:
        return "today"
    return kinds.get(other, "baseline" if other else "")


def describe_bounds(rows: Mapping[tuple[Any, ...], Any], facts: Mapping[str, Sequence[dict[str, Any]]]) -> str:
    """Return the tables of curves, chains, calibration, conflicts and bounds."""
    lines = ["| network | reading | " + " | ".join(f"{count} answers" for count in range(7)) + " |", "|---" * 9 + "|"]
    for network, of_sets in facts.items():
        for place, kind in enumerate(_CURVES):
            curve = np.mean([fact["curves"][place] for fact in of_sets], axis=0)
            lines.append(f"| {network} | {kind} | {' | '.join(f'{100 * value:.1f}' for value in curve)} |")
    lines += ["", "| network | without answers | steps | whole chains | of abnormal cases | abnormal called normal |"]
    lines += ["|---" * 6 + "|"]
    for network, of_sets in facts.items():
        for rule in of_sets[0]["alone"]:
            mean = np.mean([fact["alone"][rule] for fact in of_sets], axis=0)
            lines.append(f"| {network} | {rule} | {' | '.join(f'{100 * value:.1f}' for value in mean)} |")
    lines += ["", "| network | answers | calibration error | of labels drawn from it | bound 6 |", "|---" * 5 + "|"]
    for network, of_sets in facts.items():
        for count in of_sets[0]["asked"]:
            shares = np.concatenate([fact["asked"][count] for fact in of_sets])
            error, own = compare_error(shares, np.concatenate([fact["labels"] for fact in of_sets]))
            met = "met" if error - own <= 0.02 else "not met"
            lines.append(f"| {network} | {count} | {100 * error:.1f} | {100 * own:.1f} | {met} |")
    lines += ["", "| network | ordinary test cases with a warning after | 0 answers | 1 | 2 | 3 | 4 | 5 | 6 |"]
    lines += ["|---" * 9 + "|"]
    for network, of_sets in facts.items():
        shares = np.mean([fact["warned"] for fact in of_sets], axis=0)
        lines.append(f"| {network} | (%) | {' | '.join(f'{100 * share:.1f}' for share in shares)} |")
    lines += ["", "| network | set | with a warning | joined | each step alone | alone differs from counting | "]
    lines[-1] += "then follows picture | follows counting |"
    lines += ["|---" * 8 + "|"]
    for network, of_sets in facts.items():
        for name in of_sets[0]["conflict"]:
            mean = np.mean([fact["conflict"][name] for fact in of_sets], axis=0)
            lines.append(f"| {network} | {name} | {' | '.join(f'{100 * value:.1f}' for value in mean)} |")
    made = [
        Row(
            bound,
            network,
            " / ".join(dict.fromkeys(what for what, _ in values)),
            tuple(v for _, v in values),
            least,
            most,
        )
        for (bound, network, _, least, most, _), values in rows.items()
    ]
    lines += ["", "| bound | network | difference (points) | mean | t interval | bootstrap | p (Holm) | aim | |"]
    lines += ["|---" * 9 + "|"]
    for bound, network, what, mean, interval, boot, p, row, met in sorted(judge(made), key=lambda one: one[:2]):
        ends = [f"[{100 * low:+.1f}, {100 * high:+.1f}]" for low, high in (interval, boot)]
        aim = "no gain" if row.most is not None else f"> {100 * row.least:g}"
        p_text = "-" if np.isnan(p) else f"{p:.3f}"
        cells = (bound, network, what, f"{100 * mean:+.1f}", *ends, p_text, aim, "met" if met else "not met")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_tool(main)
