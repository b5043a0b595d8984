"""Services that others wrote: how they distinguish queries, the forms of their passages, and hostile ones on raw sockets."""

import gzip
import json
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback import QuietHandler, listening

from retriever.corpus import normalise
from tstar_envs import InfrastructureError, RetrieverError, make_group
from tstar_envs.envs.search_qa import rules
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.search import EmbeddedSearcher
from tstar_envs.envs.search_qa.service import HttpSearcher
from tstar_envs.envs.search_qa.tasks import Passage, query_key


@contextmanager
def service(answer: Callable[[list[str]], Any], info: object = None) -> Iterator[str]:
    """A server whose lists of passages ``answer`` makes; ``info`` is what it says of itself, None nothing."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def say(self, status: int, content: object) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.say(404 if info is None else 200, info)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = answer(body["queries"])
            self.say(*(found if isinstance(found, tuple) else (200, {"result": found})))

    with listening(Handler) as url:
        yield url


def echo(queries: list[str]) -> list[list[dict[str, Any]]]:
    return [
        [{"document": {"id": query, "contents": f'"{query}"\nabout {query}'}, "score": 1.0}]
        for query in queries
    ]


def shown(env: SearchQAEnv, *queries: str) -> list[tuple[str, bool]]:
    env.reset(options={"task": 0})
    steps = [env.step(f"search[{query}]") for query in queries]
    return [(observation, info["repeat_query"]) for observation, *_, info in steps]


# "mark" differs in combining marks alone, which every search distinguishes.
MARKS = [("काल", "किल"), ("रम", "राम"), ("กา", "กี")]


@pytest.mark.parametrize(("first", "second"), MARKS)
def test_marks_tell_queries_apart_in_a_search_by_words(first: str, second: str) -> None:
    corpus = [(word, f'"{word}"\n{word} is here') for word in (first, second)]
    env = SearchQAEnv(searcher=EmbeddedSearcher(corpus, "bm25"), topk=1)
    one, two = shown(env, first, second)
    assert not two[1] and one[0] != two[0] and second in two[0]
    assert rules.parse_action(f"search[{first}]").verb == "search"


@pytest.mark.parametrize(
    ("first", "second"), [*MARKS, ("C++", "C#"), ("us", "US"), ("3.5 m", "35 m"), ("let's", "lets")]
)
def test_a_service_of_unknown_kind_is_asked_for_each_text(first: str, second: str) -> None:
    with service(echo) as url:
        one, two, again = shown(SearchQAEnv(searcher=HttpSearcher(url)), first, second, first)
        assert not two[1] and f"about {second}" in two[0] and again == (one[0], True)
        group = make_group("hotpotqa", [0], 2, searcher=HttpSearcher(url))
        group.reset()
        group.step([f"search[{first}]", f"search[{second}]"])
        observations, *_ = group.step([f"search[{second}]", f"search[{first}]"])
        assert [f"about {second}" in str(observations[0]), f"about {first}" in str(observations[1])] == [
            True,
            True,
        ]


@pytest.mark.parametrize(
    ("info", "repeated"),
    [
        ({"encoder": "hashed_tfidf"}, True),
        ({"encoder": "none", "index": "bm25"}, True),
        ({"encoder": "intfloat/e5-base-v2"}, False),
        ({}, False),
        ([], False),
        ("hashed_tfidf", False),
    ],
)
def test_a_service_that_reads_words_says_so(info: object, repeated: bool) -> None:
    with service(echo, info) as url:
        assert [again for _, again in shown(SearchQAEnv(searcher=HttpSearcher(url)), "C++", "c#")] == [
            False,
            repeated,
        ]


@given(st.text(max_size=30))
def test_the_key_is_what_the_retriever_sees(query: str) -> None:
    assert query_key(query) == normalise(query)
    assert query_key(query_key(query)) == query_key(query)


@pytest.mark.parametrize(
    ("document", "expected", "heading"),
    [
        ({"title": "T", "text": "body"}, ("T", "body"), '"T"'),
        ({"id": 3, "title": "T", "text": "body", "contents": None}, ("T", "body"), '"T"'),
        (
            {"contents": '"The ""Quoted"" Opera"\na\nb'},
            ('The "Quoted" Opera', "a\nb"),
            '"The ""Quoted"" Opera"',
        ),
        ({"contents": '"""Heroes"""\nan album'}, ('"Heroes"', "an album"), '"""Heroes"""'),
        ({"contents": '"Heroes" (song)\nbody'}, ('"Heroes" (song)', "body"), '"Heroes" (song)'),
        ({"contents": '"T"\nbody', "title": '"T"'}, ("T", "body"), '"T"'),
        ({"contents": "T\nbody", "title": "T", "text": "body"}, ("T", "body"), "T"),
        ({"text": '"T"\nbody'}, ("T", "body"), '"T"'),
        ({"contents": "one line"}, ("one line", ""), "one line"),
        ('"T"\n body ', ("T", " body "), '"T"'),
    ],
)
def test_passages_keep_their_text(document: object, expected: tuple[str, str], heading: str) -> None:
    with service(lambda queries: [[{"document": document, "score": 0.5}] for _ in queries]) as url:
        ((passage,),) = HttpSearcher(url).search(["q"], 1)
        assert (passage.title, passage.text) == expected
        env = SearchQAEnv(searcher=HttpSearcher(url), prompt_style="search_r1")
        env.reset(options={"task": 0})
        # As Search-R1's _passages2string: the first line as it stands, then the rest.
        assert (
            env.step("<search>q</search>")[0]
            == f"\n\n<information>{f'Doc 1(Title: {heading}) {expected[1]}'.strip()}</information>\n\n"
        )


@pytest.mark.parametrize(
    "document",
    [{}, {"id": "1"}, {"title": 5, "text": "x"}, {"contents": ["x"]}, None, 7, {"contents": "x", "text": 3}],
)
def test_what_is_no_passage_is_an_unknown_form(document: object) -> None:
    with (
        service(lambda queries: [[{"document": document}]]) as url,
        pytest.raises(RetrieverError, match="unknown format"),
    ):
        HttpSearcher(url).search(["q"], 1)


def test_pydantic_1_asks_for_one_query_too() -> None:
    old = {"detail": [{"loc": ["body", "query"], "msg": "field required", "type": "value_error.missing"}]}
    with service(lambda queries: (422, old) if len(queries) > 1 else echo(queries)) as url:
        assert [row[0].title for row in HttpSearcher(url).search(["a", "b"], 1)] == ["a", "b"]


def test_a_passage_travels_whole() -> None:
    passage = Passage("1", "T", "x", "T raw")
    again = pickle.loads(pickle.dumps(passage))
    assert (
        again == passage == ("1", "T", "x")
        and again.heading == "T raw"
        and Passage("1", "T", "x").heading == '"T"'
    )


def read_request(connection: socket.socket) -> None:
    """All of it: a connection that is closed with something unread is reset, and its answer lost."""
    head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
    while len(body) < length:
        body += connection.recv(65536)


@contextmanager
def raw(speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that reads a request and then says what it likes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    read_request(connection)
                    speak(connection)
                except OSError:
                    pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def drip(text: bytes) -> Callable[[socket.socket], None]:
    def speak(connection: socket.socket) -> None:
        connection.sendall(text)
        for _ in range(300):
            connection.sendall(b" ")
            time.sleep(0.05)

    return speak


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "begun", [HEAD + b"Content-Length: 5000\r\n\r\n", HEAD + b"X-Slow:", b"HTTP/1.1 200"]
)
def test_a_byte_now_and_then_is_no_reply(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSTAR_MAX_REPLY_SECONDS", "1")
    with raw(drip(begun)) as url:
        start = time.monotonic()
        with pytest.raises(InfrastructureError, match=r"within 1 s.*TSTAR_MAX_REPLY_SECONDS"):
            HttpSearcher(url, tries=1).search(["q"], 1)
        assert time.monotonic() - start < 8


@pytest.mark.parametrize("packed", [True, False])
def test_a_reply_is_bounded_by_what_it_unpacks_to(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TSTAR_MAX_REPLY_BYTES", "5000000")
    body = gzip.compress(b" " * 50_000_000, 1) if packed else b" " * 6_000_000
    coding = b"Content-Encoding: gzip\r\n" if packed else b""

    def speak(connection: socket.socket) -> None:
        connection.sendall(HEAD + coding + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    with raw(speak) as url, pytest.raises(InfrastructureError, match="TSTAR_MAX_REPLY_BYTES"):
        HttpSearcher(url, tries=1).search(["q"], 1)


@pytest.mark.parametrize(
    "status", [b"301 Moved", b"302 Found", b"303 See Other", b"307 Temporary", b"308 Permanent"]
)
def test_a_redirection_is_named_and_its_body_never_read(status: bytes) -> None:
    sent = []

    def speak(connection: socket.socket) -> None:
        head = (
            b"HTTP/1.1 %s\r\nLocation: http://elsewhere.example/\r\nContent-Length: 9000000000\r\n\r\n"
            % status
        )
        connection.sendall(head)
        for _ in range(2000):
            connection.sendall(b" " * 100_000)
            sent.append(100_000)

    begun = time.monotonic()
    with (
        raw(speak) as url,
        pytest.raises(RetrieverError, match="redirects to 'http://elsewhere.example/'"),
    ):
        HttpSearcher(url, tries=1).search(["q"], 1)
    assert time.monotonic() - begun < 10 and sum(sent) < 50_000_000, "what the sockets hold"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 200_000,
        b'{"result": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"result": ' + b"9" * 10_000 + b"}",
        b"\xff\xfe",
        b"",
    ],
)
def test_strange_json_is_an_unknown_form(body: bytes) -> None:
    def speak(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    with raw(speak) as url, pytest.raises(RetrieverError, match="unknown format"):
        HttpSearcher(url, tries=1).search(["q"], 1)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\x00\x01",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
def test_a_broken_reply_is_a_failure_of_the_service(said: bytes) -> None:
    with (
        raw(lambda connection: connection.sendall(said)) as url,
        pytest.raises(RetrieverError, match="no search service"),
    ):
        HttpSearcher(url, tries=2, pause_seconds=0.01).search(["q"], 1)
