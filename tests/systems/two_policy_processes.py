"""One of two test processes: rollouts and an update of GRPO on its prompts.

python two_policy_processes.py PORT PROCESS TRANSFORM OUT
"""

import pathlib
import sys

here = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(here), str(here.parent)]
CHOICES = {"group": {}, "batch": {"scale": "batch", "shuffle_rewards": True}}
"""Advantages within each group; and of the whole batch, with rewards that are shuffled among all prompts."""


def main(port, process, transform, out):
    from stepcot_jax.training.processes import join_processes

    join_processes(coordinator=f"localhost:{port}", num_processes=2, process_id=int(process))
    import jax
    import numpy as np
    from systems import policy_step

    assert (jax.process_count(), jax.device_count()) == (2, 4)
    found = {}
    for choice, changes in CHOICES.items():
        batch, numbers = policy_step.sample(transform, 4, **changes)
        names = ("completions", "counted", "old_log_probs", "advantages")
        found |= {f"{choice}/{name}": np.asarray(batch[name]) for name in names}
        found[f"{choice}/reward"] = np.float64(numbers["rollouts/reward/total"])
    gradients, numbers = policy_step.run("grpo", transform, 4)
    found |= {f"gradient/{place}": leaf for place, leaf in enumerate(jax.tree.leaves(gradients))}
    found |= check_half(int(process))
    np.savez(f"{out}.{process}.npz", loss=numbers["loss"], **found)


def check_half(process):
    """Checks and second attempts of this process's prompts in chunks; the first process needs one chunk, or none."""
    import jax
    import numpy as np
    from systems import test_self_check as checks

    changes = {"num_devices": 4, "self_check__context": "first", "self_check__chunk": 16}
    half = slice(checks.PROMPTS // 2 * process, checks.PROMPTS // 2 * (process + 1))
    rollouts = checks.make_rollouts(**changes)
    state, prompts = rollouts.devices.replicate(checks.state()), jax.tree.map(lambda rows: rows[half], checks.prompts())
    replies = rollouts.sample_groups(state, prompts)
    found = checks.make_check(**changes).try_again(state, prompts, replies, checks.UNEVEN[half])
    return {f"checks/{name}": np.asarray(getattr(found, name)) for name in ("tokens", "kinds")}


if __name__ == "__main__":
    main(*sys.argv[1:])
