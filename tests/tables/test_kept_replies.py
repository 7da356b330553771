import gzip
import json
import pathlib
import re

import numpy as np
import pytest
from refusals import refuse

from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.questions.reply_files import read_replies
from stepcot_jax.evaluation.replies import ScoringSettings, score_all
from stepcot_jax.record import KINDS

RESULTS = pathlib.Path(__file__).parents[2] / "docs" / "results"
REPLIES = RESULTS / "replies"
ROWS = {
    ("origin", "GRPO, published", "second style"): "| second style | GRPO, published |",
    ("released", "DPO", "test"): "| + DPO |",
}
"""A row of a table's page by table, cell and condition of its replies."""
DIFFERENCES = {
    "GRPO, ours": "| home | GRPO, ours | SFT | all |",
    "GRPO, published": "| home | GRPO, published | SFT | all |",
}


def score(folder, own):
    """The mean over the kinds of the shares of right answers, and the mean IoU."""
    records = read_vqa_records(folder / own["records"]).records
    ids = {record.id: None for record in records}.keys()
    replies = read_replies(folder / own["replies"], name="", chosen=ids, known=ids, missing="stop").replies
    scored = score_all(records, replies, ScoringSettings(own["dialect"], with_thinking=own["with_thinking"]))
    right = [
        [each.a_score for record, each in zip(records, scored, strict=True) if record.kind == kind] for kind in KINDS
    ]
    return np.mean([np.mean(of_kind) for of_kind in right if of_kind]), np.mean([each.v_score for each in scored])


def score_seeds(table, cell, condition):
    folder = REPLIES / table
    index = [json.loads(line) for line in (folder / "files.jsonl").read_text().splitlines()]
    return np.array([score(folder, own) for own in index if (own["cell"], own["condition"]) == (cell, condition)])


def read_row(page, start):
    (row,) = [line for line in (RESULTS / f"{page}.md").read_text().splitlines() if line.startswith(start)]
    return [cell.strip() for cell in row.removeprefix(start).split("|")]


@pytest.mark.parametrize("key", ROWS, ids=" ".join)
def test_quoted_rows_are_those_of_the_kept_replies(key):
    scores = score_seeds(*key)
    assert len(scores) == (3 if key[0] == "origin" else 1)
    quoted = [float(cell.split()[0]) for cell in read_row(key[0], ROWS[key])[:2]]
    assert quoted == pytest.approx(100 * scores.mean(axis=0), abs=0.0501)


@pytest.mark.slow
def test_what_readme_quotes_of_rewards_is_of_the_kept_replies():
    """Differences of A and V over the three sets, with t intervals of 2 degrees of freedom."""
    start = score_seeds("origin", "SFT", "test")
    quoted = [float(cell.split()[0]) for cell in read_row("origin", "| home | SFT |")[:2]]
    assert quoted == pytest.approx(100 * start.mean(axis=0), abs=0.0501)
    readme, policies = (
        " ".join(path.read_text().replace(" points", "").split())
        for path in (RESULTS.parents[1] / "README.md", RESULTS.parent / "policies.md")
    )
    for cell, row in DIFFERENCES.items():
        gains = 100 * (score_seeds("origin", cell, "test") - start)
        mean, half = gains.mean(axis=0), 4.303 * gains.std(axis=0, ddof=1) / 3**0.5
        for place, column in enumerate((6, 7)):  # A and V "over the sets"
            figure = f"{mean[place]:+.1f} [{mean[place] - half[place]:+.1f}, {mean[place] + half[place]:+.1f}]"
            assert re.sub(" ± [0-9.]+", "", read_row("origin_gains", row)[column]) == figure
            assert figure in readme or cell != next(iter(DIFFERENCES))
            assert figure in policies


def test_a_broken_or_too_large_file_of_replies_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "replies.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "1", "reply": "x"}\n' * 1000)[:-9])
    refuse("replies.jsonl.gz: cannot be unpacked .*; expected a whole gzip file", read_vqa_records, path,
           on_bad_record="skip")  # fmt: skip
    path.write_bytes(gzip.compress(b"{" * 100_000))
    monkeypatch.setenv("STEPCOT_JAX_LIMITS", "unpacked_bytes=1000")
    refuse("more than 1000 bytes when unpacked", read_vqa_records, path, on_bad_record="skip")
