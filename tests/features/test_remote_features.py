import functools
import pickle
import shutil

import pytest
from features.test_inputs import frozen_settings
from memory_store import new_address, objects, put_files
from refusals import refuse

from stepcot_jax.extras.cloud.stores import StoreError, StoreFolder
from stepcot_jax.features import encode
from stepcot_jax.features.encode import Processes
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.run import frozen_features, inputs


@pytest.fixture
def load(folder, tmp_path, monkeypatch, load_fakes):
    address = new_address(monkeypatch)

    def on_machine(name, address=address, root=folder, **more):
        image, _ = load_fakes()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / name))
        settings = frozen_settings(root, features__folder=address)
        found = inputs.load_inputs(settings, tmp_path / f"run-{name}", Terminal(), **more)
        assert not (tmp_path / f"run-{name}" / "features").exists()
        return found, len(image.images)

    on_machine.address = address
    on_machine.elsewhere = functools.partial(on_machine, address=str(tmp_path / "elsewhere"))
    return on_machine


def same(one, other):
    pairs = ((one.dataset.features[:], other.dataset.features[:]), (one.text_features, other.text_features))
    return all((first == second).all() for first, second in pairs)


@pytest.mark.slow
def test_another_machine_encodes_nothing(load, monkeypatch):
    first, seen = load("a")
    assert seen == 48  # the last batch of 16 is padded
    names = sorted(name.partition("/")[2] for name in objects(load.address))
    assert names[-1] == "store.json"
    second, seen = load("b")
    assert (seen, same(first, second)) == (0, True)
    monkeypatch.setattr(StoreFolder, "download", lambda store, files, folder: pytest.fail(f"downloads {sorted(files)}"))
    monkeypatch.setattr(StoreFolder, "upload", lambda store, files: files and pytest.fail(f"uploads {sorted(files)}"))
    third, seen = load("b")
    assert (seen, same(first, third)) == (0, True)


def test_what_a_killed_machine_has_encoded_is_there_for_others(load, monkeypatch):
    monkeypatch.setattr(encode, "_MAX_SHARD_BYTES", 1)  # a shard a batch
    upload, seen = StoreFolder.upload, []

    def fail_once(store, files):
        if len(seen) == 2 and any(name.endswith(".safetensors") for name in files):
            seen.append(None)
            raise StoreError("the network is down")
        seen.extend(name for name in files if name.endswith(".safetensors"))
        upload(store, files)

    with monkeypatch.context() as patch:
        patch.setattr(StoreFolder, "upload", fail_once)
        refuse(r"^config\.features\.folder: the network is down", load, "a")
    num_uploaded = len([name for name in objects(load.address) if name.endswith(".safetensors")])
    assert num_uploaded == 2
    other, num_images = load("b")
    assert 0 < num_images < 40
    again, num_images = load("a")
    assert (num_images, same(other, again)) == (0, True)


def test_processes_that_share_no_folder_encode_a_share_each(load, tmp_path, monkeypatch, capsys):
    def second_process(name):
        monkeypatch.setattr(frozen_features, "_all_processes", lambda: Processes(1, 2))
        load("b")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a"))

    monkeypatch.setattr(frozen_features, "_all_processes", lambda: Processes(0, 2, second_process))
    found, _ = load("a")
    shares = [int(line.split()[6]) for line in capsys.readouterr().err.splitlines() if " of 2: " in line]
    assert len(shares) == 2
    assert sum(shares) == 40 == len(found.dataset.features)
    assert 0 < shares[0] < 40


@pytest.mark.slow
def test_shards_of_an_engine_are_those_of_the_local_engine_and_a_bad_one_is_replaced(
    load, folder, tmp_path, monkeypatch
):
    def on_another_machine(blocks, make):
        shutil.rmtree(tmp_path / "driver" / "stepcot_jax" / "stores", ignore_errors=True)  # what the driver alone has
        work = pickle.loads(pickle.dumps(make))()  # noqa: S301
        yield from [(place, work(block)) for place, block in enumerate(blocks)]

    root = put_files(folder, monkeypatch)
    found, seen = load("driver", root=root, map_blocks=on_another_machine)
    assert seen == 48
    there = objects(load.address)
    again, seen = load("driver", root=root, map_blocks=on_another_machine)
    assert (seen, same(found, again), objects(load.address)) == (0, True, there)
    shard = max((tmp_path / "driver").rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    healed, seen = load("driver", root=root, map_blocks=on_another_machine)
    assert (seen > 0, same(found, healed), objects(load.address)) == (True, True, there)
    alone, _ = load.elsewhere("alone")
    assert same(found, alone)
    assert {name.partition("/")[2] for name in there} == {
        path.name for path in (tmp_path / "elsewhere").rglob("*") if path.suffix in (".safetensors", ".json")
    }
