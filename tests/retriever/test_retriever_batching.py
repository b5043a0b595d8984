"""The queue of the service: batches, one search for equal queries, isolation of errors, deadlines, bounds."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from retriever import Document, Hit
from retriever.service import SearchService, Unavailable


class Slow:
    """A searcher that waits for its gate, writes down what it is asked, and fails on the word "bad"."""

    ntotal = 1000

    def __init__(self) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.batches: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.batches.append((list(queries), topk))
        self.entered.set()
        self.gate.wait(30)
        if any("bad" in query for query in queries):
            raise ZeroDivisionError
        return [[Hit(Document(str(place), query), 1.0) for place in range(topk)] for query in queries]

    def info(self) -> dict[str, str | int | float]:
        return {}


async def started(searcher: Slow, **settings: float) -> SearchService:
    service = SearchService(lambda: searcher, **settings)  # type: ignore[arg-type]
    service.start()
    while not service.ready:
        await asyncio.sleep(0.001)
    return service


async def held(searcher: Slow, service: SearchService) -> asyncio.Task[list[list[Hit]]]:
    """A first request that keeps the search thread busy until the gate opens."""
    task = asyncio.create_task(service.search(["first"], 1))
    await asyncio.to_thread(searcher.entered.wait, 30)
    return task


def texts(rows: list[list[Hit]]) -> list[str]:
    return [row[0].document.contents for row in rows]


def test_what_waits_is_searched_together() -> None:
    async def run() -> None:
        searcher = Slow()
        service = await started(searcher, batch=8)
        first = await held(searcher, service)
        others = [asyncio.create_task(service.search([f"q{n}", f"r{n % 3}"], 1)) for n in range(6)]
        await asyncio.sleep(0.01)
        searcher.gate.set()
        assert texts(await first) == ["first"]
        for n, task in enumerate(others):
            assert texts(await task) == [f"q{n}", f"r{n % 3}"]
        # 6 and 3 different queries, in batches of at most 8; one that several ask is searched once.
        assert [len(queries) for queries, _ in searcher.batches] == [1, 8, 1]
        assert service.metrics.queries == 13 and service.metrics.searched == 10
        service.stop()

    asyncio.run(run())


def test_numbers_of_passages_are_not_mixed() -> None:
    async def run() -> None:
        searcher = Slow()
        service = await started(searcher)
        first = await held(searcher, service)
        tasks = [asyncio.create_task(service.search([f"q{n}"], 1 + n % 2)) for n in range(6)]
        await asyncio.sleep(0.01)
        searcher.gate.set()
        await first
        assert [len((await task)[0]) for task in tasks] == [1, 2] * 3
        assert searcher.batches[1:] == [(["q0", "q2", "q4"], 1), (["q1", "q3", "q5"], 2)]
        service.stop()

    asyncio.run(run())


def test_one_bad_query_costs_only_its_own_request() -> None:
    async def run() -> None:
        searcher = Slow()
        service = await started(searcher)
        first = await held(searcher, service)
        tasks = [asyncio.create_task(service.search([query], 1)) for query in ("a", "bad", "b")]
        both = asyncio.create_task(service.search(["c", "bad"], 1))
        await asyncio.sleep(0.01)
        searcher.gate.set()
        await first
        results = await asyncio.gather(*tasks, both, return_exceptions=True)
        assert [type(result) for result in results] == [list, ZeroDivisionError, list, ZeroDivisionError]
        assert texts(results[0]) + texts(results[2]) == ["a", "b"]  # type: ignore[arg-type]
        assert texts(await service.search(["c"], 1)) == ["c"]
        assert service.pending == 0
        service.stop()

    asyncio.run(run())


def test_a_searcher_that_loses_a_row_harms_nobody_for_good() -> None:
    class Losing(Slow):
        def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
            return super().search(queries, topk)[: 1 if len(self.batches) > 2 else 0]

    async def run() -> None:
        searcher = Losing()
        searcher.gate.set()
        service = await started(searcher)
        with pytest.raises(ValueError, match="0 lists"):
            await service.search(["a"], 1)
        with pytest.raises(ValueError, match="0 lists"):
            await service.search(["a"], 1)
        assert texts(await service.search(["a"], 1)) == ["a"]
        service.stop()

    asyncio.run(run())


def test_deadline_and_what_nobody_waits_for() -> None:
    async def run() -> None:
        searcher = Slow()
        service = await started(searcher, deadline_seconds=0.05)
        first = await held(searcher, service)
        late = asyncio.create_task(service.search(["late"], 1))
        gone = asyncio.create_task(service.search(["gone"], 1))
        await asyncio.sleep(0)
        gone.cancel()
        for task in (first, late):
            with pytest.raises(Unavailable, match=r"within 0\.05 s") as caught:
                await task
            assert caught.value.retry_after >= 1
        searcher.gate.set()
        # The search that had begun ends and is remembered; the others are not begun.
        while service.metrics.searches == 0:
            await asyncio.sleep(0.001)
        assert texts(await service.search(["first"], 1)) == ["first"]
        assert texts(await service.search(["new"], 1)) == ["new"]
        assert [queries for queries, _ in searcher.batches] == [["first"], ["new"]]
        assert (service.metrics.expired, service.pending) == (2, 0)
        service.stop()

    asyncio.run(run())


def test_bounds_of_the_queue() -> None:
    async def run() -> None:
        searcher = Slow()
        service = await started(searcher, capacity=3, query_capacity=10)
        first = await held(searcher, service)
        second = asyncio.create_task(service.search([f"q{n}" for n in range(8)], 1))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="10 queries"):
            await service.search(["x", "y", "z"], 1)
        third = asyncio.create_task(service.search(["x"], 1))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="3 requests"):
            await service.search(["y"], 1)
        searcher.gate.set()
        await asyncio.gather(first, second, third)
        # A request of more queries than may wait is served when nothing else waits.
        assert len(await service.search([f"z{n}" for n in range(20)], 1)) == 20
        service.stop()

    asyncio.run(run())


def test_cache_is_bounded_by_passages() -> None:
    async def run() -> None:
        searcher = Slow()
        searcher.gate.set()
        service = await started(searcher)
        for n in range(0, 1400, 100):
            await service.search([f"q{n + i}" for i in range(100)], 100)
        assert service.cache.hits <= 1 << 16
        asked = len(searcher.batches)
        await service.search(["q1399"], 100)
        assert len(searcher.batches) == asked
        await service.search(["q0"], 100)
        assert len(searcher.batches) == asked + 1
        service.stop()

    asyncio.run(run())
