"""The environment over a real search service: the same episodes, and clear errors where there is none."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tstar_envs import RetrieverError, make_group
from tstar_envs.envs.search_qa.env import SearchQAEnv

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 60


@pytest.fixture(scope="module")
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


def transcript(retriever: str, task: int, topk: int) -> list[object]:
    env = SearchQAEnv(retriever=retriever, topk=topk)
    seen: list[object] = [env.reset(options={"task": task})]
    for number in range(4):
        seen.append(env.step(env.mistake(number) if number % 2 else env.oracle() or "nothing"))
    return seen


@pytest.mark.parametrize("topk", [1, 3])
def test_same_episodes_as_embedded(service: str, topk: int) -> None:
    for task in range(12):
        assert transcript(service, task, topk) == transcript("hashed", task, topk)


@pytest.mark.parametrize("query", ["\ud800 lantern", "lan\udfffterns", "lantern\x00", "ünïcode 東京", "x" * 1000])
def test_any_query_gets_the_embedded_answer(service: str, query: str) -> None:
    over, inside = SearchQAEnv(retriever=service + "/retrieve"), SearchQAEnv()
    for env in (over, inside):
        env.reset(options={"task": 0})
    assert over.step(f"search[{query}]") == inside.step(f"search[{query}]")


def test_group_over_http(service: str) -> None:
    results = []
    for retriever in (service, "hashed"):
        group = make_group("hotpotqa", [0, 1], 2, retriever=retriever)
        results.append([group.reset(), group.step([env.oracle() if r % 2 else env.mistake(r) for r, env in enumerate(group.envs)])])
    assert results[0] == results[1]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_nobody_there() -> None:
    env = SearchQAEnv(retriever=f"http://127.0.0.1:{free_port()}")
    env.reset(options={"task": 0})
    before = env.snapshot()
    with pytest.raises(RetrieverError, match="python -m retriever serve"):
        env.step("search[x]")
    assert env.snapshot() == before, "a step that failed was not played"
    assert not env.step("finish[x]")[3]


@contextmanager
def server(status: int, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.server_port}"
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (500, b"out of memory", "answered 500: out of memory"),
        (200, b"<html>", "unknown form"),
        (200, b'{"results": []}', "unknown form"),
        (200, b'{"result": []}', "1 queries with 0 lists"),
        (200, b'{"result": [[{"document": {"contents": 3}}]]}', "unknown form"),
        (200, b'{"result": [["only text"]]}', "unknown form"),
    ],
)
def test_bad_answers(status: int, body: bytes, message: str) -> None:
    with server(status, body) as address:
        env = SearchQAEnv(retriever=address)
        env.reset(options={"task": 0})
        with pytest.raises(RetrieverError, match=message):
            env.step("search[x]")
        group = make_group("hotpotqa", [0], 2, retriever=address)
        group.reset()
        with pytest.raises(RetrieverError):
            group.step(["search[x]", "finish[y]"])
        assert group.running == [True, True], "nothing was played, so the step can be tried again"


def test_search_r1_answers_are_read() -> None:
    body = b'{"result": [[{"document": {"id": 7, "contents": "\\"Evan Morris\\"\\nWas a lobbyist."}, "score": 0.5}]]}'
    with server(200, body) as address:
        env = SearchQAEnv(retriever=address)
        env.reset(options={"task": 0})
        observation, *_, info = env.step("search[x]")
    assert observation == "Doc 1 (Title: Evan Morris) Was a lobbyist." and info["doc_ids"] == ["7"]
