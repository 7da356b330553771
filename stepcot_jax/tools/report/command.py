"""Write a finished run as one web page: figures with intervals, curves, calibration, and cases to browse.

Of a policy's run the page has its replies to the test questions, with true and predicted boxes.

    stepcot report WORKDIR [--out FILE] [--num-cases 200] [--model student]

The page is a single file that loads nothing. It holds pictures and reports of the data: protect it like the data.
"""

import argparse
import pathlib

from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import make_workdir
from stepcot_jax.tools.options import local_path

_PAGE = "report.html"


def main(arguments: list[str] | None = None) -> int:
    """Write the page of the run that the command line names."""
    parser = argparse.ArgumentParser(
        prog="stepcot report", description="Write a finished run as one web page that loads nothing."
    )
    parser.add_argument("workdir", metavar="WORKDIR", help="of a finished run; or gs://, s3://")
    page = f"default: {_PAGE} in the workdir; required if that is an address"
    parser.add_argument("--out", metavar="FILE", type=local_path, help=page)
    shown = "most cases, or replies of a policy, to show (default: 200)"
    parser.add_argument("--num-cases", metavar="N", type=int, default=200, help=shown)
    parser.add_argument(
        "--model", help="network whose answers the cases show (default: the student, if the run has one)"
    )
    parser.add_argument("--without-maps", action="store_true", help="leave out the maps over the pictures")
    parser.add_argument(
        "--without-data", action="store_true", help="leave out pictures, reports, maps, corrections, replies"
    )
    options = parser.parse_args(arguments)
    if options.num_cases < 1:
        raise BadInput(f"--num-cases must be at least 1; got {options.num_cases}")
    # Imported here: jax takes seconds, and `--help` and a wrong flag should not.
    from stepcot_jax.run.settings import read_settings

    source = options.workdir
    if options.out is None and is_address(source):
        raise BadInput(f"{source} is an address: --out=FILE is required (a file of this machine)")
    out: pathlib.Path = options.out or pathlib.Path(source, _PAGE)
    options.workdir = find_path(options.workdir, "WORKDIR")
    if not options.workdir.is_dir():
        raise BadInput(f"{options.workdir} is not the workdir of a finished run (no such folder)")
    write = _write_policy if read_settings(options.workdir / "settings.json").trains_policy else _write_networks
    size = write(options, out)
    print(f"{out}: {size / 1e6:.1f} MB")
    return 0


def _write_networks(options: argparse.Namespace, out: pathlib.Path) -> int:
    from stepcot_jax.host.files import write_whole
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.reading.finished import read_run
    from stepcot_jax.reading.trained_model import read_default_model
    from stepcot_jax.tools.report.assembly import assemble

    run, model = read_run(options.workdir), options.model or read_default_model(options.workdir)
    run.check_model(model)
    make_workdir(out.parent)
    page = assemble(
        run,
        model=model,
        num_cases=options.num_cases,
        with_data=not options.without_data,
        with_maps=not options.without_maps,
        terminal=Terminal(),
    ).encode()
    write_whole(out, page)
    return len(page)


def _write_policy(options: argparse.Namespace, out: pathlib.Path) -> int:
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.tools.report.policy_page import read_policy_run, write_policy_page

    if options.model is not None or options.without_maps:
        raise BadInput(f"{options.workdir} is of a policy, to which --model and --without-maps do not apply")
    run = read_policy_run(options.workdir)
    make_workdir(out.parent)
    return write_policy_page(
        run, out, num_cases=options.num_cases, with_data=not options.without_data, terminal=Terminal()
    )


if __name__ == "__main__":
    run_tool(main)
