"""Chains whose answers contradict one another: how many there are, and which rules they break."""

import dataclasses

import numpy as np
from jaxtyping import Int

from stepcot_jax.chain import Chain
from stepcot_jax.evaluation.consistency import (
    MIN_EXPECTED,
    Pair,
    Rules,
    count_broken,
    count_pairs,
    find_clear_chest,
    make_rules,
    share_inconsistent,
)
from stepcot_jax.evaluation.consistency_files import read_pairs
from stepcot_jax.evaluation.distributions import own_logits
from stepcot_jax.evaluation.prediction_files import read_predictions
from stepcot_jax.report.finished_run import FinishedRun
from stepcot_jax.report.markup import Html, join, tag
from stepcot_jax.report.result_tables import percent, scrolled

PAIRS_FILE = "pairs.json"
"""In a workdir: the pairs of answers that training chains have, as `consistency_files.write_pairs` writes them."""

_NUM_RULES_SHOWN = 12


@dataclasses.dataclass(frozen=True)
class Plausibility:
    """What chains are held against.

    Attributes:
      chain: the steps.
      rules: pairs of answers that cannot stand together.
      source: where the rules are from, in a sentence.
    """

    chain: Chain
    rules: Rules
    source: str

    @classmethod
    def of_run(cls, run: FinishedRun) -> "Plausibility":
        """The given rules, and those that training chains teach, or validation chains where the run kept no others.

        Raises:
          BadInput: what the run kept of the chains cannot be read.
        """
        sources = []
        clear = find_clear_chest(run.chain)
        if clear is not None:
            sources.append(f"“{run.chain.steps[0].options[clear.label]}” settles every later step")
        counts, taught_by = _count_known_pairs(run)
        if counts is not None:
            sources.append(
                f"two answers that no {taught_by} chain has together, though {MIN_EXPECTED:.0f} would by chance, "
                "contradict each other"
            )
        source = f"Rules: {'; '.join(sources)}." if sources else "There are no rules for this chain."
        return cls(run.chain, make_rules(run.chain, counts=counts), source)

    def broken_rules(self, answers: Int[np.ndarray, "case step"]) -> list[str]:
        """The rules that each case's answers break, in words; "" for none."""
        return ["; ".join(count_broken(row[None], self.rules, self.chain)) for row in answers]


def _count_known_pairs(run: FinishedRun) -> tuple[dict[Pair, np.ndarray] | None, str]:
    """How often each pair of answers stands together, and in which chains; None where the run kept none."""
    if (run.workdir / PAIRS_FILE).is_file():
        return read_pairs(run.workdir / PAIRS_FILE, run.chain), "training"
    validation = run.workdir / "predictions" / "val.npz"
    if validation.is_file():
        return count_pairs(read_predictions(validation, run.chain).predictions.labels, run.chain), "validation"
    return None, ""


def write_plausibility(run: FinishedRun, plausibility: Plausibility) -> tuple[str, Html]:
    """The rules in a sentence, and the share of chains that break one, of the truth and of every network."""
    chains = {"truth": run.split.predictions.labels}
    for model, logits in run.split.predictions.logits.items():
        own = own_logits(logits, chain=run.chain, model=model)
        chains[model] = np.stack([each.argmax(axis=1) for each in own], axis=1).astype(np.int32)
    rows = [tag("tr", *(tag("th", text, scope="col") for text in ("Chains of", "Inconsistent, %", "Cases")))]
    for name, answers in chains.items():
        share = percent(share_inconsistent(answers, plausibility.rules))
        cells = (tag("td", share), tag("td", str(len(answers))))
        rows.append(tag("tr", tag("th", name.capitalize(), scope="row"), *cells))
    table = scrolled(tag("table", *rows), label="Inconsistent chains")
    lists = [_write_broken(name, answers, plausibility) for name, answers in chains.items()]
    return plausibility.source, join(table, *lists)


def _write_broken(name: str, answers: Int[np.ndarray, "case step"], plausibility: Plausibility) -> Html | None:
    counts = count_broken(answers, plausibility.rules, plausibility.chain)
    if not counts:
        return None
    shown = list(counts.items())[:_NUM_RULES_SHOWN]
    rows = [tag("tr", tag("td", str(count)), tag("td", words)) for words, count in shown]
    more = len(counts) - len(shown)
    note = tag("p", f"and {more} rarer ones", class_="note") if more else None
    summary = tag("summary", f"What contradicts itself in the chains of the {name}")
    return tag("details", summary, scrolled(tag("table", *rows), label=f"Contradictions of {name}"), note)
