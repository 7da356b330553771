"""Answers of language models in a folder on a store: paid once, by whichever machine goes on."""

import json
import re
import shutil

import pytest
from annotate.batch_runner import BatchRunner, write_lines
from annotate.misbehaving_server import MisbehavingServer
from annotate.test_pipeline import KEY, command, six  # noqa: F401
from host.memory_store import Killed, ended_process, files_of, new_address, objects, put_files

from stepcot_jax.host import leases, outputs
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.leases import LEASE_FILE
from stepcot_jax.host.stores import StoreFolder
from stepcot_jax.tools.annotate.command import main
from stepcot_jax.tools.data.command import main as data

pytest.importorskip("openai", reason="the extra annotate")

DOWN = ("status", (500, {"error": {"message": "down"}}, {}))


@pytest.fixture(autouse=True)
def _machine(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(leases, "RENEW_SECONDS", 3600.0)


def results(files):
    return {name: content for name, content in files.items() if name.partition("/")[0] not in ("ledger", "batch")}


def test_a_run_that_stopped_goes_on_elsewhere_and_pays_nothing_twice(six, tmp_path, monkeypatch):  # noqa: F811
    address = new_address(monkeypatch)
    with MisbehavingServer() as server:
        main(command(six, tmp_path / "here", server))
        assert len(server.paid) == 6
        server.behave = lambda request, number: None if number < 9 else DOWN
        with pytest.raises(RunStopped, match="requests"):
            main(command(six, address, server, "--concurrency=1", "--attempts=1"))
        server.behave = lambda request, number: None
        assert len(server.paid) == 9
        there = objects(address)
        assert {name.partition("/")[0] for name in there} == {"ledger"}
        assert KEY.encode() not in b"".join(there.values())
        shutil.rmtree(tmp_path / "cache")  # another machine
        main(command(six, address, server))
        assert len(server.paid) == 12
    assert results(objects(address)) == results(files_of(tmp_path / "here"))


@pytest.mark.parametrize("command", [[], ["merge"], ["vqa", "--task=rmcot"], ["shards"]])
def test_a_source_on_a_store_is_never_replaced(command, six, tmp_path, monkeypatch):  # noqa: F811
    main([str(six), f"--out={tmp_path / 'first'}", "--images=none"])
    address, run = put_files(tmp_path / "first", monkeypatch), data if "shards" in command else main
    before = objects(address)
    sources = {"shards": [address], "merge": [address], "vqa": [address, f"{address}/records.jsonl"]}
    for source in sources.get("".join(command[:1]), [address, f"{address}/", f"{address}/data.json"]):
        with pytest.raises(BadInput, match=rf"^--out: {address}/ is the source itself; choose another folder$"):
            run([*command[:1], source, *command[1:], f"--out={address}/"])
    assert objects(address) == before


def test_answers_of_a_killed_run_are_on_the_store(six, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(outputs, "COPY_SECONDS", 0.02)
    address = new_address(monkeypatch)

    def kill_after_copies(request, number):
        if number == 4:
            while sum(content.count(b"\n") for content in objects(address).values()) < 5:  # a header, four answers
                pass
            return DOWN
        return None

    with MisbehavingServer(kill_after_copies) as server, monkeypatch.context() as patch:
        patch.setattr(
            outputs, "keeping_output", lambda out, flag, **_: (_ for _ in ()).throw(Killed)
        )  # no copy at the end
        with pytest.raises(Killed):
            main(command(six, address, server, "--concurrency=1", "--attempts=1"))
    StoreFolder(address).write(LEASE_FILE, ended_process())
    shutil.rmtree(tmp_path / "cache")
    with MisbehavingServer() as server:
        main(command(six, address, server))
        assert len(server.paid) <= 2


def test_batches_are_written_to_a_store_and_their_replies_taken(six, tmp_path, monkeypatch, capsys):  # noqa: F811
    address, replies = new_address(monkeypatch), StoreFolder(new_address(monkeypatch))
    with MisbehavingServer() as server:
        main(command(six, tmp_path / "here", server))
        runner = BatchRunner(server)
        for number in range(2):
            capsys.readouterr()
            main(["requests", str(six), f"--out={address}", "--model=m", "--attempts=3"])
            printed = capsys.readouterr().out
            if number == 0:
                assert re.search(rf"^{address}/batch/round-001-\S+\.jsonl: 6 requests for m$", printed, re.MULTILINE)
                assert f"annotate replies {address} FILE" in printed
                data(["fetch", address, str(tmp_path / "fetched")])
                lines = write_lines(tmp_path / "replies.jsonl", runner.run(tmp_path / "fetched"))
                replies.upload({"replies.jsonl": lines})
                shutil.rmtree(tmp_path / "cache")
                main(["replies", address, f"{replies.address}/replies.jsonl"])
    assert f"6 records in {address}" in printed
    found = [json.loads(content["data.json"]) for content in (objects(address), files_of(tmp_path / "here"))]
    assert len(found[0]) == len(found[1]) == 6
    assert [each["image_path"] for each in found[0]] == [each["image_path"] for each in found[1]]
