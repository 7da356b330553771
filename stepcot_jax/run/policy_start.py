"""The policy that a run of the job "sft" or "grpo" starts from (`policy.start`)."""

import contextlib
import pathlib
from collections.abc import Iterator

from stepcot_jax.host.errors import BadInput
from stepcot_jax.settings.run_settings import Settings, changed_keys
from stepcot_jax.systems.stored_policy import StoredPolicy, read_policy

_SAME = (
    "config.policy.",
    "config.image_encoder.image_size",
    "config.image_encoder.mean",
    "config.image_encoder.std",
)
_MAY_DIFFER = ("config.policy.start", "config.policy.num_merges", "config.policy.longest_reply")
_SPLITS = (
    "config.data.split_fractions",
    "config.data.split_seed",
    "config.phantom.num_cases",
    "config.phantom.prevalence",
)


def read_policy_start(settings: Settings) -> StoredPolicy:
    """Read the policy of a finished run, with the best weights of its last phase.

    Its vocabulary becomes that of the new run. The data may be others; of the same phantoms or folder the splits must
    be the same, so that no test case was a training case of the start.

    Args:
      settings: of the run that starts.

    Raises:
      BadInput: `policy.start` is not the workdir of a run with a policy, or its network, pictures or splits differ.
    """
    workdir = pathlib.Path(settings.policy.start)
    try:
        stored = read_policy(workdir)
    except BadInput as error:
        raise BadInput(f"config.policy.start: {error}") from None
    changed = changed_keys(stored.settings, settings)
    other = [key for key in changed if key.startswith(_SAME) and key not in _MAY_DIFFER]
    if other:
        raise BadInput(
            f"config.policy.start: {workdir} has other values of {', '.join(other)}; expected a run with the same "
            "network and size of pictures"
        )
    splits = [key for key in changed if key.startswith(_SPLITS)] if _have_same_cases(stored.settings, settings) else []
    if splits:
        raise BadInput(
            f"config.policy.start: {workdir} was trained on the same cases with other values of {', '.join(splits)}; "
            "expected the same splits, or test cases may have been training cases"
        )
    return stored


def _have_same_cases(one: Settings, other: Settings) -> bool:
    if one.vqa.source != other.vqa.source:
        return False
    if one.vqa.source == "phantom":
        return one.phantom.seed == other.phantom.seed
    return pathlib.Path(one.vqa.root).resolve() == pathlib.Path(other.vqa.root).resolve()


@contextlib.contextmanager
def naming_start(settings: Settings) -> Iterator[None]:
    """Name `policy.start` in a `BadInput` about a word that its vocabulary does not have."""
    try:
        yield
    except BadInput as error:
        if not settings.policy.start:
            raise
        raise BadInput(f"config.policy.start: {settings.policy.start} cannot write these records: {error}") from None
