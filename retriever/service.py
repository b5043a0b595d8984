"""Searching behind a server: one search thread, a bounded queue before it, and a cache of answers.

One thread, because a search already uses the cores it was given (``threads``) and because Python code
of encoder and ranking would only fight for the interpreter lock.
"""

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from retriever.errors import RetrieverError
from retriever.index import Hit, Searcher
from retriever.metrics import Metrics
from retriever.text import normalise

_LOG = logging.getLogger(__name__)


class Unavailable(RetrieverError):
    """The service cannot take this request now; it may be repeated after `retry_after` seconds."""

    def __init__(self, reason: str, retry_after: int) -> None:
        """Say why and for how long."""
        super().__init__(reason)
        self.retry_after = retry_after


class SearchService:
    """Loads an index in the background and answers searches from an event loop.

    Args:
        load: Makes the searcher; called once, in its own thread.
        capacity: Requests that may search or wait at one time; more are refused.
        cache_size: Answers kept, one per query and topk; the least recently used goes first.
        on_loaded: Called from the loading thread with the searcher.
        on_failed: Called from the loading thread with the error of ``load``.
    """

    def __init__(
        self,
        load: Callable[[], Searcher],
        capacity: int = 256,
        cache_size: int = 4096,
        on_loaded: Callable[[Searcher], None] | None = None,
        on_failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Set up without starting anything."""
        self.metrics = Metrics()
        self.pending = 0
        self._load, self._on_loaded, self._on_failed = load, on_loaded, on_failed
        self._capacity, self._cache_size = capacity, cache_size
        self._cache: OrderedDict[tuple[str, int], list[Hit]] = OrderedDict()
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._searcher: Searcher | None = None
        self._failure: Exception | None = None

    def start(self) -> None:
        """Begin to load; returns at once."""
        # A daemon: Ctrl-C during a long load ends the process instead of waiting for it.
        threading.Thread(target=self._run_load, name="load", daemon=True).start()

    def stop(self) -> None:
        """Let go of the search thread and drop what waits for it."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _run_load(self) -> None:
        try:
            searcher = self._load()
        # Whatever went wrong has to reach whoever asks the service, or it would say "loading" for ever.
        except Exception as error:  # noqa: BLE001
            self._failure = error
            if self._on_failed is None:
                _LOG.exception("the index could not be loaded")
            else:
                self._on_failed(error)
            return
        self._searcher = searcher
        if self._on_loaded is not None:
            self._on_loaded(searcher)

    @property
    def ready(self) -> bool:
        """Whether the index is loaded."""
        return self._searcher is not None

    def searcher(self) -> Searcher:
        """Return the loaded index.

        Raises:
            Unavailable: It is loading, or could not be loaded.
        """
        if self._failure is not None:
            raise Unavailable(f"the index could not be loaded: {self._failure}", retry_after=60)
        if self._searcher is None:
            raise Unavailable("the index is loading", retry_after=1)
        return self._searcher

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """Search in the search thread.

        Raises:
            Unavailable: The index is not loaded, or the queue is full.
        """
        searcher = self.searcher()
        if self.pending >= self._capacity:
            raise Unavailable(f"the queue is full ({self._capacity} requests)", retry_after=1)
        self.pending += 1
        try:
            loop = asyncio.get_running_loop()
            hits, cached, seconds = await loop.run_in_executor(
                self._executor, self._search, searcher, queries, topk
            )
        finally:
            self.pending -= 1
        self.metrics.queries += len(queries)
        self.metrics.cached += cached
        self.metrics.searches += 1
        self.metrics.search_seconds += seconds
        return hits

    def _search(
        self, searcher: Searcher, queries: Sequence[str], topk: int
    ) -> tuple[list[list[Hit]], int, float]:
        """Runs in the search thread, the only one to touch the cache."""
        start = time.perf_counter()
        # Both back ends see a query through `tokenise`, so equal keys have equal answers.
        keys = [(normalise(query), topk) for query in queries]
        answers = {key: self._cache[key] for key in keys if key in self._cache}
        missing = {key: query for key, query in zip(keys, queries, strict=True) if key not in answers}
        cached = sum(key in answers for key in keys)
        if missing:
            found = searcher.search(list(missing.values()), topk)
            answers.update(zip(missing, found, strict=True))
        for key in keys:
            self._cache[key] = answers[key]
            self._cache.move_to_end(key)
        while len(self._cache) > self._cache_size:
            self._cache.popitem(last=False)
        return [answers[key] for key in keys], cached, time.perf_counter() - start
