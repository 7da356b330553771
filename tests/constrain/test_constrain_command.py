"""Whole runs of `constrain` against a fake endpoint that answers well or misbehaves."""

import base64
import hashlib
import json

import pytest
from annotate.answer_files import read_entries
from annotate.misbehaving_server import MisbehavingServer, open_url, text_of
from readers.reader_samples import SECRETS, write_folder, write_run
from refusals import refuse

from stepcot_jax.annotate.llm.client import bound_prompt_tokens
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.phantom import draw_case, export_phantom
from stepcot_jax.evaluation.published import digest_cases, read_constrained
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.tools.constrain.command import main

KEY = "sk-marker-0123456789"
NUM_CASES = 4
UNIQUE = 4  # dialogues a case: level 0, level 1, and level 7 in two variants
RESULTS = ("constrained.json", "replies.jsonl", "levels.csv", "level_following.md")

pytest.importorskip("openai", reason="the extra annotate")


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture(scope="module")
def phantoms(tmp_path_factory):
    root = tmp_path_factory.mktemp("phantoms")
    export_phantom(root, num_cases=NUM_CASES, seed=5, size=64, prevalence="flat")
    return root


def reply_to(request):
    """An answer with the right form, chosen by the picture and the question alone."""
    text, picture = text_of(request), request["messages"][-1]["content"][0]["image_url"]["url"]
    shape = json.loads(text.rsplit("\n", 1)[1])
    for field, entry in shape.items():
        step = DEFAULT_CHAIN.steps[-1 if field == "diagnosis" else int(field[5:]) - 1]
        drawn = hashlib.sha256(f"{field} {picture}".encode()).digest()[0]
        entry |= {"reasoning": "Seen.", "answer": step.lettered_options[drawn % step.num_answers]}
    if "step_7" in shape:
        shape["diagnosis"] = shape["step_7"]
    return json.dumps(shape)


def well(request, number):
    return "answer", reply_to(request)


def command(phantoms, out, server, *more):
    asked = ["--model=m", f"--endpoint={server.base_url}", "--timeout=5", "--attempts=4", "--concurrency=2"]
    few = ["--variants=constraints,true", "--levels=0,1,7", "--num-resamples=20"]
    return [str(phantoms), f"--out={out}", *asked, *few, *more]


def read_results(out):
    return {name: (out / name).read_bytes() for name in RESULTS}


def read_replies(out):
    return [json.loads(line) for line in (out / "replies.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def uninterrupted(phantoms, tmp_path_factory):
    out = tmp_path_factory.mktemp("uninterrupted")
    with pytest.MonkeyPatch.context() as patch, MisbehavingServer(well) as server:
        patch.setenv("OPENAI_API_KEY", KEY)
        main(command(phantoms, out, server))
        return out, server.requests, server.headers


def test_each_dialogue_is_asked_once_with_picture_and_prompt_alone(uninterrupted):
    out, requests, headers = uninterrupted
    assert len(requests) == NUM_CASES * UNIQUE
    for request in requests:
        assert [message["role"] for message in request["messages"]] == ["system", "user"]
        assert "response_format" not in request
        assert (request["temperature"], request["seed"]) == (0.0, 0)
    found = read_constrained(out)
    assert [(level.variant, level.level) for level in found.levels] == [
        ("constraints", 0), ("constraints", 1), ("constraints", 7), ("true", 1), ("true", 7),
    ]  # fmt: skip
    assert all(level.followed["readable"].value == 1.0 for level in found.levels)
    assert (found.model, found.num_cases, found.num_missing) == ("m", NUM_CASES, 0)
    for request, sent in zip(requests, headers, strict=True):
        picture = open_url(request["messages"][-1]["content"][0]["image_url"]["url"])
        assert (picture.size, picture.info, sent["authorization"]) == ((64, 64), {}, f"Bearer {KEY}")


def test_a_resumed_run_equals_an_uninterrupted_one_and_nothing_is_asked_again(uninterrupted, phantoms, tmp_path):
    out, _, _ = uninterrupted

    def fail_later(request, number):
        return ("status", (500, {}, {})) if number >= 6 else well(request, number)

    with MisbehavingServer(fail_later) as server, pytest.raises(RunStopped, match="rerun the command"):
        main(command(phantoms, tmp_path, server, "--attempts=2"))
    num_paid = len(server.paid)
    assert num_paid == 6
    assert not (tmp_path / "constrained.json").exists()
    with MisbehavingServer(well) as server:
        for _ in range(2):
            main(command(phantoms, tmp_path, server))
            assert (len(server.requests), read_results(tmp_path)) == (NUM_CASES * UNIQUE - num_paid, read_results(out))
    files = [path for path in out.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_bad_replies_are_measured_and_not_repaired(phantoms, tmp_path):
    said = [
        *("", "I cannot read images.", "{" * 3000, '{"diagnosis": {"reasoning": "x", "ans'),
        "<script>alert(1)</script>",
    ]

    def misbehave(request, number):
        if "step_7" in text_of(request):
            return "status", (400, {"error": {"message": "filtered", "code": "content_filter"}}, {})
        return ("answer_cut_at_the_limit", said[number % len(said)])

    with MisbehavingServer(misbehave) as server:
        main(command(phantoms, tmp_path, server))
        assert len(server.requests) == NUM_CASES * UNIQUE
    found = read_constrained(tmp_path)
    num_empty = found.missing.pop("without content: cut while thinking")
    assert found.num_missing - num_empty == sum(found.missing.values()) == 2 * NUM_CASES
    assert found.num_cut + num_empty == 2 * NUM_CASES  # level 0, and level 1, which both variants share
    notes = (tmp_path / "levels.md").read_text()
    assert f"{found.num_cut} replies were cut at the limit" in notes
    assert f"{num_empty} without content: cut while thinking" in notes
    for level in found.levels:
        assert (level.diagnosis["accuracy"].value, level.followed["readable"].value) == (0.0, 0.0)
    replies = read_replies(tmp_path)
    assert {reply.get("problem", "").partition(":")[0] for reply in replies if reply["level"] == 7} == {"refused"}
    assert all(reply["answers"] == {} for reply in replies)


def test_the_cap_stops_a_run_before_it_is_exceeded(phantoms, tmp_path):
    with MisbehavingServer(well) as server:
        with pytest.raises(RunStopped, match=r"--max-tokens: .* tokens are spent"):
            main(command(phantoms, tmp_path, server, "--max-tokens=20000"))
        entries = read_entries(tmp_path)
        assert 0 < len(entries) == len(server.paid) < NUM_CASES * UNIQUE
        assert sum(entry["prompt_tokens"] + entry["answer_tokens"] for entry in entries) <= 20000
        main(command(phantoms, tmp_path, server))
        assert len(server.paid) == NUM_CASES * UNIQUE


def test_what_names_a_patient_stays_here_and_hostile_options_stay_text(tmp_path):
    root = write_folder(tmp_path / "root")
    with MisbehavingServer(lambda request, number: ("answer", "{}")) as server:
        main(command(root, tmp_path / "out", server, "--num-cases=2"))
        said = json.dumps(server.requests)
        urls = {request["messages"][-1]["content"][0]["image_url"]["url"] for request in server.requests}
    assert len(urls) == 2
    assert any("Größe" in text_of(request) for request in server.requests)
    pictures = [base64.b64decode(url.partition(",")[2]) for url in urls]
    assert [open_url(url).info for url in urls] == [{}, {}]
    assert not any(secret.encode() in content for secret in SECRETS for content in (said.encode(), *pictures))


def test_the_cases_of_a_run_are_those_that_its_networks_read(tmp_path, capsys):
    drawn = [draw_case(index, seed=5, size=32, prevalence="flat").case for index in (3, 8, 12)]
    run = write_run(tmp_path / "run", drawn, phantom__image_size=32, phantom__seed=5, phantom__num_cases=30)
    out = tmp_path / "out"
    with MisbehavingServer(well) as server:
        asked = [f"--out={out}", "--model=m", f"--endpoint={server.base_url}", "--name=LLaVA-Med"]
        main([f"--workdir={run}", *asked, "--num-resamples=5"])
    found = read_constrained(out)
    assert (found.model, found.num_cases, found.cases) == ("LLaVA-Med", 3, digest_cases([case.image for case in drawn]))
    assert "true earlier answers  level 7" in capsys.readouterr().out
    for name in ("levels", "level_following", "level_steps", "level_constraints"):
        assert {(out / f"{name}.{ending}").is_file() for ending in ("csv", "md", "tex")} == {True}
    assert len(read_replies(out)) == 3 * 22


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "either --endpoint URL with --model NAME or --local FOLDER is required"),
        (["--local=x", "--max-tokens=5"], "--max-tokens requires --endpoint"),
        (["--local=x", "--variants=constraint"], "--variants: 'constraint' is not one of"),
        (["--local=x"], "DATA .* or --workdir .* is required"),
        (["--local=x", "--concurrency=2"], "--concurrency: 2 has no effect with --local"),
    ],
)
def test_wrong_flags_are_named(flags, words, tmp_path):
    refuse(words, main, [*flags, f"--out={tmp_path}"])


def test_a_resumed_run_charges_a_lost_reply_by_the_prompts_that_the_ledger_counted(phantoms, tmp_path):
    one = ("--concurrency=1", "--attempts=1", "--image-size=64")
    for at in (2, 0):  # the second run loses its first reply, before the endpoint counted any of its own
        fail = lambda request, number, at=at: ("hang_up", None) if number == at else well(request, number)  # noqa: E731
        with MisbehavingServer(fail) as server, pytest.raises(RunStopped, match="given up"):
            main(command(phantoms, tmp_path, server, *one))
    entries = read_entries(tmp_path)
    lost = [entry["prompt_tokens"] for entry in entries if not entry.get("is_counted", True)]
    counted = max(entry["prompt_tokens"] for entry in entries if entry.get("is_counted", True))
    messages = server.requests[0]["messages"]
    assert len(lost) == 2
    assert all(entry["has_picture"] for entry in entries)
    assert lost[1] == bound_prompt_tokens(messages, {}, largest_counted=counted) < bound_prompt_tokens(messages, {})
