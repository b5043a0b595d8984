"""The environment over a real search service: the same episodes, and clear errors where there is none."""

import json
import os
import pickle
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from service_process import ServiceProcess

from tstar_envs import Episode, ResetNeeded, RetrieverError, UnknownOption, make_group
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.service import HttpSearcher
from tstar_envs.evaluation.runner import Setting, Worker, play_missing
from tstar_envs.evaluation.stats import summarise
from tstar_envs.registry import find_entry


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """Address of ``python -m retriever serve`` over the mini corpus, on a free port of the loopback."""
    with ServiceProcess() as process:
        yield process.url


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


@pytest.mark.parametrize(
    "query", ["\ud800 lantern", "lan\udfffterns", "lantern\x00", "ünïcode 東京", "x" * 1000]
)
def test_any_query_gets_the_embedded_answer(service: str, query: str) -> None:
    over, inside = SearchQAEnv(retriever=service + "/retrieve"), SearchQAEnv()
    for env in (over, inside):
        env.reset(options={"task": 0})
    assert over.step(f"search[{query}]") == inside.step(f"search[{query}]")


def test_group_over_http(service: str) -> None:
    results = []
    for retriever in (service, "hashed"):
        group = make_group("hotpotqa", [0, 1], 2, retriever=retriever)
        results.append(
            [
                group.reset(),
                group.step([env.oracle() if r % 2 else env.mistake(r) for r, env in enumerate(group.envs)]),
            ]
        )
    assert results[0] == results[1]


def test_a_service_with_another_worlds_passages_is_refused(service: str) -> None:
    env = SearchQAEnv(dataset="musique", retriever=service)
    env.reset(options={"task": 0})
    before = env.snapshot()
    for _ in range(2):
        with pytest.raises(UnknownOption, match=r"another corpus.*docs/retriever.md"):
            env.step("search[x]")
    assert env.snapshot() == before
    group = make_group("bamboogle", [0], 2, split="test", retriever=service)
    group.reset()
    with pytest.raises(UnknownOption, match="another corpus"):
        group.step(["search[x]", "search[y]"])


def test_the_corpus_is_asked_for_once() -> None:
    wanted = ['"Title"\nbody of it', '"Other"\nits body']

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        # A service of single queries that knows the second passage alone, and writes white space its own way.
        if "queries" in body and len(body["queries"]) > 1:
            return 422, {}, json.dumps({"detail": [{"loc": ["body", "query"], "type": "missing"}]}).encode()
        documents = [{"id": "1", "title": "Other", "text": "its  body"}, {"id": "2", "contents": "x\ny"}]
        return (
            200,
            {},
            json.dumps(
                {"result": [[{"document": {"contents": "", **d}, "score": 1.0} for d in documents]]}
            ).encode(),
        )

    with answering(answer) as service:
        searcher = HttpSearcher(service.url, expected=wanted)
        for _ in range(3):
            assert [p.title for p in searcher.search(["a"], 1)[0]] == ["Other"]
        assert [b.get("query") for b in service.bodies] == [None, *wanted, "a", "a", "a"]
        with pytest.raises(UnknownOption, match="'Third'; it finds 'Other' instead"):
            HttpSearcher(service.url, expected=['"Third"\nits body']).search(["a"], 1)


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


Answer = Callable[[dict[str, Any]], tuple[int, dict[str, str], bytes]]


class Service:
    """A server of the test's own; writes down what it was asked, and how many connections were made."""

    def __init__(self, answer: Answer) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.connections = 0
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                service.connections += 1
                super().setup()

            def do_POST(self) -> None:
                service.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status, headers, body = answer(service.bodies[-1])
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self.listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.listening.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.listening.server_port}"


@contextmanager
def answering(answer: Answer) -> Iterator[Service]:
    service = Service(answer)
    thread = threading.Thread(target=service.listening.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        service.listening.shutdown()
        service.listening.server_close()
        thread.join()


@contextmanager
def server(status: int, body: bytes) -> Iterator[str]:
    with answering(lambda _: (status, {}, body)) as service:
        yield service.url


def documents_for(query: str, count: int) -> list[dict[str, Any]]:
    return [
        {"document": {"id": f"{query}-{n}", "contents": f'"{query}"\nrank {n}'}, "score": -n}
        for n in range(count)
    ]


def answer_all(body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """As Search-R1's server: a list of queries, and nothing else will do."""
    if not isinstance(body.get("queries"), list) or body.get("return_scores") is not True:
        return 500, {}, b"Internal Server Error"
    return (
        200,
        {},
        json.dumps({"result": [documents_for(query, body["topk"]) for query in body["queries"]]}).encode(),
    )


def answer_one(body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
    """As the servers of SkyRL and verl-agent, whose request model knows one query."""
    if not isinstance(body.get("query"), str):
        return (
            422,
            {},
            json.dumps(
                {"detail": [{"type": "missing", "loc": ["body", "query"], "msg": "Field required"}]}
            ).encode(),
        )
    return 200, {}, json.dumps({"result": [documents_for(body["query"], body["topk"])]}).encode()


def found(searcher: HttpSearcher, queries: list[str], topk: int = 2) -> list[list[str]]:
    return [[passage.id for passage in row] for row in searcher.search(queries, topk)]


@pytest.mark.parametrize("answer", [answer_all, answer_one])
def test_both_dialects_over_one_connection(answer: Answer) -> None:
    expected = [["a-0", "a-1"], ["b-0", "b-1"], ["c-0", "c-1"]]
    with answering(answer) as service:
        first, second = (
            HttpSearcher(service.url),
            pickle.loads(pickle.dumps(HttpSearcher(service.url + "/retrieve"))),
        )
        for searcher in (first, second):
            assert found(searcher, ["a"]) == expected[:1]
            assert found(searcher, ["a", "b", "c"]) == expected
            assert found(searcher, ["a", "b", "c"]) == expected
        assert service.connections == 1, "all searchers of a process share one"
        # One request for a group, or one for each query and, once, the one that was refused.
        assert len(service.bodies) == (2 * 3 if answer is answer_all else 2 * 8)


def test_a_forked_process_has_its_own_connection() -> None:
    with answering(answer_all) as service:
        searcher = HttpSearcher(service.url)
        assert found(searcher, ["a"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads
            child = os.fork()
        if child == 0:
            os._exit(0 if found(searcher, ["b"]) == [["b-0", "b-1"]] else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert found(searcher, ["c"]) == [["c-0", "c-1"]]
        assert service.connections == 2


def test_large_groups_are_split() -> None:
    with answering(answer_all) as service:
        queries = [f"q{n}" for n in range(600)]
        assert found(HttpSearcher(service.url), queries, 1) == [[f"{query}-0"] for query in queries]
        assert [len(body["queries"]) for body in service.bodies] == [256, 256, 88]
        assert len(found(HttpSearcher(service.url), ["x" * 300_000] * 3, 1)) == 3
        assert [len(body["queries"]) for body in service.bodies[3:]] == [1, 1, 1]


@pytest.mark.parametrize("header", ["0", "0.2", "Wed, 21 Oct 2015 07:28:00 GMT", "soon", None])
def test_a_busy_service_is_waited_for(header: str | None) -> None:
    busy = iter([503, 503, 429])

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        status = next(busy, 200)
        return (
            answer_all(body)
            if status == 200
            else (status, {} if header is None else {"Retry-After": header}, b"loading")
        )

    with answering(answer) as service:
        assert found(HttpSearcher(service.url, tries=1, pause_seconds=0.01), ["a"]) == [["a-0", "a-1"]]
        assert len(service.bodies) == 4


def test_patience_and_tries_end() -> None:
    with answering(lambda _: (503, {"Retry-After": "1000"}, b"loading")) as service:
        with pytest.raises(RetrieverError, match="answered 503 .*loading.*--queue"):
            HttpSearcher(service.url, patience_seconds=5).search(["a"], 1)
        assert len(service.bodies) == 1
    broken = iter([500, 502])
    with answering(
        lambda body: (next(broken), {}, b"") if len(service.bodies) < 3 else answer_all(body)
    ) as service:
        assert found(HttpSearcher(service.url, pause_seconds=0.01), ["a"], 1) == [["a-0"]]
    with answering(lambda _: (502, {}, b"gateway")) as service:
        with pytest.raises(RetrieverError, match="502: gateway"):
            HttpSearcher(service.url, tries=3, pause_seconds=0.01).search(["a"], 1)
        assert len(service.bodies) == 3
    with answering(lambda _: (400, {}, b"no")) as service:
        with pytest.raises(RetrieverError, match="400: no"):
            HttpSearcher(service.url).search(["a"], 1)
        assert len(service.bodies) == 1, "an error of the client is not tried again"


def test_other_forms_of_passages() -> None:
    """Search-R1's proxies of web search ignore topk and send no score or id; its reranker sends texts; bare documents."""
    rows = [
        [{"document": {"contents": '"T"\nbody'}}] * 5,
        [{"document": '"T"\nbody', "score": 1}],
        [{"id": 3, "contents": '"T"\nbody', "title": "T", "text": "body"}],
    ]
    with answering(lambda _: (200, {}, json.dumps({"result": rows}).encode())) as service:
        first, second, third = HttpSearcher(service.url).search(["a", "b", "c"], 3)
    assert [passage[1:] for row in (first, second, third) for passage in row] == [("T", "body")] * 5
    assert (len(first), third[0].id) == (3, "3")


def test_passages_without_ids_are_distinguished_by_their_contents() -> None:
    """Several passages of one article: the second brings something new, the first again does not."""

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        contents = '"T"\n' + ("first" if "first" in body["queries"][0] else "second")
        return 200, {}, json.dumps({"result": [[{"document": {"contents": contents}}]]}).encode()

    with answering(answer) as service:
        env = SearchQAEnv(searcher=HttpSearcher(service.url))
        env.reset(options={"task": 0})
        infos = [env.step(f"search[{query}]")[4] for query in ("the first", "the second", "first again")]
    assert [info["modifies_state"] for info in infos] == [True, True, False]
    assert [len(info["new_doc_ids"]) for info in infos] == [1, 1, 0] and infos[0]["doc_ids"] == infos[2][
        "doc_ids"
    ]


def test_a_failed_search_marks_the_episode_and_leaves_it_out() -> None:
    """Never a reward of 0: the episode ends in an error, is in no figure, and is played again by the next run."""
    entry = find_entry("hotpotqa")
    down = {"left": 3}

    def answer(body: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        down["left"] -= 1
        return (500, {}, b"out of memory") if down["left"] >= 0 else answer_all(body)

    class Agent:
        def reset(self, observation: str, info: dict[str, Any]) -> None:
            self.turn = 0

        def act(self, observation: str, info: dict[str, Any]) -> str:
            self.turn += 1
            return "search[x]" if self.turn == 1 else "finish[y]"

    with answering(answer) as service:
        env = SearchQAEnv(searcher=HttpSearcher(service.url, tries=3, pause_seconds=0.01))
        tasks = env.task_ids()[:2]
        done: dict[tuple[str, int], Episode] = {}
        for _ in range(2):
            for episode in play_missing(
                [Worker(env, Agent())], Setting(entry, "test"), [(task, 0) for task in tasks], done
            ):
                done[episode.task, 0] = episode
                if down["left"] == 0:
                    assert (episode.ended, episode.steps) == ("error", [])
                    assert "RetrieverError" in episode.error and "out of memory" in episode.error
                    assert (summarise([episode]).episodes, summarise([episode]).errors) == (0, 1)
    assert [episode.ended for episode in done.values()] == ["terminated", "terminated"]
    assert summarise(list(done.values())).errors == 0


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (500, b"out of memory", "answered 500: out of memory"),
        (200, b"<html>", "unknown format"),
        (200, b'{"results": []}', "unknown format"),
        (200, b'{"result": []}', "3 queries with 0 lists"),
        (200, b'{"result": [[{"document": {"contents": 3}}]]}', "unknown format"),
        (200, b'{"result": [["only text"]]}', "unknown format"),
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


def test_a_tolerant_group_goes_on_with_the_rows_that_did_not_need_the_service() -> None:
    with ServiceProcess() as process:
        group = make_group("hotpotqa", [0, 1], 2, retriever=process.url)
        alone = make_group("hotpotqa", [0, 1], 2)
        for each in (group, alone):
            each.reset()
        first: list[str | None] = [env.oracle() for env in alone.envs]
        assert group.step(first, tolerant=True) == alone.step(first) and group.errors == [None] * 4
        process.kill()
        again = str(first[1])  # answered from the episode's cache, so it needs no service
        observations, rewards, terminated, truncated, infos = group.step(
            ["search[x]", again, "finish[y]", "search[z]"], tolerant=True
        )
        assert [reward is None for reward in rewards] == [True, False, False, True], (
            "a failed row has no reward, not one of 0"
        )
        assert group.running == [False, True, False, False]
        assert [
            error is not None and "python -m retriever serve" in str(error) for error in group.errors
        ] == [True, False, False, True]
        assert [column[0] for column in (observations, terminated, truncated, infos)] == [None] * 4
        with pytest.raises(ResetNeeded, match="row 0 has failed .*no search service"):
            group.step(["search[x]", "search[x]", None, None])
        process.start()
        group.reset()
        assert group.errors == [None] * 4 and group.running == [True] * 4
        process.kill()
        group.replay([["search[x]", "search[y]"], [], ["junk"], []], tolerant=True)
        assert group.running == [False, True, True, True] and group.errors[0] is not None
        with pytest.raises(RetrieverError):
            group.replay([["search[x]"], [], [], []])


def test_search_r1_answers_are_read() -> None:
    body = b'{"result": [[{"document": {"id": 7, "contents": "\\"Evan Morris\\"\\nWas a lobbyist."}, "score": 0.5}]]}'
    with server(200, body) as address:
        env = SearchQAEnv(searcher=HttpSearcher(address))
        env.reset(options={"task": 0})
        observation, *_, info = env.step("search[x]")
    assert observation == "Doc 1 (Title: Evan Morris) Was a lobbyist." and info["doc_ids"] == ["7"]
