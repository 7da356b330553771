"""The replies that are timed are of the stated kinds."""

from benchmarks import grounded
from stepcot_jax.data.questions.record_files import read_vqa_records
from stepcot_jax.data.questions.reply_files import read_replies
from stepcot_jax.reasoning.dialects import read_reply
from stepcot_jax.rewards.options import PRESETS
from stepcot_jax.rewards.weighted import reward
from stepcot_jax.tools.data.command import main as run_data


def test_three_in_four_replies_are_right(tmp_path):
    run_data(["vqa", str(tmp_path / "made"), "--num-cases=30"])
    number = grounded.write_replies(tmp_path / "made", tmp_path / "replies.jsonl")
    records = {record.id: record for record in read_vqa_records(tmp_path / "made").records}
    assert number == len(records) == 120
    replies = read_replies(tmp_path / "replies.jsonl", name="", chosen=set(records), known=set(records)).replies
    totals = [
        reward(read_reply(text, "gemex"), records[name], PRESETS["gemex"])["total"] for name, text in replies.items()
    ]
    assert 0.6 < totals.count(2.0) / number < 0.9
    assert totals.count(0.0) > 3
    assert totals.count(1.0) > 6
