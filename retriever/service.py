"""Search service: batching, queue limits, deadlines and a cache."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from retriever.corpus import normalise
from retriever.errors import Unavailable
from retriever.index import Hit, Searcher
from retriever.recall import Metrics

# The cache is also limited by passages and bytes; a very large answer is not cached.
MOST_HITS = 1 << 16
MOST_BYTES = 64 << 20
LARGEST = 1 << 20
Key = tuple[str, int]
Row = list[Hit]


class AnswerCache:
    """LRU cache of search results.

    Args:
        size: Maximum number of answers.

    Attributes:
        hits: Number of passages in all answers.
        bytes: Approximate memory of all answers.
    """

    def __init__(self, size: int) -> None:
        """Start with an empty cache."""
        self.hits = self.bytes = 0
        self._size = size
        self._rows: OrderedDict[Key, Row] = OrderedDict()

    def __len__(self) -> int:
        """Count the cached answers."""
        return len(self._rows)

    def get(self, key: Key) -> Row | None:
        """Get a cached answer and mark it as recently used; None if missing."""
        if key in self._rows:
            self._rows.move_to_end(key)
        return self._rows.get(key)

    def keep(self, key: Key, answer: Row) -> None:
        """Cache an answer unless it is very large, and evict the oldest ones until all limits hold."""
        size = _bytes_of(key, answer)
        if size > LARGEST:
            return
        self._rows[key] = answer
        self.hits += len(answer)
        self.bytes += size
        while len(self) > self._size or self.hits > MOST_HITS or self.bytes > MOST_BYTES:
            oldest, row = self._rows.popitem(last=False)
            self.hits -= len(row)
            self.bytes -= _bytes_of(oldest, row)


def _bytes_of(key: Key, answer: Row) -> int:
    """Estimate the memory of an answer."""
    texts = sum(sys.getsizeof(hit.document.contents) + sys.getsizeof(hit.document.id) for hit in answer)
    return sys.getsizeof(key[0]) + texts + 200 * (1 + len(answer))


_LOG = logging.getLogger(__name__)


class _Waiting:
    """Queued query, shared by all requests that ask the same."""

    def __init__(self, query: str, topk: int, answer: asyncio.Future[Row]) -> None:
        self.query, self.topk, self.answer = query, topk, answer
        self.requests = 0


_OF_WORDS = ("hashed_tfidf", "none")  # encoders that ignore case and punctuation; "none" is BM25


class SearchService:
    """Search service for an event loop: loads an index in the background, batches and caches queries.

    Args:
        load: Creates the searcher; called once, in its own thread.
        capacity: Maximum number of requests in progress; more are refused.
        cache_size: Maximum number of cached answers, one per query and topk.
        on_loaded: Called from the loading thread with the searcher.
        on_failed: Called from the loading thread with the error of ``load``.
        cache_key: Queries with equal keys share an answer. Use `retriever.corpus.normalise` for lexical encoders and ``str`` if
            case or punctuation matters. None chooses by the index's encoder.
        batch: Maximum number of queries per search.
        gather_seconds: Delay to collect more queries while several requests are in progress.
        deadline_seconds: Timeout of each portion of a request. After it the request is refused and its queries are dropped,
            unless another request asks them too.
        query_capacity: Maximum number of queries in progress, over all requests.
        portion: Maximum number of queued queries per request.

    Attributes:
        metrics: Counters since the start.
        cache: Cached answers.
        pending: Number of requests in progress.
        promised: Number of their queries.
    """

    def __init__(
        self,
        load: Callable[[], Searcher],
        capacity: int = 256,
        cache_size: int = 4096,
        on_loaded: Callable[[Searcher], None] | None = None,
        on_failed: Callable[[Exception], None] | None = None,
        cache_key: Callable[[str], str] | None = None,
        batch: int = 64,
        gather_seconds: float = 0.0,
        deadline_seconds: float = 60.0,
        query_capacity: int = 65_536,
        portion: int = 256,
    ) -> None:
        """Create a service; `start` loads the index."""
        self.metrics = Metrics()
        self.cache = AnswerCache(cache_size)
        self.pending = self.promised = 0
        self._load, self._on_loaded, self._on_failed = load, on_loaded, on_failed
        self._capacity, self._query_capacity = capacity, query_capacity
        self._cache_key, self._batch, self._gather, self._deadline = (
            cache_key,
            batch,
            gather_seconds,
            deadline_seconds,
        )
        self._portion = portion
        self._waiting: dict[Key, _Waiting] = {}
        self._queue: deque[Key] = deque()
        self._pump: asyncio.Task[None] | None = None
        self._crowded = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._searcher: Searcher | None = None
        self._failure: Exception | None = None

    def start(self) -> None:
        """Start loading the index in the background."""
        # A daemon thread, so that Ctrl-C ends the process during a long load.
        threading.Thread(target=self._run_load, name="load", daemon=True).start()

    def stop(self) -> None:
        """Shut down the search thread and drop queued queries."""
        if self._pump is not None:
            self._pump.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _run_load(self) -> None:
        try:
            searcher = self._load()
        # Any error must reach the clients, or the service would report "loading" forever.
        except Exception as error:  # noqa: BLE001
            self.fail(error)
            return
        if self._cache_key is None:
            self._cache_key = normalise if searcher.info().get("encoder", "none") in _OF_WORDS else str
        self._searcher = searcher
        if self._on_loaded is not None:
            self._on_loaded(searcher)

    def fail(self, error: Exception) -> None:
        """Refuse all searches from now on. Thread-safe."""
        self._failure = error
        if self._on_failed is None:
            _LOG.error("the index cannot be served", exc_info=error)
        else:
            self._on_failed(error)

    @property
    def ready(self) -> bool:
        """True if the index is loaded."""
        return self._searcher is not None and self._failure is None

    def searcher(self) -> Searcher:
        """Return the loaded index.

        Raises:
            Unavailable: The index is loading, or failed to load.
        """
        if self._failure is not None:
            raise Unavailable(f"the index cannot be served: {self._failure}", retry_after=60)
        if self._searcher is None:
            raise Unavailable("the index is loading", retry_after=1)
        return self._searcher

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Search for several queries, batched with those of other requests.

        Raises:
            Unavailable: The index is not loaded, the queue is full, or the deadline passed.
        """
        return [row async for rows in self.search_in_portions(queries, topk) for row in rows]

    async def search_in_portions(
        self, queries: Sequence[str], topk: int
    ) -> AsyncGenerator[list[list[Hit]], None]:
        """Search portion by portion, in order. Close the generator (``contextlib.aclosing``) to stop early.

        Raises:
            Unavailable: See `search`. Portions yielded before remain valid.
        """
        searcher = self.searcher()
        if self.pending >= self._capacity:
            raise Unavailable(f"the queue is full ({self._capacity} requests)", retry_after=1)
        if self.promised + len(queries) > self._query_capacity and self.promised:
            raise Unavailable(f"the queue is full ({self._query_capacity} queries)", retry_after=1)
        self.pending += 1
        self.promised += len(queries)
        try:
            for start in range(0, len(queries), self._portion):
                async with asyncio.timeout(self._deadline):
                    rows = await self._answers(searcher, queries[start : start + self._portion], topk)
                yield rows
        except TimeoutError as error:
            self.metrics.expired += 1
            raise Unavailable(
                f"no answer within {self._deadline:g} s: too many queries are waiting", retry_after=1
            ) from error
        finally:
            self.pending -= 1
            self.promised -= len(queries)

    async def _answers(self, searcher: Searcher, queries: Sequence[str], topk: int) -> list[Row]:
        key_of = self._cache_key or str
        keys = [(key_of(query), topk) for query in queries]
        known: dict[Key, Row] = {}
        asked: dict[Key, _Waiting] = {}
        for key, query in zip(keys, queries, strict=True):
            if (kept := self.cache.get(key)) is not None:
                known[key] = kept
            elif key not in asked:
                asked[key] = self._ask(searcher, key, query)
        self.metrics.queries += len(queries)
        self.metrics.cached += sum(key in known for key in keys)
        try:
            if asked:
                # Not gather(): one error would leave the others unawaited.
                await asyncio.wait([waiting.answer for waiting in asked.values()])
        finally:
            for waiting in asked.values():
                waiting.requests -= 1
        return [known[key] if key in known else asked[key].answer.result() for key in keys]

    def _ask(self, searcher: Searcher, key: Key, query: str) -> _Waiting:
        waiting = self._waiting.get(key)
        if waiting is None:
            loop = asyncio.get_running_loop()
            waiting = self._waiting[key] = _Waiting(query, key[1], loop.create_future())
            self._queue.append(key)
            if self._pump is None or self._pump.done():
                self._pump = loop.create_task(self._search_all(searcher))
        waiting.requests += 1
        return waiting

    async def _search_all(self, searcher: Searcher) -> None:
        """Search batch by batch until the queue is empty."""
        loop = asyncio.get_running_loop()
        while self._queue:
            if self._crowded and self._gather and len(self._queue) < self._batch:
                # Clients that were answered in one batch will send their next queries at about the same time.
                await asyncio.sleep(self._gather)
            batch = self._take()
            if not batch:
                continue
            queries, topk = [waiting.query for _, waiting in batch], batch[0][1].topk
            try:
                answers, seconds = await loop.run_in_executor(
                    self._executor, _search, searcher, queries, topk
                )
            except RuntimeError as error:  # the executor was shut down
                answers, seconds = [error] * len(batch), 0.0
            self.metrics.searches += 1
            self.metrics.searched += len(batch)
            self.metrics.search_seconds += seconds
            for (key, waiting), answer in zip(batch, answers, strict=True):
                del self._waiting[key]
                if isinstance(answer, list):
                    self.cache.keep(key, answer)
                    waiting.answer.set_result(answer)
                else:
                    waiting.answer.set_exception(answer)
                    # Mark the exception as retrieved: the clients may be gone.
                    waiting.answer.exception()

    def _take(self) -> list[tuple[Key, _Waiting]]:
        """Take the next batch: queries with equal ``topk`` that a request still waits for."""
        batch: list[tuple[Key, _Waiting]] = []
        others: list[Key] = []
        while self._queue and len(batch) < self._batch:
            key = self._queue.popleft()
            waiting = self._waiting[key]
            if waiting.requests == 0:
                waiting.answer.cancel()
                del self._waiting[key]
            elif batch and batch[0][1].topk != waiting.topk:
                others.append(key)
            else:
                batch.append((key, waiting))
        self._queue.extendleft(reversed(others))
        self._crowded = self.pending > 1
        return batch


def _search(searcher: Searcher, queries: list[str], topk: int) -> tuple[list[Row | Exception], float]:
    """Search a batch, in the search thread.

    An error only affects the query that causes it.
    """
    start = time.perf_counter()
    answers: list[Row | Exception] = []
    try:
        answers += searcher.search(queries, topk)
        if len(answers) != len(queries):
            raise ValueError(f"{len(queries)} queries were answered with {len(answers)} lists")
    # A searcher may raise anything; each request gets its own answer or error.
    except Exception as error:  # noqa: BLE001
        if len(queries) == 1 or isinstance(error, Unavailable):
            answers = [error] * len(queries)
        else:
            answers = [_search(searcher, [query], topk)[0][0] for query in queries]
    return answers, time.perf_counter() - start
