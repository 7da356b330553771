"""The settings of a run as frozen dataclasses, made from a ConfigDict; `configs/base.py` has the defaults.

Every field says what it accepts. An unknown key, a missing one, a wrong type or a value out of range is refused
with the key's full name, what was found, what is accepted and the nearest valid key.
"""

import dataclasses
import difflib
import json
import math
import pathlib
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from stepcot_jax.errors import BadInput


def _number(*, least: float | None = None, above: float | None = None, most: float | None = None) -> Any:
    """A field whose number, or each of whose numbers, has bounds."""
    return dataclasses.field(metadata={"least": least, "above": above, "most": most})


def _share() -> Any:
    return _number(least=0, most=1)


def _seed() -> Any:
    return _number(least=0, most=2**32 - 1)  # beyond, two seeds give the same random numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where cases come from and what happens to bad ones."""

    source: Literal["phantom", "folder"]
    root: str
    step_names: tuple[str, ...]
    on_bad_record: Literal["stop", "skip"]
    split_fractions: tuple[float, ...] = _number(above=0, most=1)
    split_seed: int = _seed()
    max_megapixels: float = _number(above=0)
    cache_megabytes: float = _number(least=0)
    num_threads: int = _number(least=1)

    def __post_init__(self) -> None:
        if self.source == "folder" and not self.root:
            raise BadInput("config.data.root: found nothing, accepted is a folder when config.data.source='folder'")
        if len(self.split_fractions) != 3 or abs(sum(self.split_fractions) - 1) > 1e-6:
            raise BadInput(
                f"config.data.split_fractions: found {self.split_fractions}, accepted are three shares that add up to 1"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PhantomSettings:
    """The phantom that is drawn when no folder is given."""

    num_cases: int = _number(least=30)
    image_size: int = _number(least=32, most=2048)
    prevalence: Literal["published", "flat"]
    seed: int = _seed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImageEncoderSettings:
    """The network that turns images into features, and how it wants them."""

    name: Literal["resnet_small", "resnet18"]
    image_size: int = _number(least=32, most=1024)
    fit: Literal["crop", "pad", "stretch"]
    mean: tuple[float, ...]
    std: tuple[float, ...] = _number(above=0)

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            if len(getattr(self, name)) != 3:
                raise BadInput(f"config.image_encoder.{name}: found {getattr(self, name)}, accepted are 3 numbers")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptSettings:
    """The text that the teacher reads at each step."""

    template: str
    width: int = _number(least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherSettings:
    """The graph-attention teacher."""

    width: int = _number(least=1)
    num_layers: int = _number(least=1)
    num_heads: int = _number(least=1)
    negative_slope: float = _number(least=0)
    attention_dropout: float = _share()
    context_dropout: float = _share()
    head_dropout: float = _share()
    memory: bool
    text: bool

    def __post_init__(self) -> None:
        if self.width % self.num_heads:
            raise BadInput(
                f"config.teacher.num_heads: found {self.num_heads}, accepted are divisors of "
                f"config.teacher.width ({self.width})"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentSettings:
    """The chain student."""

    width: int = _number(least=1)
    dropout: float = _share()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossSettings:
    """What is minimised."""

    temperature: float = _number(above=0)
    soft_label_scale: float = _number(least=0)
    channel_alignment_scale: float = _number(least=0)
    projection_width: int = _number(least=1)
    normaliser: Literal["cka", "trace"]
    alignment_gradient: Literal["features", "projection"]
    train_teacher_projection: bool
    target_dropout: bool
    class_weights: Literal["none", "inverse_frequency"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How it is minimised."""

    batch_size: int = _number(least=1)
    teacher_epochs: int = _number(least=0)
    joint_epochs: int = _number(least=0)
    teacher_learning_rate: float = _number(above=0)
    student_learning_rate: float = _number(above=0)
    weight_decay: float = _number(least=0)
    adam_epsilon: float = _number(above=0)
    clip_norm: float = _number(above=0)
    plateau_patience: int = _number(least=1)
    plateau_factor: float = _number(above=0, most=1)
    plateau_stop: int = _number(least=1)
    log_every: int = _number(least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """How it is measured, and which weights are kept."""

    batch_size: int = _number(least=1)
    best: Literal["each", "mean"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that decides a run."""

    job: Literal["teacher", "distill"]
    seed: int = _seed()
    resume: bool
    data: DataSettings
    phantom: PhantomSettings
    image_encoder: ImageEncoderSettings
    prompts: PromptSettings
    teacher: TeacherSettings
    student: StudentSettings
    loss: LossSettings
    training: TrainingSettings
    evaluation: EvaluationSettings


def make_settings(config: Mapping[str, Any]) -> Settings:
    """Settings from a ConfigDict or any nested mapping.

    Raises:
      BadInput: a key is unknown or missing, or a value has the wrong type or is out of range.
    """
    return _make(Settings, config, "config")


def describe_key(key: str) -> str:
    """What a key accepts, in words.

    Args:
      key: its full name, such as "config.training.batch_size".

    Raises:
      BadInput: there is no such key; the nearest is named.
    """
    hint: Any = Settings
    metadata: Mapping[str, Any] = {}
    where = "config"
    for name in key.split(".")[1:]:
        fields = {field.name: field for field in dataclasses.fields(hint)} if dataclasses.is_dataclass(hint) else {}
        if name not in fields:
            raise _unknown(name, fields, where)
        hint, metadata, where = typing.get_type_hints(hint)[name], fields[name].metadata, f"{where}.{name}"
    return _describe(hint, metadata)


def _unknown(name: Any, accepted: Iterable[str], where: str) -> BadInput:
    """The refusal of a key that is not among those accepted below `where`."""
    accepted = list(accepted)
    if not accepted:
        return BadInput(f"{where}.{name}: found an unknown key, accepted is {where} alone; nearest: {where}")
    elsewhere = [key for key in _all_keys(Settings, "config") if key.rpartition(".")[2] == name]
    near = difflib.get_close_matches(str(name), accepted, n=1, cutoff=0.6)
    if near or not elsewhere:
        near = near or difflib.get_close_matches(str(name), accepted, n=1, cutoff=0.0)
        elsewhere = [f"{where}.{near[0]}"]
    return BadInput(
        f"{where}.{name}: found an unknown key, accepted are {', '.join(accepted)}; nearest: {elsewhere[0]}"
    )


def _all_keys(cls: Any, where: str) -> Iterator[str]:
    for name, hint in typing.get_type_hints(cls).items():
        yield f"{where}.{name}"
        if dataclasses.is_dataclass(hint):
            yield from _all_keys(hint, f"{where}.{name}")


def _make(cls: type, found: Any, where: str) -> Any:
    if not isinstance(found, Mapping) and not hasattr(found, "items"):
        raise BadInput(f"{where}: found {found!r}, accepted is a group of keys")
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in found:
        if name not in fields:
            raise _unknown(name, fields, where)
    hints = typing.get_type_hints(cls)
    values = {}
    for name, field in fields.items():
        if name not in found:
            raise BadInput(f"{where}.{name}: found nothing, accepted is {_describe(hints[name], field.metadata)}")
        if dataclasses.is_dataclass(hints[name]):
            values[name] = _make(hints[name], found[name], f"{where}.{name}")
        else:
            values[name] = _check(found[name], hints[name], field.metadata, f"{where}.{name}")
    return cls(**values)


def _check(found: Any, hint: Any, bounds: Mapping[str, Any], where: str) -> Any:
    """`found` as the hinted type, within its bounds."""
    refused = BadInput(f"{where}: found {found!r}, accepted is {_describe(hint, bounds)}")
    if typing.get_origin(hint) is tuple:
        if isinstance(found, str | bytes) or not isinstance(found, tuple | list):
            raise refused
        item = typing.get_args(hint)[0]
        try:
            return tuple(_check(value, item, bounds, where) for value in found)
        except BadInput:
            raise refused from None
    if typing.get_origin(hint) is Literal:
        if found in typing.get_args(hint):
            return found
        raise refused
    if hint is float and isinstance(found, int) and not isinstance(found, bool):
        found = float(found)
    if type(found) is not hint or (hint is float and not math.isfinite(found)):
        raise refused
    least, above, most = (bounds.get(name) for name in ("least", "above", "most"))
    if (least is not None and not found >= least) or (above is not None and not found > above):
        raise refused
    if most is not None and not found <= most:
        raise refused
    return found


def _describe(hint: Any, bounds: Mapping[str, Any]) -> str:
    """What a field accepts, in words."""
    if typing.get_origin(hint) is Literal:
        return " or ".join(repr(value) for value in typing.get_args(hint))
    if dataclasses.is_dataclass(hint):
        return "a group of keys"
    if typing.get_origin(hint) is tuple:
        return f"a tuple, each item {_describe(typing.get_args(hint)[0], bounds)}"
    names = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}
    words = {"least": "at least", "above": "above", "most": "at most"}
    limits = [f"{words[name]} {bounds[name]}" for name in words if bounds.get(name) is not None]
    return " ".join([names[hint], " and ".join(limits)]).strip()


def write_settings(path: pathlib.Path, settings: Settings) -> None:
    """Write the resolved settings as JSON, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(dataclasses.asdict(settings), indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


MAY_CHANGE = frozenset(
    {
        "config.resume",
        "config.data.cache_megabytes",
        "config.data.num_threads",
        "config.training.joint_epochs",
        "config.training.log_every",
        "config.evaluation.batch_size",
    }
)
"""Keys that a resumed run may set anew: none of them changes what a finished epoch has computed."""


def changed_keys(before: Settings, after: Settings) -> list[str]:
    """The full names of the keys that differ, but for those that may."""

    def walk(one: Any, other: Any, where: str) -> list[str]:
        if isinstance(one, dict):
            return [name for key in one for name in walk(one[key], other[key], f"{where}.{key}")]
        return [where] if one != other and where not in MAY_CHANGE else []

    return walk(dataclasses.asdict(before), dataclasses.asdict(after), "config")


def read_settings(path: pathlib.Path) -> Settings:
    """The settings that `write_settings` wrote.

    Raises:
      BadInput: the file is missing, is not JSON, or its settings are refused.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: found no settings ({error}), accepted is what a run wrote there") from None
    return make_settings(found)
