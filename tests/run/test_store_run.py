import functools
import json
import shutil

import jax
import pytest
from memory_store import Killed, disturb, new_address, objects
from refusals import refuse
from run import small_run as small_run_module
from run.small_run import assert_same, final_state, read_log

from stepcot_jax.extras.cloud.copies import MANIFEST
from stepcot_jax.extras.cloud.stores import StoreError
from stepcot_jax.host.errors import RunStopped

pytestmark = pytest.mark.slow
small_run = functools.partial(small_run_module.small_run, job="baseline", baseline__epochs=4)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder, patch = tmp_path_factory.mktemp("whole"), pytest.MonkeyPatch()
    with jax.numpy_dtype_promotion("standard"):
        report, state, best = final_state(small_run(folder, patch), patch)
    patch.undo()
    names = {path.relative_to(folder).parts[0] for path in folder.rglob("*")} - {".lock"}
    return report, state, best, names, read_log(folder)


@pytest.fixture
def address(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return new_address(monkeypatch)


def check_same(run, whole, monkeypatch, tmp_path):
    report, state, best = final_state(run, monkeypatch)
    assert report["test"] == whole[0]["test"]
    assert best == whole[2]
    assert_same(state, whole[1])
    there = objects(run.place.name)
    assert there.keys() == {*json.loads(there[MANIFEST])["files"], MANIFEST}
    (tmp_path / "metrics.jsonl").write_bytes(there["metrics.jsonl"])
    assert read_log(tmp_path) == whole[4]
    return there


def test_a_run_on_a_store_is_that_of_a_folder_and_leaves_its_files_there(whole, address, tmp_path, monkeypatch):
    run = small_run(address, monkeypatch)
    there = check_same(run, whole, monkeypatch, tmp_path)
    assert {name.split("/")[0] for name in there} == whole[3] | {MANIFEST}
    assert json.loads(there["report.json"])["test"] == whole[0]["test"]
    assert run.place.title == "run"  # its name in loggers
    assert run.workdir.is_relative_to(tmp_path / "cache")
    assert [folder.stat().st_mode & 0o777 for folder in (run.workdir, run.workdir.parent)] == [0o700, 0o700]


# The first `write` makes an empty manifest; a copy uploads the log, then the checkpoint, writes the manifest, removes.
@pytest.mark.parametrize(("method", "number"), [("upload", 4), ("write", 3), ("remove", 3)])
def test_a_run_killed_while_it_copies_resumes_elsewhere_to_the_same_bits(
    method, number, whole, address, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        disturb(patch, method, number, Killed())
        run = small_run(address, patch)
        with pytest.raises(Killed):
            run.execute()
    shutil.rmtree(tmp_path / "cache")  # another machine
    check_same(small_run(address, monkeypatch), whole, monkeypatch, tmp_path)


def test_a_store_that_fails_once_is_tried_again_and_at_the_end_the_run_stops(
    whole, address, tmp_path, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        disturb(patch, "upload", 4, StoreError("the network is down"))
        check_same(small_run(address, patch), whole, patch, tmp_path)
    assert "warning: the network is down; this checkpoint is not on the store" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        disturb(patch, "upload", 1, StoreError("the network is down"))
        run = small_run(address, patch)  # evaluates again, and has nothing to train
        refuse("the network is down; the results are in", run.execute, error=RunStopped)
