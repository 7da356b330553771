import operator
import pathlib
import re
import sys

import pytest
from memory_store import register_extra
from refusals import refuse

import stepcot_jax
from stepcot_jax.encoders.checkpoints import resolve
from stepcot_jax.host.download import find_path, is_address, open_remote, refuse_address
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.extras import list_extras
from stepcot_jax.host.files import make_workdir, write_whole, writing_folder
from stepcot_jax.run.settings import PATH_KEYS, load_settings

PACKAGE = pathlib.Path(stepcot_jax.__file__).parent
STANDALONE = {"loader.py"}
"""Parts of an export, which run without stepcot_jax."""


@pytest.mark.parametrize("place", ["gs://b/run", "hf://ann/chest", "file:///tmp/x"])
def test_an_address_stays_one_after_pathlib_has_dropped_a_slash(place):
    assert is_address(place)
    assert is_address(pathlib.Path(place))
    with pytest.raises(BadInput, match=r"is an address; expected a folder or file of this machine .*stepcot sync"):
        refuse_address(pathlib.Path(place))
    refuse(r"^config\.x: .*: not an address with :// \(pass it as text", find_path, pathlib.Path(place), "config.x")


def test_paths_and_hugging_face_names_are_no_addresses_and_no_folder_is_made_of_one(tmp_path, monkeypatch):
    for place in ("runs/gs", "/data/s3:/x", "a:b", "transformers:ann/chest", "ann/chest", "", ".", "~/x"):
        assert not is_address(place)
    monkeypatch.chdir(tmp_path)
    for write in (
        *(make_workdir, lambda path: writing_folder(path).__enter__()),
        lambda path: write_whole(path / "file", b""),
    ):
        refuse("is an address; expected a folder", write, pathlib.Path("gs://bucket/run"))
    assert list(tmp_path.iterdir()) == []


NEEDS = {
    "image_encoder.weights": {"image_encoder.name": "pretrained"},
    "prompts.weights": {"prompts.encoder": "pretrained"},
    "vqa.root": {"vqa.source": "folder"},
    "policy.weights": {"job": "sft", "sft.pack_length": 0},
    "policy.start": {"job": "sft"},
    "data.root": {"data.source": "folder"},
}


@pytest.mark.parametrize("place", PATH_KEYS)
def test_every_setting_that_names_a_place_keeps_its_address_and_refuses_others(place):
    settings = load_settings("base", **NEEDS.get(place, {}), **{place: "gs://bucket/data"})
    assert operator.attrgetter(place)(settings) == "gs://bucket/data"
    for address in ("https://x.org/run", "az://bucket/x"):
        with pytest.raises(BadInput, match=rf"config\.{place}: {re.escape(address)}: unknown scheme; expected a path"):
            load_settings("base", **NEEDS.get(place, {}), **{place: address})


def test_paths_stay_and_addresses_are_downloaded_by_the_extra_of_their_scheme(tmp_path, monkeypatch):
    assert find_path("runs/q", "flag") == find_path(pathlib.Path("runs/q")) == pathlib.Path("runs/q")
    register_extra(monkeypatch, "scheme", "ours", f"{__name__}:_download")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[_download.__module__])
    assert find_path("ours://b/run") == pathlib.Path("ours://b/run here")
    refuse(r"^az://b/run: unknown scheme; expected .*gs://, hf://, ours://", find_path, "az://b/run")
    monkeypatch.delitem(list_extras("scheme"), "gs", raising=False)
    refuse(
        r"^--x: gs: this scheme is an extra .* not installed: .*pip install .*\[gcs\]", find_path, "gs://b/run", "--x"
    )
    refuse(r"^hf://b/run: nothing is written to hf://; expected", open_remote, "hf://b/run", say=print)
    refuse(
        r"^az://b/run: unknown scheme; .* a folder here, sent by stepcot sync FOLDER ADDRESS",
        open_remote,
        "az://b/run",
        say=print,
    )


def _download(address):
    return pathlib.Path(f"{address} here")


def test_no_flag_takes_a_path_in_another_way():
    """`type=pathlib.Path` would take an address for a folder."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert {name for name, text in texts.items() if re.search(r"\btype=(pathlib\.)?Path\b", text)} <= STANDALONE


@pytest.mark.parametrize("name", ["a/b@v1/../../x", "a/b@v1/..", "a/b@v1//x", "a/..@x", "a/b@../../x", "a/..@main"])
def test_nothing_outside_of_the_cache_is_named(name):
    refuse(r"not (an address on|the name of)", find_path, f"hf://{name}")
    refuse(r"is not the name of a repository|not a Hugging Face id", resolve, name)
