"""An exported policy generates the package's own tokens with jax and numpy alone, and refuses what changed."""

import dataclasses
import json
import re
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies.policy_workdir import BEST, SIDE, make_policy_workdir
from refusals import refuse

from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.export import policy_folder, policy_loader
from stepcot_jax.export.policy_folder import export_policy
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.host.exported_files import RefusedExport, write_sums
from stepcot_jax.host.terminal import name_command
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.reading.policy_reader import load_reader
from stepcot_jax.reasoning.dialects import write_question, write_reply
from stepcot_jax.run.settings import write_settings
from stepcot_jax.tools.export import describe_report, main
from tests.export.random_run import read_alone

IMAGES = np.stack([draw_case(index, seed=9, size=SIDE).image for index in range(3)])


@pytest.fixture(scope="module")
def model(policy_export):
    return policy_loader.load(policy_export[1])


@pytest.fixture
def copy(policy_export, tmp_path):
    return shutil.copytree(policy_export[1], tmp_path / "copy")


@pytest.mark.slow
def test_another_process_with_jax_and_numpy_alone_gives_the_same_replies(policy_export, model):
    workdir, out, records, _ = policy_export
    question = next(record.question for record in records if record.kind == "closed")
    body = """model, question = load(folder), sys.argv[3]
drawn = model.answer(images[:1], question, greedy=False, seed=3, temperature=1.5)
print(json.dumps([model.answer(images, question), drawn]))"""
    greedy, drawn = read_alone(out, IMAGES, body, question)
    reader = load_reader(workdir)
    assert greedy == [reader.answer(image, question).text for image in IMAGES]
    how = {"greedy": False, "temperature": 1.5}
    again, other = (model.answer(IMAGES[:1], question, seed=seed, **how) for seed in (3, 4))
    assert drawn == again != other
    assert drawn[0] != greedy[0]


def test_samples_follow_the_probabilities_of_the_network_and_every_place_is_drawn_anew(model, monkeypatch):
    """First tokens of many samples, against the softmax of the scores at the temperature."""
    monkeypatch.setitem(model.facts, "reply_length", 1)
    number, temperature = 4000, 3.0
    images = np.repeat(model.preprocessing.normalise(IMAGES[:1]), number, axis=0)
    prompts = np.full((number, model.facts["prompt_length"]), 7, np.int32)
    lengths = np.full(number, 5, np.int32)
    drawn = model.generate(images, prompts, lengths, greedy=False, seed=1, temperature=temperature)[:, 0]
    scores = np.asarray(model.prefill.call(model._tensors, images[:1], prompts[:1], lengths[:1])[0][0], np.float64)
    expected = np.exp((scores - scores.max()) / temperature)
    expected /= expected.sum()
    counts = np.bincount(drawn, minlength=len(expected))
    frequent = expected > 0.01
    assert frequent.sum() > 3
    error = np.abs(counts - number * expected)[frequent] / np.sqrt(number * expected * (1 - expected))[frequent]
    assert error.max() < 4.5
    keys, scores = jax.random.split(jax.random.key(0), 2000), jnp.zeros((2000, 8))
    first, second = (np.asarray(policy_loader._draw(keys, scores, place, greedy=False)) for place in (0, 1))
    assert np.mean(first == second) == pytest.approx(1 / 8, abs=0.04)


@pytest.mark.parametrize("num_merges", [0, 60])
def test_prompts_and_tokens_are_those_of_the_package(policy_export, model, copy, num_merges):
    workdir, _, records, _ = policy_export
    vocabulary = Vocabulary.read(workdir / "vocabulary.json")
    for record in records:
        prompt = model.write_prompt(record.question, choices=record.options, kind=record.kind)
        assert prompt == write_question(record, "gemex")
    texts = [write(record, "gemex") for record in records for write in (write_question, write_reply)]
    if num_merges:  # frequent phrases
        vocabulary = Vocabulary.count(texts, largest=SIDE, num_merges=num_merges)
        assert len(vocabulary.merges) > 20
        vocabulary.write(copy / "vocabulary.json")
        write_sums(copy)
        model = policy_loader.load(copy)
    for text in texts:
        tokens = model.encode(text)
        assert tokens == vocabulary.encode(text)
        assert model.decode([*tokens, vocabulary.stop, 5, vocabulary.pad]) == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"question": "Is there a pneumonio?"}, "pneumonio' is not in the vocabulary"),
        ({"question": " "}, "expected a text"),
        ({"kind": "other"}, "and open, closed, single or multi"),
        ({"choices": ("a",)}, "2 to 26"),
        ({"kind": "open", "choices": ("a",)}, "2 to 26"),
        ({"kind": "single", "choices": "ab"}, "2 to 26"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"images": IMAGES[:, :9]}, "images must be"),
        ({"question": "Is there" + " there" * 999}, "tokens; at most"),
    ],
)
def test_what_cannot_be_asked(model, arguments, words):
    with pytest.raises(ValueError, match=words):
        model.answer(**{"images": IMAGES, "question": "Is there a mediastinal shift?", **arguments})


def test_the_command_writes_programs_for_every_platform_and_any_number(policy_export, model, tmp_path):
    workdir, out, _, told = policy_export
    for program in (model.prefill, model.extend):
        assert set(program.platforms) == {"cpu", "cuda", "tpu"}
        assert "rollout" in str(program.in_avals)
    facts, card = json.loads((out / "export.json").read_text()), (out / "README.md").read_text()
    assert (facts["phase"], facts["dialect"]) == ("grpo", "gemex")
    assert "best weights of GRPO (update 3" in card
    assert not re.search(r"\{\w+\}", card)
    assert (told["folder"], told["policy"]["step"]) == (str(out), BEST["grpo"].step)
    assert set(told["files"]) == {path.name for path in out.iterdir()}
    lines = describe_report(told).splitlines()
    assert lines[0].startswith(f"{out}: {len(told['files'])} files, ")
    assert lines[1].startswith(f"policy: parameters {told['policy']['parameters']:,}, phase ")
    assert lines[2].startswith(f"next: {name_command('python')} {out}/load.py ")
    flags = [f"--checkpoint={workdir}", f"--out={tmp_path / 'out'}"]
    for more in ("--model=teacher", "--torch-names"):
        refuse("--model and --torch-names do not apply", main, [*flags, more])
    refuse("exists and is not an empty folder", main, [flags[0], f"--out={out}"])


def test_load_py_checks_this_machine_and_changed_files_are_refused(policy_export, copy, capsys):
    assert policy_loader.main([str(policy_export[1])]) == 0
    assert json.loads(capsys.readouterr().out) == {"same_tokens": 1.0, "ok": True}
    (copy / "vocabulary.json").write_text("{}")
    assert policy_loader.main([str(copy)]) == 2
    assert "vocabulary.json has changed" in capsys.readouterr().err
    facts = json.loads((copy / "export.json").read_text())
    (copy / "export.json").write_text(json.dumps(facts | {"format": 2}))
    write_sums(copy)
    refuse("expected \\('policy', 1\\)", policy_loader.load, copy, error=RefusedExport)


def test_nothing_is_left_of_an_export_that_fails(policy_export, tmp_path, monkeypatch):
    monkeypatch.setattr(policy_folder, "_write", lambda *_: None)
    monkeypatch.setattr(policy_folder.policy_loader, "check", lambda folder: {"same_tokens": 0.5, "ok": False})
    refuse("50% of the network's own tokens", export_policy, policy_export[0], tmp_path / "out", error=RunStopped)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_policy_with_a_pretrained_tokenizer_answers_alone_and_here(tmp_path, monkeypatch):
    """A small Hugging Face tokenizer of the records' own pieces."""
    tokenizers, transformers = map(pytest.importorskip, ("tokenizers", "transformers"))
    workdir, out = tmp_path / "run", tmp_path / "out"
    settings, records, _ = make_policy_workdir(workdir)
    size = Vocabulary.read(workdir / "vocabulary.json").num_words
    texts = [write(record, "gemex") for record in records for write in (write_question, write_reply)]
    words = list(dict.fromkeys(piece for text in texts for piece in text.split()))[: size - 3]
    words += [f"unused{number}" for number in range(size - 3 - len(words))]
    table = {word: place for place, word in enumerate(["[PAD]", "[END]", "[UNK]", *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="[UNK]"))  # noqa: S106
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "[PAD]", "eos_token": "[END]", "unk_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(tmp_path / "tokenizer")
    policy = dataclasses.replace(settings.policy, tokenizer=str(tmp_path / "tokenizer"))
    write_settings(workdir / "settings.json", dataclasses.replace(settings, policy=policy))
    (workdir / "vocabulary.json").unlink()
    export_policy(workdir, out)
    expected = [load_reader(workdir).answer(image, records[0].question).text for image in IMAGES]
    assert [load_reader(out).answer(image, records[0].question).text for image in IMAGES] == expected
    loaded = policy_loader.load(out)
    assert loaded.answer(IMAGES, records[0].question) == expected
    assert str(tmp_path) not in (out / "settings.json").read_text()
    card = (out / "README.md").read_text()
    assert "pip install tokenizers" in card
    assert "vocabulary.json" not in card
    refuse(r"special token '\[UNK\]'", loaded.encode, "a-word-of-no-record", error=ValueError)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    refuse("pip install tokenizers", policy_loader.load, out, error=RefusedExport)
