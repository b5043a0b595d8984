"""Connections to an endpoint: one for each episode at once, by the proxies and certificates of the environment."""

import base64
import select
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chat_server import Raw, Served, completion, serving
from test_endpoint import MOVE, play

from tstar_envs import UnknownOption
from tstar_envs.agents.connection import NETWORK_VARIABLES
from tstar_envs.agents.endpoint import Endpoint

pytest.importorskip("aiohttp")
SERVED = "127.0.0.1"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NETWORK_VARIABLES, "NO_PROXY", "no_proxy", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tstar_envs.agents.endpoint.FIRST_WAIT", 0.01)


def test_every_seat_keeps_its_one_connection() -> None:
    """Above a hundred too, where a pool of connections may have its end."""
    with serving(lambda body, number: MOVE, delay=0.05) as served:
        episodes = play(served, tasks=120, at_once=120, horizon=4)
    assert len(episodes) == 120 and len(served.requests) == 480
    assert served.connections <= 120


def test_a_connection_that_was_closed_is_opened_again() -> None:
    closing = Raw(429, b"", {"Connection": "close", "Retry-After": "0"})
    with serving(lambda body, number: closing if number % 2 else MOVE) as served:
        (episode,) = play(served, horizon=3)
    assert len(episode.steps) == 3 and served.connections == 1 + len(served.requests) // 2


def test_a_server_that_closes_connections_unannounced_costs_no_episode() -> None:
    body = completion(MOVE).body
    closed = Raw(body=body, headers={"Content-Type": "application/json"}, announced=len(body))
    with serving(lambda body, number: closed) as served:
        episodes = play(served, tasks=4, at_once=4, horizon=3, retries=6)
    assert [len(episode.steps) for episode in episodes] == [3] * 4 and served.connections >= 12


def test_what_a_request_carries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", " key-1234567 ")
    monkeypatch.setenv("OPENAI_ORG_ID", "org")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project")
    with serving(lambda body, number: MOVE) as served:
        play(served, horizon=1)
        served.url = served.url.replace("://", "://me:a%40b@")
        play(served, horizon=1)
    first, second = served.headers
    assert first["authorization"] == "Bearer key-1234567"
    assert second["authorization"] == f"Basic {base64.b64encode(b'me:a@b').decode()}"
    assert (first["openai-organization"], first["openai-project"]) == ("org", "project")
    assert first["content-type"] == "application/json" and first["user-agent"] == "tstar"


def test_a_key_does_not_follow_to_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-1234567")
    with serving(lambda body, number: MOVE) as other:
        moved = Raw(307, b"", {"Location": f"{other.url}/chat/completions"})
        with serving(lambda body, number: moved) as served:
            played(served)
    assert len(other.requests) == 2 and served.headers[0]["authorization"] == "Bearer key-1234567"
    assert not any("authorization" in headers for headers in other.headers)


def test_a_query_of_the_address_stays_behind_the_path() -> None:
    asked = []

    def answer(body: Any, number: int) -> str:
        return MOVE

    with serving(answer) as served, proxying() as proxy, pytest.MonkeyPatch.context() as patched:
        patched.setenv("HTTP_PROXY", proxy.url)
        served.url += "/?api-version=3"
        play(served, horizon=1)
        asked = proxy.asked
    assert asked[0].startswith("POST http://127.0.0.1:") and asked[0].endswith(
        "/v1/chat/completions?api-version=3 HTTP/1.1"
    )


# Proxies


@dataclass
class Proxy:
    """A proxy and what went through it: request lines, and names and passwords."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    who: list[str] = field(default_factory=list)


def joined(one: socket.socket, other: socket.socket) -> None:
    """Pass on what comes until one side closes."""
    while True:
        for ready in select.select([one, other], [], [], 20)[0]:
            data = ready.recv(65_536)
            if not data:
                return
            (other if ready is one else one).sendall(data)


@contextmanager
def proxying(socks: bool = False) -> Iterator[Proxy]:
    """Serve HTTP's two ways of a proxy, or SOCKS 5 without a password."""
    proxy = Proxy()

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if socks:
                self.request.recv(3)
                self.request.sendall(b"\x05\x00")
                head = self.request.recv(300)
                assert head[:4] == b"\x05\x01\x00\x01", "an address of four octets"
                to = (".".join(map(str, head[4:8])), int.from_bytes(head[8:10], "big"))
                proxy.asked.append(f"SOCKS {to[0]}")
                first, done = b"", b"\x05\x00\x00\x01" + bytes(6)
            else:
                head = b""
                while b"\r\n\r\n" not in head:
                    head += self.request.recv(65_536)
                line, *headers = head.partition(b"\r\n\r\n")[0].decode().split("\r\n")
                proxy.asked.append(line)
                proxy.who += [one.partition(": ")[2] for one in headers if one.lower().startswith("proxy-a")]
                method, target, _ = line.split()
                place = target if method == "CONNECT" else target.split("/")[2]
                host, _, port = place.partition(":")
                to = (host, int(port))
                first, done = (
                    (b"", b"HTTP/1.1 200 OK\r\n\r\n") if method == "CONNECT" else (self._own(head), b"")
                )
            with socket.create_connection(to) as far:
                self.request.sendall(done)
                far.sendall(first)
                joined(self.request, far)

        @staticmethod
        def _own(head: bytes) -> bytes:
            """The request as the server itself is asked."""
            method, target, rest = head.split(b" ", 2)
            return b" ".join([method, b"/" + target.split(b"/", 3)[3], rest])

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    proxy.url = f"{'socks5h' if socks else 'http'}://127.0.0.1:{server.server_address[1]}"
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def played(served: Served) -> None:
    (episode,) = play(served, horizon=2, retries=0)
    assert episode.ended == "truncated", episode.error


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_requests_go_through_the_proxy_with_its_password(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with serving(lambda body, number: MOVE) as served, proxying() as proxy:
        monkeypatch.setenv(variable, proxy.url.replace("://", "://me:pass-word9@"))
        played(served)
    assert proxy.asked == [f"POST {served.url}/chat/completions HTTP/1.1"] and len(served.requests) == 2
    assert proxy.who == [f"Basic {base64.b64encode(b'me:pass-word9').decode()}"]


def test_a_proxy_may_be_named_without_http(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda body, number: MOVE) as served, proxying() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url.removeprefix("http://"))
        played(served)
    assert len(proxy.asked) == 1


@pytest.mark.parametrize("left_out", ["127.0.0.1", "example.com,127.0.0.1", "*", "127.0.0.1:{port}"])
def test_hosts_of_no_proxy_are_asked_directly(monkeypatch: pytest.MonkeyPatch, left_out: str) -> None:
    with serving(lambda body, number: MOVE) as served, proxying() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        port = served.url.removesuffix("/v1").rpartition(":")[2]
        monkeypatch.setenv("NO_PROXY", left_out.format(port=port))
        played(served)
    assert not proxy.asked and len(served.requests) == 2


def test_a_proxy_that_refuses_is_a_failed_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda body, number: Raw(407, b"who are you?")) as refusing:
        monkeypatch.setenv("HTTP_PROXY", refusing.url.removesuffix("/v1"))
        (episode,) = play(Served("http://example.invalid/v1"), horizon=1, retries=0)
    assert episode.ended == "error" and "HTTP 407: who are you?" in episode.error


def test_a_socks_proxy_is_used_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp_socks")
    with serving(lambda body, number: MOVE) as served, proxying(socks=True) as proxy:
        monkeypatch.setenv("ALL_PROXY", proxy.url)
        played(served)
    assert proxy.asked == ["SOCKS 127.0.0.1"]


def test_a_socks_proxy_without_its_package_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "aiohttp_socks", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(UnknownOption, match="pip install aiohttp-socks"):
        Endpoint("m", "http://example.com/v1")


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that signs itself, with its key beside it."""
    folder = tmp_path_factory.mktemp("tls")
    asked = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    more = "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    subprocess.run(f"{asked} {more}".split(), cwd=folder, check=True, capture_output=True)
    return folder / "cert.pem"


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    return context


def test_an_unknown_certificate_is_refused_and_one_of_ones_own_is_not(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, tls: ssl.SSLContext
) -> None:
    with serving(lambda body, number: MOVE, tls=tls) as served:
        (episode,) = play(served, horizon=2, retries=0)
        assert episode.ended == "error" and "the connection failed" in episode.error
        assert "certificate verify failed" in episode.error and not served.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        played(served)
        assert len(served.requests) == 2


def test_tls_goes_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch, certificate: Path, tls: ssl.SSLContext
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(lambda body, number: MOVE, tls=tls) as served, proxying() as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("://", "://me:pass-word9@"))
        played(served)
    place = served.url.split("/")[2]
    assert proxy.asked == [f"CONNECT {place} HTTP/1.1"] and len(served.requests) == 2
    assert proxy.who == [f"Basic {base64.b64encode(b'me:pass-word9').decode()}"]
    assert not any("proxy-authorization" in headers for headers in served.headers)
