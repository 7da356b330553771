"""Small things to ask about, without pictures."""

import asyncio

from stepcot_jax.annotate.llm.client import Budget
from stepcot_jax.chain import DEFAULT_CHAIN
from stepcot_jax.data.phantom.phantom import plan_case
from stepcot_jax.host.terminal import Terminal
from stepcot_jax.tools.constrain.asking_levels import AskedCase, Asking, ask_all
from stepcot_jax.tools.constrain.levels import VARIANTS, list_keys
from stepcot_jax.tools.constrain.models import Reply, ShownImage

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
