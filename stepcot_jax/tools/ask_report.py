"""Ask which question of a structured report is worth answering next, and what true answers are worth.

    stepcot ask_report WORKDIR                                             a table over the test reports
    stepcot ask_report WORKDIR --case=CXR1000 [--given "STEP=ANSWER"]...   one report: what it says, what to ask next

WORKDIR is a finished run on a tree of questions; its stored predictions are read, not its images.
"""

import argparse
from typing import TYPE_CHECKING

from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.tools.options import local_path

if TYPE_CHECKING:
    from stepcot_jax.evaluation.joint_reports import ReportReader

_LEAST_SHOWN = 0.5  # probability from which a finding is listed


def main(arguments: list[str] | None = None) -> None:
    """Print the table, or one report's reading and its next questions."""
    options = _parse(arguments)
    if options.case is None and options.given:
        raise BadInput("--given needs --case (the report that it is about)")
    # Imported here: numpy takes a while, and `--help` and a wrong flag should not.
    import numpy as np

    from stepcot_jax.evaluation.joint_reports import COUNTING, read_report_models
    from stepcot_jax.evaluation.predictions import read_predictions
    from stepcot_jax.evaluation.report_asking import format_asking, measure_asking
    from stepcot_jax.host.text import make_printable
    from stepcot_jax.run.stored_reading import JOINT_FILE, check_choices, read_reading

    workdir = options.workdir
    chain = read_reading(workdir).chain
    if not chain.is_tree:
        raise BadInput(f"{workdir}: its chain asks every step; see stepcot predict --ask")
    check_choices(workdir)
    models = read_report_models(workdir / JOINT_FILE, chain)
    split = read_predictions(workdir / "predictions" / "test.npz", chain)
    logits, labels = split.predictions.logits, split.predictions.labels
    nothing = np.zeros((len(labels), chain.num_steps, max(chain.answers_per_step)), np.float32)
    if COUNTING not in models or (missing := sorted(logits.keys() - models.keys())):
        raise BadInput(
            f"{workdir / JOINT_FILE}: no joint model of {COUNTING if COUNTING not in models else missing[0]!r}"
        )
    if options.case is None:
        networks = {name: (models[name], of_network) for name, of_network in logits.items()}
        networks["counting alone"] = (models[COUNTING], nothing)
        patients = split.facts["patient_id"]
        rows = measure_asking(networks, labels, patients, counts=options.counts, num_resamples=options.resamples)
        print(f"{len(labels)} test reports; expected information in nats chooses\n")
        print("\n".join(map(make_printable, format_asking(rows).split("\n"))))
        return
    known = [np.flatnonzero(split.facts[fact] == options.case) for fact in ("case_id", "patient_id")]
    cases = np.concatenate(known)
    if not len(cases):
        raise BadInput(f"--case: {options.case[:80]!r} is no case or patient of the {len(labels)} test reports")
    name = next(iter(logits))
    _show(models[name].join(logits[name][cases[:1]]), options.given, options.questions)


def _show(read: "ReportReader", texts: list[str], number: int) -> None:
    import numpy as np

    from stepcot_jax.evaluation.report_asking import expected_information
    from stepcot_jax.host.text import make_printable
    from stepcot_jax.reading.corrections import given_distributions, read_corrections

    chain = read.tree.chain
    given = given_distributions(read_corrections(texts), chain)
    shares = read(given[None, None])[0, 0]
    for position, step in enumerate(chain.steps):
        likely = int(shares[position].argmax())
        if shares[position, likely] >= _LEAST_SHOWN and likely != step.negative:
            told = ", given" if given[position].any() else ""
            print(make_printable(f"{step.name}: {step.options[likely]} ({100 * shares[position, likely]:.0f} %{told})"))
    gains = expected_information(read, given)
    for question in np.argsort(-gains, kind="stable")[:number]:
        if np.isfinite(gains[question]):
            steps = [chain.steps[position] for position in chain.questions[question]]
            name = steps[0].name.removesuffix(f": {steps[0].choice}") if steps[0].choice else steps[0].name
            print(make_printable(f"Worth asking: {name}. {steps[0].question} ({gains[question]:.2f} nats)"))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot ask_report",
        description="Ask which question of a structured report is worth answering next, and what true answers to the "
        "test reports are worth, beside counting alone. For research; not a medical device.",
    )
    parser.add_argument("workdir", type=local_path, metavar="WORKDIR", help="of a run on a tree of questions")
    parser.add_argument("--case", help="a test case or its patient, such as CXR1000; default: the table of all")
    parser.add_argument("--given", action="append", default=[], metavar="STEP=ANSWER", help="as for predict")
    parser.add_argument("--questions", type=int, default=5, help="number of questions to name, default 5")
    counts = "numbers of true answers in the table, default 0 1 3 10"
    parser.add_argument(
        "--counts", type=int, nargs="+", default=[0, 1, 3, 10], choices=range(51), metavar="N", help=counts
    )
    parser.add_argument("--resamples", type=int, default=1000, help="of patients, for intervals; default 1000")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_tool(main)
