import os
import signal

import pytest

RUN = {"CONFIG": "config.py", "WORKDIR": "run"}
READ = """
import os, pathlib, signal, sys, time
flags = dict(argument.lstrip("-").split("=", 1) for argument in sys.argv[2:] if "=" in argument)
me = int(flags["process_id"])
"""
WAIT = (
    READ
    + """
def end(*_):
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, end)
pathlib.Path(f"ready_{me}").touch()
while True:
    time.sleep(0.05)
"""
)


def logs(tmp_path, num_processes=2):
    return [(tmp_path / "run" / "logs" / f"process_{me}.log").read_text() for me in range(num_processes)]


def test_each_process_gets_its_number_and_they_share_the_rest(run, python, tmp_path):
    program = python(READ + "print(*sys.argv[1:], os.environ['XLA_FLAGS'], os.environ['JAX_PLATFORMS'], sep='\\n')")
    variables = {**RUN, "PYTHON": program, "DEVICES_PER_PROCESS": 4, "XLA_FLAGS": "--xla_x=1"}
    code, out, err = run("local_processes.sh", "3", "--config.a=b c", **variables)
    assert (code, err) == (0, "")
    written = logs(tmp_path, 3)
    assert out == written[0]  # what process 0 says is shown, all of it
    for me, log in enumerate(written):
        module, *flags, xla, platform = log.splitlines()
        coordinator = flags.pop(2)
        assert coordinator == written[0].splitlines()[3]
        assert coordinator.startswith("--coordinator=127.0.0.1:")
        assert module == "stepcot_jax.main"
        assert flags[:3] == ["--config=config.py", "--workdir=run", "--num_processes=3"]
        assert flags[3:] == [f"--process_id={me}", "--config.a=b c"]
        assert (xla, platform) == ("--xla_x=1 --xla_force_host_platform_device_count=4", "cpu")


@pytest.mark.parametrize(("failing", "code"), [(0, 3), (1, 3), (0, 75)])
def test_where_one_ends_early_the_others_are_told_to_end_and_its_code_is_ours(run, python, tmp_path, failing, code):
    other = 1 - failing
    program = python(
        READ
        + f"""
if me == {failing}:
    while not pathlib.Path("ready_{other}").exists():
        time.sleep(0.02)
    sys.exit({code})
"""
        + WAIT
    )
    found, _, err = run("local_processes.sh", "2", **RUN, PYTHON=program)
    assert found == code
    assert code == 75 or f"process {failing} ended with exit code 3, see run/logs/process_{failing}.log" in err
    assert logs(tmp_path)[other] == "saved\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_passed_on_and_the_run_was_preempted(launch, python, tmp_path, wait_for, number):
    process = launch("local_processes.sh", "2", **RUN, PYTHON=python(WAIT))
    wait_for(lambda: (tmp_path / "ready_0").exists() and (tmp_path / "ready_1").exists())
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as Ctrl-C does: the whole group
    else:
        process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 75
    assert out == "saved\n"
    assert logs(tmp_path) == ["saved\n"] * 2


def test_one_that_does_not_end_is_killed(launch, python, tmp_path, wait_for):
    program = python(
        READ
        + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(f"ready_{me}").write_text(str(os.getpid()))
time.sleep(60)
"""
    )
    process = launch("local_processes.sh", "2", **RUN, PYTHON=program, GRACE_SECONDS=1)
    paths = [tmp_path / f"ready_{me}" for me in (0, 1)]
    wait_for(lambda: all(path.exists() and path.read_text() for path in paths))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 137
    assert "process 1 did not end within 1 s; killing it" in err
    for path in paths:
        with pytest.raises(ProcessLookupError):
            os.kill(int(path.read_text()), 0)
