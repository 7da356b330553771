"""What tools print, and the codes with which they end."""

import pytest

from stepcot_jax.host.errors import BadInput, Preempted, RunStopped, run_tool

ENDS = [
    (BadInput("a.csv, line 2: empty"), 2, "error: a.csv, line 2: empty\n"),
    (RunStopped("step 3: loss is nan"), 3, "stopped: step 3: loss is nan\n"),
    (Preempted("step 3: saved"), 75, "preempted: step 3: saved\n"),
    (KeyboardInterrupt(), 130, "interrupted\n"),
    (KeyboardInterrupt("the same command goes on"), 130, "interrupted; the same command goes on\n"),
]


@pytest.mark.parametrize(("error", "code", "line"), ENDS)
def test_every_end_is_one_line_and_its_code(error, code, line, capsys):
    def fail():
        raise error

    with pytest.raises(SystemExit) as ended:
        run_tool(fail)
    assert (ended.value.code, capsys.readouterr().err) == (code, line)
