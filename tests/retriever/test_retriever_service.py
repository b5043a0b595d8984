"""The wire: every request form of the peers, their readers, limits, junk, loading and a full queue."""

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import wait_ready
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retriever import BadIndex, Bm25Index, Document, HashedIndex, Hit
from retriever.corpus import normalise
from retriever.service import SearchService

QUERIES = ["Zélie Quarrow opera", "ka1 ro2", "title 9"]


def post(url: str, body: object) -> requests.Response:
    return requests.post(f"{url}/retrieve", json=body, timeout=30)


def passages(result: list[dict[str, Any]]) -> str:
    """How Search-R1, verl, SkyRL and verl-agent turn one row into text: first line title, rest body."""
    text = ""
    for number, entry in enumerate(result, start=1):
        title, _, body = entry["document"]["contents"].partition("\n")
        text += f"Doc {number}(Title: {title}) {body}\n"
    return text


@pytest.mark.parametrize(
    ("body", "asked"),
    [
        ({"queries": QUERIES, "topk": 3, "return_scores": True}, QUERIES),  # Search-R1, verl
        ({"query": QUERIES[0], "topk": 3, "return_scores": True}, QUERIES[:1]),  # SkyRL, verl-agent
        ({"queries": QUERIES[:1], "query": QUERIES[0], "return_scores": True}, QUERIES[:1]),  # for both
        ({"queries": QUERIES[0], "return_scores": True}, QUERIES[:1]),
        ({"queries": None, "query": QUERIES[1], "topk": None, "return_scores": True}, QUERIES[1:2]),
        ({"queries": QUERIES, "topk": 0, "return_scores": True, "rerank": 5}, QUERIES),
    ],
)
def test_request_forms(
    url: str, documents: list[Document], body: dict[str, object], asked: list[str]
) -> None:
    response = post(url, body)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["result"]
    result = response.json()["result"]
    expected = HashedIndex.build(documents).search(asked, 3)
    for row, hits in zip(result, expected, strict=True):
        assert [entry["score"] for entry in row] == [hit.score for hit in hits]
        for entry, hit in zip(row, hits, strict=True):
            document = hit.document
            assert entry["document"] == {
                "id": document.id,
                "contents": document.contents,
                "title": document.title,
                "text": document.text,
            }
        assert passages(row).startswith("Doc 1(Title: ")
    if asked[0] == QUERIES[0]:
        assert passages(result[0]).startswith('Doc 1(Title: "The ""Quoted"" Opera") A work in\ntwo lines')
        assert result[0][0]["document"]["title"] == 'The "Quoted" Opera'


@pytest.mark.parametrize("count", [1, 2, 3])
def test_without_scores_bare_documents(url: str, count: int) -> None:
    # Search-R1 answers 500 here, and for two queries one row with the wrong documents.
    for extra in ({}, {"return_scores": False}):
        bare = post(url, {"queries": QUERIES[:count], **extra}).json()["result"]
        scored = post(url, {"queries": QUERIES[:count], "return_scores": True}).json()["result"]
        assert bare == [[entry["document"] for entry in row] for row in scored]
        assert [len(row) for row in bare] == [3] * count


@pytest.mark.parametrize(("topk", "length"), [(1, 1), (0, 3), (None, 3), (-5, 1), (100, 100), (10**30, 100)])
def test_topk(url: str, topk: int | None, length: int) -> None:
    assert len(post(url, {"query": "title", "topk": topk}).json()["result"][0]) == length


def test_empty_and_unknown_queries(url: str) -> None:
    assert post(url, {"queries": []}).json() == {"result": []}
    # No document for FAISS's -1 or for a query without a known word, rather than the corpus' last one.
    for query in ("", "?!", "xyzzy"):
        assert post(url, {"queries": [query, "title 9"], "topk": 1}).json()["result"][0] == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        "ka1",
        7,
        {"topk": 3},
        {"queries": None},
        {"queries": 5},
        {"queries": [5]},
        {"queries": [["a"]]},
        {"queries": {"0": "a"}},
        {"query": ["a"]},
        {"query": None},
        {"queries": ["a"], "query": 1},
        {"query": "a", "topk": "three"},
        {"query": "a", "topk": 2.5},
        {"query": "a", "topk": True},
        {"query": "a", "return_scores": "perhaps"},
        {"query": "a", "return_scores": 2},
        {"query": "a", "return_scores": []},
        {"query": "a", "topk": "3.5"},
        {"query": "a", "topk": ""},
        {"query": "a", "topk": [3]},
        {"query": "a", "topk": "٣.٥"},
        {"queries": ["a"] * 8_193},
        {"query": "a" * 16_385},
        {"queries": [7] * 100_000},
        {"queries": ["a"] * 8_192, "topk": 100},
    ],
)
def test_junk_is_422(url: str, body: object) -> None:
    response = post(url, body)
    assert response.status_code == 422
    assert response.json()["detail"]
    assert len(response.content) < 2000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"query": "\xff"}',
        b'{"query": "\\ud800"}',
        b'{"query": NaN}',
        b"[" * 100_000,
    ],
)
def test_broken_json_is_422(url: str, data: bytes) -> None:
    assert requests.post(f"{url}/retrieve", data=data, timeout=30).status_code == 422


def test_limits_are_inclusive_and_bodies_bounded(url: str) -> None:
    assert len(post(url, {"queries": ["ka1"] * 512, "topk": 1}).json()["result"]) == 512
    assert post(url, {"query": "ka1 " * 4096}).status_code == 200
    assert requests.post(f"{url}/retrieve", data=b" " * (17 << 20), timeout=30).status_code == 413
    assert requests.post(f"{url}/retrieve", data=b'{"query": "ka1"}', timeout=30).status_code == 200
    assert requests.get(f"{url}/retrieve", timeout=30).status_code == 405


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("queries", "query", "topk", "return_scores"), JSON)
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(JSON.map(json.dumps), FIELDS.map(json.dumps), st.binary(max_size=40)))
def test_no_body_breaks_the_server(url: str, session: requests.Session, body: str | bytes) -> None:
    response = session.post(f"{url}/retrieve", data=body, timeout=30)
    assert response.status_code in (200, 422)
    assert response.json()


@pytest.fixture(scope="module")
def session() -> requests.Session:
    return requests.Session()


def test_any_text_may_be_asked(url: str, session: requests.Session) -> None:
    queries = ["\x00", "\U0010ffff", "a" * 5000, "日本語 ka1", "'; --", "<search>ka1</search>"]
    result = session.post(f"{url}/retrieve", json={"queries": queries}, timeout=30).json()["result"]
    assert len(result) == len(queries)


def test_many_clients_at_once(url: str, documents: list[Document]) -> None:
    queries = [f"{document.text[:30]} title {document.id}" for document in documents[:40]]
    expected = post(url, {"queries": queries, "return_scores": True}).json()["result"]
    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda q: post(url, {"query": q, "return_scores": True}).json()["result"], queries)
        )
    assert [rows[0] for rows in found] == expected


def test_info_and_metrics(url: str, index_folder: Path) -> None:
    info = requests.get(f"{url}/info", timeout=30).json()
    manifest = json.loads((index_folder / "manifest.json").read_text())
    assert info["ntotal"] == 300
    assert info["corpus_sha256"] == manifest["sha256"]["documents.jsonl"]
    assert (info["index"], info["encoder"], info["dim"]) == ("flat_ip", "hashed_tfidf", 512)
    assert info["version"]
    before = _metrics(url)
    post(url, {"queries": ["metrics title", "METRICS, title", "ka3"]})
    post(url, {"query": "metrics title"})
    post(url, {})
    after = _metrics(url)
    changes = {name: after[name] - before.get(name, 0) for name in after}
    assert changes['retriever_requests_total{status="200"}'] == 2
    assert changes['retriever_requests_total{status="422"}'] == 1
    assert changes["retriever_queries_total"] == 4
    assert changes["retriever_cached_queries_total"] == 1
    assert after["retriever_ready"] == 1
    assert after["retriever_documents"] == 300


def _metrics(url: str) -> dict[str, float]:
    response = requests.get(f"{url}/metrics", timeout=30)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


Serve = Callable[[SearchService], str]


def test_loading_is_503(serve_here: Serve, documents: list[Document]) -> None:
    gate = threading.Event()

    def load() -> Bm25Index:
        gate.wait(30)
        return Bm25Index.build(documents)

    url = serve_here(SearchService(load))
    assert requests.get(f"{url}/health", timeout=30).status_code == 200
    assert _metrics(url)["retriever_ready"] == 0
    for response in (
        requests.get(f"{url}/ready", timeout=30),
        requests.get(f"{url}/info", timeout=30),
        post(url, {"query": "a"}),
    ):
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) >= 1
        assert "loading" in response.json()["detail"]
    assert post(url, {}).status_code == 422
    gate.set()
    wait_ready(url)
    assert post(url, {"query": "title 9"}).json()["result"][0]
    assert requests.get(f"{url}/info", timeout=30).json()["index"] == "bm25"


def test_failed_load_is_reported(serve_here: Serve) -> None:
    failed = threading.Event()

    def load() -> HashedIndex:
        raise BadIndex("vectors.faiss: damaged")

    url = serve_here(SearchService(load, on_failed=lambda _: failed.set()))
    assert failed.wait(30)
    response = requests.get(f"{url}/ready", timeout=30)
    assert (response.status_code, "damaged" in response.json()["detail"]) == (503, True)


class Gated:
    """A searcher that answers when it is let, with what it was asked."""

    ntotal = 5

    def __init__(self) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()
        self.asked: list[list[str]] = []

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.asked.append(list(queries))
        self.entered.set()
        self.gate.wait(30)
        return [[Hit(Document("0", query), 1.0)] for query in queries]

    def info(self) -> dict[str, str | int | float]:
        return {}


def test_full_queue_is_503(serve_here: Serve) -> None:
    searcher = Gated()
    url = serve_here(SearchService(lambda: searcher, capacity=1))
    wait_ready(url)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(post, url, {"query": "a"})
        assert searcher.entered.wait(30)
        refused = post(url, {"query": "b"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert requests.get(f"{url}/health", timeout=30).status_code == 200
        searcher.gate.set()
        assert first.result().status_code == 200
    assert post(url, {"query": "b"}).status_code == 200


def test_cache_asks_each_query_once_and_forgets_the_oldest(serve_here: Serve) -> None:
    searcher = Gated()
    searcher.gate.set()
    url = serve_here(SearchService(lambda: searcher, cache_size=2))
    wait_ready(url)
    post(url, {"queries": ["a b", "A  b!", "c"]})
    post(url, {"queries": ["c", "A B"]})
    post(url, {"query": "a b", "topk": 2})
    post(url, {"query": "c"})
    asked = [[normalise(query) for query in queries] for queries in searcher.asked]
    assert asked == [["a b", "c"], ["a b"], ["c"]]


def test_error_in_a_search_is_500_and_counted(serve_here: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    searcher = Gated()

    def fail(*_: object) -> list[list[Hit]]:
        raise ZeroDivisionError

    monkeypatch.setattr(searcher, "search", fail)
    service = SearchService(lambda: searcher)
    url = serve_here(service)
    wait_ready(url)
    assert post(url, {"query": "a"}).status_code == 500
    assert service.pending == 0
    assert _metrics(url)['retriever_requests_total{status="500"}'] == 1
