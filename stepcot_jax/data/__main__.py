"""Work with folders of cases: check one, draw its statistics, write its images to shards, or draw chest phantoms."""

import argparse

from stepcot_jax.data import shard_command
from stepcot_jax.data.commands import check, phantom, statistics
from stepcot_jax.errors import run_tool


def main(arguments: list[str] | None = None) -> int | None:
    """Run the command that the command line names, for its exit code."""
    parser = argparse.ArgumentParser(prog="python -m stepcot_jax.data", description="Work with folders of cases.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (check, statistics, shard_command, phantom):
        module.add_command(commands)
    options = parser.parse_args(arguments)
    code: int | None = options.run(options)
    return code


if __name__ == "__main__":
    run_tool(main)
