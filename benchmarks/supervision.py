"""Print the table `supervision` again from what it keeps, without training: `python -m benchmarks.supervision FILE`."""

import argparse
import pathlib

from stepcot_jax.host.array_files import read_arrays
from stepcot_jax.host.errors import run_tool
from stepcot_jax.pages.sheets import to_markdown
from stepcot_jax.tools.tables.supervision_table import KEPT_FILE, tabulate


def main(arguments: list[str] | None = None) -> int:
    """Print every figure of the page as Markdown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.supervision", description=(__doc__ or "").partition(":")[0]
    )
    parser.add_argument("file", type=pathlib.Path, help=f"{KEPT_FILE} of `stepcot tables supervision`")
    path = parser.parse_args(arguments).file
    expected = f"expected a {KEPT_FILE} of stepcot tables supervision"
    kept = read_arrays(path, accepted="kept answers", expected=expected, most_unpacked=2**28)
    print(to_markdown(tabulate(kept)))
    return 0


if __name__ == "__main__":
    run_tool(main)
