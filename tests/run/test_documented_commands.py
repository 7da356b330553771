import argparse
import importlib
import json
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from refusals import refuse

from stepcot_jax.__main__ import find_commands
from stepcot_jax.policies.qwen_policy import param_shardings
from stepcot_jax.run.settings import read_settings
from stepcot_jax.training.devices import MeshDevices

ROOT = pathlib.Path(__file__).parents[2]
LARGE = ("gemex", "medsage", "medsage_released")
PARSE = """
import json, os, pathlib, sys
from absl import flags
from stepcot_jax.tools.options import define_flags, parse
from stepcot_jax.run.settings import make_settings
from stepcot_jax.run.settings import write_settings

folder = pathlib.Path(sys.argv[1])
for number, arguments in enumerate(json.load(sys.stdin)):
    if not os.fork():  # absl keeps the flags of a process
        sys.argv = ["main", *arguments]
        define_flags()
        parse(sys.argv)
        write_settings(folder / f"{number}.json", make_settings(flags.FLAGS.config))
        os._exit(0)
    os.wait()
"""


def read_commands():
    """(file, arguments) of each command, that of a launch script included."""
    found = []
    for path in [*ROOT.glob("configs/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]:
        text = path.read_text().replace("\\\n", " ")
        for line in text.splitlines():
            if match := re.search(r"python -m stepcot_jax\.main (--config=[^`]*)", line):
                found.append((path.name, shlex.split(match[1], comments=True)))
            elif match := re.match(r"CONFIG=(\w+) WORKDIR=(\S+) launch/gpu\.sh (.*)", line):
                found.append((path.name, [f"--config={match[1]}", f"--workdir={match[2]}", *shlex.split(match[3])]))
    return [(name, arguments) for name, arguments in found if "--config=NAME" not in arguments]


@pytest.fixture(scope="module")
def parsed(tmp_path_factory):
    folder, commands = tmp_path_factory.mktemp("settings"), read_commands()
    text = json.dumps([arguments for _, arguments in commands])
    done = subprocess.run(
        [sys.executable, "-c", PARSE, folder], input=text, cwd=ROOT, capture_output=True, text=True, check=True
    )
    for number, (name, arguments) in enumerate(commands):
        assert (folder / f"{number}.json").is_file(), (name, arguments, done.stderr)
    return [(*command, read_settings(folder / f"{number}.json")) for number, command in enumerate(commands)]


@pytest.mark.slow
def test_every_command_is_accepted(parsed):
    assert len(parsed) > 25
    assert {name for name, _, _ in parsed} >= {
        "qwen.md",
        "launch.md",
        "README.md",
        *(f"{name}.py" for name in (*LARGE, "step_cot_lvlm")),
    }


@pytest.mark.slow
def test_batches_of_large_policies_divide_among_devices_and_passes(parsed):
    """A dry run and MedCLM's batches of one on one device; the others on eight with the command's `model_devices`."""
    large = [(name, settings) for name, _, settings in parsed if settings.policy.weights]
    dry = [settings for _, settings in large if settings.policy.random]
    assert len(dry) == 5
    assert len(large) >= 11
    for name, settings in large:
        parallel = settings.parallel
        devices = MeshDevices(
            param_shardings,
            num_devices=1 if settings.policy.random or settings.sft.batch_size == 1 else 8,
            model_devices=parallel.model_devices,
            num_passes=parallel.num_passes,
        )
        for section in ("sft", "grpo")[: 2 if settings.optimising else 1]:
            devices.check_batch_size(getattr(settings, section).batch_size, setting=f"{name}, {section}")


def read_passes():
    """(devices, model_devices, config, passes) of the table in launch.md."""
    table = re.compile(r"^\| .*`.* \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
    rows = [tuple(map(int, found.groups())) for found in table.finditer((ROOT / "docs" / "launch.md").read_text())]
    return [(*row[:2], name, number) for row in rows for name, number in zip(LARGE, row[2:], strict=True)]


@pytest.mark.slow
def test_passes_of_the_table_are_the_most_that_divide_the_batches(parsed):
    """Without virtual devices: `check_batch_size` needs the number of shares alone."""
    rows = read_passes()
    assert {row[:2] for row in rows} == {(8, 4), (8, 1), (16, 4), (16, 1)}
    settings = {
        name: found
        for name in LARGE
        for _, arguments, found in parsed
        if arguments[0] == f"--config={name}" and not found.policy.random
    }
    for num_devices, model_devices, name, num_passes in rows:
        sizes = [getattr(settings[name], section).batch_size for section in ("sft", "grpo")]
        devices = MeshDevices.__new__(MeshDevices)
        devices.num_shares = num_devices // model_devices
        devices.num_passes = num_passes
        for size in sizes:
            devices.check_batch_size(size)
        devices.num_passes = 2 * num_passes
        refuse("is not a multiple of", devices.check_batch_size, min(sizes))


@pytest.mark.slow
def test_the_logits_of_a_pass_are_small(parsed):
    """At most 2 GB of float32 logits a device: rows of a pass, tokens of prompt and reply, words of `model_devices`."""
    tokens = {"gemex": (700, 300), "medsage": (2100, 2100), "medsage_released": (1400, 1024)}
    for _, arguments, settings in parsed:
        config = arguments[0].removeprefix("--config=")
        if config not in LARGE or settings.policy.random:
            continue
        groups = 8 // settings.parallel.model_devices
        sections = (("sft", 1), ("grpo", settings.grpo.group_size))
        for (section, each), length in zip(sections, tokens[config], strict=True):
            rows = getattr(settings, section).batch_size // groups // settings.parallel.num_passes
            assert 4 * rows * each * length * 152_064 // settings.parallel.model_devices <= 2e9, (config, section)


# Commands of `stepcot`, which their own parsers read; nothing is run.


class Parsed(Exception):
    """Ends a command once its line is parsed."""


def list_tool_commands(path):
    """Return the arguments of every line of `stepcot` in the code blocks of a page."""
    blocks = re.findall(r"^```bash\n(.*?)^```", path.read_text().replace("\\\n", " "), re.MULTILINE | re.DOTALL)
    lines = re.split(r"\n|&&", "\n".join(blocks))
    found = (re.match(r"\s*(?:\.venv/bin/)?stepcot (.*)", line) for line in lines)
    return [shlex.split(match[1], comments=True) for match in found if match]


@pytest.fixture
def parse(monkeypatch):
    read = argparse.ArgumentParser.parse_args

    def stop(parser, *given):
        raise Parsed(read(parser, *given))

    def run(arguments):
        name, *rest = arguments
        with pytest.raises(Parsed) as parsed:
            importlib.import_module(find_commands()[name]).main(rest)
        return parsed.value.args[0]

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    return run


def test_every_command_of_the_readme_is_parsed(parse):
    commands = list_tool_commands(ROOT / "README.md")
    assert {arguments[0] for arguments in commands} >= {"data", "predict", "report"}
    for arguments in commands:
        parse(arguments)
        with pytest.raises(SystemExit):
            parse([*arguments, "--no-such-flag"])
