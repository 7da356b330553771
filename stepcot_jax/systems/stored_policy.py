"""The policy of a run from its workdir: settings, tokenizer, and the best weights of a phase."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp

from stepcot_jax.host.errors import BadInput
from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.policies.policy_files import AnyTokenizer, PolicyLengths, read_lengths, read_tokenizer
from stepcot_jax.policies.policy_network import make_policy
from stepcot_jax.settings.run_settings import POLICY_JOBS, Settings, read_settings
from stepcot_jax.training.state import Params, shapes_by_name
from stepcot_jax.training.stored_params import read_best, restore_params

_PHASES = ("grpo", "sft")
"""Phases of a run, the last first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredPolicy:
    """The trained policy of a run.

    Attributes:
      workdir: of the run.
      settings: of the run.
      network: the module.
      params: its parameters, float32.
      tokenizer: of prompts and replies.
      lengths: of prompts and replies.
      phase: that ended with these weights, "sft" or "grpo".
      step: update of these weights.
    """

    workdir: pathlib.Path
    settings: Settings
    network: PrefixVlm
    params: Params
    tokenizer: AnyTokenizer
    lengths: PolicyLengths
    phase: str
    step: int


def read_run_settings(workdir: pathlib.Path) -> Settings:
    """Return the settings of a run.

    Raises:
      BadInput: there is no such folder, or it is not the workdir of a run.
    """
    if not workdir.is_dir():
        raise BadInput(f"{workdir} is not the workdir of a run (no such folder)")
    return read_settings(workdir / "settings.json")


def read_policy(workdir: pathlib.Path, *, phase: str | None = None) -> StoredPolicy:
    """Read the policy of a run.

    Args:
      workdir: what `stepcot_jax.main` wrote for the job "sft" or "grpo".
      phase: whose best weights, "sft" or "grpo"; None for the last phase that was validated.

    Raises:
      BadInput: a file of the workdir is missing, damaged or does not fit the others, or the run trains no policy.
    """
    settings = read_run_settings(workdir)
    if settings.job not in POLICY_JOBS:
        raise BadInput(
            f"{workdir}: config.job={settings.job!r} trains no policy that answers questions; expected a run of the "
            f"job {' or '.join(map(repr, POLICY_JOBS))} (python -m stepcot_jax.predict reads radiographs with this one)"
        )
    lengths = read_lengths(workdir)
    tokenizer = read_tokenizer(workdir, name=settings.policy.tokenizer)
    if tokenizer.num_words != lengths.num_words:
        raise BadInput(
            f"{workdir}: the tokenizer has {tokenizer.num_words} words, policy.json {lengths.num_words}; the files "
            "must be of one run"
        )
    network = make_policy(settings, num_words=lengths.num_words)
    phase, step = _find_step(workdir / "checkpoints", phase)
    params = restore_params(workdir / "checkpoints", step, parts=("policy",))["policy"]
    _check_shapes(workdir, params, network, settings)
    return StoredPolicy(
        workdir=workdir,
        settings=settings,
        network=network,
        params=jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params),
        tokenizer=tokenizer,
        lengths=lengths,
        phase=phase,
        step=step,
    )


def _find_step(folder: pathlib.Path, phase: str | None) -> tuple[str, int]:
    """Return the phase and the update of its best weights; the latest update if nothing was validated."""
    latest, best = read_best(folder)
    if phase is None:
        phase = next((name for name in _PHASES if name in best), _PHASES[-1])
        return phase, best[phase].step if phase in best else latest
    if phase not in best:
        raise BadInput(f"{folder}: no best weights of the phase {phase!r}; found {', '.join(sorted(best)) or 'none'}")
    return phase, best[phase].step


def _check_shapes(workdir: pathlib.Path, params: Params, network: PrefixVlm, settings: Settings) -> None:
    """Refuse weights whose names or shapes do not fit the settings."""
    side = settings.image_encoder.image_size
    images, tokens = jnp.zeros((1, side, side, 3)), jnp.zeros((1, 1), jnp.int32)
    expected = shapes_by_name(
        jax.eval_shape(lambda: network.init(jax.random.key(0), images, tokens, tokens[0] + 1, tokens))["params"]
    )
    found = shapes_by_name(params)
    other = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if other:
        name = other[0]
        raise BadInput(
            f"{workdir}, weights of the policy, {name}: {found.get(name, 'missing')} does not fit settings.json, which "
            f"needs {expected.get(name, 'no such tensor')}; {len(other)} tensors differ"
        )
