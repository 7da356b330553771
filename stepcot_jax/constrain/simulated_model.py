"""A simulated model with known accuracies, to try the measurement offline and to check it.

It reads a case through a noisy copy of its true answers. Each step is read right with a known probability. The
diagnosis is right with probability `direct` if nothing else is in the dialogue; each right answer to an earlier step in
the dialogue raises that by the step's gain, each wrong one lowers it by the step's loss. It also breaks constraints at
known rates. All of these are numbers of ours, like those of no real model: the expected curve follows in closed form.
"""

import dataclasses
import hashlib
import json
import string
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int

from stepcot_jax.chain import NOT_ANNOTATED, Chain, Step
from stepcot_jax.constrain.asked_models import Reply, Request
from stepcot_jax.constrain.levels import DIAGNOSIS, Dialogue, Key, position_of
from stepcot_jax.host.errors import BadInput


@dataclasses.dataclass(frozen=True)
class Faults:
    """How often a reply breaks constraints.

    Attributes:
      cut: share of the replies that are cut in half.
      fenced: share in a code fence.
      chatty: share with a sentence before the object.
      bare: share of the answers that are a letter alone.
      mismatched: share with another option's letter; such an answer is none of the options.
    """

    cut: float = 0.02
    fenced: float = 0.10
    chatty: float = 0.05
    bare: float = 0.05
    mismatched: float = 0.03

    def __post_init__(self) -> None:
        shares = dataclasses.astuple(self)
        if min(shares) < 0 or self.cut + self.fenced + self.chatty > 1 or self.bare + self.mismatched > 1:
            raise BadInput(f"faults {shares} must be shares from 0 that add up to at most 1")

    @property
    def readable(self) -> float:
        """Expected share of the answers that can be read."""
        return (1 - self.cut) * (1 - self.mismatched)

    def following(self, kind: str, *, is_loose: bool) -> float:
        """Return the expected share of the constraints of a kind that are followed."""
        whole = 1 - self.cut
        rates = {
            "json": whole if is_loose else whole - self.fenced - self.chatty,
            **dict.fromkeys(("schema", "order", "answered"), whole),
            "option": self.readable,
            "letter": whole * (1 - self.mismatched - self.bare),
        }
        if kind not in rates:
            raise ValueError(f"kind must be one of {', '.join(rates)}; got {kind!r}")
        return rates[kind]


@dataclasses.dataclass(frozen=True)
class Skill:
    """What a simulated model can do.

    Attributes:
      accuracy: probability of reading each step before the last right.
      direct: probability of the right diagnosis at level 0.
      gains: what a right answer to each of these steps adds to it.
      losses: what a wrong one takes away.
    """

    accuracy: tuple[float, ...]
    direct: float
    gains: tuple[float, ...]
    losses: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.accuracy) == len(self.gains) == len(self.losses):
            raise BadInput("accuracy, gains and losses must have one number for each step before the last")
        outside = min((*self.gains, *self.losses, *self.accuracy, 0)) < 0 or max((*self.accuracy, 0)) > 1
        if outside or self.direct + sum(self.gains) > 1 or self.direct - sum(self.losses) < 0:
            raise BadInput(
                f"direct {self.direct} with gains {self.gains} and losses {self.losses} must stay a probability"
            )

    @staticmethod
    def default(chain: Chain) -> "Skill":
        """Return a skill for any chain: steps are read right in 90 to 65 % of cases, the diagnosis in 40 % at level 0.

        Right answers to all steps add 45 points to it, wrong ones take away 30.
        """
        count = chain.num_steps - 1
        return Skill(
            accuracy=tuple(np.linspace(0.9, 0.65, count).round(4).tolist()),
            direct=0.4,
            gains=(0.45 / max(count, 1),) * count,
            losses=(0.3 / max(count, 1),) * count,
        )


class SimulatedModel:
    """Answers from a noisy copy of the true answers; two calls with the same request answer alike.

    Args:
      truth: true labels by case; of an unannotated step any answer is drawn, and it changes nothing.
    """

    def __init__(
        self,
        truth: Mapping[str, Sequence[int]],
        chain: Chain,
        *,
        skill: Skill | None = None,
        faults: Faults | None = None,
        seed: int = 0,
    ) -> None:
        self.name = "simulated model"
        self.about = f"A simulated model of known accuracy reads the true answers through noise, seed {seed}"
        self._truth, self._chain, self._seed = truth, chain, seed
        self.skill, self.faults = skill or Skill.default(chain), faults or Faults()
        if len(self.skill.accuracy) != chain.num_steps - 1:
            raise BadInput(f"skill: {len(self.skill.accuracy)} accuracies; expected {chain.num_steps - 1}")

    async def reply(self, request: Request) -> Reply:
        """See `Model`."""
        case, dialogue = request.case, request.dialogue
        fields = {
            field: {"reasoning": "As read from the noisy copy.", "answer": self._write(case, dialogue, field)}
            for field in dialogue.fields
        }
        text, drawn = json.dumps(fields, indent=1), self._draw(case, dialogue.level, "form")
        if drawn < self.faults.cut:
            return Reply(text[: len(text) // 2])
        if (drawn := drawn - self.faults.cut) < self.faults.fenced:
            return Reply(f"```json\n{text}\n```")
        return Reply(f"Here is my reading.\n{text}" if drawn - self.faults.fenced < self.faults.chatty else text)

    async def close(self) -> None:
        """See `Model`."""

    def expected_accuracy(self, key: Key, truth: Int[np.ndarray, "case step"]) -> float:
        """Return the expected accuracy of the diagnosis, unreadable answers counted as wrong."""
        variant, level = key
        expected = np.full(len(truth), self.skill.direct)
        for position in range(min(level, self._chain.num_steps - 1)):
            accuracy, gain, loss = (
                each[position] for each in (self.skill.accuracy, self.skill.gains, self.skill.losses)
            )
            change = accuracy * gain - (1 - accuracy) * loss
            if variant != "constraints" and position < level - 1:
                change = gain if variant == "true" else self.faults.readable * change
            expected += change * (truth[:, position] != NOT_ANNOTATED)
        known = truth[:, -1] != NOT_ANNOTATED
        return float(self.faults.readable * expected[known].mean()) if known.any() else float("nan")

    def _draw(self, *about: object) -> float:
        """A number in 0..1 that depends on the seed and on what it is about."""
        digest = hashlib.sha256(json.dumps([self._seed, *map(str, about)]).encode()).digest()
        return int.from_bytes(digest[:7], "big") / 256**7

    def _write(self, case: str, dialogue: Dialogue, field: str) -> str:
        step = self._chain.steps[position_of(field, self._chain.num_steps)]
        label = self._read(case, dialogue, position_of(field, self._chain.num_steps))
        letters, drawn = string.ascii_uppercase, self._draw(case, dialogue.level, field, "letter")
        if drawn < self.faults.mismatched:
            return f"{letters[(label + 1) % step.num_answers]}. {step.options[label]}"
        is_bare = drawn - self.faults.mismatched < self.faults.bare
        return f"({letters[label]})" if is_bare else step.lettered_options[label]

    def _read(self, case: str, dialogue: Dialogue, position: int) -> int:
        """The label that the model takes for right; the same for a step in all dialogues, given answers excepted."""
        step, truth = self._chain.steps[position], self._truth[case][position]
        if position < self._chain.num_steps - 1:
            return self._choose(step, truth, self.skill.accuracy[position], case, position)
        known = {**{asked: self._read(case, dialogue, asked) for asked in dialogue.asked if asked != position}}
        known |= dict(dialogue.given)
        chance = self.skill.direct
        for earlier, label in known.items():
            if self._truth[case][earlier] != NOT_ANNOTATED:
                is_right = label == self._truth[case][earlier]
                chance += self.skill.gains[earlier] if is_right else -self.skill.losses[earlier]
        return self._choose(step, truth, chance, case, dialogue.level, DIAGNOSIS)

    def _choose(self, step: Step, truth: int, chance: float, *about: object) -> int:
        """The true label with this chance, else another one, each alike; any if there is no true one."""
        if truth == NOT_ANNOTATED:
            return int(self._draw(*about, "any") * step.num_answers)
        if self._draw(*about, "right") < chance:
            return int(truth)
        return (truth + 1 + int(self._draw(*about, "wrong") * (step.num_answers - 1))) % step.num_answers
