"""The plain network: the quickstart's image encoder and one linear head a step, the rival of teacher and student.

python -m stepcot_jax.main --config=plain --workdir=runs/plain
python -m stepcot_jax.main --config=plain:phantom --workdir=runs/plain_phantom

No teacher, memory, prompts, distillation or given answers. Drawings, batch, clip, decay, rate, schedule, epochs and the
choice by validation are those of the config it is compared with: the quickstart's, or another after the colon.

Hardware and time: 2 CPU cores, less than the quickstart. Expected score: docs/does_it_help.md.
"""

from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.configs import load_config
from stepcot_jax.run.plain_network import name_rival


def get_config(rival_of="quickstart"):
    config = load_config(rival_of)
    if config.job not in ("teacher", "distill"):
        raise BadInput(
            f"--config=plain:{rival_of}: its job is {config.job!r}; expected a config of teacher and student"
        )
    config.update_from_flattened_dict(name_rival(config))
    return config
