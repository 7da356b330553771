"""The policy of a run from its workdir: settings, tokenizer, and the best weights of a phase."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, UInt8

from stepcot_jax.data.images.preprocessing import Preprocessing
from stepcot_jax.features.patch_input import PatchInput
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import is_export
from stepcot_jax.policies.policy import AnyPolicy, policy_params, split_parts
from stepcot_jax.policies.policy_files import LENGTHS_FILE, AnyTokenizer, PolicyLengths, read_lengths
from stepcot_jax.run.policy_networks import (
    choose_policy,
    find_qwen,
    load_patches,
    make_normalise,
    read_tokenizer,
)
from stepcot_jax.run.settings import Settings, read_run_settings
from stepcot_jax.run.stored import StoredRun
from stepcot_jax.run.stored_reading import check_sealed
from stepcot_jax.training.checkpoints import MOST_BYTES, read_best, restore_params
from stepcot_jax.training.state import Params, refuse_misfit

if TYPE_CHECKING:
    from stepcot_jax.run.qwen_source import QwenSource

_PHASES = ("dpo", "grpo", "sft")
"""Phases of a run, the last first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StoredPolicy:
    """The trained policy of a run."""

    workdir: pathlib.Path
    run: StoredRun
    network: Any  # an `AnyPolicy`; that of a Qwen2.5-VL has more, such as `merge`
    params: Params  # as `network.apply` takes them: float32, matrices of a Qwen2.5-VL in its compute dtype
    source: "QwenSource | None"  # of the Qwen2.5-VL that the run started from
    patches: PatchInput | None  # of the frozen encoder that the network reads; None if it reads pictures
    tokenizer: AnyTokenizer
    lengths: PolicyLengths
    phase: str  # of these weights, "sft", "grpo" or "dpo"
    step: int

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of pictures; boxes of replies refer to the stretched picture."""
        preprocessing = self.run.preprocessing if self.patches is None else self.patches.encoder.preprocessing
        return dataclasses.replace(preprocessing, fit="stretch")

    def see(self, pictures: UInt8[np.ndarray, "case size size 3"]) -> Array:
        """Return pictures, stretched to the policy's size, as the network's input on the default device."""
        given = pictures if self.patches is None else self.patches(pictures)
        return make_normalise(self.run.settings)(jnp.asarray(given))


def read_policy(
    workdir: pathlib.Path,
    *,
    phase: str | None = None,
    for_training: bool = False,
    patches: PatchInput | None = None,
) -> StoredPolicy:
    """Return the policy of a run, with the best weights of a phase, by default the last one's.

    `for_training` keeps the parameters as saved, as NumPy arrays, and takes the `patches` of the new run.
    """
    settings = read_run_settings(workdir)
    if not settings.trains_policy:
        raise BadInput(
            f"{workdir}: {settings.named_job} trains no policy that answers questions; expected a run of the "
            f"job 'sft', 'grpo' or 'dpo' (stepcot predict reads radiographs with this one)"
        )
    if is_export(workdir):  # its settings would name files of this machine
        raise BadInput(f"{workdir}: an export; a policy is read from the workdir of its run")
    check_sealed(workdir)
    lengths = read_lengths(workdir)
    tokenizer = read_tokenizer(workdir, settings)
    if tokenizer.num_words != lengths.num_words:
        raise BadInput(
            f"{workdir}: the tokenizer has {tokenizer.num_words} words, policy.json {lengths.num_words}; the files "
            "must be of one run"
        )
    source = find_qwen(settings, workdir=workdir)
    network = choose_policy(settings, tokenizer, source)
    if not for_training:
        patches = _load_patches(workdir, settings)
    check_encoder(workdir, lengths, patches)
    expected = _expected_shapes(network, settings, patches)
    phase, step = _find_step(workdir / "checkpoints", phase)
    params = _read_saved(workdir / "checkpoints", step, expected)
    refuse_misfit(f"{workdir}, weights of the policy", params, expected, source="settings.json")
    return StoredPolicy(
        workdir=workdir,
        run=StoredRun(settings),
        network=network,
        params=params if for_training else _put_for_replies(network, params),
        source=source,
        patches=patches,
        tokenizer=tokenizer,
        lengths=lengths,
        phase=phase,
        step=step,
    )


def _load_patches(workdir: pathlib.Path, settings: Settings) -> PatchInput | None:
    """Return the patches of the run's frozen encoder, if it has one."""
    if not settings.image_encoder.is_frozen:
        return None
    try:
        return load_patches(settings)
    except BadInput as error:
        raise BadInput(f"{workdir / 'settings.json'}: {error}") from None


def check_encoder(workdir: pathlib.Path, lengths: PolicyLengths, patches: PatchInput | None) -> None:
    """Refuse a frozen encoder other than the one that a policy was trained on."""
    digest = "" if patches is None else patches.digest
    if digest != lengths.image_encoder:
        expected = f"digest {lengths.image_encoder[:12]}" if lengths.image_encoder else "none"
        named = f"{patches.encoder.name}, digest {digest[:12]}" if patches else "none"
        raise BadInput(
            f"{workdir / LENGTHS_FILE}: the frozen encoder that the policy reads is another ({expected}) than that of "
            f"config.image_encoder ({named}); weights, preprocessing, dtype and features.patches must be the same"
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


def _read_saved(folder: pathlib.Path, step: int, expected: Any) -> Params:
    """Return the parameters of a checkpoint; a large network may take as many bytes as `expected`."""
    most = max(MOST_BYTES, sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(expected)))
    params = restore_params(folder, step, parts=tuple(split_parts(expected, "policy")), most_bytes=most)
    return policy_params(params, "policy")


def _put_for_replies(network: AnyPolicy, params: Params) -> Params:
    """Return float32 arrays on the default device; matrices of a Qwen2.5-VL in its compute dtype."""

    def put(leaf: Any) -> Any:
        is_rounded = network.is_large and leaf.ndim > 1
        return jnp.asarray(leaf, network.dtype if is_rounded else jnp.float32)

    return jax.tree.map(put, params)


def _expected_shapes(network: AnyPolicy, settings: Settings, patches: PatchInput | None) -> Any:
    side = settings.image_encoder.image_size
    images = jnp.zeros((1, side, side, 3) if patches is None else (1, *patches.shape))
    tokens = jnp.zeros((1, 1), jnp.int32)
    return jax.eval_shape(lambda: network.init(jax.random.key(0), images, tokens, tokens[0] + 1, tokens))["params"]
