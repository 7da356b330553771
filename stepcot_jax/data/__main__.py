"""Work with folders of cases: check one, draw its statistics, write its images to shards, or draw chest phantoms."""

import argparse

from stepcot_jax.data.commands import check_command, phantom_command, shard_command, statistics_command
from stepcot_jax.host.errors import run_tool


def main(arguments: list[str] | None = None) -> int | None:
    """Run the command that the command line names, for its exit code."""
    parser = argparse.ArgumentParser(prog="python -m stepcot_jax.data", description="Work with folders of cases.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (check_command, statistics_command, shard_command, phantom_command):
        module.add_command(commands)
    options = parser.parse_args(arguments)
    code: int | None = options.run(options)
    return code


if __name__ == "__main__":
    run_tool(main)
