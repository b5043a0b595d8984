"""What callers of Search-R1's server send: thousands of queries at once, numbers as texts; and what a request may cost."""

import asyncio
import json
import threading
from collections.abc import Sequence

import pytest
import requests
from conftest import serving

from retriever import Document, HashedIndex, Hit
from retriever.app import RetrieveRequest
from retriever.service import SearchService


def post(url: str, body: object) -> requests.Response:
    return requests.post(f"{url}/retrieve", json=body, timeout=120)


@pytest.mark.parametrize("count", [257, 2_560, 8_192])
def test_thousands_of_queries_are_answered_in_order_as_one_by_one(
    url: str, documents: list[Document], count: int
) -> None:
    """Search-R1's training script sends 512 questions x 5 samples in one request."""
    queries = [f"{documents[n % 300].text[: 10 + n % 7]} title {n}" for n in range(count)]
    queries[1], queries[-1] = "", queries[0]
    result = post(url, {"queries": queries, "topk": 3, "return_scores": True}).json()["result"]
    assert len(result) == count and result[1] == [] and result[-1] == result[0]
    index = HashedIndex.build(documents)
    for n in {0, 1, 63, 64, 255, 256, count - 1, *range(2, count, 97)}:
        expected = [(hit.document.id, hit.score) for hit in index.search([queries[n]], 3)[0]]
        assert [(entry["document"]["id"], entry["score"]) for entry in result[n]] == expected


@pytest.mark.parametrize(
    ("topk", "length"),
    [("3", 3), (3.0, 3), ("2.0", 2), (" 4 ", 4), (None, 3), ("0", 3), (1e2, 100), ("100000", 100), ("-1", 1)],
)
def test_numbers_of_passages_as_the_peers_models_read_them(url: str, topk: object, length: int) -> None:
    response = post(url, {"query": "title", "topk": topk})
    assert response.status_code == 200 and len(response.json()["result"][0]) == length


@pytest.mark.parametrize(
    ("value", "scored"),
    [
        ("true", True),
        ("True", True),
        (1, True),
        ("1", True),
        (1.0, True),
        ("yes", True),
        (None, False),
        ("false", False),
        (0, False),
    ],
)
def test_flags_as_the_peers_models_read_them(url: str, value: object, scored: bool) -> None:
    response = post(url, {"query": "title", "return_scores": value})
    assert response.status_code == 200 and ("score" in response.json()["result"][0][0]) is scored


def test_the_lax_mode_is_pydantics_own() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Peer(pydantic.BaseModel):  # type: ignore[misc,name-defined]  # Search-R1's model
        queries: list[str]
        topk: int | None = None
        return_scores: bool = False

    for body in (
        {"topk": "7"},
        {"topk": 7.0},
        {"return_scores": "off"},
        {"return_scores": "T"},
        {"topk": "0012"},
        {"return_scores": 0.0},
    ):
        text = json.dumps({"queries": ["a"], **body})
        theirs, ours = Peer.model_validate_json(text), RetrieveRequest.model_validate_json(text)
        assert (ours.topk, ours.return_scores) == (theirs.topk, theirs.return_scores)


def test_limits_are_settable_and_named(index_folder: object) -> None:
    options = (
        "--max-queries",
        "3",
        "--max-body-bytes",
        "2000",
        "--max-query-characters",
        "50",
        "--max-passages",
        "6",
    )
    with serving("--index", str(index_folder), *options) as address:
        assert len(post(address, {"queries": ["ka1"] * 3, "topk": 2}).json()["result"]) == 3
        for body, status, named in (
            ({"queries": ["ka1"] * 4}, 422, "--max-queries"),
            ({"queries": ["ka1"] * 3, "topk": 3}, 422, "--max-passages"),
            ({"query": "k" * 51}, 422, "--max-query-characters"),
            ({"queries": ["ka1 " * 10] * 100}, 413, "--max-body-bytes"),
        ):
            response = post(address, body)
            assert response.status_code == status and named in response.text


class Recording:
    """A searcher that records the order in which it was asked, and waits for its gate before the first answer."""

    ntotal = 10

    def __init__(self) -> None:
        self.gate, self.entered = threading.Event(), threading.Event()
        self.asked: list[str] = []

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        self.asked += queries
        self.entered.set()
        self.gate.wait(30)
        return [[Hit(Document(query, query), 1.0)] for query in queries]

    def info(self) -> dict[str, str | int | float]:
        return {}


def test_a_small_request_waits_for_one_portion_of_a_large_one() -> None:
    async def run() -> None:
        searcher = Recording()
        service = SearchService(lambda: searcher, portion=100, batch=10)
        service.start()
        while not service.ready:
            await asyncio.sleep(0.001)
        large = asyncio.create_task(service.search([f"q{n}" for n in range(1000)], 1))
        await asyncio.to_thread(searcher.entered.wait, 30)
        small = asyncio.create_task(service.search(["small"], 1))
        await asyncio.sleep(0.01)
        searcher.gate.set()
        assert [row[0].document.id for row in await small] == ["small"]
        assert [row[0].document.id for row in await large] == [f"q{n}" for n in range(1000)]
        assert searcher.asked.index("small") <= 110 and len(searcher.asked) == 1001
        assert service.pending == service.promised == 0
        service.stop()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("encoder", "asked"), [("transformer", ["C++", "C#", "c#"]), ("hashed_tfidf", ["C++"]), ("none", ["C++"])]
)
def test_a_service_made_in_python_tells_queries_apart_as_its_index_does(
    encoder: str, asked: list[str]
) -> None:
    class Named(Recording):
        def info(self) -> dict[str, str | int | float]:
            return {"encoder": encoder}

    async def run() -> None:
        searcher = Named()
        searcher.gate.set()
        service = SearchService(lambda: searcher)
        service.start()
        while not service.ready:
            await asyncio.sleep(0.001)
        for query in ("C++", "C#", "c#", "C++"):
            await service.search([query], 1)
        assert searcher.asked == asked
        service.stop()

    asyncio.run(run())


def test_the_deadline_is_for_a_portion() -> None:
    class Steady(Recording):
        def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
            threading.Event().wait(0.05)
            return super().search(queries, topk)

    async def run() -> None:
        searcher = Steady()
        searcher.gate.set()
        service = SearchService(lambda: searcher, portion=10, batch=10, deadline_seconds=0.5)
        service.start()
        while not service.ready:
            await asyncio.sleep(0.001)
        assert len(await service.search([f"q{n}" for n in range(150)], 1)) == 150
        service.stop()

    asyncio.run(run())


def test_what_is_remembered_is_bounded_by_bytes() -> None:
    class Long(Recording):
        def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
            return [[Hit(Document(query, query + "é" * 400_000), 1.0)] for query in queries]

    async def run() -> None:
        searcher = Long()
        searcher.gate.set()
        service = SearchService(lambda: searcher)
        service.start()
        while not service.ready:
            await asyncio.sleep(0.001)
        for n in range(300):
            await service.search([f"q{n}"], 1)
        assert service.cache.bytes <= 64 << 20 and 100 < len(service.cache) < 200
        held = service.cache.bytes
        await service.search(["long " * 300_000], 1)
        assert service.cache.bytes == held, "an answer of more than a MiB is not kept"
        service.stop()

    asyncio.run(run())


def test_long_words_are_not_remembered() -> None:
    from retriever import encoders

    encoder = HashedIndex.build([Document("0", "a word " + "w" * 16_000), Document("1", "another")]).encoder
    before = encoders.short_bucket.cache_info().currsize
    first = encoder.encode_queries(["w" * 16_000])
    assert first.any() and encoders.short_bucket.cache_info().currsize == before
    encoder.encode_queries(["unheard " + "x" * 64])
    assert encoders.short_bucket.cache_info().currsize == before + 2
