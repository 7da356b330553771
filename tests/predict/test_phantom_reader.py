import hashlib
import pathlib
import re

import jax
import numpy as np
import pytest
from PIL import Image
from refusals import refuse

import stepcot_jax as sc
from benchmarks.make_reader import renew_settings, round_weights, write_reader
from stepcot_jax.host.download import find_checkpoint
from stepcot_jax.host.exported_files import Files, read_weights
from stepcot_jax.reading.trained_model import load_trained
from stepcot_jax.tools.answer import main as answer
from stepcot_jax.tools.export import main as export
from stepcot_jax.tools.predict import main as predict

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "stepcot_jax" / "phantom_reader"
DIGEST = "e12a95a33accdb76f09f258a748f69b1185dbb3a45779a8bd7be469c67800b9b"
FIRST = 10_005  # the first block of patients that the run of 10,000 chests never drew


@pytest.fixture(scope="module")
def reader():
    return sc.load("phantom")


def read_card():
    """Figures of the shipped reader as its card prints them: values and ends of intervals, as shares."""
    row = re.search(r"^\| \w+, this reader \| (.*) \|$", (FOLDER / "README.md").read_text(), re.MULTILINE)[1]
    return [[float(number) / 100 for number in re.findall(r"[\d.]+", cell)] for cell in row.split("|")]


def test_the_command_writes_the_shipped_files_from_their_weights_and_the_settings_of_today(reader, tmp_path):
    (weights,) = FOLDER.glob("*.safetensors")
    assert (weights.stem, hashlib.sha256(weights.read_bytes()).hexdigest()) == (reader.model, DIGEST)
    write_reader(round_weights(load_trained(FOLDER)), reader.model, tmp_path / "again")
    (tmp_path / "again" / "README.md").write_bytes((FOLDER / "README.md").read_bytes())  # of the training
    renew_settings(tmp_path / "again")
    assert {path.name for path in (tmp_path / "again").iterdir()} == {path.name for path in FOLDER.iterdir()}
    for path in FOLDER.iterdir():  # SHA256SUMS among them
        again = (tmp_path / "again" / path.name).read_bytes()
        assert again == path.read_bytes(), f"{path.name}: run python -m benchmarks.make_reader --renew"


def test_the_weights_give_the_figures_of_the_card():
    reader = sc.load("phantom", batch_size=250)
    drawn = [sc.draw_phantom(FIRST + number, size=64, prevalence="flat") for number in range(1000)]
    readings = reader.read([chest.image for chest in drawn])
    options = [step.options for step in reader.chain.steps]
    found = np.array(
        [[own.index(said) for own, said in zip(options, each.answers.values(), strict=True)] for each in readings]
    )
    truth = np.array([chest.case.answers for chest in drawn])
    right, normal = found == truth, truth[:, -1] == 0
    contradicts = (found[:, 0] == 0) != (found[:, -1] == 0)
    figures = [right.mean(), right[:, -1].mean(), right.all(1).mean(), (found[normal, -1] != 0).mean()]
    printed = read_card()
    # One chest of a thousand may be read otherwise on another machine; the card prints tenths of per cent.
    for value, (own, low, high) in zip([*figures, contradicts.mean()], printed, strict=False):
        assert value == pytest.approx(own, abs=0.0016 if value is not figures[3] else 0.01)
        assert low < own < high
    assert len(printed) == 6


def test_two_true_answers_give_the_card_s_last_figure(reader):
    """Each asked for by `ask_next` and given by `correct`, as a user does; of 50 chests, within their interval."""
    names, hits = [step.name for step in reader.chain.steps], []
    for number in range(50):
        chest = sc.draw_phantom(FIRST + number, size=64, prevalence="flat")
        truth = {
            step.name: step.options[label] for step, label in zip(reader.chain.steps, chest.case.answers, strict=True)
        }
        reading = reader.read(chest.image)
        for _ in range(2):
            if (asked := reader.ask_next(reading)) is not None:
                reading = reader.correct(reading, {asked.step.name: truth[asked.step.name]})
        hits.append(reading.answers[names[-1]] == truth[names[-1]])
    *_, (own, _, _) = read_card()
    assert abs(np.mean(hits) - own) < 3 * (own * (1 - own) / len(hits)) ** 0.5


def test_half_precision_is_how_weights_are_stored_and_not_how_they_compute(reader):
    stored = Files(FOLDER, [f"{reader.model}.safetensors"]).read_tensors(f"{reader.model}.safetensors")
    assert {array.dtype for array in stored.values()} == {np.dtype(np.float16)}
    for name, array in read_weights(FOLDER, [f"{reader.model}.safetensors"]).items():
        np.testing.assert_array_equal(array, stored[name].astype(np.float32))
    leaves = jax.tree.leaves(load_trained(FOLDER).params)
    assert {leaf.dtype for leaf in leaves} == {np.dtype(np.float32)}
    assert sum(leaf.size for leaf in leaves) == sum(array.size for array in stored.values())


def test_a_folder_of_that_name_wins_and_stderr_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint("phantom") == find_checkpoint(pathlib.Path("phantom")) == FOLDER
    assert find_checkpoint("./phantom") == pathlib.Path("phantom")
    assert capsys.readouterr().err == ""
    pathlib.Path("phantom").mkdir()
    refuse(r"^phantom", sc.load, "phantom")
    assert "phantom is the one in this folder; rename it" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["phantm", "Phantom", "phantom/"])
def test_a_near_name_gets_the_right_one(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    refuse(f"no such folder: {name}; the reader that stepcot_jax ships is named phantom", sc.load, name)


def test_commands_take_the_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(sc.draw_phantom(3).image).save("chest.png")
    assert predict(["chest.png", "--checkpoint=phantom"]) == 0
    assert "phantoms (drawn images), 9,000 training cases of 10,000" in capsys.readouterr().out
    assert export(["--checkpoint=phantom", "--out=out"]) == 0
    given = sc.load("phantom").read("chest.png").probabilities
    assert sc.load("out").read("chest.png").probabilities == given
    refuse(
        "stepcot predict reads radiographs with this one",
        answer,
        ["chest.png", "Is there a mass?", "--checkpoint=phantom", "--out=a.png"],
    )


@pytest.mark.parametrize("page", ["api", "index"])
def test_the_first_block_of_a_page_prints_what_it_says(page, capsys):
    """Comments of the pages are the words that are printed, and those that another page has of them."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    block = re.search(r"^```python\n(import stepcot_jax as sc\n.*?)```", text, re.DOTALL | re.MULTILINE)[1]
    exec(compile(block, f"docs/{page}.md", "exec"), {})  # noqa: S102
    printed = capsys.readouterr().out
    if page == "api":
        assert printed.splitlines() == re.findall(r"^print\(.*\)  # ([\w ]+)", block, re.MULTILINE)
    else:
        assert re.findall(r"most likely diagnosis is (\w+)", printed) == ["effusion", "mass"]
