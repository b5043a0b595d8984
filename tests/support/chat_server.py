"""OpenAI-compatible servers on loopback, for tests: a scripted one that can misbehave, and one that serves a trained policy."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from loopback import QuietHandler

Body = dict[str, Any]


@dataclass
class Served:
    """A server and what was asked of it.

    Attributes:
        url: for ``base_url``.
        requests: the bodies, in the order they came.
        at_once: how many requests were being answered when each came, itself included, in the order of ``requests``.
        headers: those of each request, with lower-case names.
        connections: how many were opened.
    """

    url: str = ""
    requests: list[Body] = field(default_factory=list)
    at_once: list[int] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    connections: int = 0


@dataclass(frozen=True)
class Raw:
    """An answer that is no completion.

    Attributes:
        status: of HTTP.
        body: sent as it is.
        headers: further ones.
        announced: bytes that Content-Length promises; None for as many as there are.
        hold: seconds before anything is sent.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    announced: int | None = None
    hold: float = 0.0


def completion(message: str | Body, *, usage: bool = True, given: int = 10) -> Raw:
    """What a well-behaved endpoint answers."""
    filled = (
        {"role": "assistant", "content": message}
        if isinstance(message, str)
        else {"role": "assistant", **message}
    )
    words = len(str(filled["content"] or "").split())
    counts = (
        {"usage": {"prompt_tokens": given, "completion_tokens": words, "total_tokens": given + words}}
        if usage
        else {}
    )
    choice = {"index": 0, "finish_reason": "stop", "message": filled}
    head = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
    return Raw(
        body=json.dumps({**head, "choices": [choice], **counts}).encode(),
        headers={"Content-Type": "application/json"},
    )


def streamed(text: str) -> Raw:
    """The same answer as a stream of events, for clients that ask for one."""
    head = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    words = text.split(" ")
    deltas = [
        {"role": "assistant", "content": ""},
        *({"content": word if n == 0 else f" {word}"} for n, word in enumerate(words)),
    ]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    usage = {"prompt_tokens": 10, "completion_tokens": len(words), "total_tokens": 10 + len(words)}
    chunks.append({**head, "choices": [], "usage": usage})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return Raw(body=body.encode(), headers={"Content-Type": "text/event-stream"})


@contextmanager
def serving(
    answer: Callable[[Body, int], str | Raw], delay: float = 0.0, tls: ssl.SSLContext | None = None
) -> Iterator[Served]:
    """Serve chat completions.

    Args:
        answer: from the request's body and its number (from 0) to the message, or to an answer as it is sent.
        delay: seconds each request takes.
        tls: serve HTTPS.
    """
    served, lock, active = Served(), threading.Lock(), [0]

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            with lock:
                served.connections += 1
            super().setup()

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = len(served.requests)
                served.requests.append(body)
                served.headers.append({name.lower(): value for name, value in self.headers.items()})
                active[0] += 1
                served.at_once.append(active[0])
            try:
                found = answer(body, number)
                given = sum(len(str(message["content"])) for message in body["messages"]) // 4
                raw = completion(found, given=given) if isinstance(found, str) else found
                time.sleep(delay + raw.hold)
                self._send(raw)
            finally:
                with lock:
                    active[0] -= 1

        def _send(self, raw: Raw) -> None:
            length = len(raw.body) if raw.announced is None else raw.announced
            headers = {**raw.headers, "Content-Length": str(length)}
            head = (
                f"HTTP/1.1 {raw.status} X\r\n"
                + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
                + "\r\n"
            )
            try:
                self.wfile.write(
                    head.encode() + raw.body
                )  # in one piece: two would wait for each other's acknowledgement
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True
            if raw.announced is not None:
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        request_queue_size = 256
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that does not trust our certificate goes away."""

    server = Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}/v1"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
