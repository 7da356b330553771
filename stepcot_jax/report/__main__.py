"""Write a finished run as one web page: figures with intervals, curves, calibration, and cases to browse.

    python -m stepcot_jax.report WORKDIR [--out FILE] [--num-cases 200] [--model student]

The page is a single file that loads nothing. It holds pictures and reports of the data: protect it like the data.
"""

import argparse
import pathlib

from stepcot_jax.host.errors import BadInput, make_workdir, run_tool


def main(arguments: list[str] | None = None) -> int:
    """Write the page of the run that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m stepcot_jax.report", description="Write a finished run as one web page that loads nothing."
    )
    parser.add_argument("workdir", metavar="WORKDIR", type=pathlib.Path, help="of a finished run")
    parser.add_argument("--out", metavar="FILE", type=pathlib.Path, help="default: report.html in the workdir")
    parser.add_argument("--num-cases", metavar="N", type=int, default=200, help="most cases to show (default: 200)")
    parser.add_argument("--model", default="student", help="network whose answers the cases show (default: student)")
    parser.add_argument("--without-maps", action="store_true", help="leave out the maps over the pictures")
    parser.add_argument("--without-data", action="store_true", help="leave out pictures, reports, maps and corrections")
    options = parser.parse_args(arguments)
    if options.num_cases < 1:
        raise BadInput(f"--num-cases must be at least 1; got {options.num_cases}")
    # Imported here: jax takes seconds, and `--help` and a wrong flag should not.
    from stepcot_jax.host.files import write_whole
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.report.assembly import assemble
    from stepcot_jax.report.finished_run import read_run

    run = read_run(options.workdir)
    run.check_model(options.model)
    out = options.out or options.workdir / "report.html"
    make_workdir(out.parent)
    page = assemble(
        run,
        model=options.model,
        num_cases=options.num_cases,
        with_data=not options.without_data,
        with_maps=not options.without_maps,
        terminal=Terminal(),
    ).encode()
    write_whole(out, page)
    print(f"{out}: {len(page) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    run_tool(main)
