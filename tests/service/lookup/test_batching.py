"""Lookups that come at about the same time: they share calls, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from service.lookup.batching import AT_ONCE, LookupBatcher
from service.lookup.lookups import Answer, Query
from tuner.library.lookup import BestAnswer, Match
from tuner.storage import LookupScope, NotFound, StorageUnavailable

LONG_S = 30.0


def query(m: int) -> Query:
    return Query(LookupScope("wl-1", "target"), {"m": m})


class Answers:
    """Answers with the shape that was asked for, once it may. ``wrong`` shapes raise what is given for them."""

    def __init__(self, wrong: dict[int, Exception] | None = None) -> None:
        self.calls: list[list[int]] = []
        self.wrong = wrong or {}
        self.may_go = threading.Event()

    def __call__(self, queries: Sequence[Query]) -> list[Answer]:
        sizes = [each.shape["m"] for each in queries]
        self.calls.append(sizes)
        assert self.may_go.wait(LONG_S)
        for size in sizes:
            if size in self.wrong:
                raise self.wrong[size]
        return [
            NotFound("none") if size == 0 else BestAnswer(each.scope, each.shape, Match.DEFAULT, {})
            for size, each in zip(sizes, queries, strict=True)
        ]


async def ask(answers: Answers, count: int) -> list[BestAnswer | BaseException]:
    """Queries 0, 1, ... at once; the calls go on when all of them wait."""
    batcher = LookupBatcher(answers)
    asked = [asyncio.create_task(batcher.best(query(m))) for m in range(count)]
    while not answers.calls:
        await asyncio.sleep(0.001)
    answers.may_go.set()
    return await asyncio.gather(*asked, return_exceptions=True)


def test_each_gets_its_own_answer_and_what_waited_is_one_call() -> None:
    answers = Answers()
    result = asyncio.run(ask(answers, 20))
    assert isinstance(result[0], NotFound)
    assert [each.shape["m"] for each in result[1:] if isinstance(each, BestAnswer)] == list(range(1, 20))
    assert len(answers.calls) <= AT_ONCE + 1
    assert sorted(size for call in answers.calls for size in call) == list(range(20))


def test_what_one_query_fails_at_is_no_fault_of_the_others() -> None:
    answers = Answers({7: ZeroDivisionError("a defect")})
    result = asyncio.run(ask(answers, 10))
    assert [index for index, each in enumerate(result) if isinstance(each, ZeroDivisionError)] == [7]
    assert sum(isinstance(each, BestAnswer) for each in result) == 8


def test_a_database_that_is_away_is_asked_once_for_all() -> None:
    answers = Answers(dict.fromkeys(range(20), StorageUnavailable("away")))
    result = asyncio.run(ask(answers, 20))
    assert all(isinstance(each, StorageUnavailable) for each in result)
    assert len(answers.calls) <= AT_ONCE + 1


def test_a_client_that_leaves_harms_nobody() -> None:
    answers = Answers()

    async def run() -> BestAnswer:
        batcher = LookupBatcher(answers)
        leaving, staying = (asyncio.create_task(batcher.best(query(m))) for m in (1, 2))
        while not answers.calls:
            await asyncio.sleep(0.001)
        leaving.cancel()
        answers.may_go.set()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        # Whoever comes later is answered too.
        return (await asyncio.gather(staying, batcher.best(query(3))))[1]

    assert asyncio.run(run()).shape == {"m": 3}
