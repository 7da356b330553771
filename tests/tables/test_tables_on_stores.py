import shutil

import pytest
from memory_store import Killed, disturb, new_address, objects
from tables.sources import make_source, of_source

from stepcot_jax.extras.cloud.copies import MANIFEST
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run import training_run
from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables.cells import Cells
from stepcot_jax.tools.tables.plan import Plan


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path, small_networks):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    encoders = Plan.encoders
    monkeypatch.setattr(Plan, "encoders", lambda plan, seed=None: encoders(plan, seed)[1:2])  # the one of a cell
    make_source(tmp_path / "source")


def make(workdir, source):
    plan = Plan(of_source(source), (0,), Cells(workdir, Terminal()), num_resamples=20)
    making.make_tables(["steps"], plan, command=["python"], folder=f"{workdir}/tables")
    return plan


def tables_of(files):
    return {
        name: content for name, content in files.items() if name.startswith("tables/") and not name.endswith(MANIFEST)
    }


@pytest.mark.slow
def test_tables_on_a_store_are_those_of_a_folder_and_go_on_elsewhere(tmp_path, monkeypatch):
    make(tmp_path / "here", tmp_path / "source")
    tables, folder = tmp_path / "here" / "tables", tmp_path / "here"
    here = {path.relative_to(folder).as_posix(): path.read_bytes() for path in tables.iterdir()}
    address = new_address(monkeypatch)
    with monkeypatch.context() as patch:
        disturb(patch, "upload", 6, Killed())
        with pytest.raises(Killed):
            make(address, tmp_path / "source")
    assert tables_of(objects(address)) == {}
    finished = {name.split("/")[1] for name in objects(address) if name.endswith("/report.json")}
    assert len(finished) == 1
    shutil.rmtree(tmp_path / "cache")  # another machine
    plan = make(address, tmp_path / "source")
    there = objects(address)
    assert tables_of(there) == here
    cells = {name.split("/")[1] for name in there if name.startswith("cells/")}
    assert cells == {path.name for path in (folder / "cells").iterdir()} > finished
    assert any(name.count("/") == 2 and name.startswith("encoders/") for name in there)
    assert str(tmp_path / "cache") not in str({name: there[name] for name in there if name.endswith("settings.json")})

    shutil.rmtree(tmp_path / "cache")  # another machine
    monkeypatch.setattr(training_run.Run, "execute", lambda run: pytest.fail("trains"))
    make(address, tmp_path / "source")
    assert tables_of(objects(address)) == here
    again = objects(address)
    assert {name for name in there.keys() | again if there.get(name) != again.get(name)} <= {f"tables/{MANIFEST}"}
    assert plan.cells.folder(plan.main(0)).is_relative_to(tmp_path / "cache")
