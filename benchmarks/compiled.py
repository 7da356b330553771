"""Programs that users run, compiled for accelerators on a machine without one: `python -m benchmarks.compiled`.

XLA's compilers for CUDA and TPU run without a device. Memory, collectives and kernels are those of the program; times
are unknown. The bound is the longest of arithmetic, memory and network alone, each at the published rate. Every
program is compiled in a process of its own. STEPCOT_CUDA and STEPCOT_LIBTPU name the compilers' folders; without them
`.ci/compilers` fetches both once.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.compiled_programs import POLICY, SETTINGS, Sizes
from benchmarks.scaling_tables import fill, make_table

ROOT = pathlib.Path(__file__).parents[1]
TARGETS = ("h100x1", "h100x8", "v5e:4x4")


@dataclasses.dataclass(frozen=True)
class Rates:
    """Published rates of a device: operations a second by type, bytes a second of memory, and sent to other devices."""

    flops: Mapping[str, float]
    memory: float
    network: float


RATES = {
    "h100": Rates({"bf16": 989e12, "f32": 495e12}, 3.35e12, 450e9),  # dense; float32 as TF32; NVLink in one direction
    "v5e": Rates({"bf16": 197e12, "f32": 197e12}, 819e9, 200e9),  # float32 in one pass of bfloat16, XLA's default
    "v5p": Rates({"bf16": 459e12, "f32": 459e12}, 2765e9, 600e9),
    "v6e": Rates({"bf16": 918e12, "f32": 918e12}, 1640e9, 448e9),
}


def bound(figures: Mapping[str, Any], rates: Rates) -> tuple[str, float]:
    """Return what bounds a program's time, and the seconds that it takes at the published rate."""
    seconds = {
        "arithmetic": sum(
            number / rates.flops.get(kind, rates.flops["f32"]) for kind, number in figures["flops"].items()
        ),
        "memory": figures["bytes"] / rates.memory,
        "network": sum(figures["sent"].values()) / rates.network,
    }
    name = max(seconds, key=lambda name: seconds[name])
    return name, seconds[name]


class NoCompiler(Exception):
    """The compiler for a target cannot be had; the message is one sentence."""


def find_compiler(target: str) -> str:
    """Return the folder of the compiler for a target."""
    kind, variable = ("cuda", "STEPCOT_CUDA") if target.startswith("h100") else ("tpu", "STEPCOT_LIBTPU")
    if folder := os.environ.get(variable):
        return folder
    command = ["bash", str(ROOT / ".ci" / "compilers"), sys.executable, kind]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if found.returncode:
        raise NoCompiler(f"{target}: {found.stderr.strip() or 'no compiler can be had'}")
    return found.stdout.strip()


def compile_apart(target: str, case: str, compiler: str, **sizes: int) -> dict[str, Any]:
    """Return the figures of one program, compiled in a process of its own (`compiled_programs.main`)."""
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    variables |= {"TPU_ACCELERATOR_TYPE": "v5litepod-8", "TPU_WORKER_HOSTNAMES": "localhost"}
    variables["PYTHONPATH"] = os.pathsep.join([compiler, str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.compiled_programs", target, case, json.dumps(sizes)]
    # Without a device to try them on, XLA finds no tiles for some products in kernels of its own.
    for flags in ("", "--xla_gpu_enable_triton_gemm=false"):
        how: Any = {"env": {**variables, "XLA_FLAGS": flags}, "cwd": ROOT}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **how)  # noqa: S603
        if not done.returncode:
            figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return figures | ({"library_products": True} if flags else {})
        if "output tile sizes" not in done.stderr:
            break
    raise RuntimeError(f"{target} {case}: {done.stderr[-4000:]}")


def make_tables(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the table of each target by name, in Markdown."""
    head = ("program", "compiling, CPU s", "arguments, GB", "temporary, GB", "Tflop", "sent, GB", "bound")
    tables = {}
    for target, cases in figures.items():
        rows = [_make_row(case, cases[case], rates_of(target)) for case in SETTINGS if case in cases]
        tables[f"compiled {target}"] = make_table(head, rows)
    return tables


def rates_of(target: str) -> Rates:
    """Return the published rates of a target's devices."""
    return RATES[target.partition(":")[0].partition("x")[0]]


def _make_row(case: str, figures: Mapping[str, Any], rates: Rates) -> list[str]:
    sent = sum(figures["sent"].values())
    name, seconds = bound(figures, rates)
    return [
        case.replace("_", " ") + (" (cuBLAS)" if "library_products" in figures else ""),
        _say(figures["compile_seconds"]),
        *(_say(figures[name] / 1e9) for name in ("arguments", "temporary")),
        _say(sum(figures["flops"].values()) / 1e12),
        _say(sent / 1e9) if sent >= 5e5 else "0",
        f"{name}, {_say(1e3 * seconds)} ms",
    ]


def _say(number: float) -> str:
    """Return two digits of a number below 100, else all before the point."""
    return f"{number:,.0f}" if number >= 99.5 else f"{number:.2g}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compiled", description=__doc__.partition("\n")[0])
    parser.add_argument("--target", nargs="+", default=TARGETS, help=f"h100xN, v5e:RxC, ...; default {TARGETS}")
    parser.add_argument("--case", nargs="+", choices=SETTINGS, default=tuple(SETTINGS), help="default: all")
    parser.add_argument("--json", type=pathlib.Path, help="file of figures, which keeps those not compiled anew")
    parser.add_argument("--tables", type=pathlib.Path, help="document whose tables are replaced by those of --json")
    for field in dataclasses.fields(Sizes):
        help_text = f"of the policy's programs; default {field.default}, or as the case says"
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, help=help_text)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile each program for each target, print its figures, and return 1 if a compiler cannot be had."""
    options = _parse(arguments)
    named = {field.name: getattr(options, field.name) for field in dataclasses.fields(Sizes)}
    sizes = {name: value for name, value in named.items() if value is not None}
    known: dict[str, Any] = {}
    if options.json and options.json.exists():
        known = json.loads(options.json.read_text(encoding="utf-8"))
    status = 0
    for target in options.target:
        try:
            compiler = find_compiler(target)
        except NoCompiler as error:
            print(error, file=sys.stderr)
            status = 1
            continue
        for case in options.case:
            began = time.perf_counter()
            figures = compile_apart(target, case, compiler, **(sizes if case in POLICY else {}))
            figures = {name: value for name, value in figures.items() if name not in ("looped", "leaves")}
            known.setdefault(target, {})[case] = figures
            name, seconds = bound(figures, rates_of(target))
            print(json.dumps({"target": target, "case": case, **figures, "bound": name, "bound_seconds": seconds}))
            print(f"{target} {case}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    if options.tables:
        document = fill(options.tables.read_text(encoding="utf-8"), make_tables(known))
        options.tables.write_text(document, encoding="utf-8")
    return status


if __name__ == "__main__":
    sys.exit(main())
