"""Regions of interest for pictures without one: a model proposes, votes verify (MEDSAGE, Algorithm 1's else branch)."""

import asyncio
import collections
import functools
import itertools
from collections.abc import Mapping, Sequence

from stepcot_jax.annotate.annotation import Provenance
from stepcot_jax.annotate.llm.interviews import Interviewer, read_choice
from stepcot_jax.annotate.llm.json_objects import BadAnswer, find_object
from stepcot_jax.annotate.llm.prompts import VOTES
from stepcot_jax.annotate.recipes.items import THOUSANDTHS, Question, TaskSettings
from stepcot_jax.annotate.recipes.pictures import show_picture
from stepcot_jax.box import Corners


def read_region(text: str) -> Corners:
    """Read a proposed region: left, upper, right and lower edge in thousandths."""
    region = find_object(text, ["reason", "region"])["region"]
    is_list = isinstance(region, list) and len(region) == 4
    if not is_list or not all(isinstance(edge, int | float) and not isinstance(edge, bool) for edge in region):
        raise BadAnswer(f"found {region!r:.80}, accepted are four numbers", field="region")
    x1, y1, x2, y2 = map(float, region)
    if not (0 <= x1 < x2 <= 1000 and 0 <= y1 < y2 <= 1000):
        raise BadAnswer(f"found {region!r:.80}, accepted are left < right and upper < lower, 0 to 1000", field="region")
    return x1, y1, x2, y2


class RegionSearch:
    """Finds the region of each question once; ledgers keep proposals and votes."""

    def __init__(self, proposer: Interviewer, verifiers: Sequence[Interviewer], settings: TaskSettings) -> None:
        """`verifiers`: models that vote, each `settings.region_passes` times."""
        self._proposer, self._verifiers, self._settings = proposer, verifiers, settings
        self._under_way: dict[str, asyncio.Lock] = collections.defaultdict(asyncio.Lock)

    async def find(self, question: Question, attempt: Mapping[str, str]) -> tuple[Corners | None, Provenance]:
        """Return the region in thousandths, None without the share of votes, and what was proposed and voted."""
        async with self._under_way[question.id]:  # the next one finds the answers in the ledger
            return await self._find(question, {"question": question.record.question, **attempt})

    async def _find(self, question: Question, asked: Mapping[str, str]) -> tuple[Corners | None, Provenance]:
        record, settings, proposer = question.record, self._settings, self._proposer
        whole, asked = show_picture(record.image, settings), {"picture_kind": question.picture, **asked}
        messages = proposer.prompt.messages({**asked, "hidden_answer": question.spoken_answer}, pictures=(whole,))
        region, _ = await proposer.ask(question, messages, read_region)
        shown = (show_picture(record.image, settings, region=(region, THOUSANDTHS)), whole)
        written, votes = ", ".join(f"{edge:g}" for edge in region), []
        read = functools.partial(read_choice, field="vote", accepted=VOTES)
        for verifier, number in itertools.product(self._verifiers, range(1, settings.region_passes + 1)):
            data = {**asked, "region": written, "pass": str(number)}
            votes.append((await verifier.ask(question, verifier.prompt.messages(data, pictures=shown), read))[0])
        num_correct, said = votes.count(VOTES[0]), f"{written} in thousandths by {proposer.endpoint.model}"
        is_kept = num_correct >= settings.region_share * len(votes)
        outcome = "kept" if is_kept else "not kept, the whole picture instead"
        said = f"{said}, {num_correct} of {len(votes)} votes: {outcome}"
        return (region if is_kept else None), (("proposed region", said),)
