"""Ask which question of a structured report is worth answering next, and what true answers are worth.

Without --case the command prints a table over the test reports. Stored predictions are read, not images.
"""

import argparse

from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.tools.options import local_path


def main(arguments: list[str] | None = None) -> None:
    """Print the table, or one report's reading and its next questions."""
    options = _parse(arguments)
    if options.case is None and options.given:
        raise BadInput("--given needs --case (the report that it is about)")
    import numpy as np

    from stepcot_jax.evaluation.joint_reports import (
        COUNTING,
        describe_next,
        format_asking,
        measure_asking,
        read_report_models,
    )
    from stepcot_jax.evaluation.predictions import read_predictions
    from stepcot_jax.host.text import make_printable
    from stepcot_jax.reading.corrections import given_distributions, read_corrections
    from stepcot_jax.run.stored_reading import JOINT_FILE, check_sealed, read_reading

    workdir, chain = options.workdir, read_reading(options.workdir).chain
    if not chain.is_tree:
        raise BadInput(f"{workdir}: its chain asks every step; use stepcot predict --ask")
    check_sealed(workdir)
    models = read_report_models(workdir / JOINT_FILE, chain)
    split = read_predictions(workdir / "predictions" / "test.npz", chain)
    logits, labels = split.predictions.logits, split.predictions.labels
    if missing := {COUNTING, *logits} - models.keys():
        raise BadInput(f"{workdir / JOINT_FILE}: no joint model of {min(missing)!r}")
    if options.case is None:
        networks = {name: (models[name], of_network) for name, of_network in logits.items()}
        networks["counting alone"] = models[COUNTING], models[COUNTING].tree.count(len(labels))
        lines = format_asking(measure_asking(networks, labels, split.facts["patient_id"]))
    else:
        facts = (split.facts[name] == options.case for name in ("case_id", "patient_id"))
        cases = np.flatnonzero(np.logical_or(*facts))
        if not len(cases):
            raise BadInput(f"--case: {options.case[:80]!r} is no case or patient of the {len(labels)} test reports")
        if len(cases) > 1:
            known = ", ".join(split.facts["case_id"][cases].tolist())
            raise BadInput(f"--case: {options.case[:80]!r} has {len(cases)} test images; name one of {known[:200]}")
        name = next(iter(logits))
        given = given_distributions(read_corrections(options.given), chain)
        lines = describe_next(models[name].join(logits[name][cases[:1]]), given)
    print("\n".join(map(make_printable, lines)))


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="stepcot ask_report",
        description="Ask which question of a structured report is worth answering next, and what true answers to the "
        "test reports are worth, beside counting alone. For research; not a medical device.",
    )
    parser.add_argument("workdir", type=local_path, metavar="WORKDIR", help="of a run on a tree of questions")
    parser.add_argument("--case", help="a test case or its patient, such as CXR1000; default: the table of all")
    parser.add_argument("--given", action="append", default=[], metavar="STEP=ANSWER", help="as for predict")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_tool(main)
