import hashlib
import json
import pathlib
import shutil

import numpy as np
import pytest
from export.fake_hub import TOKEN, FakeHub
from refusals import refuse

from stepcot_jax.export import folder as export_folder
from stepcot_jax.extras.hub import download_folder
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reading.image_reader import load
from stepcot_jax.tools.export import main

constants = pytest.importorskip("huggingface_hub.constants")

from huggingface_hub import ModelCard

IMAGE = np.random.default_rng(2).integers(0, 256, (50, 40), dtype=np.uint8)
pytestmark = pytest.mark.usefixtures("small_encoder")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    hub = FakeHub()
    with hub.running() as endpoint:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def content_of(folder):
    return {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}


def test_what_is_exported_and_pushed_is_loaded_again(chain_export, hub, tmp_path, capsys, monkeypatch):
    def export(_, out, **__):
        shutil.copytree(chain_export[1], out)
        return {"files": {}, "models": {}}

    monkeypatch.setattr(export_folder, "export_model", export)
    out = tmp_path / "out"
    flags = [f"--checkpoint={chain_export[0]}", f"--out={out}", "--push-to-hub=ann/chest"]
    assert main([*flags, "--json", "--private"]) == 0
    address = json.loads(capsys.readouterr().out)["address"]
    name, _, commit = address.partition("@")
    assert (name, hub.files[commit]) == ("hf://ann/chest", content_of(out))
    assert "ann/chest" in hub.private
    assert any(line.startswith("PUT /store/") for line in hub.asked)
    expected = load(chain_export[0]).read(IMAGE).as_dict()
    hub.asked.clear()
    for source in (address, "hf://ann/chest"):
        assert load(source).read(IMAGE).as_dict() == expected
    fetched = {line.rpartition("/")[2] for line in hub.asked if "/resolve/" in line}
    assert {"student.safetensors", "gate.npz"} <= fetched
    assert not {name for name in fetched if name.endswith((".py", ".stablehlo", "check.safetensors"))}


def file_of(hub, repository, name):
    return hub.files[hub.repositories[repository]["main"]][name].decode()


def card_of(hub, repository):
    return file_of(hub, repository, "README.md")


def test_the_licence_of_the_repository_is_kept_unless_one_is_given(chain_export, hub):
    out = chain_export[1]
    before = content_of(out)
    hub.commit("ann/chest", {"README.md": b"---\nlicense: other\nlicense_name: ours\ntags:\n- old\n---\n# Old"})
    own, of_hub = ModelCard(before["README.md"].decode()), {"license": "other", "license_name": "ours"}
    for flags, named in (([], of_hub), (["--license=cc-by-nc-4.0"], {"license": "cc-by-nc-4.0"})):
        assert main(["push", str(out), "ann/chest", *flags]) == 0
        card = ModelCard(card_of(hub, "ann/chest"))
        assert (card.data.to_dict(), card.text) == ({**own.data.to_dict(), **named}, own.text)
        assert load("hf://ann/chest").model == "student"  # whose digests fit
        digest = hashlib.sha256(card_of(hub, "ann/chest").encode()).hexdigest()
        assert f"{digest}  README.md\n" in file_of(hub, "ann/chest", "SHA256SUMS")
    assert main(["push", str(out), "ann/new"]) == 0
    assert card_of(hub, "ann/new") == before["README.md"].decode()
    assert content_of(out) == before
    with pytest.raises(BadInput, match="--license: 'no such: one' is no identifier"):
        main(["push", str(out), "ann/chest", "--license=no such: one"])


def test_the_commit_that_was_read_is_told_and_another_revision_is_another_folder(chain_export, hub, capsys):
    commit = hub.commit("ann/chest", content_of(chain_export[1]))
    for address in ("hf://ann/chest", "hf://ann/chest@main"):
        assert load(address).trained.workdir.name == commit
        assert f"read hf://ann/chest@{commit} " in capsys.readouterr().err
    other = hub.commit("ann/chest", {"labels.json": b"{}"}, revision="broken")
    assert load(f"hf://ann/chest@{commit}").model == "student"
    assert "read hf://" not in capsys.readouterr().err
    assert (download_folder(f"hf://ann/chest@{other}") / "labels.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("hf://ann", "not an address on the Hugging Face hub; expected hf://OWNER/NAME"),
        ("hf://../../etc/passwd", "not an address"),
        ("hf://ann/chest@", "not an address"),
        ("hf://ann/chest/more", "not an address"),
        ("hf://ann/chest@v9", "has no such revision; expected one of its branches, tags or commits"),
        ("hf://ann/nothing", r"no such repository, or a private one that this account may not read \(HTTP 401\)"),
        ("hf://ann/empty", "none of the expected files"),
        ("hf://ann/other", r"no export\.json; expected what stepcot export"),
    ],
)
def test_a_wrong_address_is_one_line(hub, address, words):
    hub.commit("ann/chest", {"config.json": b"{}"})
    hub.commit("ann/empty", {"README.md": b"-"})
    hub.commit("ann/other", {"config.json": b"{}"})
    refuse(words, load, address)


def test_no_network_uses_what_was_downloaded_before(chain_export, hub, monkeypatch):
    hub.commit("ann/chest", content_of(chain_export[1]))
    found = download_folder("hf://ann/chest")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert download_folder("hf://ann/chest") == found
    refuse("hub cannot be reached .*and the cache does not have this revision", download_folder, "hf://ann/other")
    (found / "labels.json").unlink()
    refuse("an earlier download in the cache is incomplete", download_folder, "hf://ann/chest")


def test_a_download_that_breaks_off_is_said_and_goes_on(chain_export, hub, monkeypatch):
    hub.commit("ann/chest", content_of(chain_export[1]))
    hub.cut_after["student.safetensors"] = 1000
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    refuse("the download broke off .* running it again continues it", load, "hf://ann/chest")
    hub.cut_after.clear()
    assert load("hf://ann/chest").model == "student"


def test_nothing_outside_of_the_folder_is_written_or_run_and_a_changed_file_is_refused(chain_export, hub, tmp_path):
    content = content_of(chain_export[1])
    trap = b"raise SystemExit('ran')"
    strays = {"../../../trap.json": trap, "sub/trap.json": trap, "sitecustomize.py": trap, "load.py": trap}
    hub.commit("ann/chest", {**content, **strays})
    assert load("hf://ann/chest").model == "student"
    names = {path.name for path in tmp_path.rglob("*")}
    assert "student.safetensors" in names
    assert not names & {"trap.json", "sitecustomize.py", "load.py"}
    hub.commit("ann/chest", {"SHA256SUMS": content["SHA256SUMS"] + b"0" * 64 + b"  ../trap.json\n"})
    refuse(r"trap\.json' is not a digest and a file's name", load, "hf://ann/chest")
    changed = bytearray(content["student.safetensors"])
    changed[-1] ^= 1
    hub.commit("ann/chest", {**content, "student.safetensors": bytes(changed)})
    refuse(r"student\.safetensors has changed since the export", load, "hf://ann/chest")


def test_files_of_terabytes_are_refused_before_the_download(chain_export, hub, monkeypatch):
    hub.commit("ann/chest", content_of(chain_export[1]))
    monkeypatch.setattr("stepcot_jax.extras.hub._MOST_BYTES", 1000)
    refuse(r"take \d+ bytes; the limit is 1000", download_folder, "hf://ann/chest")
    assert not any(line.startswith("GET") and "/resolve/" in line for line in hub.asked)


@pytest.mark.parametrize(
    ("token", "endpoint", "words"),
    [
        (TOKEN, "http://127.0.0.1:9", "the hub cannot be reached .*, and nothing was committed; "),
        ("hf_other", None, r"may not write there \(HTTP 403\)"),
    ],
)
def test_a_push_that_fails_is_one_line_with_the_way_on(
    chain_export, hub, monkeypatch, caplog, capsys, token, endpoint, words
):
    monkeypatch.setenv("HF_TOKEN", token)
    if endpoint:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("retries"))
    push = ["push", str(chain_export[1]), "ann/chest"]
    refuse(f"^hf://ann/chest: .*{words}.*export push .*out ann/chest uploads it", main, push)
    assert not endpoint or (caplog.records, capsys.readouterr()) == ([], ("", ""))


def test_what_cannot_be_pushed_is_refused_before_the_work(chain_export, hub, tmp_path, monkeypatch):
    flags = [f"--checkpoint={chain_export[0]}", f"--out={tmp_path / 'out'}"]
    stray = chain_export[1] / "patients.csv"
    stray.write_text("x")
    for arguments, words in (
        ([*flags, "--push-to-hub=chest"], "chest: not a name on the Hugging Face hub; expected OWNER/NAME"),
        (["push", str(tmp_path), "ann/chest"], "not an export"),
        (["push", str(chain_export[1]), "ann/chest"], r"patients\.csv: not a file of the export"),
    ):
        refuse(words, main, arguments)
    stray.unlink()
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(BadInput, match="no token for the Hugging Face hub; run hf auth login, or set HF_TOKEN"):
        main([*flags, "--push-to-hub=ann/chest"])
    assert not (tmp_path / "out").exists()
    assert hub.repositories == {}
