"""A searcher that counts its calls, and a search service as a process of its own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tstar_envs.envs.search_qa.searcher import Passage, Searcher, open_searcher
from tstar_envs.envs.search_qa.tasks import load_set

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60


class CountingSearcher:
    """A real searcher whose requests are written down."""

    def __init__(self, searcher: Searcher) -> None:
        self.searcher = searcher
        self.requests: list[tuple[list[str], int]] = []

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        self.requests.append((list(queries), topk))
        return self.searcher.search(queries, topk)


@pytest.fixture
def counting() -> CountingSearcher:
    return CountingSearcher(open_searcher("hashed", load_set("hotpotqa", "mini").corpus))


@pytest.fixture(scope="session")
def service() -> Iterator[str]:
    """Address of ``python -m retriever serve`` over the mini corpus, on a free port of the loopback."""
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-u", "-m", "retriever", "serve", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said, deadline = "", time.monotonic() + START_SECONDS
            while "ready" not in said and time.monotonic() < deadline:
                line = process.stdout.readline()
                assert line, f"the service ended: {said}"
                said += line
            found = re.search(r"http://[\d.]+:\d+", said)
            assert found is not None, said
            yield found.group()
        finally:
            process.kill()
