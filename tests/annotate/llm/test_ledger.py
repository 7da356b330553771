"""The file of answers: what is written is found again, whatever happened in between."""

import contextlib

import pytest
from refusals import refuse

from stepcot_jax import __version__
from stepcot_jax.annotate.llm.answers import Answers, Ledger, digest_text
from stepcot_jax.annotate.llm.replies import Entry
from stepcot_jax.host.errors import BadInput, RunStopped

PROMPT = {"task": "annotate", "prompt_version": "1", "prompt_digest": "abc"}
IDENTITY = {**PROMPT, "model": "some/model:7b", "decoding": {"seed": 0, "temperature": 0.0}}


def entry(name, **changes):
    about = {"report": name, "text": digest_text(name), "request": f"request {name}", "answer": f"ä\n{name}"}
    costs = {"form": "plain", "prompt_tokens": 10, "answer_tokens": 5, "seconds": 0.5}
    return Entry(**{**about, **costs, "time": "2026-01-01T00:00:00+00:00", **changes})


@contextlib.contextmanager
def opened(folder, identity=IDENTITY):
    with contextlib.closing(Answers(folder)) as answers:
        yield answers, Ledger(answers, identity)


def test_answers_are_found_again(tmp_path):
    with opened(tmp_path / "new") as (_, ledger):
        for name in "abc":
            ledger.append(entry(name))
        assert ledger.find("b", "request b") == entry("b")
    with opened(tmp_path / "new") as (answers, ledger):
        assert [ledger.find(name, f"request {name}") for name in "abc"] == [entry(name) for name in "abc"]
        assert ledger.find("a", "request b") is None
        assert ledger.find("d", "request d") is None
        assert (len(ledger), answers.num_tokens) == (3, 45)
        assert answers.path.stat().st_mode & 0o077 == 0  # answers quote reports
        for _ in range(2):  # a lost request is counted, and may be asked again
            ledger.append(entry("d", answer=None, problem="cut", is_final=False))
        assert ledger.find("d", "request d") is None
        ledger.append(entry("d"))
        assert (ledger.find("d", "request d"), len(ledger), answers.num_tokens) == (entry("d"), 4, 90)


def test_other_prompts_models_and_settings_are_kept_apart(tmp_path):
    decoding = {"seed": 1, "temperature": 0.0}
    for change in ({}, {"task": "vote"}, {"prompt_digest": "abd"}, {"model": "some_model:7b"}, {"decoding": decoding}):
        with opened(tmp_path, IDENTITY | change) as (_, ledger):
            assert len(ledger) == 0
            ledger.append(entry("a"))


def test_paid_answers_to_another_version_of_the_prompt_are_refused(tmp_path):
    newer = IDENTITY | {"prompt_version": "2", "prompt_digest": "abd"}
    with opened(tmp_path), opened(tmp_path / "x", newer):
        pass  # nothing was paid for
    with opened(tmp_path) as (_, ledger):
        ledger.append(entry("a"))
    for changes in ({}, {"decoding": {"seed": 1}}):
        expected = r"answers.sqlite has answers to version 1 of the prompt, expected version 2"
        with pytest.raises(BadInput, match=expected), opened(tmp_path, newer | changes):
            pass
    for changes in ({"task": "vote"}, {"model": "other"}, {"model": "some_model:7b"}):
        with opened(tmp_path, newer | changes):
            pass


def test_two_runs_in_one_folder_are_refused(tmp_path):
    with opened(tmp_path) as (_, ledger):
        refuse("in use by another process", Answers, tmp_path)
        ledger.append(entry("a"))
    with opened(tmp_path) as (_, ledger):
        assert len(ledger) == 1


def test_a_full_disk_stops_the_run_and_leaves_no_part(tmp_path):
    with opened(tmp_path) as (answers, ledger):
        ledger.append(entry("a"))
        ((pages,),) = answers._db.execute("PRAGMA page_count").fetchall()
        answers._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(RunStopped, match=r"an answer cannot be written.*full"):
            ledger.append(entry("b", answer="long" * 10_000))
        assert ledger.find("b", "request b") is None
        answers._db.execute("PRAGMA max_page_count = 100000")
        ledger.append(entry("c"))
    with opened(tmp_path) as (_, ledger):
        assert ledger.find("c", "request c") == entry("c")


def test_a_file_that_is_no_database_is_refused_and_answers_are_on_the_disk_at_once(tmp_path):
    for content in (b"no database", b"SQLite format 3\0" + b"x" * 5000):
        (tmp_path / "answers.sqlite").write_bytes(content)
        refuse(r"answers\.sqlite is not a file of answers", Answers, tmp_path)
        assert (tmp_path / "answers.sqlite").read_bytes() == content
    (tmp_path / "answers.sqlite").unlink()
    with opened(tmp_path) as (answers, _):
        assert answers._db.execute("PRAGMA synchronous").fetchall() == [(2,)]  # on the disk at each commit


def test_what_another_version_wrote_is_refused_with_both_versions(tmp_path):
    with opened(tmp_path) as (answers, ledger):
        ledger.append(entry("a"))
        answers.run("UPDATE answers SET entry = ?", b'{"rapport": 1}')
        answers.run("UPDATE written SET version = '0.0.9'")
        said = rf"not a file of answers of stepcot_jax {__version__} \(written by 0\.0\.9: .*missing required field"
        refuse(said, ledger.find, "a", "request a")
        answers.run("DROP TABLE written")
    refuse(r"\(written by an unknown version: no version\)", Answers, tmp_path)


def test_folders_are_merged_each_answer_once(tmp_path):
    for name in "xy":
        with opened(tmp_path / name) as (_, ledger):
            for other in (name, "both"):
                ledger.append(entry(other))
    with opened(tmp_path / "y", IDENTITY | {"task": "vote"}) as (_, ledger):
        ledger.append(entry("x"))
    for _ in range(2):
        with opened(tmp_path / "merged") as (answers, ledger):
            for name in ("x", "y", "nowhere"):
                answers.merge(tmp_path / name)
            assert (len(ledger), answers.num_tokens) == (3, 60)
            assert ledger.find("y", "request y") == entry("y")
    (tmp_path / "x" / "answers.sqlite").write_bytes(b"x" * 5000)
    with opened(tmp_path / "merged") as (answers, _):
        refuse(r"x/answers\.sqlite is not a file", answers.merge, tmp_path / "x")
