"""Files of questions asked of a small run and of a random Qwen2.5-VL: batches answer as single questions do."""

import functools
import json

import jax.numpy as jnp
import msgspec
import numpy as np
import pytest
from evaluate_replies.asked import write_folder
from PIL import Image
from policies.policy_workdir import SIDE, make_policy_workdir
from policies.qwen.tiny_qwen import write_reader
from refusals import edit_json, refuse

from stepcot_jax.box import qwen_size
from stepcot_jax.host.errors import RunStopped
from stepcot_jax.policies.qwen_chat import load_qwen_reader
from stepcot_jax.policies.qwen_inputs import Turn
from stepcot_jax.reading import askers
from stepcot_jax.reading.chat_models import ShownImage
from stepcot_jax.reading.policy_reader import PolicyReader, load_reader
from stepcot_jax.reasoning.dialects import write_question
from stepcot_jax.tools.answer import main

SHAPES = [(40, 50), (50, 40), (33, 70), (20, 20), (64, 48), (90, 30), (48, 64), (30, 31), (64, 64), (21, 90), (55, 44)]


def write_questions(folder, records):
    """The first test records, each about a picture of its own and another shape."""
    chosen = [record for record in records if record.split == "test"][: len(SHAPES)]
    chosen = [msgspec.structs.replace(record, image=f"images/{at}.png") for at, record in enumerate(chosen)]
    drawn = np.random.default_rng(0)
    pictures = [drawn.integers(0, 256, shape, np.uint8) for shape in SHAPES]
    named = dict(zip((record.image for record in chosen), pictures, strict=True))
    return chosen, write_folder(folder, chosen, named)


def read_lines(path):
    return {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}


@pytest.mark.slow
def test_batches_of_a_run_answer_as_single_questions_and_resume(tmp_path, monkeypatch, capsys):
    _, records, _ = make_policy_workdir(tmp_path / "run")
    chosen, folder = write_questions(tmp_path / "questions", records)
    broken, hidden, unknown, long, *left = chosen
    (folder / broken.image).write_bytes(b"no picture")
    (folder / hidden.image).unlink()
    unknown = msgspec.structs.replace(unknown, question="Does it resemble a xylophone?")
    long = msgspec.structs.replace(long, question=long.question + " the picture" * 99)
    write_folder(folder, [broken, hidden, unknown, long, *left])
    reader, out = load_reader(tmp_path / "run", phase="sft"), tmp_path / "replies.jsonl"
    asked = [f"--questions={folder}", f"--checkpoint={tmp_path / 'run'}", f"--out={out}"]
    asked += ["--concurrency=3", "--phase=sft"]
    answer, batches = PolicyReader.answer_prompts, []

    def stop_at_the_second(self, given):
        batches.append(len(given))
        if len(batches) == 2:
            raise KeyboardInterrupt
        return answer(self, given)

    monkeypatch.setattr(PolicyReader, "answer_prompts", stop_at_the_second)
    refuse("interrupted; every reply is in", main, asked, error=RunStopped)
    main(asked)
    assert batches == [3] * 4  # of seven that can be asked: three, a stop, then three, and one filled up
    lines = read_lines(out)
    assert sorted(lines) == sorted(record.id for record in chosen)
    for record, words in (
        (broken, f"picture: {folder / broken.image}"),
        (hidden, f"picture: {folder / hidden.image}"),
        (unknown, "question: text 'Does it resemble"),
        (long, "question: a prompt has"),
    ):
        assert lines[record.id]["reply"] is None
        assert lines[record.id]["error"].startswith(words)
    for record in left:
        about = {"choices": record.options, "kind": record.kind}
        single = reader.answer(folder / record.image, record.question, **about, greedy=True)
        assert lines[record.id]["reply"] == single.text
        assert (lines[record.id]["image_size"], lines[record.id]["finish_reason"]) == ([SIDE, SIDE], "length")
        assert "sft at update 2" in lines[record.id]["asked"]
    assert len({line["reply"] for line in lines.values()}) > 4
    said = "7 cut at the limit of their length, 2 whose picture cannot be read, 2 that cannot be asked"
    assert f"11 questions to run: {said}" in capsys.readouterr().out

    levels = {"dialect": "levels", "levels": [0, 1], "source": "folder", "root": "x", "with_thinking": True}
    edit_json(tmp_path / "run" / "settings.json", lambda settings: settings["vqa"].update(levels))
    refuse("--dialect is required: the run writes levels", main, [*asked, f"--out={tmp_path / 'a.jsonl'}"])


@pytest.mark.slow
def test_a_local_model_answers_without_training(tmp_path, monkeypatch):
    # In bfloat16 words of random weights tie, and a batch breaks ties otherwise than a question alone.
    exact = functools.partial(load_qwen_reader, dtype=jnp.float32)
    monkeypatch.setattr(askers, "load_local", exact)
    _, records, _ = make_policy_workdir(tmp_path / "run")
    chosen, folder = write_questions(tmp_path / "questions", records)
    broken = msgspec.structs.replace(chosen[0], question="Is it <|im_end|>?")
    write_folder(folder, [broken, *chosen[1:]])
    write_reader(tmp_path / "qwen")
    out = tmp_path / "replies.jsonl"
    more = ["--concurrency=4", "--max-answer-tokens=6", "--image-size=60", "--dialect=medclm"]
    main([f"--questions={folder}", f"--local={tmp_path / 'qwen'}", f"--out={out}", *more])
    lines, reader = read_lines(out), exact(str(tmp_path / "qwen"))
    assert lines[broken.id]["error"].startswith("question: ")
    for record, (height, width) in zip(chosen[1:], SHAPES[1:], strict=True):
        share = min(1.0, 60 / max(height, width))
        shown = (round(width * share), round(height * share))
        assert lines[record.id]["image_size"] == list(qwen_size(shown, unit=4, limits=(16, 960)))
        image = ShownImage(lambda record=record: Image.open(folder / record.image), longest_side=60)
        turn = Turn("user", write_question(record, "medclm"), [np.array(image.pixels.convert("RGB"))])
        assert lines[record.id]["reply"] == reader.answer([[turn]], longest=6)[0].text
