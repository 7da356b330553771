import re

import jax
import pytest
from run.small_run import small_run, small_settings

from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.terminal import name_command
from stepcot_jax.run import chain_task, training_run


@pytest.mark.slow
def test_a_run_says_what_reads_it_and_where_it_goes_on(tmp_path, monkeypatch, capsys):
    run = small_run(tmp_path / "a b", monkeypatch)
    jax.jit(lambda number: 3 * number)(1.0)
    run.say_next()
    said = capsys.readouterr().err.splitlines()
    assert re.search(r"took \d+ s \([1-9]\d* programs\)", said[-4])
    assert [line for line in said if line.startswith(("next", "longer"))] == [
        f"next: {name_command()} report '{tmp_path / 'a b'}'",
        f"next: {name_command()} predict IMAGE --checkpoint='{tmp_path / 'a b'}'",
        "longer: the same command with --config.training.joint_epochs=N goes on, N above 3",
    ]
    assert run.describe_resume() == "no checkpoint was saved yet: the same command starts over"
    for step in (5, 10):
        for name in ("_CHECKPOINT_METADATA", "state", "progress"):
            (run.workdir / "checkpoints" / str(step) / name).mkdir(parents=True)
    (run.workdir / "checkpoints" / "15").mkdir()  # not committed
    assert run.describe_resume() == "the same command goes on from checkpoint 10"


def test_a_batch_that_devices_cannot_divide_is_refused_before_loading(tmp_path, monkeypatch):
    monkeypatch.setattr(chain_task, "load_inputs", None)
    with pytest.raises(BadInput, match=r"config.training.batch_size: 8 is not a multiple of 3"):
        training_run.Run(small_settings(parallel__num_devices=3), tmp_path)
