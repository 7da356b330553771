"""`data fetch`: a folder of cases from a store, continued after an interruption."""

import pytest
from memory_store import new_address, put_files
from refusals import refuse

from stepcot_jax.data.records.records import PUBLISHED_STEP_NAMES
from stepcot_jax.data.sources.loading import read_source
from stepcot_jax.tools.data.command import main


@pytest.fixture
def address(tmp_path, monkeypatch):
    main(["phantom", str(tmp_path / "cases"), "--num-cases=30", "--size=32"])
    return put_files(tmp_path / "cases", monkeypatch)


def test_a_fetched_folder_is_read_as_the_one_that_was_uploaded(address, tmp_path, capsys):
    out = tmp_path / "here"
    assert main(["fetch", address, str(out)]) == 0
    options = {"layout": "auto", "step_names": PUBLISHED_STEP_NAMES, "on_bad_record": "stop"}
    assert len(read_source(out, **options).cases) == len(read_source(tmp_path / "cases", **options).cases) == 30
    assert {path.name for path in out.iterdir()} == {path.name for path in (tmp_path / "cases").iterdir()}
    (out / "data.json").unlink()
    (out / "mine").write_bytes(b"")
    capsys.readouterr()
    main(["fetch", address, str(out)])
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[-1]) == (f"{address} is in {out}\n", f"{out}: 1 files copied")
    assert (out / "data.json").read_bytes() == (tmp_path / "cases" / "data.json").read_bytes()
    assert (out / "mine").exists()


def test_an_empty_address_and_a_path_are_refused(tmp_path, monkeypatch):
    refuse("holds no files", lambda: main(["fetch", new_address(monkeypatch), str(tmp_path / "here")]))
    refuse("not an address", main, ["fetch", str(tmp_path), str(tmp_path / "here")])
