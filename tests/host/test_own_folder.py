import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np
import pytest
from jaxtyping import Float32, Int64
from refusals import refuse

from stepcot_jax import __version__
from stepcot_jax.host.own_folder import DIGESTS, check_digests, load, save, write_digests

WAY_OUT = "write it again"


@dataclasses.dataclass(frozen=True)
class Part:
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    limit: float = 1.0


@dataclasses.dataclass(frozen=True)
class Value:
    parts: Mapping[str, tuple[Part, ...]]
    table: Float32[np.ndarray, "row column"] | None = None
    counts: tuple[tuple[tuple[int, int], Int64[np.ndarray, "one"]], ...] = ()


def test_a_value_comes_back_exactly_with_the_version_beside_it(tmp_path):
    table = np.array([[0.1, np.inf], [-np.inf, np.nan]], np.float32)
    parts = {"a": (Part(limit=math.inf), Part(0.1, -math.inf)), "b": (Part(limit=math.nan),)}
    value = Value(parts, table, (((0, 1), np.array([2**53 + 1])),))
    save(tmp_path / "value.json", value)
    found = load(tmp_path / "value.json", Value)
    assert found.parts["a"] == parts["a"]
    assert math.isnan(found.parts["b"][0].limit)
    assert found.table.dtype == np.float32
    np.testing.assert_array_equal(found.table, table)
    assert [(pair, counts.tolist()) for pair, counts in found.counts] == [((0, 1), [2**53 + 1])]
    content = json.loads((tmp_path / "value.json").read_text())
    assert next(iter(content.items())) == ("stepcot_jax", __version__)
    save(tmp_path / "value.json", Value({}))
    assert load(tmp_path / "value.json", Value) == Value({})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"stepcot_jax": "0.0.1"}', rf"`parts` \(written by stepcot_jax 0\.0\.1, read by {__version__}\)"),
        ('{"stepcot_jax": "9\\n9", "parts": {"a": [{"share": "nan"}]}}', r"written by stepcot_jax \?"),
        ('{"parts": {}, "counts": [[[0, 1], [1e99]]]}', r"value\.json: "),
        ("[" * 100_000, r"value\.json: "),
    ],
)  # fmt: skip
def test_what_does_not_decode_is_refused_with_both_versions(tmp_path, content, words):
    path = tmp_path / "value.json"
    path.write_text(content)
    assert str(path) in refuse(words, load, path, Value)
    refuse(r"more than 0;", load, path, Value, max_bytes=0)
    refuse(r"none\.json: cannot be read \(No such file", load, tmp_path / "none.json", Value)


def test_digests_of_some_files_leave_those_of_others(tmp_path):
    check_digests(tmp_path, way_out=WAY_OUT)  # no digests, nothing to compare
    (tmp_path / "below").mkdir()
    for name in ("a.json", "below/b.json"):
        (tmp_path / name).write_text(name)
        write_digests(tmp_path, [name, "none"], way_out=WAY_OUT)
    check_digests(tmp_path, way_out=WAY_OUT)
    (tmp_path / "a.json").unlink()
    refuse(rf"a\.json: missing \({DIGESTS} has its digest\); {WAY_OUT}", check_digests, tmp_path, way_out=WAY_OUT)
    write_digests(tmp_path, ["a.json"], way_out=WAY_OUT)
    check_digests(tmp_path, way_out=WAY_OUT)
    (tmp_path / "below" / "b.json").write_text("other")
    refuse(r"b\.json: changed since it was written", check_digests, tmp_path, way_out=WAY_OUT)
    (tmp_path / DIGESTS).write_text(f"{'0' * 64}  ../x\n")
    refuse("is not a digest and the name of a file", check_digests, tmp_path, way_out=WAY_OUT)
