"""Draw cases for human readers, write forms, and compare the answers with the models'."""

import argparse
import functools

from stepcot_jax.host.download import find_path
from stepcot_jax.host.errors import run_tool
from stepcot_jax.tools.options import add, add_cases, check_numbers, local_path, open_cases


def sample(options: argparse.Namespace) -> None:
    """Write forms, images and the key."""
    from stepcot_jax.host.terminal import Terminal
    from stepcot_jax.tools.readers.forms import KEY_NAME, write_sample

    source = open_cases(options)
    readers = [name.strip() for name in options.readers.split(",") if name.strip()]
    watch = functools.partial(Terminal().watch, description="writing images")
    drawn = {"num_cases": options.num_cases, "seed": options.seed}
    write_sample(options.out, source, readers=readers, progress=watch, **drawn)
    num_aside = len(source.cases) - len(source.diagnosed)
    if num_aside:
        print(f"{num_aside} of {len(source.cases)} cases have no diagnosis and were left out")
    print(f"{options.num_cases} cases of {source.name} in {options.out}")
    for name in readers:
        print(f"for {name}: {options.out / name}")
    print(f"not for readers: {options.out / KEY_NAME}")


def score(options: argparse.Namespace) -> None:
    """Read filled forms and compare."""
    from stepcot_jax.pages.sheets import to_markdown
    from stepcot_jax.tools.readers.forms import read_forms, read_key
    from stepcot_jax.tools.readers.scores import compare_readers, tabulate_figure, write_comparison

    check_numbers(options, "num_resamples")
    check_numbers(options, "seed", least=0)
    key = read_key(find_path(options.sample, "DIR"))
    forms = read_forms(key, [find_path(form, "FORM") for form in options.forms])
    predictions = options.predictions and find_path(options.predictions, "--predictions")
    comparison = compare_readers(key, forms, predictions, num_resamples=options.num_resamples, seed=options.seed)
    names = write_comparison(options.out, comparison)
    print(to_markdown(tabulate_figure(comparison, "accuracy")), end="")
    absent = [reader for reader in key.readers.values() if reader not in forms]
    if absent:
        print(f"without the forms of {', '.join(absent)}")
    print(f"in {options.out}: {', '.join(names)}")


def main(arguments: list[str] | None = None) -> None:
    """Run the subcommand of the command line."""
    parser = argparse.ArgumentParser(
        prog="stepcot readers", description="Give cases to human readers, and compare their answers."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    drawing = commands.add_parser("sample", help="draw cases and write a form for each reader")
    drawing.description = (
        "Draw cases in proportion by diagnosis and write a folder for each reader, with a form and images, and the "
        "key, which readers must not get."
    )
    add_cases(drawing)
    add(drawing, "--readers NAME,NAME", "one folder and one form for each", required=True)
    add(drawing, "--num-cases N", "default 200, as in the paper", 200)
    scoring = commands.add_parser("score", help="read filled forms and compare readers with models")
    scoring.description = (
        "Read filled forms, refuse incomplete and altered ones, and compare readers and the networks of a run step by "
        "step. Each of DIR, FORM and FILE, but no output, may be on gs://."
    )
    scoring.add_argument("sample", metavar="DIR", help="output of `sample`, with its key")
    scoring.add_argument("forms", nargs="+", metavar="FORM", help="a filled form (CSV) of each reader")
    add(scoring, "--predictions FILE", "of a run: RUN/predictions/test.npz")
    add(scoring, "--num-resamples N", "of the bootstrap, default 1000", 1000)
    for command, run, out in ((drawing, sample, "a new folder"), (scoring, score, "folder for the tables")):
        add(command, "--out DIR", out, type=local_path, required=True)
        add(command, "--seed", "of draws, orders and bootstrap, default 0", 0)
        command.set_defaults(run=run)
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    run_tool(main)
