"""Search service: requests batched, bounded and cached."""

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

# Answers kept are bounded by their passages and by their bytes too, and a very large one is not kept.
MOST_HITS = 1 << 16
MOST_BYTES = 64 << 20
LARGEST = 1 << 20
Key = tuple[str, int]
Row = list[Hit]


class AnswerCache:
    """The least recently used answer goes first.

    Args:
        size: The most answers that are kept.

    Attributes:
        hits: Passages in all answers together.
        bytes: What all answers take in memory, nearly.
    """

    def __init__(self, size: int) -> None:
        """Start with an empty cache."""
        self.hits = self.bytes = 0
        self._size = size
        self._rows: OrderedDict[Key, Row] = OrderedDict()

    def __len__(self) -> int:
        """How many answers are kept."""
        return len(self._rows)

    def get(self, key: Key) -> Row | None:
        """The answer to a query, which counts as a use of it; None if it is not kept."""
        if key in self._rows:
            self._rows.move_to_end(key)
        return self._rows.get(key)

    def keep(self, key: Key, answer: Row) -> None:
        """Keep an answer unless it is very large, and let go of the oldest until all bounds hold."""
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
    """What an answer takes in memory, nearly."""
    texts = sum(sys.getsizeof(hit.document.contents) + sys.getsizeof(hit.document.id) for hit in answer)
    return sys.getsizeof(key[0]) + texts + 200 * (1 + len(answer))


_LOG = logging.getLogger(__name__)


class _Waiting:
    """A query that waits to be searched, for one request or for several that asked the same."""

    def __init__(self, query: str, topk: int, answer: asyncio.Future[Row]) -> None:
        self.query, self.topk, self.answer = query, topk, answer
        self.requests = 0


_OF_WORDS = ("hashed_tfidf", "none")  # encoders to which case and punctuation are nothing; "none" is BM25


class SearchService:
    """Loads an index in the background and answers searches from an event loop.

    Args:
        load: Makes the searcher; called once, in its own thread.
        capacity: Requests that may search or wait at one time; more are refused.
        cache_size: Answers kept, one per query and topk; the least recently used goes first.
        on_loaded: Called from the loading thread with the searcher.
        on_failed: Called from the loading thread with the error of ``load``.
        cache_key: Two queries with equal keys have equal answers. For words the normalised query; where case
            or punctuation matter, the query itself (``str``). None goes by the encoder that the index names.
        batch: The most queries searched for at once.
        gather_seconds: How long to wait for more queries when the last batch was of several requests.
        deadline_seconds: A request of which a portion is not answered by then is refused, and what only it asked is not
            searched for.
        query_capacity: Queries that may wait at one time, over all requests.
        portion: The most queries of one request that wait in the queue at one time.

    Attributes:
        metrics: What has been counted since the start.
        cache: Answers that are kept.
        pending: Requests that search or wait.
        promised: Their queries.
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
        """Set up without starting anything."""
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
        """Begin to load; returns at once."""
        # A daemon: Ctrl-C during a long load ends the process instead of waiting for it.
        threading.Thread(target=self._run_load, name="load", daemon=True).start()

    def stop(self) -> None:
        """Let go of the search thread and drop what waits for it."""
        if self._pump is not None:
            self._pump.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _run_load(self) -> None:
        try:
            searcher = self._load()
        # Whatever went wrong has to reach whoever asks the service, or it would say "loading" for ever.
        except Exception as error:  # noqa: BLE001
            self.fail(error)
            return
        if self._cache_key is None:
            self._cache_key = normalise if searcher.info().get("encoder", "none") in _OF_WORDS else str
        self._searcher = searcher
        if self._on_loaded is not None:
            self._on_loaded(searcher)

    def fail(self, error: Exception) -> None:
        """Refuse all searches from now on; from any thread."""
        self._failure = error
        if self._on_failed is None:
            _LOG.error("the index cannot be served", exc_info=error)
        else:
            self._on_failed(error)

    @property
    def ready(self) -> bool:
        """Whether the index is loaded."""
        return self._searcher is not None and self._failure is None

    def searcher(self) -> Searcher:
        """Return the loaded index.

        Raises:
            Unavailable: It is loading, or could not be loaded.
        """
        if self._failure is not None:
            raise Unavailable(f"the index cannot be served: {self._failure}", retry_after=60)
        if self._searcher is None:
            raise Unavailable("the index is loading", retry_after=1)
        return self._searcher

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Search in the search thread, together with what others ask.

        Raises:
            Unavailable: The index is not loaded, the queue is full, or the deadline passed.
        """
        return [row async for rows in self.search_in_portions(queries, topk) for row in rows]

    async def search_in_portions(
        self, queries: Sequence[str], topk: int
    ) -> AsyncGenerator[list[list[Hit]], None]:
        """`search`, portion by portion in order; close it (``contextlib.aclosing``) to go away early.

        Raises:
            Unavailable: See `search`; what was given before it stands.
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
                f"no answer within {self._deadline:g} s: too many queries wait", retry_after=1
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
                # Not gather(): an error of one would leave the others unawaited.
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
        """Search batch by batch until nothing waits."""
        loop = asyncio.get_running_loop()
        while self._queue:
            if self._crowded and self._gather and len(self._queue) < self._batch:
                # Those who were answered together will ask again together, one after the other.
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
                    # Marked as seen: those who asked may have gone meanwhile.
                    waiting.answer.exception()

    def _take(self) -> list[tuple[Key, _Waiting]]:
        """The next batch: queries for the same number of passages that somebody still waits for."""
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
    """Runs in the search thread. An error costs the query that causes it, not those that travel with it."""
    start = time.perf_counter()
    answers: list[Row | Exception] = []
    try:
        answers += searcher.search(queries, topk)
        if len(answers) != len(queries):
            raise ValueError(f"{len(queries)} queries were answered with {len(answers)} lists")
    # What a searcher raises is its own affair; each request gets its own answer or error.
    except Exception as error:  # noqa: BLE001
        if len(queries) == 1 or isinstance(error, Unavailable):
            answers = [error] * len(queries)
        else:
            answers = [_search(searcher, [query], topk)[0][0] for query in queries]
    return answers, time.perf_counter() - start
