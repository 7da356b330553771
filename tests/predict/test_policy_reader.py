import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from policies.policy_workdir import BEST, LATEST, SIDE, make_policy_workdir
from refusals import refuse

import stepcot_jax as sc
from stepcot_jax.data.images.preprocessing import Preprocessing, normalise, resize_image
from stepcot_jax.host.errors import BadInput
from stepcot_jax.policies.sampling import Replies
from stepcot_jax.policies.tokenizers import split_pieces
from stepcot_jax.reading import image_reader, policy_reader
from stepcot_jax.reading.policy_reader import PolicyReader, load_reader
from stepcot_jax.reasoning.dialects import write_question, write_reply
from stepcot_jax.run.stored import read_policy

PICTURE = np.random.default_rng(0).integers(0, 256, (48, 64)).astype(np.uint8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy") / "run"
    return folder, *make_policy_workdir(folder)


@pytest.fixture(scope="module")
def reader(run):
    return load_reader(run[0])


def question_of(records, kind):
    return next(record for record in records if record.kind == kind and record.split == "test")


def say(monkeypatch, reader, text):
    """The reader's network replies `text` to everything; returns the arguments of its calls."""
    calls, vocabulary = [], reader.trained.tokenizer

    def reply(network, params, images, prompts, lengths, *, sampling, keys):
        calls.append((images, prompts, lengths, sampling))
        tokens = jnp.asarray([[*vocabulary.encode(text), vocabulary.stop]])
        return Replies(tokens, jnp.zeros(tokens.shape), tokens > 0)

    monkeypatch.setattr(policy_reader, "generate", reply)
    return calls


def test_the_best_weights_of_the_last_phase_are_loaded(run):
    folder, _, _, params = run
    for phase, step in ((None, BEST["grpo"].step), ("sft", BEST["sft"].step)):
        found = read_policy(folder, phase=phase)
        assert (found.step, found.phase) == (step, phase or "grpo")
        jax.tree.map(np.testing.assert_array_equal, found.params, params[step])
    assert LATEST not in (BEST["grpo"].step, BEST["sft"].step)


def test_a_greedy_reply_is_what_a_full_pass_finds_likeliest(reader, run):
    """From the picture on its own path: resized on the host, normalised in NumPy, one full pass a token."""
    _, settings, records, params = run
    record, trained = question_of(records, "closed"), reader.trained
    found = reader.answer(PICTURE, record.question)
    of = settings.image_encoder
    fit = Preprocessing(size=SIDE, mean=of.mean, std=of.std, fit="stretch")
    image = jnp.asarray(normalise(resize_image(np.repeat(PICTURE[..., None], 3, axis=2), fit), fit))[None]
    prompt = jnp.asarray([trained.tokenizer.encode(write_question(record, "gemex"))])
    lengths, reply = jnp.asarray([prompt.shape[1]]), []
    weights = {"params": params[BEST["grpo"].step]}
    longest = trained.lengths.reply_length
    likeliest = jax.jit(lambda reply: trained.network.apply(weights, image, prompt, lengths, reply)[0].argmax(axis=-1))
    while len(reply) < longest and (not reply or reply[-1] != trained.tokenizer.stop):
        padded = jnp.asarray([[*reply, *[0] * (longest - len(reply))]])
        reply.append(int(likeliest(padded)[len(reply)]))
    assert found.text == trained.tokenizer.decode(reply)
    assert found.reply.problems
    assert found.answer is None
    assert "answer: none could be read" in str(found)
    samples = [reader.answer(PICTURE, record.question, greedy=False, seed=seed).text for seed in (0, 0, 1)]
    assert samples[0] == samples[1] != samples[2]
    question = question_of(records, "open").question
    assert reader.answer(PICTURE, question).text != reader.answer(255 - PICTURE[:, ::-1], question).text


@pytest.mark.parametrize("kind", ["open", "closed", "single", "multi"])
def test_the_prompt_is_that_of_training_and_the_reply_is_read(reader, run, monkeypatch, kind):
    record = next(record for record in run[2] if record.kind == kind and record.references)
    calls = say(monkeypatch, reader, write_reply(record, "gemex"))
    guessed = None if kind != "multi" else "multi"
    found = reader.answer(PICTURE, record.question, choices=record.options, kind=guessed)
    (_, prompts, lengths, sampling), vocabulary = calls[0], reader.trained.tokenizer
    assert prompts[0, : int(lengths[0])].tolist() == vocabulary.encode(write_question(record, "gemex"))
    assert set(prompts[0, int(lengths[0]) :].tolist()) <= {vocabulary.pad}
    assert sampling.greedy
    assert (found.kind, found.answer) == (kind, record.answer.casefold() if kind == "open" else record.answer)
    for region, true in zip(found.boxes, record.references, strict=True):
        x1, y1, x2, y2 = np.floor(np.asarray(true.corners) + 0.5)
        assert region.label == true.label
        assert region.corners == (x1 * 2, y1 * 1.5, x2 * 2, y2 * 1.5)  # a picture of 64 x 48, read at 32 x 32
    assert json.loads(json.dumps(found.as_dict()))["image_size"] == [64, 48]
    if kind == "single":
        assert found.answer_text == f"{record.answer}: {record.options[record.letters.index(record.answer)]}"
    drawn = found.draw()
    assert min(drawn.shape[:2]) >= 384
    assert (drawn != drawn[..., :1]).any()  # coloured lines on a grey picture


def test_one_picture_is_the_same_from_everywhere(reader, run, monkeypatch, tmp_path):
    path, calls = tmp_path / "a.png", say(monkeypatch, reader, "<think>")
    Image.fromarray(PICTURE).save(path)
    for image in (PICTURE, np.stack([PICTURE] * 3, axis=-1), path, path.read_bytes()):
        found = reader.answer(image, question_of(run[2], "closed").question)
        np.testing.assert_array_equal(found.picture, np.stack([PICTURE] * 3, axis=-1))
        np.testing.assert_array_equal(calls[-1][0], calls[0][0])


def test_unknown_words_are_named_with_what_is_known(reader, run):
    known = question_of(run[2], "closed").question
    with pytest.raises(BadInput) as caught:
        reader.answer(PICTURE, known.replace("?", " pneumonio?"))
    for words in ("the word 'pneumonio' is not in the run's vocabulary", "pneumonia", known):
        assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    refuse("the word 'Is' after a space is not in the run's vocabulary", reader.answer, PICTURE, f"{known} {known}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"question": " "}, "question: blank"),
        ({"choices": ("Mass",)}, "choices: "),
        ({"question": "Is there a mediastinal shift" + " there" * 999}, "tokens .* at most"),
    ],
)
def test_what_cannot_be_asked(reader, changes, words):
    refuse(words, reader.answer, **{"image": PICTURE, "question": "Is there a mediastinal shift?", **changes})


def test_load_returns_what_fits_the_run(run):
    assert isinstance(sc.load(run[0]), PolicyReader)
    assert sc.load(run[0], model="sft").trained.phase == "sft"
    for load, words in (
        (lambda: sc.load(run[0], as_published=True), "neither batch_size nor as_published"),
        (lambda: image_reader.load_chain_reader(run[0]), "stepcot answer"),
        (lambda: load_reader(run[0], phase="both"), "no best weights of the phase 'both'; found grpo, sft"),
    ):
        refuse(words, load)


def test_the_example_of_the_document_runs(run, tmp_path, monkeypatch, capsys):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "answer.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "vqa").symlink_to(run[0])
    Image.fromarray(PICTURE).save("image.png")
    code = code.replace("Which finding is present?", question_of(run[2], "single").question)
    names = {}
    exec(compile(code, "docs/answer.md", "exec"), names)  # noqa: S102
    assert "answer: " in capsys.readouterr().out
    assert names["marked"].shape == (384, 512, 3)
    assert names["chosen"].kind == "single"


def test_all_replies_are_those_of_each_question_and_begun_ones_go_on_where_they_would(reader, run):
    _, _, records, _ = run
    asked = [question_of(records, kind) for kind in ("closed", "single", "open")]
    whole = reader.reply_all(asked, lambda record: PICTURE, batch_size=2)
    for record, text in zip(asked, whole, strict=True):
        assert text == reader.answer(PICTURE, record.question, choices=record.options, kind=record.kind).text
    starts = [["".join(split_pieces(text)[:number]) for number in (3, 2, 1, 0)] for text in whole]
    begun = [next(filter(reader.can_continue, of_text)) for of_text in starts]
    assert any(begun)
    assert not reader.can_continue("nevertheless")
    gone_on = reader.reply_all(asked, lambda record: PICTURE, begun=begun, batch_size=2)
    assert all(longer.startswith(text) for longer, text in zip(gone_on, whole, strict=True))
