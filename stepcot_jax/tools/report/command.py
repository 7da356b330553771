"""Write a finished run as one web page: figures with intervals, curves, calibration, and cases to browse.

Of a policy's run the page has its replies to the test questions, with true and predicted boxes. The page is a single
file that loads nothing. It holds pictures and reports of the data: protect it like the data.
"""

import argparse
import pathlib

from stepcot_jax.host.download import find_path, is_address
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import make_workdir
from stepcot_jax.host.untrusted import resolve
from stepcot_jax.tools.options import add, local_path

_PAGE = "report.html"


def main(arguments: list[str] | None = None) -> int:
    """Write the page of the run that the command line names."""
    parser = argparse.ArgumentParser(
        prog="stepcot report", description="Write a finished run as one web page that loads nothing."
    )
    add(parser, "WORKDIR", "of a finished run; or gs://")
    page = f"default: {_PAGE} in the workdir; required if that is an address"
    add(parser, "--out FILE", page, type=local_path)
    add(parser, "--num-cases N", "most cases, or replies of a policy, to show (default: 200)", 200)
    parser.add_argument("--model", help="network whose answers the cases show (default: the best on validation)")
    add(parser, "--without-maps", "leave out the maps over the pictures")
    add(parser, "--without-data", "leave out pictures, reports, maps, replies")
    options = parser.parse_args(arguments)
    if options.num_cases < 1:
        raise BadInput(f"--num-cases must be at least 1; got {options.num_cases}")
    from stepcot_jax.run.settings import read_settings

    source = options.workdir
    if options.out is None and is_address(source):
        raise BadInput(f"{source} is an address: --out=FILE is required (a file of this machine)")
    out: pathlib.Path = options.out or pathlib.Path(source, _PAGE)
    options.workdir = find_path(options.workdir, "WORKDIR")
    if not options.workdir.is_dir():
        raise BadInput(f"{options.workdir} is not the workdir of a finished run (no such folder)")
    size = _write(options, out, is_policy=read_settings(options.workdir / "settings.json").trains_policy)
    print(f"{out}: {size / 1e6:.1f} MB")
    return 0


def _write(options: argparse.Namespace, out: pathlib.Path, *, is_policy: bool) -> int:
    """Write the page and return its size in bytes; it has sections on answers to steps or on replies."""
    from stepcot_jax.host.files import write_whole
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.pages.shell import write_report
    from stepcot_jax.reading.audit_folder import list_audit_sections
    from stepcot_jax.tools.report.sections import write_settings

    workdir, how = options.workdir, {"num_cases": options.num_cases, "with_data": not options.without_data}
    if is_policy:
        from stepcot_jax.tools.report.replies import describe_replies, list_reply_sections, read_policy_run

        if options.model is not None or options.without_maps:
            raise BadInput(f"{workdir} is of a policy, to which --model and --without-maps do not apply")
        policy = read_policy_run(workdir)
        about, settings = describe_replies(policy), write_settings(policy.settings, policy.report)
        sections = list_reply_sections(policy, terminal=Terminal(), **how)
    else:
        from stepcot_jax.reading.finished import read_run
        from stepcot_jax.reading.trained_model import read_default_model
        from stepcot_jax.tools.report.answers import describe_answers, list_answer_sections

        run, model = read_run(workdir), options.model or read_default_model(workdir)
        run.check_model(model)
        about, settings = describe_answers(run), write_settings(run.settings, run.report)
        with_maps = not options.without_maps
        sections = list_answer_sections(run, model=model, with_maps=with_maps, terminal=Terminal(), **how)
    audit = list_audit_sections(workdir / "audit", policy.scoring) if is_policy else []
    make_workdir(out.parent)
    title = f"Run {resolve(workdir).name}"
    of_all = [*sections, *audit, settings]
    page = write_report(title=title, about=about, sections=of_all, writer="stepcot report").encode()
    write_whole(out, page)
    return len(page)


if __name__ == "__main__":
    run_tool(main)
