"""The measured commands are commands that exist, with flags that they know."""

import json

import pytest

from benchmarks import ray_throughput
from stepcot_jax.run.settings import load_settings
from stepcot_jax.tools.annotate.command import annotate_parser


@pytest.mark.parametrize("workers", [0, 3])
def test_reports_are_annotated_with_known_flags(tmp_path, workers):
    ray_throughput.write_reports(tmp_path / "r.jsonl", 8)
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert len({row["report"] for row in rows}) == 8
    _, _, *flags = ray_throughput.annotate_command(tmp_path, tmp_path / "r.jsonl")
    options = annotate_parser().parse_args([*flags, *ray_throughput.engine_flags(workers, is_absl=False)])
    assert (options.engine, options.ray_workers) == (("ray", 3) if workers else ("local", 2))


def test_images_are_encoded_with_known_settings(tmp_path):
    *_, setting = ray_throughput.encode_command(tmp_path, "weights", 77)
    name, _, value = setting.removeprefix("--config.").partition("=")
    assert load_settings("quickstart", **{name: int(value)}).phantom.num_cases == 77
    assert ray_throughput.engine_flags(3, is_absl=True) == ["--engine=ray", "--ray_workers=3"]
