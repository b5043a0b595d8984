"""Counters in the Prometheus text format; few enough not to need a library."""

import os
from collections import Counter
from pathlib import Path

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STATM = Path("/proc/self/statm")


def _resident_bytes() -> int:
    """0 where the system does not report it (other than Linux)."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if _STATM.exists() else 0


class Metrics:
    """What a running service counts; used from the event loop's thread only."""

    def __init__(self) -> None:
        """Start all counters at zero."""
        self.requests: Counter[int] = Counter()
        self.queries = 0
        self.cached = 0
        self.expired = 0
        self.searches = 0
        self.searched = 0
        self.search_seconds = 0.0

    def render(self, pending: int, ready: bool, ntotal: int) -> str:
        """Return the exposition text, current gauges included."""
        requests = [
            f'retriever_requests_total{{status="{status}"}} {count}'
            for status, count in sorted(self.requests.items())
        ]
        families = [
            ("retriever_requests_total", "counter", "Requests to /retrieve by HTTP status.", requests),
            _single("retriever_queries_total", "counter", "Queries answered.", self.queries),
            _single("retriever_cached_queries_total", "counter", "Queries from the cache.", self.cached),
            (
                "retriever_search_seconds",
                "summary",
                "Time in the search thread, one observation a batch.",
                [
                    f"retriever_search_seconds_sum {self.search_seconds:.6f}",
                    f"retriever_search_seconds_count {self.searches}",
                ],
            ),
            _single(
                "retriever_searched_queries_total",
                "counter",
                "Queries searched for, in batches.",
                self.searched,
            ),
            _single(
                "retriever_expired_requests_total", "counter", "Requests past their deadline.", self.expired
            ),
            _single("retriever_pending_requests", "gauge", "Requests searching or waiting.", pending),
            _single("retriever_ready", "gauge", "1 once the index is loaded.", int(ready)),
            _single("retriever_documents", "gauge", "Documents in the index.", ntotal),
            _single(
                "process_resident_memory_bytes",
                "gauge",
                "Resident memory, pages of mapped files included.",
                _resident_bytes(),
            ),
        ]
        lines: list[str] = []
        for name, kind, description, samples in families:
            lines += [f"# HELP {name} {description}", f"# TYPE {name} {kind}", *samples]
        return "\n".join(lines) + "\n"


def _single(name: str, kind: str, description: str, value: int) -> tuple[str, str, str, list[str]]:
    return name, kind, description, [f"{name} {value}"]
