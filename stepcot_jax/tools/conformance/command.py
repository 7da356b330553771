"""Check golden numbers: does this machine compute what the authors' code computes?

Prints one JSON line per group, at the highest precision of the device's matrix products; exits with 1 if any fails.
"""

import argparse
import json

from stepcot_jax.host.errors import run_tool
from stepcot_jax.tools.options import local_path


def main(arguments: list[str] | None = None) -> int:
    """Check the files of a command line."""
    parser = argparse.ArgumentParser(
        prog="stepcot conformance",
        description="Check this machine's numbers against golden numbers of the authors' code.",
    )
    parser.add_argument("files", nargs="+", type=local_path, metavar="FILE.npz")
    options, all_ok = parser.parse_args(arguments), True
    from stepcot_jax.tools.conformance.golden import check  # jax takes seconds, which --help does not need

    for path in options.files:
        for result in check(str(path)):
            print(json.dumps(result), flush=True)
            all_ok = all_ok and result["ok"]
    return 0 if all_ok else 1


if __name__ == "__main__":
    run_tool(main)
