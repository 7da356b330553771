"""The rewards as functions that other trainers call: TRL, verl and EasyR1.

Signatures of TRL 1.16 (`trl/trainer/grpo_trainer.py`), verl of January 2026 (`verl/experimental/reward_loop`) and
EasyR1 of July 2026 (`verl/workers/reward/function.py`).
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepcot_jax.box import find_space
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.dialects import read_reply, write_question
from stepcot_jax.record import Record
from stepcot_jax.rewards.functions import RewardFunction, Weighted, answer, name_functions, well_formed
from stepcot_jax.rewards.options import PRESETS, RewardSettings
from stepcot_jax.rewards.presets import apply_settings, make_functions

TRUTH = "ground_truth"
"""The column that holds a record as JSON, or its answer alone."""

_BARE = ("question", "options", "answer", "kind", "synonyms", "references", "image_size")
_COLUMNS = (*_BARE, "choices")  # as `records.jsonl` calls options
_KEPT = (*_BARE, "id", "topic", "points", "thinking", "stages", "organ", "modality")
"""Fields that rewards may read: neither patient nor report, since trainers log their columns."""


def records_to_columns(
    records: Sequence[Record], *, dialect: str = "plain", with_thinking: bool = True
) -> dict[str, list[str]]:
    """Return columns of a trainer's data set: "prompt", and "ground_truth", the record as JSON without its patient.

    Args:
      records: questions.
      dialect: form that the prompts ask for; see `write_question`. "plain" asks for no boxes.
      with_thinking: whether they ask for reasoning before the answer.

    >>> record = Record.from_fields(question="Is there a mass?", answer="Yes")
    >>> records_to_columns([record])["ground_truth"]
    ['{"question":"Is there a mass?","answer":"Yes","kind":"closed","id":"-"}']
    """
    nothing = ("", (), (0, 0), None)
    kept = [{name: v for name in _KEPT if (v := getattr(record, name)) not in nothing} for record in records]
    for fields in kept:
        if boxes := fields.get("references"):  # without the report's sentence about a box
            fields["references"] = [{"label": box.label, "corners": box.corners} for box in boxes]
    return {
        "prompt": [write_question(record, dialect, with_thinking=with_thinking) for record in records],
        TRUTH: [msgspec.json.encode(fields).decode() for fields in kept],
    }


@dataclasses.dataclass(frozen=True)
class Scorer:
    """Rewards of replies; a dataclass and no closure, since trainers pickle their functions.

    Attributes:
      rewards: name of a preset, settings, or functions as `sc.GRPO` takes them.
      dialect: how replies are read, of `sc.DIALECTS`.
      space: how their boxes are written; see `read_reply`.

    Raises:
      BadInput: an unknown preset, dialect or space; when called, a row that is no question.
    """

    rewards: str | RewardSettings | Sequence[Weighted] = "gemex"
    _: dataclasses.KW_ONLY
    dialect: str = "free"
    space: str = ""

    def __post_init__(self) -> None:
        self._name_functions()
        read_reply("", self.dialect)
        if self.space:
            find_space(self.space, (1, 1))

    def _name_functions(self) -> tuple[RewardSettings, dict[str, tuple[RewardFunction, float]]]:
        if isinstance(self.rewards, str) and self.rewards not in PRESETS:
            raise BadInput(f"rewards: {self.rewards!r} is not one of {', '.join(PRESETS)}")
        rewards = PRESETS[self.rewards] if isinstance(self.rewards, str) else self.rewards
        logged: dict[str, tuple[RewardFunction, float]] = {"answer": (answer, 0.0), "well_formed": (well_formed, 0.0)}
        if isinstance(rewards, RewardSettings):
            return rewards, logged | make_functions(rewards)
        return RewardSettings(), logged | name_functions(rewards)

    def score(self, texts: Sequence[str], records: Sequence[Record]) -> dict[str, list[float]]:
        """Return the rewards by name, "answer" and "well_formed" among them, and "total"; lists of shape [reply]."""
        replies = [
            read_reply(text, self.dialect, space=self.space if all(size) else "", image_size=size)
            for text, size in zip(texts, (record.image_size for record in records), strict=True)
        ]
        return apply_settings(*self._name_functions(), replies, records)


class for_trl(Scorer):  # noqa: N801 - called as a function, as functools.partial is
    """For `GRPOTrainer(reward_funcs=[...])`: a number for each completion, None for one that is not scored.

    The data set has the columns of `records_to_columns`, or question, options, answer and further fields of
    `Record.from_fields`. Of messages the assistant's last is read. TRL logs the mean of each reward by name.
    """

    @property
    def __name__(self) -> str:
        return self.rewards if isinstance(self.rewards, str) else "stepcot_jax"

    def __call__(self, *, completions: Sequence[Any], log_metric: Any = None, **columns: Any) -> list[float | None]:
        """Return the totals; the data set's other columns are disregarded."""
        given = {name: columns[name] for name in (TRUTH, *_COLUMNS) if columns.get(name) is not None}
        if not given.keys() & {TRUTH, "answer"}:
            raise BadInput(f"the data set has no column {TRUTH} or answer; found {', '.join(sorted(columns))}")
        rows = [{name: values[place] for name, values in given.items()} for place in range(len(completions))]
        records = [_read(row.get(TRUTH, row.get("answer")), row, f"row {place}") for place, row in enumerate(rows)]
        scores = self.score([_text_of(completion) for completion in completions], records)
        for name, values in scores.items() if log_metric else ():
            if scored := [value for value in values if not math.isnan(value)]:
                log_metric(f"{self.__name__}/{name}", math.fsum(scored) / len(scored))
        return [None if math.isnan(total) else total for total in scores["total"]]


class for_verl(Scorer):  # noqa: N801
    """As verl's `compute_score`: "score", "acc" (the answer's) and each reward by name, of one solution.

    The ground truth is that of `records_to_columns`, or an answer whose question and options stand in `extra_info`.
    verl has no value for a solution that is not scored: it gets 0, and "unscored" is 1.
    """

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, **_: Any
    ) -> dict[str, float]:
        """Return the scores of one solution."""
        record = _read(ground_truth, extra_info or {}, f"data_source {data_source}")
        scores = {name: value for name, (value,) in self.score([solution_str], [record]).items()}
        return _as_numbers({"score": scores.pop("total"), "acc": scores["answer"], **scores}, total="score")


class for_easyr1(Scorer):  # noqa: N801
    """As EasyR1's batch function: "overall", "format", "accuracy" and the other rewards by name, of each response.

    The ground truth is that of `records_to_columns`, or an answer in words: a letter needs the options.
    EasyR1 has no value for a response that is not scored: it gets 0, and "unscored" is 1.
    """

    def __call__(self, reward_inputs: Sequence[Mapping[str, Any]], **_: Any) -> list[dict[str, float]]:
        """Return the scores of each response."""
        records = [_read(row[TRUTH], {}, f"reward_inputs[{place}]") for place, row in enumerate(reward_inputs)]
        columns = self.score([row["response"] for row in reward_inputs], records)
        for theirs, ours in (("overall", "total"), ("format", "well_formed"), ("accuracy", "answer")):
            columns[theirs] = columns.pop(ours)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return [_as_numbers(row, total="overall") for row in rows]


def _as_numbers(scores: Mapping[str, float], *, total: str) -> dict[str, float]:
    """Return scores with 0 for NaN, and as "unscored" whether the total was NaN."""
    numbers = {name: 0.0 if math.isnan(value) else value for name, value in scores.items()}
    return {**numbers, "unscored": float(math.isnan(scores[total]))}


def _read(truth: Any, fields: Mapping[str, Any], where: str) -> Record:
    """Return the record of a ground truth; question and options of an answer alone stand in `fields`."""
    try:
        if isinstance(truth, str) and truth.lstrip().startswith("{"):
            truth = msgspec.json.decode(truth)
        if isinstance(truth, Mapping):
            return Record.from_fields(**truth)
        bare = {"question": "-"} | {name: fields[name] for name in _COLUMNS if name in fields} | {"answer": truth}
        return Record.from_fields(**bare)
    except (BadInput, TypeError, msgspec.DecodeError) as error:
        raise BadInput(f"{where}, {TRUTH}: {error}") from None


def _text_of(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """Return a completion's text; of messages the assistant's last, behind its reasoning as thoughts."""
    if isinstance(completion, str):
        return completion
    turns = [message for message in completion if message.get("role") == "assistant"]
    content, thoughts = (turns[-1].get(key) or "" for key in ("content", "reasoning_content")) if turns else ("", "")
    if not isinstance(content, str):
        content = "".join(part.get("text") or "" for part in content)
    return f"<think>{thoughts}</think>\n{content}" if thoughts else content
