"""Findings that change the anatomy itself: a large heart, a shifted mediastinum, a lifted diaphragm."""

import dataclasses

import numpy as np

from stepcot_jax.data.phantom.anatomy import Anatomy
from stepcot_jax.data.phantom.scene import Sign


def change_anatomy(
    answers: tuple[str, ...], anatomy: Anatomy, side: int, rng: np.random.Generator
) -> tuple[Anatomy, tuple[Sign, ...]]:
    """The anatomy as heart, mediastinum and diaphragm are under the findings, and where it changed."""
    _, _, _, _, morphology, secondary, diagnosis = answers
    signs = []
    if "Cardiomegaly" in (secondary, diagnosis):
        anatomy = dataclasses.replace(
            anatomy,
            heart_size=anatomy.heart_size * rng.uniform(1.25, 1.45),
            heart_x=anatomy.heart_x + 0.03,
            heart_blur=0.12 if (diagnosis, morphology) == ("Cardiomegaly", "Ill-defined") else anatomy.heart_blur,
        )
        signs.append(Sign("Cardiomegaly", _around_heart(anatomy)))
    if secondary == "Mediastinal shift":
        # A collapsed lobe pulls, everything that takes up space pushes.
        shift = side * rng.uniform(0.10, 0.16) * (1 if diagnosis == "Atelectasis" else -1)
        first, _, last, lower = _around_heart(anatomy)
        signs.append(Sign(secondary, (first + min(0.0, shift), -1.2, last + max(0.0, shift), lower)))
        anatomy = dataclasses.replace(anatomy, mediastinal_shift=shift)
    if secondary == "Volume loss":
        top, ends = anatomy.dome(side), sorted((anatomy.midline, anatomy.midline + side * anatomy.width(side)))
        lifted = top - rng.uniform(0.14, 0.22)
        signs.append(Sign(secondary, (ends[0], lifted - 0.01, ends[1], top + 0.27)))
        right, left = (lifted, anatomy.left_dome) if side < 0 else (anatomy.right_dome, lifted)
        anatomy = dataclasses.replace(anatomy, right_dome=right, left_dome=left)
    return anatomy, tuple(signs)


def _around_heart(anatomy: Anatomy) -> tuple[float, float, float, float]:
    middle, edge = anatomy.midline + anatomy.heart_x, anatomy.heart_blur / 2
    long, short = anatomy.heart_size * anatomy.heart_stretch, anatomy.heart_size
    cosine, sine = float(np.cos(anatomy.heart_angle)), float(np.sin(anatomy.heart_angle))
    across, down = float(np.hypot(long * cosine, short * sine)), float(np.hypot(long * sine, short * cosine))
    # The right atrium, a circle, may reach further to the right of the patient than the ellipse of the ventricles.
    left = min(middle - across, anatomy.midline + 0.2 * anatomy.heart_x - 0.78 * short)
    return left - edge, anatomy.heart_y - down - edge, middle + across + edge, anatomy.heart_y + down + edge
