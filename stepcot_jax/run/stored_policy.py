"""The policy of a run from its workdir: settings, tokenizer, and the best weights of a phase."""

import dataclasses
import pathlib
from typing import TYPE_CHECKING, Any, Literal

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, UInt8

from stepcot_jax.features.carried_encoder import CarriedEncoder, make_carried_encoder
from stepcot_jax.features.patch_input import PatchInput
from stepcot_jax.host.errors import BadInput
from stepcot_jax.host.exported_files import MANIFEST_FILE, is_export, read_weights, require_read
from stepcot_jax.host.files import read_json
from stepcot_jax.policies.policy import AnyPolicy, policy_params, split_parts
from stepcot_jax.policies.policy_files import LENGTHS_FILE, AnyTokenizer, PolicyLengths, load_pretrained, read_lengths
from stepcot_jax.run.policy_networks import (
    choose_policy,
    find_qwen,
    load_patches,
    make_normalise,
    patches_of,
    read_tokenizer,
)
from stepcot_jax.run.settings import Settings, read_run_settings
from stepcot_jax.run.stored import StoredRun
from stepcot_jax.run.stored_reading import check_sealed
from stepcot_jax.training.checkpoints import MOST_BYTES, read_best, restore_params
from stepcot_jax.training.state import Params, require_counts, shapes_by_name, unflatten

if TYPE_CHECKING:
    from stepcot_jax.run.qwen_source import QwenSource

POLICY_FILE = "policy.safetensors"
"""Parameters of an exported policy."""

FROZEN_ENCODER = "frozen_encoder"
"""First part of the names of a frozen encoder's tensors in that file."""

_MOST_MANIFEST_BYTES = 2**22
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
    """Return the policy of a run or of an export, with the best weights of a phase, by default the last one's.

    `for_training` keeps the parameters as saved, as NumPy arrays, and takes the `patches` of the new run.
    """
    settings = read_run_settings(workdir)
    if not settings.trains_policy:
        raise BadInput(
            f"{workdir}: {settings.named_job} trains no policy that answers questions; expected a run of the "
            f"job 'sft', 'grpo' or 'dpo' (stepcot predict reads radiographs with this one)"
        )
    exported = is_export(workdir)
    if exported:
        if settings.policy.weights:
            raise BadInput(f"{workdir / 'settings.json'}: an export names no config.policy.weights of another folder")
        require_read(workdir)
    check_sealed(workdir)
    lengths = read_lengths(workdir)
    tokenizer = _read_tokenizer(workdir, settings, lengths, is_exported=exported)
    source = find_qwen(settings, workdir=workdir)
    network = choose_policy(settings, tokenizer, source)
    carried = _read_exported(workdir, phase) if exported else None
    if carried is not None:
        layers = (settings.policy.num_layers, r"(?:.*/)?decoder/layer_(\d+)/")
        stages = (len(settings.policy.encoder_widths), r"image_encoder/stage_(\d+)_")
        stated = {"num_layers": layers} | ({} if settings.image_encoder.is_frozen else {"encoder_widths": stages})
        require_counts(carried.params, {f"{workdir}/settings.json, {name}": count for name, count in stated.items()})
    if not for_training:
        patches = _load_patches(workdir, settings, carried)
    check_encoder(workdir, lengths, patches)
    expected = _expected_shapes(network, settings, patches)
    if carried is not None:
        phase, step, params = carried.manifest.phase, carried.manifest.step, carried.params
    else:
        phase, step = _find_step(workdir / "checkpoints", phase)
        params = _read_saved(workdir / "checkpoints", step, expected)
    _check_shapes(workdir, params, expected)
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


def _read_tokenizer(
    workdir: pathlib.Path, settings: Settings, lengths: PolicyLengths, *, is_exported: bool
) -> AnyTokenizer:
    is_named = is_exported and settings.policy.tokenizer
    tokenizer = load_pretrained(str(workdir)) if is_named else read_tokenizer(workdir, settings)
    if tokenizer.num_words != lengths.num_words:
        raise BadInput(
            f"{workdir}: the tokenizer has {tokenizer.num_words} words, policy.json {lengths.num_words}; the files "
            "must be of one run"
        )
    return tokenizer


def _load_patches(workdir: pathlib.Path, settings: Settings, carried: "_Carried | None") -> PatchInput | None:
    """Return the patches of the run's frozen encoder, if it has one: the export's own, or those of the settings."""
    if not settings.image_encoder.is_frozen:
        return None
    try:
        if carried is None:
            return load_patches(settings)
        if carried.manifest.encoder is None:
            raise BadInput("no encoder; the policy of this export reads a frozen one")
        encoder = make_carried_encoder(workdir / MANIFEST_FILE, carried.manifest.encoder, carried.frozen)
        return patches_of(settings, encoder)
    except BadInput as error:
        raise BadInput(f"{workdir / (MANIFEST_FILE if carried else 'settings.json')}: {error}") from None


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


class _Manifest(msgspec.Struct):
    format: Literal[1]
    kind: Literal["policy"]
    phase: Literal["sft", "grpo", "dpo"]
    step: int
    encoder: CarriedEncoder | None = None


@dataclasses.dataclass(frozen=True)
class _Carried:
    """Manifest and parameters of an exported policy, and parameters of its frozen encoder or None."""

    manifest: _Manifest
    params: Params
    frozen: Params | None


def _read_exported(folder: pathlib.Path, phase: str | None) -> _Carried:
    path = folder / MANIFEST_FILE
    manifest = read_json(path, _Manifest, accepted="expected the export of a policy", max_bytes=_MOST_MANIFEST_BYTES)
    if phase not in (None, manifest.phase):
        raise BadInput(f"{folder}: no weights of the phase {phase!r}; the export has those of {manifest.phase!r}")
    params = unflatten(read_weights(folder, [POLICY_FILE]))
    frozen = None if manifest.encoder is None else params.pop(FROZEN_ENCODER, None)
    return _Carried(manifest, params, frozen)


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


def _check_shapes(workdir: pathlib.Path, params: Params, shapes: Any) -> None:
    expected, saved = shapes_by_name(shapes), shapes_by_name(params)
    other = sorted(name for name in expected.keys() | saved.keys() if expected.get(name) != saved.get(name))
    if other:
        name = other[0]
        raise BadInput(
            f"{workdir}, weights of the policy, {name}: {saved.get(name, 'missing')} does not fit settings.json, which "
            f"needs {expected.get(name, 'no such tensor')}; {len(other)} tensors differ"
        )
