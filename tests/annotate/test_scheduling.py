"""Several reports at once: out in their order, few held at a time, and what stops one stops all."""

import asyncio
import random

import pytest
from refusals import refuse

from stepcot_jax.annotate.annotation import Annotation, Report
from stepcot_jax.annotate.llm.client import Budget, RequestFailed, RequestRefused
from stepcot_jax.annotate.llm.crew import process_items
from stepcot_jax.host.errors import BadInput, RunStopped

ANNOTATION = Annotation((0,), ("why",))


def reports(count, read=None):
    for number in range(count):
        if read is not None:
            read.append(number)
        yield Report(str(number), "p", "text", (), "")


def run(count, process, *, concurrency=4, budget=None, read=None, visit=lambda outcome: None):
    outcomes = []

    async def collect():
        async for outcome in process_items(
            reports(count, read), process, budget=budget or Budget(None), concurrency=concurrency
        ):
            visit(outcome)
            outcomes.append(outcome)

    asyncio.run(collect())
    return outcomes


def test_outcomes_come_in_the_order_of_the_reports_and_few_reports_are_held():
    randomness = random.Random(0)  # noqa: S311
    under_way, most, read, furthest = 0, 0, [], []

    async def process(report):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(randomness.uniform(0, 0.004))
        under_way -= 1
        return ANNOTATION, (("report", report.id),)

    outcomes = run(60, process, read=read, visit=lambda outcome: furthest.append(len(read) - int(outcome.item.id)))
    assert [outcome.item.id for outcome in outcomes] == [str(number) for number in range(60)]
    assert all(outcome.provenance == (("report", outcome.item.id),) for outcome in outcomes)
    assert most == 4
    assert max(furthest) <= 17


@pytest.mark.parametrize("kind", [RunStopped, BadInput])
@pytest.mark.parametrize("place", [0, 7])
def test_what_stops_one_report_stops_all_but_those_under_way(kind, place):
    ended, budget = [], Budget(None)

    async def process(report):
        await budget.reserve(1)  # as every request does
        try:
            if report.id == str(place):
                raise kind("because")
            await asyncio.sleep(0.01)
            ended.append(report.id)
        finally:
            await budget.settle(1, num_spent=0)
        return ANNOTATION, ()

    async def wait(report):
        if report.id == "0":
            raise kind("because")
        await asyncio.sleep(3600)  # between two attempts

    refuse("because", run, 100, process, budget=budget, error=kind)
    assert place <= len(ended) <= place + 3
    with pytest.raises(kind, match="because"):
        asyncio.run(budget.reserve(1))
    refuse("because", run, 4, wait, error=kind)


def test_failures_between_answers_are_the_reports():
    async def fail_often(report):
        if int(report.id) % 3:
            raise RequestFailed("found HTTP 500")
        return ANNOTATION, ()

    assert sum(outcome.has_failed for outcome in run(30, fail_often, concurrency=1)) == 20


@pytest.mark.parametrize("concurrency", [1, 4])
def test_neighbouring_reports_that_are_refused_do_not_stop_a_run(concurrency):
    async def process(report):
        if 2 <= int(report.id) < 9:
            raise RequestRefused("found HTTP 400 (content_filter)")
        return ANNOTATION, ()

    outcomes = run(12, process, concurrency=concurrency)
    assert [outcome.has_failed for outcome in outcomes] == [2 <= number < 9 for number in range(12)]
