"""The numbers of a training step by name, for logs and for the progress bar."""

import numpy as np

from stepcot_jax.chain import Chain
from stepcot_jax.systems.updates import StepMetrics


def named_numbers(metrics: StepMetrics, chain: Chain) -> dict[str, float]:
    """The numbers of a step by name, such as "student/soft_label/Diagnosis"; parts come before totals."""
    numbers: dict[str, float] = {}
    totals: dict[str, float] = {}
    for network in ("teacher", "student", "baseline"):
        parts = getattr(metrics, network)
        if parts is None:
            continue
        for part in ("hard_label", "soft_label", "channel_alignment", "alignment_weight"):
            values = getattr(parts, part)
            if values is not None:
                for step, value in zip(chain.steps, np.asarray(values), strict=True):
                    numbers[f"{network}/{part}/{step.name}"] = float(value)
                totals[f"{network}/{part}"] = float(np.sum(values))
        totals[f"{network}/total"] = float(parts.total)
    norms = {f"{network}/gradient_norm": float(norm) for network, norm in metrics.gradient_norms.items()}
    return {**numbers, **totals, **norms}


def describe_losses(numbers: dict[str, float], rate: float) -> str:
    """Loss parts and rate in a few words, for the progress bar."""
    short = {"hard_label": "CE", "soft_label": "KD", "channel_alignment": "CH"}
    words = []
    for network in ("teacher", "student", "baseline"):
        parts = [f"{short[p]} {numbers[f'{network}/{p}']:.3f}" for p in short if f"{network}/{p}" in numbers]
        if parts:
            words.append(f"{network} {' '.join(parts)}")
    return f"{', '.join(words)}, {rate:.0f} cases/s"
