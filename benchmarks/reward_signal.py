"""Signal in the gradients of GRPO: `python -m benchmarks.reward_signal WORKDIR`.

WORKDIR is of a finished fine-tuning. Its policy replies to batches of prompts as GRPO would, and does not learn. Of
each batch every reward alone, and their weighted sum, gives a gradient. The mean cosine between the gradients of two
batches says how many updates add up to a direction: about as many as its inverse. Printed too: the randomness of a
reply in nats, minus the log-probability of its tokens, and its part in coordinates, which an answer does not need.
"""

import argparse
import itertools
import json
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stepcot_jax.host.errors import BadInput, run_tool
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.losses.policy_gradient import advantages
from stepcot_jax.run.policy_task import PolicyTask
from stepcot_jax.run.settings import load_settings
from stepcot_jax.systems import grpo
from stepcot_jax.training.devices import ONE_DEVICE, Devices

REWARDS = ("answer", "grounding", "total")


def mean_cosine(vectors: Sequence[np.ndarray]) -> float:
    """Return the mean cosine over all pairs; a vector of zeros has the cosine 0 with any other.

    >>> round(mean_cosine([np.array([1.0, 0.0]), np.array([2.0, 0.0]), np.array([0.0, 3.0])]), 3)
    0.333
    """
    lengths = [float(np.linalg.norm(each)) for each in vectors]
    scaled = [each / max(length, 1e-30) for each, length in zip(vectors, lengths, strict=True)]
    return float(np.mean([one @ other for one, other in itertools.combinations(scaled, 2)]))


def make_task(config: Any, workdir: str, scratch: pathlib.Path, overrides: Mapping[str, Any]) -> PolicyTask:
    """Return the task of a run of GRPO that starts from the policy of a workdir, on one device.

    Raises:
      BadInput: the workdir cannot be read, or a setting has another gradient than the plain one.
    """
    start = {"job": "grpo", "policy.start": workdir, "sft.epochs": 0, "parallel.num_devices": 1}
    settings = load_settings(config, **{**start, **overrides})
    if settings.self_check.enabled or settings.grpo.shuffle_rewards or settings.grpo.mask_truncated:
        raise BadInput("config: self_check.enabled, grpo.shuffle_rewards and grpo.mask_truncated must be False here")
    return PolicyTask(settings, workdir=scratch, devices=Devices(num_devices=1), terminal=Terminal())


def measure(task: PolicyTask, num_batches: int) -> dict[str, Any]:
    """Return the cosines by reward, and the randomness of a reply."""
    settings, system, rollouts = task.settings.grpo, task.system, task.system.rollouts
    state = task.begin(jax.jit(lambda: system.init(jax.random.key(task.settings.seed), task.example))())
    words = [task.tokenizer.decode([token]) for token in range(task.tokenizer.num_words)]
    is_number = np.array([word.strip(" ,").isdigit() for word in words])
    found: dict[str, list[np.ndarray]] = {name: [] for name in REWARDS}
    nats: list[np.ndarray] = []
    with task.stream():
        update = system.phases()[-1].update
        differentiate = jax.jit(
            lambda params, rows: update.gradients(params, update.freeze(params, rows, ONE_DEVICE), ONE_DEVICE)[1]
        )
        batches = itertools.islice(system.streams[grpo.NAME].batches, num_batches)
        for step, batch in enumerate(task.terminal.watch(list(batches), "batches")):
            replies = rollouts.sample(state.replace(step=jnp.int32(step)), batch)
            shape = (len(batch["index"]), settings.group_size)
            tokens, counted, log_probs = (
                np.asarray(part).reshape(*shape, -1) for part in (replies.tokens, replies.counted, replies.log_probs)
            )
            nats.append(-np.array([log_probs.sum(), log_probs[is_number[tokens]].sum()]) / (shape[0] * shape[1]))
            records = [rollouts.records[index] for index in batch["index"]]
            pairs = [(record, each) for record, group in zip(records, tokens, strict=True) for each in group]
            rewards = rollouts.reward_all(pairs)
            rows = {name: batch[name] for name in ("images", "prompts", "lengths")}
            rows |= {"completions": tokens, "counted": counted, "old_log_probs": log_probs}
            for name, gradients in found.items():
                totals = jnp.array(rewards[name]).reshape(shape)
                relative = advantages(
                    totals, std_ddof=settings.std_ddof, std_epsilon=settings.std_epsilon, scale=settings.scale
                )
                leaves = jax.tree.leaves(differentiate(state.params, {**rows, "advantages": relative[..., None]}))
                gradients.append(np.concatenate([np.asarray(leaf).ravel() for leaf in leaves]))
    whole, of_numbers = np.mean(nats, axis=0)
    return {
        "cosine": {name: mean_cosine(gradients) for name, gradients in found.items()},
        "nats": float(whole),
        "nats_in_coordinates": float(of_numbers),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure at each temperature and print a line of JSON each."""
    parser = argparse.ArgumentParser(prog="benchmarks.reward_signal", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("workdir", help="of a finished run of the job sft")
    parser.add_argument("--config", default="tables_vqa")
    parser.add_argument("--temperature", type=float, nargs="+", default=[1.0, 0.6])
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="a setting, without config.")
    options = parser.parse_args(arguments)
    changes = {key: json.loads(value) for key, _, value in (each.partition("=") for each in options.set)}
    for temperature in options.temperature:
        with tempfile.TemporaryDirectory() as scratch:
            overrides = {**changes, "grpo.temperature": temperature, "grpo.beta": 0.0}
            task = make_task(options.config, options.workdir, pathlib.Path(scratch), overrides)
            print(json.dumps({"temperature": temperature, **measure(task, options.batches)}), flush=True)


if __name__ == "__main__":
    run_tool(main)
