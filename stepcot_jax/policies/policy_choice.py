"""The policy and the tokenizer of a run: the small decoder, or a Qwen2.5-VL (`policy.weights`).

Parameters of a Qwen2.5-VL are two parts of the training state, what trains and what is frozen; `policy_params` joins
them for `apply`, `split_parts` divides what `init` returned.
"""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from stepcot_jax.models.prefix_vlm import PrefixVlm
from stepcot_jax.policies.policy_files import VOCABULARY_FILE, AnyTokenizer, load_pretrained
from stepcot_jax.policies.policy_network import Params, make_policy
from stepcot_jax.policies.qwen_inputs import ChatTokenizer
from stepcot_jax.policies.qwen_policy import FROZEN, TRAINED, QwenPolicy
from stepcot_jax.policies.qwen_setup import QwenSource, find_qwen
from stepcot_jax.policies.tokenizers import Vocabulary
from stepcot_jax.settings.run_settings import Settings

AnyPolicy = PrefixVlm | QwenPolicy


def read_source(workdir: pathlib.Path, settings: Settings) -> QwenSource | None:
    """Return the Qwen2.5-VL that a run started from; None of a run with the small decoder."""
    return find_qwen(settings, workdir=workdir) if settings.policy.weights else None


def read_tokenizer(workdir: pathlib.Path, settings: Settings) -> AnyTokenizer:
    """Return the tokenizer of a run."""
    if source := read_source(workdir, settings):
        return source.read_tokenizer(None if source.folder else Vocabulary.read(workdir / VOCABULARY_FILE))
    if settings.policy.tokenizer:
        return load_pretrained(settings.policy.tokenizer)
    return Vocabulary.read(workdir / VOCABULARY_FILE)


def choose_policy(
    settings: Settings, tokenizer: AnyTokenizer, source: QwenSource | None, *, mesh: Mesh | None = None
) -> AnyPolicy:
    """Return the policy of a run."""
    if source is not None and isinstance(tokenizer, ChatTokenizer):
        return source.make_policy(settings, tokenizer, mesh=mesh)
    return make_policy(settings, num_words=tokenizer.num_words)


def policy_params(params: Params, part: str) -> Params:
    """Return what a policy's `apply` takes as "params"."""
    return {TRAINED: params[part], FROZEN: params[FROZEN]} if FROZEN in params else params[part]


def split_parts(params: Params, part: str) -> Params:
    """Return the parts of a training state; undoes `policy_params`."""
    return {part: params[TRAINED], FROZEN: params[FROZEN]} if set(params) == {TRAINED, FROZEN} else {part: params}


def copy_frozen(policy: AnyPolicy, params: Params) -> Params:
    """Return a copy of what trains, for the frozen start of GRPO; that of a Qwen2.5-VL in its compute dtype.

    Its matrices are rounded to that dtype wherever they are used, so that no score changes. Norms stay float32.
    """

    def copy(leaf: Any) -> Any:
        kept = jnp.copy(leaf)
        return kept.astype(policy.dtype) if isinstance(policy, QwenPolicy) and leaf.ndim > 1 else kept

    found: Params = jax.tree.map(copy, params)
    return found
