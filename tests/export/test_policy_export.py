"""An exported policy generates the package's own tokens with jax and numpy alone, and refuses what changed."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from export.test_export import READ_ALONE
from policies.policy_workdir import BEST, SIDE, make_policy_workdir

from stepcot_jax.data.phantom.phantom import draw_case
from stepcot_jax.export import policy_folder, policy_loader
from stepcot_jax.export.exported_files import RefusedExport
from stepcot_jax.export.folder import write_sums
from stepcot_jax.export.policy_folder import export_policy
from stepcot_jax.host.errors import BadInput, RunStopped
from stepcot_jax.host.terminal import name_command
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.reading.policy_reader import load_reader
from stepcot_jax.reasoning.dialects import write_question, write_reply
from stepcot_jax.run.settings import write_settings
from stepcot_jax.tools.export import describe_report, main

IMAGES = np.stack([draw_case(index, seed=9, size=SIDE).image for index in range(3)])
ALONE = (
    READ_ALONE[: READ_ALONE.index("import numpy as np")].replace(
        '"exported_files"', '"exported_files", "exported_words", "merges"'
    )
    + """
import json
import numpy as np
from load import load

model = load(folder)
asked = json.loads(sys.argv[3])
images = np.load(sys.argv[2])
greedy = model.answer(images, asked["question"])
drawn = model.answer(images[:1], asked["question"], greedy=False, seed=3, temperature=1.5)
print(json.dumps([greedy, drawn]))
loaded = {name.partition(".")[0] for name in sys.modules}
assert not loaded & {"stepcot_jax", "flax", "flatbuffers", "safetensors", "jaxtyping", "orbax", "msgspec"}, loaded
"""
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy_export")
    _, records, _ = make_policy_workdir(folder / "run")
    report = export_policy(folder / "run", folder / "out")
    assert report["policy"]["step"] == BEST["grpo"].step
    return folder / "run", folder / "out", records


@pytest.fixture(scope="module")
def model(run):
    return policy_loader.load(run[1])


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run[1], tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.slow
def test_another_process_with_jax_and_numpy_alone_gives_the_same_replies(run, tmp_path):
    workdir, out, records = run
    question = next(record.question for record in records if record.kind == "closed")
    np.save(tmp_path / "images.npy", IMAGES)
    asked = [sys.executable, "-c", ALONE, str(out), str(tmp_path / "images.npy"), json.dumps({"question": question})]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    greedy, drawn = json.loads(done.stdout)
    reader = load_reader(workdir)
    assert greedy == [reader.answer(image, question).text for image in IMAGES]
    model = policy_loader.load(out)
    how = {"greedy": False, "temperature": 1.5}
    again, other = (model.answer(IMAGES[:1], question, seed=seed, **how) for seed in (3, 4))
    assert drawn == again != other
    assert drawn[0] != greedy[0]


def test_samples_follow_the_probabilities_of_the_network(run, model, monkeypatch):
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


@pytest.mark.parametrize("num_merges", [0, 60])
def test_prompts_and_tokens_are_those_of_the_package(run, model, copy, num_merges):
    records, vocabulary = run[2], Vocabulary.read(run[0] / "vocabulary.json")
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


def test_the_programs_are_for_every_platform_and_any_number(run, model):
    for program in (model.prefill, model.extend):
        assert set(program.platforms) == {"cpu", "cuda", "tpu"}
        assert "rollout" in str(program.in_avals)
    facts = json.loads((run[1] / "export.json").read_text())
    assert (facts["phase"], facts["dialect"]) == ("grpo", "gemex")
    assert "best weights of GRPO (update 3" in (run[1] / "README.md").read_text()
    assert not re.search(r"\{\w+\}", (run[1] / "README.md").read_text())


def test_load_py_checks_this_machine_and_changed_files_are_refused(run, copy, capsys):
    assert policy_loader.main([str(run[1])]) == 0
    assert json.loads(capsys.readouterr().out) == {"same_tokens": 1.0, "ok": True}
    (copy / "vocabulary.json").write_text("{}")
    assert policy_loader.main([str(copy)]) == 2
    with pytest.raises(RefusedExport, match=r"vocabulary\.json has changed"):
        policy_loader.load(copy)
    facts = json.loads((copy / "export.json").read_text())
    (copy / "export.json").write_text(json.dumps(facts | {"format": 2}))
    write_sums(copy)
    with pytest.raises(RefusedExport, match="expected \\('policy', 1\\)"):
        policy_loader.load(copy)


def test_the_command(run, tmp_path, capsys):
    flags = [f"--checkpoint={run[0]}", f"--out={tmp_path / 'out'}"]
    with pytest.raises(BadInput, match="--model, --torch-names and --format=onnx do not apply"):
        main([*flags, "--model=teacher"])
    assert main([*flags, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == str(tmp_path / "out")
    assert set(told["files"]) == {path.name for path in (tmp_path / "out").iterdir()}
    with pytest.raises(BadInput, match="already exists"):
        main(flags)
    lines = describe_report(told).splitlines()
    assert lines[0].startswith(f"{tmp_path / 'out'}: {len(told['files'])} files, ")
    assert lines[1].startswith(f"policy: parameters {told['policy']['parameters']:,}, phase ")
    assert lines[2].startswith(f"next: {name_command('python')} {tmp_path / 'out'}/load.py ")


def test_nothing_is_left_of_an_export_that_fails(run, tmp_path, monkeypatch):
    monkeypatch.setattr(policy_folder.policy_loader, "check", lambda folder: {"same_tokens": 0.5, "ok": False})
    with pytest.raises(RunStopped, match="50% of the network's own tokens"):
        export_policy(run[0], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A run with a small Hugging Face tokenizer of the records' own pieces, and its export."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("pretrained")
    settings, records, _ = make_policy_workdir(folder / "run")
    size = Vocabulary.read(folder / "run" / "vocabulary.json").num_words
    texts = [write(record, "gemex") for record in records for write in (write_question, write_reply)]
    words = list(dict.fromkeys(piece for text in texts for piece in text.split()))[: size - 3]
    words += [f"unused{number}" for number in range(size - 3 - len(words))]
    table = {word: place for place, word in enumerate(["[PAD]", "[END]", "[UNK]", *words])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="[UNK]"))  # noqa: S106
    model.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "[PAD]", "eos_token": "[END]", "unk_token": "[UNK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=model, **names).save_pretrained(folder / "tokenizer")
    policy = dataclasses.replace(settings.policy, tokenizer=str(folder / "tokenizer"))
    write_settings(folder / "run" / "settings.json", dataclasses.replace(settings, policy=policy))
    (folder / "run" / "vocabulary.json").unlink()
    export_policy(folder / "run", folder / "out")
    return folder / "run", folder / "out", records


@pytest.mark.slow
def test_a_policy_with_a_pretrained_tokenizer_answers_alone_and_here(pretrained):
    workdir, out, records = pretrained
    question = records[0].question
    expected = [load_reader(workdir).answer(image, question).text for image in IMAGES]
    assert [load_reader(out).answer(image, question).text for image in IMAGES] == expected
    assert policy_loader.load(out).answer(IMAGES, question) == expected
    assert str(workdir.parent) not in (out / "settings.json").read_text()
    card = (out / "README.md").read_text()
    assert "pip install tokenizers" in card
    assert "vocabulary.json" not in card
    with pytest.raises(ValueError, match=r"special token '\[UNK\]'"):
        policy_loader.load(out).encode("a-word-of-no-record")


def test_without_the_package_tokenizers_the_loader_says_so(pretrained, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(RefusedExport, match="pip install tokenizers"):
        policy_loader.load(pretrained[1])
