"""What a public service meets: junk from a fuzzer, two hundred clients at once, clients that go away."""

import asyncio
import importlib.util
import os
import socket
import subprocess
import sys
import threading

import httpx
import pytest
import requests
from conftest import ROOT


@pytest.mark.skipif(importlib.util.find_spec("schemathesis") is None, reason="schemathesis is not installed")
def test_junk_from_the_openapi_schema_gives_no_500() -> None:
    # The same with 10,000: python scripts/studies/fuzz_retriever.py
    paths = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    command = [sys.executable, "scripts/studies/fuzz_retriever.py", "--requests", "100"]
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " x 422" in done.stdout and " x 200" in done.stdout and " x 500" not in done.stdout


def resident(url: str) -> int:
    text = requests.get(f"{url}/metrics", timeout=60).text
    return int(float(text.split("\nprocess_resident_memory_bytes ")[1].split("\n")[0]))


@pytest.mark.slow
def test_two_hundred_clients_at_once(url: str) -> None:
    before, peak, done = resident(url), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peak[0] = max(peak[0], resident(url))

    async def client(number: int, http: httpx.AsyncClient) -> list[int]:
        statuses = []
        for turn in range(2):
            queries = [f"title {number} {turn} ka{place}" for place in range(4)]
            while True:
                response = await http.post(f"{url}/retrieve", json={"queries": queries, "topk": 50})
                statuses.append(response.status_code)
                if response.status_code != 503:
                    break
                await asyncio.sleep(float(response.headers["retry-after"]))
            assert len(response.json()["result"]) == 4
        return statuses

    async def crowd() -> list[list[int]]:
        limits = httpx.Limits(max_connections=200, max_keepalive_connections=200)
        async with httpx.AsyncClient(limits=limits, timeout=120) as http:
            return await asyncio.gather(*(client(number, http) for number in range(200)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        statuses = asyncio.run(crowd())
    finally:
        done.set()
        watcher.join()
    assert {status for row in statuses for status in row} <= {200, 503}
    # What 200 requests hold at one time, and an answer cache that is bounded at about 64 MB.
    assert peak[0] - before < 200 << 20, (before, peak)


def test_clients_that_go_away_or_send_halves(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    begun = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    halves = [begun, begun[:30], b"\x00\xff\r\n\r\n", b""]
    for half in halves * 10:
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(half)
    body = b'{"query": "ka1"}'
    whole = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    for _ in range(20):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(whole)
    assert requests.post(f"{url}/retrieve", json={"query": "ka1"}, timeout=30).status_code == 200
    text = requests.get(f"{url}/metrics", timeout=30).text
    assert 'status="500"' not in text
    assert "\nretriever_pending_requests 0\n" in text


def test_slow_large_bodies_are_bounded_together(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    head = b"POST /retrieve HTTP/1.1\r\nHost: x\r\nContent-Length: 16000000\r\n\r\n"
    connections = []
    try:
        for _ in range(6):
            connection = socket.create_connection((host, int(port)), timeout=60)
            connections.append(connection)
            connection.sendall(head + b" " * 15_000_000)
        # The fifth body would be more than is held at one time.
        answers = []
        for connection in connections[4:]:
            answers.append(connection.recv(100))
        assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers)
    finally:
        for connection in connections:
            connection.close()
    # When they have gone, there is room again.
    for _ in range(200):
        if (
            requests.post(
                f"{url}/retrieve", data=b'{"query": "ka1"}' + b" " * 10_000_000, timeout=60
            ).status_code
            == 200
        ):
            return
    raise AssertionError("the bodies of clients that went away are still counted")
