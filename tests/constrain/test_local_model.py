import json
import shutil

import numpy as np
import pytest
from policies.qwen.tiny_qwen import write_reader
from refusals import refuse

from stepcot_jax.data.phantom.phantom import export_phantom
from stepcot_jax.policies.qwen_chat import QwenReader
from stepcot_jax.reading import chat_models as local_model
from stepcot_jax.tools.constrain.command import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models") / "tiny"
    write_reader(made)
    return made


def run(folder, out):
    root = out.with_name("phantoms")
    if not root.exists():
        export_phantom(root, num_cases=2, seed=0, size=32, prevalence="flat")
    main([
        str(root), "--local", str(folder), "--out", str(out), "--levels=0,1", "--variants=constraints",
        "--image-size=32", "--max-answer-tokens=6", "--num-resamples=20",
    ])  # fmt: skip
    return [json.loads(line) for line in (out / "replies.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_second_run_answers_from_the_ledger(folder, tmp_path, monkeypatch, capsys):
    asked = []
    answer = QwenReader.answer

    def count(self, chats, **more):
        asked.append(chats)
        return answer(self, chats, **more)

    monkeypatch.setattr(QwenReader, "answer", count)
    replies = run(folder, tmp_path / "out")
    assert len(asked) == len(replies) == 4
    assert all(np.asarray(chat[0][-1].images[0]).shape == (32, 32, 3) for chat in asked)
    assert all(isinstance(reply["reply"], str) for reply in replies)
    assert (run(folder, tmp_path / "out"), len(asked)) == (replies, 4)
    assert next((tmp_path / "out").rglob("*.jsonl*")).exists()
    assert "tiny" in capsys.readouterr().out


def test_another_checkpoint_has_another_ledger(folder, tmp_path):
    before = local_model.digest_checkpoint(folder)
    for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"):
        shutil.copytree(folder, tmp_path / "tiny")
        path = tmp_path / "tiny" / name
        assert local_model.digest_checkpoint(tmp_path / "tiny") == before
        content = bytearray(path.read_bytes()) if path.exists() else bytearray(b"x")
        content[-1] ^= 1
        path.write_bytes(bytes(content))
        assert local_model.digest_checkpoint(tmp_path / "tiny") != before
        shutil.rmtree(tmp_path / "tiny")


def test_a_text_model_is_refused(tmp_path):
    write_reader(tmp_path / "text", images=False)
    refuse(r"--local: .*text is a text model", run, tmp_path / "text", tmp_path / "out")
