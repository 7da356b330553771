"""Tables whose workdir is on a store: those of a folder, from cells that another machine goes on with."""

import shutil

import jax
import pytest
from host.memory_store import Killed, ended_process, new_address, objects
from run.small_run import LinearEncoder, share_programs, small_settings
from run.test_store_run import disturb

from stepcot_jax.host import leases
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.leases import LEASE_FILE, Lease
from stepcot_jax.host.stores import StoreFolder
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run import training_run
from stepcot_jax.tools.tables import cell_networks
from stepcot_jax.tools.tables import command as making
from stepcot_jax.tools.tables.cells import Cells
from stepcot_jax.tools.tables.plan import Plan


@pytest.fixture(autouse=True)
def _small(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(leases, "RENEW_SECONDS", 3600.0)
    share_programs(monkeypatch)
    monkeypatch.setattr(cell_networks, "make_resnet", lambda name: LinearEncoder())
    monkeypatch.setattr(jax, "clear_caches", lambda: None)
    encoders = Plan.encoders
    monkeypatch.setattr(Plan, "encoders", lambda plan, seed=None: encoders(plan, seed)[1:])  # those that cells make
    with jax.numpy_dtype_promotion("standard"):
        yield


def make(workdir, names=("steps",)):
    settings = small_settings(
        training__teacher_epochs=0,
        training__joint_epochs=1,
        baseline__epochs=1,
        baseline__hidden=8,
        baseline__learning_rate=1e-2,
    )
    plan = Plan(settings, (0,), Cells(workdir, Terminal()), num_resamples=20)
    making.make_tables(list(names), plan, command=["python"], folder=f"{workdir}/tables")
    return plan


def tables_of(files):
    return {name: content for name, content in files.items() if name.startswith("tables/")}


def forget_this_machine(tmp_path, address):
    """The store as a killed process of another machine left it."""
    shutil.rmtree(tmp_path / "cache")
    left = [name for name in objects(address) if name.endswith(LEASE_FILE)]
    for name in left:
        StoreFolder(address).write(name, ended_process())


def test_tables_on_a_store_are_those_of_a_folder_and_go_on_elsewhere(tmp_path, monkeypatch):
    make(tmp_path / "here")
    here = {
        path.relative_to(tmp_path / "here").as_posix(): path.read_bytes()
        for path in (tmp_path / "here" / "tables").iterdir()
    }
    address = new_address(monkeypatch)
    with monkeypatch.context() as patch:
        disturb(patch, "upload", 10, Killed())
        with pytest.raises(Killed):
            make(address)
    assert tables_of(objects(address)) == {}
    finished = {name.split("/")[1] for name in objects(address) if name.endswith("/report.json")}
    assert 0 < len(finished) < 3
    forget_this_machine(tmp_path, address)
    plan = make(address)
    there = objects(address)
    assert tables_of(there) == here
    cells = {name.split("/")[1] for name in there if name.startswith("cells/")}
    assert cells == {path.name for path in (tmp_path / "here" / "cells").iterdir()} > finished
    assert {name for name in there if name.count("/") == 2 and name.startswith("encoders/")} != set()
    assert str(tmp_path) not in str({name: there[name] for name in there if name.endswith("settings.json")})

    forget_this_machine(tmp_path, address)
    monkeypatch.setattr(training_run.Run, "execute", lambda run: pytest.fail("trains"))
    before = objects(address)
    make(address)
    assert tables_of(objects(address)) == here
    assert objects(address) == before
    assert plan.cells.folder(plan.main(0)).is_relative_to(tmp_path / "cache")


def test_a_workdir_that_another_command_holds_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.05)
    monkeypatch.setattr(leases, "LAPSE_SECONDS", 3.0)
    address = new_address(monkeypatch)
    refused = pytest.raises(BadInput, match=rf"^--workdir: {address}: in use by process")
    with Lease(StoreFolder(address), say=print).hold(), refused, making._holding(address):
        pass
    with making._holding(address):
        assert objects(address).keys() == {LEASE_FILE}
    assert objects(address) == {}


def test_published_figures_are_written_to_a_store(tmp_path, monkeypatch):
    address = new_address(monkeypatch)
    making.make_tables(["vqa"], None, command=["python"], folder=tmp_path / "here")
    making.make_tables(["vqa"], None, command=["python"], folder=address)
    assert objects(address) == {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}
