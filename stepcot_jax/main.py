"""Train, distil and evaluate.

python -m stepcot_jax.main --config=configs/X.py --workdir=DIR [--config.a.b=value ...]
"""

import pathlib

from absl import app, flags, logging
from ml_collections import config_flags

from stepcot_jax.command_line import parse
from stepcot_jax.errors import BadInput, run_tool
from stepcot_jax.settings import make_settings

_CONFIG = config_flags.DEFINE_config_file("config", None, "Settings, for example configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder for checkpoints, logs and the report.")
flags.mark_flags_as_required(["config", "workdir"])


def main(arguments: list[str]) -> None:
    """Run the job that the flags describe."""

    def run() -> None:
        if len(arguments) > 1:
            raise BadInput(f"found arguments {arguments[1:]}, accepted are flags alone (--config=, --workdir=)")
        settings = make_settings(_CONFIG.value)
        # Imported here: jax takes seconds, and `--help` and a wrong flag should not.
        from stepcot_jax.jobs import Run

        logging.set_verbosity(logging.WARNING)  # Orbax and Grain tell of every file they touch
        Run(settings, pathlib.Path(_WORKDIR.value)).execute()

    run_tool(run)


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
