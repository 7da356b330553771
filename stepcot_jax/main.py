"""Train, distil and evaluate.

python -m stepcot_jax.main --config=NAME --workdir=DIR|gs://BUCKET/FOLDER [--config.a.b=value ...]

NAME is a shipped config such as quickstart, or the path of a config file. One process uses all devices of its machine;
docs/launch.md tells how to start several processes.
"""

from absl import app

from stepcot_jax.tools.options import define_flags, parse
from stepcot_jax.tools.train import main

if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=parse)
