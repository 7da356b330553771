"""How often the atlas of organs is right: `python -m benchmarks.organ_atlas [--num-cases=500] [--masks=FILE.zip]`.

Prints for how many boxes of phantoms' findings the atlas names an organ, and how often it is the one with the greatest
share of the box by the phantom's masks. With `--masks` (the archive of 517 lung masks that
torchxrayvision has in its `data` folder; no pictures) also the share of the fitted atlas' lungs inside of the masks,
and of the masks inside of the atlas. On real radiographs with known organs nothing was measured.
"""

import argparse
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Bool
from PIL import Image

from stepcot_jax.box import Corners
from stepcot_jax.data.questions.making import ground_phantom
from stepcot_jax.data.questions.organ_atlas import fit_atlas, map_lungs, name_organ, paint_organs
from stepcot_jax.data.questions.vocabulary import host_organ, split_lungs
from stepcot_jax.host.errors import run_tool


def score_phantoms(num_cases: int, *, size: int, seed: int) -> Iterator[tuple[str, str]]:
    """Yield the true host organ of each finding's box and the one that the atlas names, "" for none."""
    for index in range(num_cases):
        image, drawn = ground_phantom(index, seed=seed, size=size)
        fit = fit_atlas(map_lungs(drawn.image))
        masks = {f"{side} lung": mask for side, mask in split_lungs(drawn.lung_mask).items()}
        for box in image.boxes:
            x1, y1, x2, y2 = (edge / size for edge in box.corners)
            named, _ = name_organ(box.label, (x1, y1, x2, y2), fit)
            yield host_organ(box.corners, masks | {"heart": drawn.heart_mask}), named


def score_masks(path: Path) -> Iterator[tuple[float, float]]:
    """Yield for each lung mask the share of the atlas' lungs inside, and the share of the mask inside of these."""
    whole: Corners = (0.0, 0.0, 1.0, 1.0)
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith("/"):
                continue
            mask: Bool[np.ndarray, "height width"]
            mask = np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("L")) > 127
            if mask.any():
                small = Image.fromarray(mask.astype(np.uint8) * 255).resize((48, 48), Image.Resampling.BOX)
                fit = fit_atlas(np.asarray(small, np.float64) / 255)
                organs = paint_organs(fit.frame, whole, side=256)
                lungs = organs["right lung"] | organs["left lung"]
                truth = np.asarray(Image.fromarray(mask).resize((256, 256)))
                shared = (lungs & truth).sum()
                yield shared / lungs.sum(), shared / truth.sum()


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-cases", type=int, default=500)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--masks", type=Path)
    options = parser.parse_args()
    pairs = list(score_phantoms(options.num_cases, size=options.size, seed=options.seed))
    named = [truth == organ for truth, organ in pairs if organ]
    print(f"{options.num_cases} phantoms, {len(pairs)} boxes: an organ for {len(named) / len(pairs):.1%} of them,")
    print(f"{np.mean(named):.1%} of these as by the masks", flush=True)
    if options.masks:
        inside, covered = np.array(list(score_masks(options.masks))).T
        print(f"\n{len(inside)} masks with a lung: {inside.mean():.1%} of the atlas' lungs lie inside (5th percentile")
        print(f"{np.percentile(inside, 5):.1%}), {covered.mean():.1%} of the masks inside of the atlas' lungs")


if __name__ == "__main__":
    run_tool(main)
