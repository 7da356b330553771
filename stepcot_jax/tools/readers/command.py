"""Draw cases for human readers, write forms, and compare the answers with the models'."""

import argparse
import pathlib

from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.tools.options import ReadStepNames, local_path

_READING = ("layout", "step_names", "on_bad_record", "max_megapixels")
_MAX_MEGAPIXELS = 64.0


def sample(options: argparse.Namespace) -> None:
    """Write forms, images and the key."""
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.reading.cases import open_data, open_run
    from stepcot_jax.tools.readers.forms import FORM_NAME, KEY_NAME, check_names, write_sample

    if options.format != "csv":
        raise BadInput(f"--format={options.format[:40]!r} is not csv; every form is a CSV, NAME/{FORM_NAME}")
    readers = [name.strip() for name in options.readers.split(",") if name.strip()]
    check_names(readers)
    if options.workdir is not None:
        _refuse(options, _READING, "without --workdir; the settings of the run apply")
        workdir, root = find_path(options.workdir, "--workdir"), _find_data(options.data)
        source = open_run(workdir, options.split or "test", root=root)
    else:
        data = _find_data(options.data)
        if data is None:
            raise BadInput("DATA is required (a data root) without --workdir")
        _refuse(options, ("split",), "with --workdir")
        reading = {name: value for name in _READING if (value := getattr(options, name)) is not None}
        max_pixels = int(reading.pop("max_megapixels", _MAX_MEGAPIXELS) * 1e6)
        if "step_names" in reading:
            reading["step_names"] = tuple(reading["step_names"])
        source = open_data(data, max_pixels=max_pixels, **reading)
    num_aside = len(source.cases) - len(source.diagnosed)
    write_sample(
        options.out,
        source,
        readers=readers,
        num_cases=options.num_cases,
        seed=options.seed,
        with_undiagnosed=options.with_undiagnosed,
        progress=lambda cases: Terminal().watch(cases, "writing images"),
    )
    if num_aside and not options.with_undiagnosed:
        print(f"{num_aside} of {len(source.cases)} cases have no diagnosis and were left out")
    print(f"{options.num_cases} cases of {source.name} in {options.out}")
    for name in readers:
        print(f"for {name}: {options.out / name}")
    print(f"not for readers: {options.out / KEY_NAME}")


def _find_data(source: str | None) -> pathlib.Path | None:
    return None if source is None else find_path(source, "DATA")


def score(options: argparse.Namespace) -> None:
    """Read filled forms and compare."""
    from stepcot_jax.pages.sheets import to_markdown
    from stepcot_jax.tools.readers.forms import read_forms, read_key
    from stepcot_jax.tools.readers.scores import compare_readers, tabulate_figure, write_comparison

    folder = find_path(options.sample, "DIR")
    key = read_key(folder)
    filled = [find_path(form, "FORM") for form in options.forms]
    forms = read_forms(key, folder, filled)
    predictions = options.predictions and find_path(options.predictions, "--predictions")
    comparison = compare_readers(key, forms, predictions, num_resamples=options.num_resamples, seed=options.seed)
    names = write_comparison(options.out, comparison)
    print(to_markdown(tabulate_figure(comparison, "accuracy")), end="")
    absent = [reader.name for reader in key.readers if reader.name not in {form.reader for form in forms}]
    if absent:
        print(f"without the forms of {', '.join(absent)}")
    print(f"in {options.out}: {', '.join(names)}")


def _refuse(options: argparse.Namespace, names: tuple[str, ...], accepted: str) -> None:
    """Refuse flags that would have no effect."""
    for name in names:
        if getattr(options, name) is not None:
            raise BadInput(f"--{name.replace('_', '-')}={getattr(options, name)!r} is accepted only {accepted}")


def main(arguments: list[str] | None = None) -> None:
    """Run the subcommand of the command line."""
    parser = argparse.ArgumentParser(
        prog="stepcot readers", description="Give cases to human readers, and compare their answers."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_sample(commands.add_parser("sample", help="draw cases and write a form for each reader"))
    _add_score(commands.add_parser("score", help="read filled forms and compare readers with models"))
    options = parser.parse_args(arguments)
    options.run(options)


def _add_sample(parser: argparse.ArgumentParser) -> None:
    parser.description = "Draw cases in proportion by diagnosis and write a folder for each reader, with a form and "
    parser.description += "images, and the key, which readers must not get."
    source = "folder or file in any supported layout; or a folder of gs://"
    parser.add_argument("data", nargs="?", metavar="DATA", help=source)
    parser.add_argument("--readers", required=True, metavar="NAME,NAME", help="one folder and one form for each")
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR", help="a new folder")
    parser.add_argument("--num-cases", type=int, default=200, metavar="N", help="default 200, as in the paper")
    parser.add_argument("--seed", type=int, default=0, help="of the draw and of the orders, default 0")
    parser.add_argument("--format", default="csv", metavar="csv", help="of the forms: CSV alone")
    undiagnosed = "draw cases without a diagnosis too, as a stratum of their own"
    parser.add_argument("--with-undiagnosed", action="store_true", help=undiagnosed)
    run = parser.add_argument_group("cases of a run", "Draw from the cases that a run has predicted.")
    run.add_argument("--workdir", metavar="RUN", help="a finished run; DATA then overrides its data root")
    run.add_argument("--split", choices=("val", "test"), help="default test")
    reading = parser.add_argument_group("how DATA is read", "As the settings of a run; not with --workdir.")
    reading.add_argument("--layout", help="default: recognised by the files")
    reading.add_argument(
        "--step-names", nargs="+", action=ReadStepNames, metavar="NAME", help="default the published seven"
    )
    reading.add_argument("--on-bad-record", choices=("stop", "skip"), help="default stop")
    reading.add_argument("--max-megapixels", type=float, metavar="N", help=f"of an image, default {_MAX_MEGAPIXELS:g}")
    parser.set_defaults(run=sample)


def _add_score(parser: argparse.ArgumentParser) -> None:
    parser.description = "Read filled forms, refuse incomplete and altered ones, and compare readers, teacher and "
    parser.description += "student step by step."
    parser.description += " Each of DIR, FORM and FILE, but no output, may be on gs://."
    parser.add_argument("sample", metavar="DIR", help="output of `sample`, with its key")
    parser.add_argument("forms", nargs="+", metavar="FORM", help="a filled form (CSV) of each reader")
    parser.add_argument("--predictions", metavar="FILE", help="of a run: RUN/predictions/test.npz")
    out = "folder for the tables"
    parser.add_argument("--out", type=local_path, required=True, metavar="DIR2", help=out)
    parser.add_argument("--num-resamples", type=int, default=1000, metavar="N", help="of the bootstrap, default 1000")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap, default 0")
    parser.set_defaults(run=score)


if __name__ == "__main__":
    run_tool(main)
