"""Small things to ask about, without pictures."""

import asyncio
import dataclasses
import json
import random

from stepcot_jax.annotate.llm.client import Budget
from stepcot_jax.chain import DEFAULT_CHAIN, NOT_ANNOTATED, Chain
from stepcot_jax.data.phantom.phantom import plan_case
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.reading.chat_models import Reply, ShownImage
from stepcot_jax.reasoning.levels import VARIANTS, list_keys, position_of
from stepcot_jax.tools.constrain.asking_levels import AskedCase, Asking, ask_all

NO_IMAGE = ShownImage(lambda: None, longest_side=32)


def make_cases(num_cases, *, seed=0):
    """Phantoms with equal shares of the diagnoses, not drawn."""
    cases = [plan_case(index, seed=seed, prevalence="flat").case for index in range(num_cases)]
    return [AskedCase(case.image, case.patient, case.answers, NO_IMAGE) for case in cases]


def make_asking(*, variants=VARIANTS, levels=tuple(range(8)), chain=DEFAULT_CHAIN, **how):
    return Asking(chain, tuple(list_keys(variants, levels)), **how)


def ask(cases, model, asking):
    return asyncio.run(ask_all(cases, model, asking, budget=Budget(None), terminal=Terminal(silent=True)))


class Scripted:
    """Answers by a function from the request; keeps the requests."""

    name = about = "scripted"

    def __init__(self, answer):
        self.answer, self.requests = answer, []

    async def reply(self, request):
        self.requests.append(request)
        text = self.answer(request)
        return text if isinstance(text, Reply) else Reply(text)

    async def close(self):
        pass


@dataclasses.dataclass(frozen=True)
class Noisy:
    """Reads each step right with a known chance, and the diagnosis the likelier the more earlier answers are right.

    Equal questions about a case have equal answers. Some replies are cut, in a code fence or without letters.
    """

    truth: dict[str, tuple[int, ...]]
    accuracy: tuple[float, ...]
    direct: float
    gains: tuple[float, ...]
    chain: Chain = DEFAULT_CHAIN
    cut: float = 0.0
    fenced: float = 0.0
    bare: float = 0.0
    name = about = "noisy"

    async def reply(self, request):
        case, dialogue = request.case, request.dialogue
        rng = random.Random(f"{case} {dialogue.level} form")  # noqa: S311
        last = self.chain.num_steps - 1
        read = {step: self.choose(case, step, self.accuracy[step]) for step in dialogue.asked if step < last}
        right = [step for step, label in {**dict(dialogue.given), **read}.items() if label == self.truth[case][step]]
        read[last] = self.choose(case, last, self.direct + sum(self.gains[step] for step in right), dialogue.level)
        steps = {field: position_of(field, last + 1) for field in dialogue.fields}
        written = {field: self.chain.steps[step].lettered_options[read[step]] for field, step in steps.items()}
        if rng.random() < self.bare:
            written = {field: self.chain.steps[step].options[read[step]] for field, step in steps.items()}
        text = json.dumps({field: {"reasoning": "Seen.", "answer": answer} for field, answer in written.items()})
        if rng.random() < self.cut:
            return Reply(text[: len(text) // 2])
        return Reply(f"```json\n{text}\n```" if rng.random() < self.fenced else text)

    def choose(self, case, step, chance, *about):
        rng, truth = random.Random(f"{case} {step} {about}"), self.truth[case][step]  # noqa: S311
        if truth != NOT_ANNOTATED and rng.random() < chance:
            return truth
        return rng.choice([label for label in range(self.chain.steps[step].num_answers) if label != truth])

    def expected(self, key):
        """The chance that the diagnosis is right, where every step is annotated."""
        (variant, level), last = key, self.chain.num_steps - 1
        chances = [
            1.0 if variant == "true" and step < level - 1 else
            (1 - self.cut) * accuracy if variant == "own" and step < level - 1 else accuracy
            for step, accuracy in enumerate(self.accuracy[: min(level, last)])
        ]  # fmt: skip
        gained = sum(chance * gain for chance, gain in zip(chances, self.gains, strict=False))
        return (1 - self.cut) * (self.direct + gained)
