import dataclasses
import json
import subprocess

import jax
import msgspec
import numpy as np
import pytest
from PIL import Image
from policies.qwen.tiny_qwen import write_reader
from refusals import refuse
from run.small_policy_run import reward_tokens
from run.small_qwen_run import DRY, PUBLISHED, settings_of, tiny_published
from run.small_run import train

from stepcot_jax.export.qwen_folder import export_qwen
from stepcot_jax.policies.qwen_inputs import cut_image, read_qwen_preprocessing
from stepcot_jax.policies.qwen_weights import load_qwen, write_qwen
from stepcot_jax.reading.policy_reader import PolicyReader, load_reader
from stepcot_jax.reasoning.dialects import write_question, write_reply
from stepcot_jax.run.training_run import RUNS_ONCE, Run
from stepcot_jax.systems.grpo import Rollouts
from stepcot_jax.tools.evaluate_replies.command import main as evaluate_replies
from stepcot_jax.training.checkpoints import Checkpoints, restore_params, saved_steps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiny_config(tmp_path_factory):
    with tiny_published(tmp_path_factory.mktemp("config")) as config:
        yield config


@pytest.fixture(scope="module")
def dry(tiny_config, tmp_path_factory):
    run = Run(settings_of("grpo", PUBLISHED, **DRY), tmp_path_factory.mktemp("dry") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rollouts, "reward_all", reward_tokens)
        run.execute()
    return run


def read_losses(workdir, name):
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def test_what_trains_moves_and_what_is_frozen_stays(dry):
    assert min(read_losses(dry.workdir, "grpo/gradient_norm")) > 1e-4
    assert all(np.isfinite(read_losses(dry.workdir, "grpo/kl")))
    folder = dry.workdir / "checkpoints"
    first = jax.device_get(jax.jit(dry._init, compiler_options=RUNS_ONCE)())
    after = restore_params(folder, saved_steps(folder)[-1])
    assert set(after) == {"policy", "frozen", "reference"}
    assert set(after["frozen"]) == {"tower"}
    jax.tree.map(np.testing.assert_array_equal, after["frozen"], first.params["frozen"])
    trained = after["policy"]["plain"]
    assert set(trained) == {"decoder", "tower"}
    assert {name.split("_")[0] for name in trained["tower"]} == {"merger"}
    unmoved = jax.tree.map(np.array_equal, after["policy"], first.params["policy"])
    assert not any(jax.tree.leaves(unmoved))
    for state in first.optimizers.values():
        moments = [leaf.shape for leaf in jax.tree.leaves(state) if leaf.ndim]
        assert len(moments) == 2 * len(jax.tree.leaves(trained))


def test_a_finished_run_answers_as_it_did(dry):
    reader = load_reader(dry.workdir)
    task, places = dry.task, list(dry.task.dataset.splits.test[:1])
    opened = task.data.open_test().dataset
    record, picture = opened.records[places[0]], opened.load_images(opened.image_of[places])[0]
    found = reader.answer(picture, record.question, choices=record.options, kind=record.kind)
    lines = (dry.workdir / "replies" / "grpo_test.jsonl").read_text().splitlines()
    assert found.text == json.loads(lines[0])["reply"]
    assert found.text != reader.answer(255 - picture, record.question, choices=record.options, kind=record.kind).text
    refuse("a dry run cannot be exported", export_qwen, dry.workdir, dry.workdir.parent / "out")


def test_a_mesh_computes_what_one_device_does(dry, tmp_path, monkeypatch):
    changes = {**DRY, "parallel.transform": "mesh", "parallel.num_devices": 8, "parallel.model_devices": 4}
    run = Run(settings_of("sft", PUBLISHED, **changes), tmp_path / "run")
    train(run, monkeypatch)
    gate = run.state_shapes.params["policy"]["plain"]["decoder"]["layer_0"]["gate"]["kernel"]
    assert tuple(gate.sharding.spec) == ("data", "model")
    moments = run.state_shapes.optimizers["sft"][1].inner_state[0].mu["policy"]["plain"]
    assert tuple(moments["decoder"]["layer_0"]["gate"]["kernel"].sharding.spec) == ("data", "model")
    for name in ("sft/loss", "sft/gradient_norm"):
        np.testing.assert_allclose(read_losses(run.workdir, name), read_losses(dry.workdir, name), rtol=2e-3)
    other = Run(settings_of("sft", PUBLISHED, **{**changes, "parallel.model_devices": 2}), run.workdir)
    restored, *_ = _restore(other)
    saved = restore_params(run.workdir / "checkpoints", saved_steps(run.workdir / "checkpoints")[-1])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(restored.params), saved)
    kernel = restored.params["policy"]["plain"]["decoder"]["layer_0"]["gate"]["kernel"]
    assert [shard.data.size for shard in kernel.addressable_shards] == [kernel.size // 8] * 8


def _restore(run):
    checkpoints = Checkpoints(run.workdir / "checkpoints")
    try:
        return checkpoints.restore_latest(run.state_shapes)
    finally:
        checkpoints.close()


@pytest.fixture(scope="module")
def low_rank(tmp_path_factory):
    """A finished run with LoRA, the parameters that it started from, and its export."""
    root = tmp_path_factory.mktemp("low_rank")
    folder = root / "checkpoint"
    write_reader(folder, max_pixels=4096)
    run = Run(settings_of("sft", folder, **{"policy.low_rank": 2, "policy.longest_reply": 240}), root / "run")
    before = load_qwen(str(folder), dtype=np.float32).params
    run.execute()
    (folder / "model.safetensors").unlink()  # the run has what answering needs
    export_qwen(run.workdir, root / "out")
    return run, before, root / "out"


def test_a_checkpoint_with_low_rank_layers(low_rank):
    run, before, out = low_rank
    frozen = restore_params(run.workdir / "checkpoints", saved_steps(run.workdir / "checkpoints")[-1])["frozen"]
    jax.tree.map(np.testing.assert_array_equal, frozen["decoder"], before["decoder"])
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    listed = subprocess.run(check, cwd=out, check=True, capture_output=True, text=True).stdout
    assert listed.count(": OK") == len(list(out.iterdir())) - 1
    after = load_qwen(str(out), dtype=np.float32).params
    block, old = (tree["decoder"]["layer_0"] for tree in (after, before))
    assert np.abs(block["gate"]["kernel"] - old["gate"]["kernel"]).max() > 1e-3
    np.testing.assert_array_equal(after["decoder"]["norm"]["scale"], before["decoder"]["norm"]["scale"])
    np.testing.assert_array_equal(*(tree["tower"]["layer_0"]["qkv"]["kernel"] for tree in (after, before)))
    assert load_reader(run.workdir).answer(np.zeros((32, 32), np.uint8), "Is there a mass?").kind == "closed"


def test_in_an_audit_it_continues_a_thinking_as_transformers_does(low_rank, tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    from policies.qwen.torch_qwen import torch_inputs, transformers

    run, _, out = low_rank
    records = {record.id: record for record in run.task.data.open_test().dataset.records}
    reply_all, continued, longest = PolicyReader.reply_all, [], 24

    def reply(reader, asked, load, *, begun=(), **options):
        """The first replies are the true ones, since none of a tiny network is well formed."""
        if not begun:
            return [write_reply(records[record.provenance["audit_of"]], "gemex") for record in asked]
        lengths = msgspec.structs.replace(reader.trained.lengths, reply_length=longest)
        reader.trained = dataclasses.replace(reader.trained, lengths=lengths)
        texts = reply_all(reader, asked, load, begun=begun, **options)
        continued.extend(zip(asked, map(load, asked), begun, texts, strict=True))
        return texts

    monkeypatch.setattr(PolicyReader, "reply_all", reply)
    evaluate_replies(["audit", str(run.workdir), "--num-questions=3"])
    assert "Thinks: answers after other thinkings (the reply continues the thinking)" in capsys.readouterr().out
    trained, source = load_reader(run.workdir).trained, out
    out = tmp_path / "whole"
    write_qwen(out, trained.network.merge(trained.params), trained.network.network, source=source, dtype=np.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(out, dtype="float32")
    preprocessing = read_qwen_preprocessing(out, load_qwen(str(out)).config.vision)
    for record, picture, begun, text in continued:
        image = cut_image(np.asarray(Image.open(picture).convert("RGB")), preprocessing)
        shown = "<|image_pad|>" * (image.num_rows * image.num_columns)
        chat = (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            f"<|vision_start|>{shown}<|vision_end|>{write_question(record, 'gemex')}<|im_end|>\n"
            f"<|im_start|>assistant\n{begun}"
        )
        tokens = tokenizer.encode(chat, add_special_tokens=False)
        inputs = torch_inputs(tokens, [image], image_token=tokenizer.convert_tokens_to_ids("<|image_pad|>"))
        made = model.generate(**inputs, max_new_tokens=longest, do_sample=False, eos_token_id=258)[0, len(tokens) :]
        assert text == begun + tokenizer.decode(made, skip_special_tokens=True)
    assert len({begun for _, _, begun, _ in continued}) > len(continued) / 2
    assert len({text.removeprefix(begun) for _, _, begun, text in continued}) > 1


def test_medclms_curriculum_runs_from_a_qwen(tiny_config, tmp_path, monkeypatch):
    """Easy, medium and hard in turn, at the losses of `--config=medclm`."""
    changes = {"vqa.dialect": "medclm", "curriculum.schedule": "epochs", "curriculum.shares": (0.34, 0.33, 0.33)}
    changes |= {"sft.reduction": "parts", "sft.epochs": 3}
    run = Run(settings_of("sft", PUBLISHED, **DRY, **changes), tmp_path / "run")
    train(run, monkeypatch)
    shares = {stage: read_losses(run.workdir, f"curriculum/{stage}") for stage in ("easy", "medium", "hard")}
    number = len(shares["easy"]) // 3
    assert min(shares["easy"][:number]) > 0
    assert [max(shares["hard"][: 2 * number]), max(shares["easy"][number:])] == [0, 0]
    assert min(shares["hard"][2 * number :]) > 0
    assert all(np.isfinite(read_losses(run.workdir, "sft/loss")))
