import json

import numpy as np
import pytest
from PIL import Image
from policies.policy_workdir import make_policy_workdir
from refusals import refuse

from stepcot_jax.tools.answer import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answer")
    _, records, _ = make_policy_workdir(folder / "run")
    picture = np.random.default_rng(0).integers(0, 256, (40, 40)).astype(np.uint8)
    Image.fromarray(picture).save(folder / "a.png")
    return folder, next(record for record in records if record.kind == "closed").question


@pytest.mark.slow
def test_reply_answer_and_picture(run, capsys, tmp_path):
    folder, question = run
    asked = [str(folder / "a.png"), question, f"--checkpoint={folder / 'run'}"]
    main([*asked, f"--out={tmp_path / 'new' / 'out.png'}"])
    told = capsys.readouterr().out
    assert told.startswith("WARNING: the answer of the reply cannot be read: ")
    assert "\nanswer: none could be read\n" in told
    assert Image.open(tmp_path / "new" / "out.png").size == (384, 384)
    main([*asked, "--json"])
    greedy = json.loads(capsys.readouterr().out)
    assert (greedy["kind"], sorted(greedy["unread"])) == ("closed", ["answer", "boxes"])
    assert greedy["reply"].split("\n")[0] in told
    main([*asked, "--json", "--sample", "--seed=3", "--temperature=2", "--phase=sft"])
    assert json.loads(capsys.readouterr().out)["reply"] != greedy["reply"]


def test_what_is_refused(run):
    folder, question = run
    for flag, words in (
        ("--seed=1", "no effect without --sample"),
        ("--out=a.jpg", "must end in .png"),
        ("--checkpoint=nowhere", "nowhere is not the workdir of a run"),
        ("--choice=Mass", "choices: "),
    ):
        refuse(words, main, [str(folder / "a.png"), question, f"--checkpoint={folder / 'run'}", flag])
    picture = folder / "run" / "settings.json"
    refuse(r"settings\.json", main, [str(picture), question, f"--checkpoint={folder / 'run'}"])
