"""Commands that write to a server of S3: what they write to a folder, also after a kill in the middle of an upload."""

import signal
import subprocess
import sys
import time

import pytest
from host.memory_store import files_of
from host.s3_server import BUCKET, s3_server

from stepcot_jax.host import outputs
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.leases import LEASE_FILE
from stepcot_jax.host.store_cache import find_files
from stepcot_jax.host.store_uploads import UNFINISHED
from stepcot_jax.host.stores import StoreError, StoreFolder
from stepcot_jax.tools.annotate.command import main as annotate
from stepcot_jax.tools.data.command import main as data
from stepcot_jax.tools.tables.encoders import write_random_encoder

REPORTS = "id,report,image\nr1,The lungs are clear. Heart size is normal.,1.png\n"
PHANTOM = ["--num-cases=8", "--size=32"]

_SLOW = """
import sys, time
from stepcot_jax.tools.data.command import main
from stepcot_jax.host.stores import StoreFolder

upload = StoreFolder.upload

def slowly(store, files):
    for name, path in files.items():
        upload(store, {name: path})
        time.sleep(0.2)

StoreFolder.upload = slowly
main(sys.argv[1:])
"""


@pytest.fixture(scope="module", autouse=True)
def server():
    with s3_server() as environment:
        yield environment


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def objects(address):
    store = StoreFolder(address)
    return {name: store.read(name) for name in store.list()}


def test_a_file_a_folder_and_a_folder_that_goes_on(tmp_path, capsys):
    place = f"s3://{BUCKET}/outputs"
    data(["phantom", str(tmp_path / "phantom"), *PHANTOM])
    data(["phantom", f"{place}/phantom", *PHANTOM])
    assert f"8 cases in {place}/phantom" in capsys.readouterr().out
    assert objects(f"{place}/phantom") == files_of(tmp_path / "phantom")
    with pytest.raises(BadInput, match=r"^DIR: s3://runs-bucket/outputs/phantom is not empty"):
        data(["phantom", f"{place}/phantom", *PHANTOM])
    for out in (tmp_path / "facts", place):
        data(["check", str(tmp_path / "phantom"), f"--json={out}/facts.json"])
    assert objects(place)["facts.json"] == (tmp_path / "facts" / "facts.json").read_bytes()
    (tmp_path / "reports.csv").write_text(REPORTS)
    for out in (tmp_path / "annotated", f"{place}/annotated"):
        annotate([str(tmp_path / "reports.csv"), f"--out={out}"])
        annotate([str(tmp_path / "reports.csv"), f"--out={out}", "--overwrite"])
    assert objects(f"{place}/annotated") == files_of(tmp_path / "annotated")
    with pytest.raises(StoreError, match=r"^--out: s3://no-such-bucket/x: cannot be written") as refused:
        annotate([str(tmp_path / "reports.csv"), "--out=s3://no-such-bucket/x"])
    assert "never-printed" not in str(refused.value)


def test_a_command_that_was_killed_within_its_upload_leaves_no_folder_that_is_read(tmp_path, server):
    address = f"s3://{BUCKET}/killed"
    store = StoreFolder(address)
    environment = server | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    program = [sys.executable, "-c", _SLOW, "phantom", address, *PHANTOM]
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 120
        while len(store.list()) < 6:
            assert process.poll() is None, process.stderr.read().decode()
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert {LEASE_FILE, UNFINISHED} < store.list().keys()
    with pytest.raises(BadInput, match=rf"^ROOT: {address}: holds {UNFINISHED}, so its upload goes on or was"):
        find_files(address, "ROOT", holds="cases")
    data(["phantom", str(tmp_path / "phantom"), *PHANTOM])
    data(["phantom", address, *PHANTOM])
    assert objects(address) == files_of(tmp_path / "phantom")


def test_answers_are_copied_while_a_command_runs(monkeypatch):
    monkeypatch.setattr(outputs, "COPY_SECONDS", 0.05)
    store = StoreFolder(f"s3://{BUCKET}/paid")
    with outputs.resuming_folder(store.address, paid=("ledger/",)) as out:
        (out.path / "ledger").mkdir()
        for number in range(3):
            with (out.path / "ledger" / "m.jsonl").open("a") as file:
                file.write(f"{number}\n")
            end = time.monotonic() + 60
            while (store.read("ledger/m.jsonl") or b"").count(b"\n") <= number:
                assert time.monotonic() < end
                time.sleep(0.02)
    assert objects(store.address) == {"ledger/m.jsonl": b"0\n1\n2\n"}


def test_workers_of_ray_read_images_and_write_features_on_a_store(tmp_path, server):
    pytest.importorskip("ray.data", reason="the extra ray")
    place = f"s3://{BUCKET}/ray"
    data(["phantom", f"{place}/cases", *PHANTOM])
    write_random_encoder(tmp_path / "encoder")
    common = ["--config=quickstart", f"--encoder={tmp_path / 'encoder'}", "--config.data.source=folder"]
    common += [f"--config.data.root={place}/cases", "--config.features.batch_size=4"]
    for engine in (["--engine=local"], ["--engine=ray", "--ray_workers=2"]):
        environment = server | {"XDG_CACHE_HOME": str(tmp_path / engine[0])}
        environment.pop("RAY_ADDRESS", None)
        command = [sys.executable, "-m", "stepcot_jax", "features", f"--workdir={place}/{engine[0]}", *common, *engine]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "images: 8 encoded" in done.stderr
    shards, others = (objects(f"{place}/--engine={name}/features") for name in ("local", "ray"))
    assert any(name.endswith(".safetensors") for name in shards)
    assert shards == others
