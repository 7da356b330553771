"""Addresses where a path of this machine is expected: refused by every command, setting and writer, never a folder."""

import ast
import operator
import os
import pathlib
import re
import subprocess
import sys

import pytest

import stepcot_jax
from stepcot_jax.host.addresses import is_address, local_path, output_place, refuse_address
from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.files import make_new_folder, make_workdir, write_whole
from stepcot_jax.settings.run_settings import PLACES, load_settings

PACKAGE = pathlib.Path(stepcot_jax.__file__).parent
STANDALONE = {"exported_models.py", "policy_loader.py"}
"""Parts of an export, which run without stepcot_jax."""


@pytest.mark.parametrize("place", ["gs://b/run", "s3://b/run", "hf://ann/chest", "https://x.org/run", "file:///tmp/x"])
def test_an_address_stays_one_after_pathlib_has_dropped_a_slash(place):
    assert is_address(place)
    assert is_address(pathlib.Path(place))
    with pytest.raises(BadInput, match=r"config\.data\.root: .* is an address, not a path; expected a folder"):
        refuse_address(pathlib.Path(place), "config.data.root")


@pytest.mark.parametrize(
    "place", ["runs/gs", "/data/s3:/x", "a:b", "transformers:ann/chest", "ann/chest", "", ".", "~/x"]
)
def test_paths_and_hugging_face_names_are_no_addresses(place):
    assert not is_address(place)


@pytest.mark.parametrize("write", [make_workdir, make_new_folder, lambda path: write_whole(path / "file", b"")])
def test_no_folder_is_made_of_an_address(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match="is an address, not a path"):
        write(pathlib.Path("gs://bucket/run"))
    assert list(tmp_path.iterdir()) == []


NEEDS = {
    "image_encoder.weights": {"image_encoder.name": "pretrained"},
    "prompts.weights": {"prompts.encoder": "pretrained"},
    "vqa.root": {"vqa.source": "folder"},
    "policy.weights": {"job": "sft", "sft.pack_length": 0},
    "policy.start": {"job": "sft"},
}


@pytest.mark.parametrize("place", PLACES)
def test_every_setting_that_names_a_place_keeps_its_address_and_refuses_others(place):
    settings = load_settings("base", **NEEDS.get(place, {}), **{place: "gs://bucket/data"})
    assert operator.attrgetter(place)(settings) == "gs://bucket/data"
    for address in ("https://x.org/run", "gs://bucket", "s3://bucket/../x", "hf://ann/chest"):
        with pytest.raises(BadInput, match=rf"config\.{place}: {re.escape(address)}: not the address of a folder on a"):
            load_settings("base", **NEEDS.get(place, {}), **{place: address})


def test_a_flag_refuses_an_address_that_it_cannot_use_on_one_line(capsys):
    from stepcot_jax.tools.conformance.command import main as conformance
    from stepcot_jax.tools.report.command import main as report

    for main, arguments, message in (
        (report, ["runs/q", "--out=hf://ann/page.html"], "argument --out: hf://ann/page.html: not the address of a"),
        (
            report,
            ["runs/q", "--out=s3://bucket"],
            "argument --out: s3://bucket: not the address of a folder",
        ),
        (conformance, ["s3://bucket/run/x.npz"], "s3://bucket/run/x.npz is an address, not a path; expected"),
    ):
        with pytest.raises(SystemExit) as ended:
            run_tool(lambda main=main, arguments=arguments: main(arguments))
        assert ended.value.code == 2
        assert message in capsys.readouterr().err
    assert local_path("runs/q") == output_place("runs/q") == pathlib.Path("runs/q")
    assert output_place("s3://bucket/run") == "s3://bucket/run"


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("features", ["--config=quickstart", "--workdir=hf://b/x", "--encoder=x"]),
        ("tables", ["diagnosis", "--config=quickstart", "--workdir=hf://b/x"]),
    ],
)
def test_a_workdir_at_another_address_is_refused_and_no_folder_is_made(module, arguments, tmp_path):
    program = [sys.executable, "-m", "stepcot_jax", *module.split("."), *arguments]
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent)}
    found = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
    assert (found.returncode, "--workdir: hf://b/x" in found.stderr) == (2, True), found.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_flag_takes_a_path_in_another_way():
    """`type=pathlib.Path` would take an address for a folder."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg == "type" and path.name not in STANDALONE:
                name = getattr(node.value, "attr", getattr(node.value, "id", ""))
                if name == "Path":
                    found.append(f"{path.name}:{node.value.lineno}")
    assert found == []
