"""Table `vqa`: answers and grounding by kind of question, as GEMeX-RMCoT prints them.

Our rows come from policies that a run trains.
"""

from stepcot_jax.tables import published_vqa as published
from stepcot_jax.tables.plan import Plan
from stepcot_jax.tables.writing import Column, Entry, Table, columns

_A_NOTE = "A-scores of open questions are ratings by a judge relative to the reference, no shares of right answers."


def make_tables(plan: Plan | None) -> list[Table]:
    """Return GEMeX-RMCoT's Table 4 with the recomputed average, and its counts of questions (Table 2)."""
    del plan
    kinds = published.QUESTION_KINDS
    rows: list[tuple[Entry, ...]] = []
    for name, answers in published.A_SCORES.items():
        grounding = published.V_SCORES[name]
        pairs = [score for kind in kinds for score in (answers[kind], grounding[kind])]
        rows.append(
            (name, *pairs, published.A_AVERAGE[name], published.round_half_up(published.recompute_mean(answers), 4))
        )
    headings = [f"{kind} {score}" for kind in kinds for score in ("A", "V")]
    scores = Table(
        "vqa",
        "Answers (A-score) and grounding (V-score) on the GEMeX test set (GEMeX-RMCoT, Table 4)",
        (
            Column("training"),
            *columns("percent", *headings, "A average", published=True, digits=2),
            Column("A average", "percent", recomputed=True, digits=2),
        ),
        tuple(rows),
        ("Qwen2.5-VL-7B. The average is the unweighted mean of the four kinds.", _A_NOTE),
    )
    counts = Table(
        "vqa_questions",
        "Questions by kind (GEMeX-RMCoT, Table 2 and test set)",
        (Column("data"), *columns("number", *kinds, published=True), Column("all", "number", recomputed=True)),
        tuple((name, *found.values(), sum(found.values())) for name, found in published.NUM_QUESTIONS.items()),
    )
    return [scores, counts]
