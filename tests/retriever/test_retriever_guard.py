"""Slow, greedy and foreign clients on raw sockets: each costs a connection for some seconds, and nobody else an answer."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import requests
from conftest import ROOT, START_SECONDS, environment, wait_ready

from retriever.http_limits import HostNames

BODY = b'{"query": "ka1"}'
WHOLE = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


class Running:
    """A server process, its address and what it said."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process, self.url = process, url
        host, port = url.removeprefix("http://").split(":")
        self.address = (host, int(port))

    def connect(self, stack: ExitStack) -> socket.socket:
        return stack.enter_context(socket.create_connection(self.address, timeout=30))


@contextmanager
def running(index: Path, *arguments: str, files: int | None = None, deaf: bool = False) -> Iterator[Running]:
    """A server of its own; deaf as what a shell starts in the background, which is made to ignore Ctrl-C."""

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if deaf else signal.SIG_DFL)
        if files:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))

    command = [sys.executable, "-m", "retriever", "serve", "--port", "0", "--index", str(index), *arguments]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=prepare,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[2].rstrip(",")
            wait_ready(url)
            yield Running(process, url)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def hurried(index_folder: Path) -> Iterator[Running]:
    with running(
        index_folder, "--head-timeout", "0.5", "--body-timeout", "0.5", "--connections", "8"
    ) as server:
        yield server


def closed_after(connection: socket.socket) -> float:
    """Seconds until the other side ends a connection."""
    start = time.monotonic()
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return time.monotonic() - start


def answer(connection: socket.socket) -> bytes:
    """One whole answer."""
    said = connection.recv(65536)
    head, _, body = said.partition(b"\r\n\r\n")
    length = next(
        (
            int(line.split(b":")[1])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        ),
        0,
    )
    while len(body) < length and (more := connection.recv(65536)):
        said, body = said + more, body + more
    return said


@pytest.mark.parametrize("begun", [b"", b"P", b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\n", WHOLE])
def test_half_a_head_is_not_waited_for(hurried: Running, begun: bytes) -> None:
    with ExitStack() as stack:
        connection = hurried.connect(stack)
        connection.sendall(begun)
        if begun == WHOLE:
            assert answer(connection).startswith(b"HTTP/1.1 200")
            time.sleep(0.7)  # idle between two requests is no fault
            connection.sendall(WHOLE)
            assert answer(connection).startswith(b"HTTP/1.1 200")
            connection.sendall(WHOLE[:20])
        assert closed_after(connection) < 10


def test_a_head_byte_by_byte_is_cut_off(hurried: Running) -> None:
    with ExitStack() as stack:
        connection = hurried.connect(stack)
        with pytest.raises(OSError):
            for n in range(200):
                connection.sendall(b"POST /retrieve HTTP/1.1\r\n"[n : n + 1] or b"x")
                time.sleep(0.05)


def test_half_a_body_is_408(hurried: Running) -> None:
    with ExitStack() as stack:
        connection = hurried.connect(stack)
        connection.sendall(WHOLE[:-3])
        said = answer(connection)
        assert said.startswith(b"HTTP/1.1 408") and b"--body-timeout" in said
        assert closed_after(connection) < 10
        connection = hurried.connect(stack)
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        assert answer(connection).startswith(b"HTTP/1.1 200")
        assert closed_after(connection) < 10


def test_large_slow_bodies_end_and_never_stand_in_the_way_of_small_ones(hurried: Running) -> None:
    head = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000000\r\n\r\n"
    with ExitStack() as stack:
        connections = [hurried.connect(stack) for _ in range(5)]
        for connection in connections:
            connection.sendall(head + b" " * 3_000_000)
            assert requests.post(f"{hurried.url}/retrieve", data=BODY, timeout=30).status_code == 200
        assert all(answer(connection).startswith(b"HTTP/1.1 408") for connection in connections)


def test_one_connection_too_many_ends_the_longest_idle_one(hurried: Running) -> None:
    with ExitStack() as stack:
        idle = []
        for _ in range(8):
            connection = hurried.connect(stack)
            connection.sendall(WHOLE)
            assert answer(connection).startswith(b"HTTP/1.1 200")
            idle.append(connection)
        newest = hurried.connect(stack)
        newest.sendall(WHOLE)
        assert answer(newest).startswith(b"HTTP/1.1 200")
        assert closed_after(idle[0]) < 5
        idle[-1].sendall(WHOLE)
        assert answer(idle[-1]).startswith(b"HTTP/1.1 200")


def test_busy_connections_without_end_are_refused(index_folder: Path) -> None:
    with running(index_folder, "--connections", "4") as server, ExitStack() as stack:
        for _ in range(4):
            server.connect(stack).sendall(WHOLE[:-3])
        time.sleep(0.3)
        said = answer(server.connect(stack))
        assert said.startswith(b"HTTP/1.1 503") and b"Retry-After" in said
        assert "--connections" in json.loads(said.partition(b"\r\n\r\n")[2])["detail"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_while_a_client_holds_half_a_body(
    index_folder: Path, number: signal.Signals
) -> None:
    with running(index_folder, "--shutdown-timeout", "1") as server, ExitStack() as stack:
        server.connect(stack).sendall(WHOLE[:-3])
        server.connect(stack).sendall(WHOLE[:20])
        server.connect(stack)
        time.sleep(0.2)
        start = time.monotonic()
        server.process.send_signal(number)
        server.process.wait(30)
        assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("number", "deaf"), [(signal.SIGINT, False), (signal.SIGINT, True), (signal.SIGTERM, False)]
)
def test_it_says_that_a_signal_stopped_it(index_folder: Path, number: signal.Signals, deaf: bool) -> None:
    with running(index_folder, deaf=deaf) as server:
        server.process.send_signal(number)
        out, _ = server.process.communicate(timeout=30)
        assert server.process.returncode == 0 and out.splitlines()[-1] == "stopped"


def test_no_flood_of_messages_when_file_handles_are_few(index_folder: Path) -> None:
    with running(index_folder, files=340) as server, ExitStack() as stack:
        for _ in range(300):
            connection = server.connect(stack)
            connection.setblocking(False)
        time.sleep(1)
        stack.close()
        for _ in range(100):
            with suppress(requests.ConnectionError):
                status = requests.post(f"{server.url}/retrieve", data=BODY, timeout=30).status_code
                if status == 200:
                    break
                assert status == 503
            time.sleep(0.05)
        else:
            pytest.fail("it answered nobody after the flood")
        server.process.terminate()
        assert len(server.process.communicate(timeout=30)[0]) < 20_000


def held_ends(server: Running, port: int) -> list[str]:
    """Rows of the kernel's table: the server's end of a connection from this port, unless closed (inode 0)."""
    table = Path(f"/proc/{server.process.pid}/net/tcp").read_text().splitlines()[1:]
    ends = (f":{server.address[1]:04X}", f":{port:04X}")
    return [
        row
        for row, (_, local, remote, *rest) in ((row, row.split()) for row in table)
        if (local[-5:], remote[-5:]) == ends and rest[6] != "0"
    ]


def test_a_client_that_never_reads_is_dropped(hurried: Running) -> None:
    with ExitStack() as stack:
        reader = hurried.connect(stack)
        reader.sendall(WHOLE)
        assert answer(reader).startswith(b"HTTP/1.1 200")
        connection = stack.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(START_SECONDS)
        connection.connect(hurried.address)
        body = json.dumps({"queries": [f"title {n}" for n in range(300)], "topk": 100}).encode()
        connection.sendall(
            b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        # Looked at and left unread: an answer that the kernel takes whole would hold no memory of the server.
        head = connection.recv(1000, socket.MSG_PEEK)
        length = re.search(rb"(?i)content-length: (\d+)", head)
        largest = int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])
        assert head.startswith(b"HTTP/1.1 200") and length and int(length[1]) > 1.5 * largest, head
        until = time.monotonic() + START_SECONDS
        while held := held_ends(hurried, connection.getsockname()[1]):
            assert time.monotonic() < until, held
            time.sleep(0.1)
        assert held_ends(hurried, reader.getsockname()[1])


@pytest.mark.parametrize("path", ["/retrieve", "/info", "/health", "/ready", "/metrics"])
def test_foreign_host_names_are_refused_on_the_loopback(url: str, path: str) -> None:
    def ask(host: str) -> requests.Response:
        if path == "/retrieve":
            return requests.post(url + path, data=BODY, headers={"Host": host}, timeout=30)
        return requests.get(url + path, headers={"Host": host}, timeout=30)

    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"):
        response = ask(host)
        assert response.status_code == 403 and "--allow-host" in response.json()["detail"]
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1", "127.5.5.5:1", "[::1]:8000", "localhost.:80"):
        assert ask(host).status_code == 200


def test_further_names_and_other_addresses() -> None:
    assert not HostNames("127.0.0.1", ["search.lan"]).refuse("Search.LAN:8000")
    assert HostNames("::1", ["search.lan"]).refuse("other.lan")
    assert not HostNames("0.0.0.0").refuse("anything")
    assert not HostNames("10.0.0.5", ["search.lan"]).refuse("10.0.0.5:8000")
    assert HostNames("10.0.0.5", ["search.lan"]).refuse("evil.example")
    assert not HostNames("127.0.0.1").refuse(None)


def test_options_out_of_range_are_named(index_folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "retriever",
        "serve",
        "--index",
        str(index_folder),
        "--head-timeout",
        "0",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=dict(os.environ, **environment()),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and "--head-timeout 0.0 is out of range" in done.stderr
