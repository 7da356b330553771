"""Compare ways to make maps on phantoms: `python -m benchmarks.maps RUN [RUN ...] [--model teacher] [--phantoms test]`.

Each RUN is a finished run on phantoms; several differ in phantom, split and training seed. Every way maps the same
answers to the same unseen phantoms with boxes. Prints, for each way, its scores less those of constant maps, other
cases' maps and random weights; and, of several ways, the area under the answer's probability as the brightest cells are
replaced (deletion) and as they alone are shown (insertion), by a blurred copy and by the same chest drawn without
findings, and the correlation with the map that the drawing program's own removal of all findings gives. `--claims`
counts the claims that the package's maps are drawn with and, with `--keep FILE.npz`, keeps them: the file in place of
RUN prints them again. `--speed` times one picture. Choose on `--phantoms validation`, report `--phantoms test`: their
seeds differ.
"""

import argparse
import dataclasses
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Float, Int

from stepcot_jax.data.images.preprocessing import Preprocessing, repeat_grey, resize_image
from stepcot_jax.data.phantom.phantom import draw_planned, plan_case
from stepcot_jax.encoders.checkpoints import CLIP_VISION_SIZES
from stepcot_jax.encoders.load import ImageEncoder
from stepcot_jax.encoders.transformer import VisionTransformer
from stepcot_jax.evaluation.maps import Scores, Targets, list_figures, mean_intervals, score_maps
from stepcot_jax.evaluation.statistics import Interval, as_plain, interval_over_sets
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import write_whole, writing_whole
from stepcot_jax.reading.explain import (
    GRID,
    TENTH,
    Explainer,
    blur,
    highest_cells,
    lay_falls,
    normalise_maps,
    spread,
    take_answers,
    window_masks,
)
from stepcot_jax.reading.radiographs import to_input
from stepcot_jax.reading.trained_model import Trained, load_trained, read_default_model
from stepcot_jax.systems.networks import init_params
from stepcot_jax.tools.explain.scoring import draw_boxed, fit_on_training, place_boxes, randomise, write_figures
from stepcot_jax.tools.options import add_network

LATER = {"test": 1, "validation": 2}  # Seeds after the run's own; `stepcot explain score` draws those of "test"
REPLACED, BLURRED, DRAWN = "windows, mean normal picture", "windows, blurred", "windows, drawn healthy"
WAYS = (REPLACED, BLURRED)
"""The package's ways, with and without a stored mean picture; `DRAWN` needs the drawing program and is the truth."""

TENTHS = (1, 2, 4, 7)
"""Tenths of the cells at which deletion and insertion are read, between none and all."""


@dataclasses.dataclass(frozen=True)
class Cases:
    """Phantoms with boxes, as the encoder takes them, with the answers to explain."""

    images: np.ndarray
    healthy: np.ndarray  # the same chests drawn without findings
    targets: Targets
    patients: tuple[str, ...]
    labels: Int[np.ndarray, "case step"]  # most probable answers
    given: np.ndarray  # no answers, [case, step, answer]


def draw_cases(explainer: Explainer, *, num_cases: int, later: int) -> Cases:
    """Draw unseen phantoms and read them."""
    trained = explainer.trained
    phantom, preprocessing = trained.run.settings.phantom, trained.preprocessing
    boxed = draw_boxed(trained.run.settings, preprocessing, num_cases=num_cases, later=later)
    healthy = []
    for case in boxed:
        number = int(pathlib.PurePath(case.name).stem.rpartition("_")[2])
        plan = plan_case(number, seed=(phantom.seed + later) % 2**32, prevalence=phantom.prevalence)
        drawn = draw_planned(plan, size=phantom.image_size, healthy=True)
        healthy.append(resize_image(repeat_grey(drawn.image), preprocessing))
    images = to_input([case.picture for case in boxed], preprocessing)
    chain = trained.chain
    return Cases(
        images=images,
        healthy=to_input(healthy, preprocessing),
        targets=place_boxes(np.stack([case.inside for case in boxed])),
        patients=tuple(case.patient for case in boxed),
        labels=explainer.reader.read(images).logits.argmax(axis=-1).astype(np.int32),
        given=np.zeros((chain.num_steps, max(chain.answers_per_step)), np.float32),
    )


def make_maps(way: str, explainer: Explainer, cases: Cases) -> Float[np.ndarray, "case step row column"]:
    """Return one way's maps of the cases' answers."""
    if way == REPLACED:
        return explainer.explain(cases.images, labels=cases.labels, with_claims=False).maps
    masks = np.concatenate([np.zeros((1, GRID, GRID), bool), window_masks()])
    maps = []
    for image, healthy, labels in zip(cases.images, cases.healthy, cases.labels, strict=True):
        filler = healthy if way == DRAWN else blur(image) if way == BLURRED else None
        chosen = take_answers(explainer.read_replaced(image, masks, cases.given, filler=filler), labels)
        maps.append(normalise_maps(lay_falls(np.log(chosen[:1]) - np.log(chosen[1:]), masks[1:])))
    return np.stack(maps)


def measure_curves(explainer: Explainer, cases: Cases, maps: np.ndarray, *, drawn: bool) -> dict[str, np.ndarray]:
    """Return the mean probability of the answer, [case, step], over the share of cells that is replaced or shown.

    Args:
      maps: that order the cells.
      drawn: replace by the chest drawn without findings, not by a blurred copy.
    """
    shares = np.array([0, *TENTHS, 10]) / 10
    orders = [highest_cells(maps, round(GRID * GRID * tenths / 10)) for tenths in TENTHS]  # each [case, step, ...]
    ends = np.stack([np.zeros((GRID, GRID), bool), np.ones((GRID, GRID), bool)])
    areas: dict[str, list[np.ndarray]] = {"deletion": [], "insertion": []}
    num_steps = maps.shape[1]
    for case, (image, labels) in enumerate(zip(cases.images, cases.labels, strict=True)):
        masks = np.concatenate([order[case] for order in orders])  # [tenth * step, ...]
        filler = cases.healthy[case] if drawn else blur(image)
        read = explainer.read_replaced(image, np.concatenate([ends, masks, ~masks]), cases.given, filler=filler)
        chosen = take_answers(read, labels)
        inner = chosen[2:].reshape(2, len(TENTHS), num_steps, num_steps)[
            ..., np.arange(num_steps), np.arange(num_steps)
        ]
        areas["deletion"].append(np.trapezoid(np.stack([chosen[0], *inner[0], chosen[1]]), shares, axis=0))
        areas["insertion"].append(np.trapezoid(np.stack([chosen[1], *inner[1], chosen[0]]), shares, axis=0))
    return {name: np.stack(rows) for name, rows in areas.items()}


def correlate(maps: np.ndarray, truth: np.ndarray) -> Float[np.ndarray, "case step"]:
    """Return the correlation of each map with the truth's; NaN where one is constant."""
    one, other = (rows.reshape(*rows.shape[:2], -1).astype(np.float64) for rows in (maps, truth))
    one, other = one - one.mean(axis=-1, keepdims=True), other - other.mean(axis=-1, keepdims=True)
    length = np.sqrt((one**2).sum(axis=-1) * (other**2).sum(axis=-1))
    return np.where(length > 0, (one * other).sum(axis=-1) / np.where(length > 0, length, 1), np.nan)


def measure_run(
    trained: Trained, model: str, *, ways: Sequence[str], num_cases: int, num_curves: int, later: int
) -> tuple[dict[str, dict[str, np.ndarray]], tuple[str, ...]]:
    """Return the figures [case, step] of each way by name, and the patients of the cases."""
    explainer = Explainer(trained, model=model)
    cases = draw_cases(explainer, num_cases=num_cases, later=later)
    fitted_on = fit_on_training(trained)
    truth = make_maps(DRAWN, explainer, cases) if len(ways) > 1 else None
    shuffled = Explainer(randomise(trained, model, seed=0), model=model)
    few = dataclasses.replace(cases, images=cases.images[:num_curves], labels=cases.labels[:num_curves])
    figures: dict[str, dict[str, np.ndarray]] = {}
    for way in ways if truth is None else (*ways, DRAWN):
        start = time.perf_counter()
        maps = truth if truth is not None and way == DRAWN else make_maps(way, explainer, cases)
        seconds = time.perf_counter() - start
        random: Scores = score_maps(make_maps(way, shuffled, cases), cases.targets)
        figures[way] = dict(
            list_figures(
                maps,
                cases.labels,
                cases.targets,
                spreads=spread(maps).mean(axis=0),
                patients=cases.patients,
                fitted_on=fitted_on,
                random=random,
            )
        )
        print(f"{trained.workdir}, {way}: {seconds:.1f} s for {len(maps)} cases", flush=True)
        if truth is None:
            continue
        figures[way]["correlation with drawn healthy"] = correlate(maps, truth)
        for drawn, name in ((False, "blurred"), (True, "drawn healthy")) if num_curves else ():
            for curve, values in measure_curves(explainer, few, maps[:num_curves], drawn=drawn).items():
                rows = np.full(cases.labels.shape, np.nan)
                rows[:num_curves] = values
                figures[way][f"{curve}, {name}"] = rows
    return figures, cases.patients


def join_sets(figures: Sequence[Mapping[str, np.ndarray]]) -> dict[str, list[Interval]]:
    """Return the mean of each figure over the sets by step, with t intervals."""
    means = [{name: np.nanmean(values, axis=0) for name, values in of_set.items()} for of_set in figures]
    return {
        name: [interval_over_sets(list(column)) for column in zip(*(m[name] for m in means), strict=True)]
        for name in means[0]
    }


def count_claims(explainer: Explainer, cases: Cases) -> dict[str, np.ndarray]:
    """Return how far the answers' probabilities fall, [case, step], when a tenth is blurred.

    The tenth is the map's brightest, that of the case before, that of the mean map of all other cases, or random.
    """
    explained = explainer.explain(cases.images, labels=cases.labels)
    claims = np.array([[dataclasses.astuple(claim) for claim in of_case] for of_case in explained.claims], np.float64)
    before, brightest, random, other = np.moveaxis(claims, -1, 0)
    fixed = []
    for image, labels, maps in zip(cases.images, cases.labels, explained.maps, strict=True):
        masks = highest_cells(explained.maps.sum(axis=0) - maps, TENTH)
        read = explainer.read_replaced(image, masks, cases.given, filler=blur(image))
        fixed.append(np.diag(take_answers(read, labels)))
    rivals = {"another case's brightest tenth": other, "a fixed tenth": np.stack(fixed), "a random tenth": random}
    return {name: before - after for name, after in {"brightest tenth": brightest, **rivals}.items()}


def show_claims(path: pathlib.Path) -> str:
    """Return the tables of kept claims as Markdown."""
    with np.load(path, allow_pickle=False) as file:
        kept = {name: file[name] for name in file.files}
    steps, patients, about = (kept.pop(name) for name in ("steps", "patients", "about"))
    falls = {name: array.astype(np.float64) for name, array in kept.items()}  # each [set, case, step]
    brightest = falls["brightest tenth"]
    falls |= {f"brightest less {name}": brightest - array for name, array in kept.items() if name != "brightest tenth"}
    owners = [f"{number} {patient}" for number, of_set in enumerate(patients.tolist()) for patient in of_set]
    tables = {"by patient": mean_intervals({name: np.concatenate(array) for name, array in falls.items()}, owners)}
    if len(brightest) > 1:
        sets = [{name: array[number] for name, array in falls.items()} for number in range(len(brightest))]
        tables[f"t over {len(brightest)} sets"] = join_sets(sets)
    lines = []
    for kind, table in tables.items():
        lines += [f"**claims** ({about}, {kind})", "", *write_figures(table, steps.tolist()), ""]
    return "\n".join(lines)


def time_pictures(trained: Trained, model: str, *, rounds: int) -> list[str]:
    """Return the seconds that maps and claims of one picture take once compiled: of the run, and with a ViT-B/32."""
    lines = []
    for name, each in {
        f"{trained.preprocessing.size} px, the run": trained,
        "224 px, ViT-B/32": with_vit(trained),
    }.items():
        explainer = Explainer(each, model=model)
        side = each.preprocessing.size
        images = np.random.default_rng(0).standard_normal((1, side, side, 3)).astype(np.float32)
        explainer.explain(images)
        seconds = []
        for _ in range(rounds):
            start = time.perf_counter()
            explainer.explain(images)
            seconds.append(time.perf_counter() - start)
        lines.append(
            f"{name}, {model}: {np.median(seconds):.2f} s (of {rounds}: {min(seconds):.2f} to {max(seconds):.2f})"
        )
    return lines


def with_vit(trained: Trained) -> Trained:
    """Return the run with random weights behind a frozen ViT-B/32 of 224 px, as CLIP's, also random."""
    network = VisionTransformer(CLIP_VISION_SIZES, image_size=224, patch_size=32, projected_width=512)
    generator = np.random.default_rng(0)

    def draw(shapes: Any) -> Any:
        return jax.tree.map(lambda leaf: generator.normal(0, 0.02, leaf.shape).astype(np.float32), shapes)

    images = jax.ShapeDtypeStruct((1, 224, 224, 3), np.float32)
    params = draw(jax.eval_shape(network.init, jax.random.key(0), images)["params"])
    frozen = ImageEncoder(
        name="vit", width=512, digest="", num_parameters=0, network=network, read_params=lambda: params,
        preprocessing=Preprocessing(224),
    )  # fmt: skip
    networks = trained.networks.replace(image_encoder=None)
    batch = {"image_features": jax.ShapeDtypeStruct((1, 512), np.float32)}
    shapes = jax.eval_shape(
        lambda batch: init_params(networks, key=jax.random.key(0), batch=batch, text_features=trained.text_features),
        batch,
    )
    random = dict.fromkeys(trained.params, draw(shapes))
    own = {"workdir": pathlib.Path("none"), "networks": networks, "params": random}
    return dataclasses.replace(trained, **own, frozen_encoder=frozen, preprocessing=frozen.preprocessing)


def main(arguments: list[str] | None = None) -> int:
    """Print the tables of all ways as Markdown."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.maps", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=pathlib.Path, metavar="RUN")
    add_network(parser)
    parser.add_argument("--phantoms", choices=tuple(LATER), default="validation")
    parser.add_argument("--num-cases", type=int, default=200, help="phantoms with boxes a run (default: %(default)s)")
    parser.add_argument("--num-curves", type=int, default=40, help="of these for the curves (default: %(default)s)")
    parser.add_argument("--ways", default="; ".join(WAYS), help="separated by ; (default: %(default)s)")
    parser.add_argument("--claims", action="store_true", help="count the claims of the package's maps, nothing else")
    parser.add_argument("--speed", action="store_true", help="time one picture, nothing else")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE.npz", help="where the claims of --claims are kept")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="also write the intervals as JSON")
    options = parser.parse_args(arguments)
    if any(run.suffix == ".npz" for run in options.runs):
        if len(options.runs) > 1:
            parser.error("RUN: a kept file stands alone")
        print(show_claims(options.runs[0]))
        return 0
    if options.claims != (options.keep is not None) or (options.claims and options.json):
        parser.error("--claims and --keep FILE.npz come together, and without --json")
    model = options.model or read_default_model(options.runs[0])
    runs = [load_trained(run, names=(model,)) for run in options.runs]
    steps = [step.name for step in runs[0].chain.steps]
    if options.speed:
        print("\n".join(time_pictures(runs[0], model, rounds=5)))
        return 0
    ways = [way.strip() for way in options.ways.split(";") if way.strip()]
    if unknown := set(ways) - set(WAYS):
        raise BadInput(f"--ways: {sorted(unknown)[0]!r} is not one of {', '.join(WAYS)}")
    later = LATER[options.phantoms]
    if options.claims:
        explainers = [Explainer(trained, model=model) for trained in runs]
        drawn = [draw_cases(explainer, num_cases=options.num_cases, later=later) for explainer in explainers]
        falls = [count_claims(explainer, cases) for explainer, cases in zip(explainers, drawn, strict=True)]
        about = f"{model}, {sum(len(cases.patients) for cases in drawn)} {options.phantoms} phantoms"
        facts = {"steps": steps, "patients": [cases.patients for cases in drawn], "about": about}
        with writing_whole(options.keep) as file:
            stacked = {name: np.stack([of_set[name] for of_set in falls]).astype(np.float16) for name in falls[0]}
            np.savez_compressed(file, allow_pickle=False, **facts, **stacked)
        print(show_claims(options.keep))
        return 0
    sets: list[dict[str, dict[str, np.ndarray]]] = []
    patients: list[str] = []
    for number, trained in enumerate(runs):
        how = {"num_cases": options.num_cases, "num_curves": options.num_curves, "later": later}
        figures, of_set = measure_run(trained, model, ways=ways, **how)
        sets.append(figures)
        patients += [f"{number} {patient}" for patient in of_set]
    written = {}
    for way in sets[0]:
        pooled = {name: np.concatenate([of_set[way][name] for of_set in sets]) for name in sets[0][way]}
        tables = {"by patient": mean_intervals(pooled, patients)}
        if len(sets) > 1:
            tables[f"t over {len(sets)} sets"] = join_sets([of_set[way] for of_set in sets])
        for kind, table in tables.items():
            print(f"\n**{way}** ({model}, {len(patients)} {options.phantoms} phantoms, {kind})\n")
            print("\n".join(write_figures(table, steps)))
        written[way] = tables
    if options.json is not None:
        write_whole(options.json, (json.dumps(as_plain(written), indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    run_tool(main)
