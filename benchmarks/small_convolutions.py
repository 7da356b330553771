"""Time convolutions over small maps as one matrix product beside XLA's: `python -m benchmarks.small_convolutions`."""

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import median_of_ratios, time_in_turn
from stepcot_jax.encoders import resnet

CASES = 32
_MAPS = ((8, 32), (4, 64), (2, 128))  # pixels a side and channels of resnet_small at 64 px, as in the quickstart


def time_both(make: Callable[[], Callable[[], object]], *, side: int, rounds: int) -> tuple[float, float, float]:
    """Return the milliseconds of XLA's form and of the product, and the median of their ratios in one round.

    Args:
      make: compiles a task; called once under each form.
      side: the product serves maps of at most this many pixels a side.
    """
    tasks, limit = {}, resnet._SMALL_SIDE
    try:
        for name, resnet._SMALL_SIDE in (("xla", 0), ("product", side)):
            tasks[name] = make()
            tasks[name]()  # traced while the form is set
    finally:
        resnet._SMALL_SIDE = limit
    timings = time_in_turn(tasks, rounds=rounds)
    ratio = median_of_ratios(timings["xla"], timings["product"])
    return 1000 * timings["xla"].median, 1000 * timings["product"].median, ratio


def make_gradient(network: Any, images: np.ndarray) -> Callable[[], object]:
    """Return a task: the gradient of the mean square of the network's output, compiled anew."""
    params = network.init(jax.random.key(0), images[:1])["params"]

    def loss(params: Any, images: Any) -> Any:
        return jnp.square(network.apply({"params": params}, images)).mean()

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)))
    return lambda: jax.block_until_ready(gradient(params, images))


def main(arguments: list[str] | None = None) -> None:
    """Print a table of milliseconds and ratios."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_convolutions")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(0)
    rows: dict[str, tuple[Any, np.ndarray, int]] = {}
    for side, channels in _MAPS:
        images = rng.standard_normal((CASES, side, side, channels)).astype(np.float32)
        rows[f"3 x 3 convolution, {side} x {side} x {channels}"] = (resnet.Convolution(channels, 3), images, side)
    images = rng.standard_normal((CASES, 64, 64, 3)).astype(np.float32)
    for side in (8, 4, resnet._SMALL_SIDE):
        rows[f"resnet_small, 64 x 64, maps up to {side} x {side}"] = (resnet.make_resnet("resnet_small"), images, side)
    print(f"Gradients by parameters and input, {CASES} cases, {jax.devices()[0].platform}, {options.rounds} rounds\n")
    print("| | XLA's convolution (ms) | one product (ms) | ratio |\n|---|---|---|---|")
    for name, (network, inputs, side) in rows.items():
        make = functools.partial(make_gradient, network, inputs)
        xla, product, ratio = time_both(make, side=side, rounds=options.rounds)
        print(f"| {name} | {xla:.1f} | {product:.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
