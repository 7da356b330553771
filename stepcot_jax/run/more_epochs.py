"""More epochs for a run that has started: which of its epochs settings may be raised, and with what effect.

The phases of a run follow each other, so only the last can become longer.
"""

import dataclasses
import operator
import pathlib
import shutil
from collections.abc import Iterator

from stepcot_jax.host.errors import BadInput
from stepcot_jax.run.settings import Settings
from stepcot_jax.run.stored_reading import CALIBRATION_FILE, GATE_FILE, PAIRS_FILE, STATISTICS_FILE

_RESULTS = (
    CALIBRATION_FILE, GATE_FILE, PAIRS_FILE, STATISTICS_FILE, "report.json", "predictions", "replies",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Raised:
    """An epochs setting that was raised.

    Attributes:
      key: full name of the setting.
      before: epochs that the run started with.
      schedules: settings whose schedules depend on the number of epochs; empty if the run will equal one that had
        `after` from the start.
    """

    key: str
    before: int
    after: int
    schedules: tuple[str, ...]

    def describe(self) -> str:
        """Return the effect on the run, as a line of text."""
        line = f"{self.key} was raised from {self.before} to {self.after}: the run goes on from its latest checkpoint"
        if not self.schedules:
            return line
        return (
            f"{line}; {' and '.join(self.schedules)} follows {self.after} epochs from now on, so the result differs "
            f"from that of a run that had {self.after} epochs from the start"
        )


def find_raised(before: Settings, after: Settings) -> list[Raised]:
    """Return the epochs settings of a job that were raised."""
    keys, raised = before.trains.epochs, []
    for index, key in enumerate(keys):
        old, new = _value(before, key), _value(after, key)
        later = [other for other in keys[index + 1 :] if _value(before, other)]
        if new < old:
            raise BadInput(
                f"config.{key}: lowered from {old} to {new}; expected {old} or more in this workdir (a new workdir "
                "starts over)"
            )
        if new > old and later:
            raise BadInput(
                f"config.{key}: raised from {old} to {new}, but another phase follows; expected {old} in this workdir, "
                f"where only config.{later[-1]} may be raised"
            )
        if new > old:
            raised.append(Raised(f"config.{key}", old, new, tuple(_schedules(before, key))))
    return raised


def describe_longer(settings: Settings) -> str:
    """Return how to train longer after the run has ended, as a line of text."""
    keys = settings.trains.epochs
    if not keys:
        return "longer: the same call of sc.fit with more epochs goes on"
    key = next(key for key in reversed(keys) if _value(settings, key) or key == keys[0])
    return f"longer: the same command with --config.{key}=N goes on, N above {_value(settings, key)}"


def epochs_keys(settings: Settings) -> frozenset[str]:
    """Return the full names of the settings that `find_raised` compares."""
    return frozenset(f"config.{key}" for key in settings.trains.epochs)


def _value(settings: Settings, key: str) -> int:
    value: int = operator.attrgetter(key)(settings)
    return value


def _schedules(settings: Settings, key: str) -> Iterator[str]:
    """Yield the settings, with their values, whose schedules span the epochs of `key`."""
    training, section = settings.training, key.partition(".")[0]
    if section in ("baseline", "sft", "grpo"):
        schedule = getattr(settings, section).schedule
        if schedule == "cosine":
            yield f"config.{section}.schedule={schedule!r}"
    if key == "sft.epochs":
        if settings.sft.warmup_epochs > settings.sft.epochs:
            yield f"config.sft.warmup_epochs={settings.sft.warmup_epochs}"
        if settings.curriculum.schedule == "epochs":
            yield "config.curriculum.schedule='epochs'"
    if section == "training" and training.given_answers == "annealed":
        yield "config.training.given_answers='annealed'"


def remove_results(workdir: pathlib.Path) -> None:
    """Remove the results of a run before more epochs change its weights; the new end writes them again."""
    for name in _RESULTS:
        if (workdir / name).is_dir():
            shutil.rmtree(workdir / name)
        else:
            (workdir / name).unlink(missing_ok=True)
