"""The steps of a chain as questions: each annotated step of a case is one (Step-CoT's 70,000 pairs), or each level."""

import logging
from collections.abc import Iterator, Sequence

import msgspec

from stepcot_jax.chain import NOT_ANNOTATED, Chain
from stepcot_jax.data.questions.levels import ask_level, ask_step
from stepcot_jax.data.records.records import Collection
from stepcot_jax.data.sources.listed import Listed, Source
from stepcot_jax.data.splits.split_resolver import read_splits
from stepcot_jax.data.splits.splits import SPLIT_NAMES
from stepcot_jax.host.errors import BadInput
from stepcot_jax.reasoning.levels import Key
from stepcot_jax.record import Record

_LOG = logging.getLogger(__name__)


def list_chain_questions(collection: Collection, keys: Sequence[Key] = ()) -> Source:
    """List the questions of cases that have been read, with the splits of their tables or records.

    Each step is a question, or with `keys` each level of a form.
    """
    chain = collection.chain
    chain.refuse_tree("questions of a chain")
    split_of: dict[int, str] = {}
    splits = read_splits(collection.root, collection.cases, set_aside=collection.set_aside)
    if splits is not None:
        split_of = {index: name for name in SPLIT_NAMES for index in getattr(splits, name)}
    num_open = int((collection.cases.labels == NOT_ANNOTATED).sum())
    if num_open:
        what = "are in no level that asks them" if keys else "are no questions"
        _LOG.warning("%s: %d steps without a certain answer %s", collection.path, num_open, what)
    cases = (
        (index, msgspec.structs.replace(case, split=split_of.get(index, case.split)))
        for index, case in enumerate(collection.cases)
    )
    if keys:
        records = (listed for index, case in cases for listed in _ask_levels(case, index, chain, keys))
    else:
        records = (listed for index, case in cases for listed in _ask(case, index, chain))
    return Source(collection.root, collection.file, records)


def _ask_levels(case: Record, index: int, chain: Chain, keys: Sequence[Key]) -> Iterator[Listed]:
    for form, level in keys:
        if level > chain.num_steps:
            raise BadInput(f"config.vqa.levels: {level}, of a chain of {chain.num_steps} steps")
        if (form, level) == ("true", 1) and ("constraints", 1) in keys:
            continue  # the same question
        record = ask_level(case, (form, level), chain, name=str(index))
        if record is not None:
            yield Listed(f"record {index}, level {level} ({form})", record)


def _ask(case: Record, index: int, chain: Chain) -> Iterator[Listed]:
    for number, label in enumerate(case.answers, start=1):
        if label != NOT_ANNOTATED:
            record = ask_step(case, number, chain, name=f"{index}:{number}")
            yield Listed(f"record {index}, step {number}", record)
