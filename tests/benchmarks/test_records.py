"""The folder of the benchmark of many records holds what it says, and the check of it is measured."""

from benchmarks import records
from stepcot_jax.data.records.records import read_records
from stepcot_jax.data.splits.split_resolver import read_splits


def test_the_folder_has_the_stated_records_and_splits(tmp_path):
    folder = tmp_path / "many"
    records.write_records(folder, 1500)
    found = read_records(folder, on_bad_record="skip", require_images=False)
    assert len(found.cases) == 1498
    assert len({case.patient for case in found.cases}) == 1000
    splits = read_splits(folder, found.cases)
    assert [len(own) for own in splits.by_name().values()] == [1098, 100, 300]
    figures = records.measure(folder)
    assert 0 < figures["cpu"] < 1.5 * figures["wall"] + 1
    assert figures["peak MiB"] > 20
