"""Shards behind one front: the answers of one index, over files and over HTTP; what cannot be merged is refused."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from conftest import run_cli, serving, wait_ready

from retriever import (
    BadIndex,
    Bm25Index,
    Document,
    HashedIndex,
    Hit,
    RemoteShard,
    ShardedSearcher,
    Unavailable,
    load_index,
    save_index,
)
from retriever.build import Plan, build_index
from retriever.service import SearchService

PARTS = 3


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory, documents: list[Document]) -> list[Path]:
    """Three shards of a corpus with twins at both sides of the seams."""
    folder = tmp_path_factory.mktemp("shards")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(document.to_json() + "\n" for document in with_twins(documents)))
    for part in range(PARTS):
        build_index(Plan(corpus=corpus, out=folder / str(part), shard=(part, PARTS)))
    return [folder / str(part) for part in range(PARTS)]


def with_twins(documents: list[Document]) -> list[Document]:
    return [
        Document(document.id, document.contents if int(document.id) % 7 else '"Twin"\ntes1 tes2 tes3')
        for document in documents
    ]


@pytest.fixture(scope="module")
def front(parts: list[Path]) -> Iterator[str]:
    """Two shards on one server, the last on another, and a front before both."""
    with ExitStack() as stack:
        both = stack.enter_context(serving("--index", parts[0], parts[1]))
        last = stack.enter_context(serving("--index", parts[2]))
        yield stack.enter_context(serving("--index", both, last + "/retrieve"))


QUERIES = ["tes1 tes2", "title 9", "Zélie Quarrow", "ka1 ro2 mi3", "", "xyzzy", "\ud800 tes3"]


def test_shards_answer_as_one_index(parts: list[Path], documents: list[Document]) -> None:
    whole = HashedIndex.build(with_twins(documents))
    sharded = ShardedSearcher([load_index(part) for part in parts])
    assert sharded.ntotal == whole.ntotal
    for topk in (1, 3, 50, 300):
        assert sharded.search(QUERIES, topk) == whole.search(QUERIES, topk)


def test_over_http(front: str, documents: list[Document]) -> None:
    expected = HashedIndex.build(with_twins(documents)).search(QUERIES[:-1], 60)
    body = {"queries": QUERIES[:-1], "topk": 60, "return_scores": True}
    answer = requests.post(f"{front}/retrieve", json=body, timeout=30).json()["result"]
    assert [[(entry["document"]["id"], entry["score"]) for entry in row] for row in answer] == [
        [(hit.document.id, hit.score) for hit in row] for row in expected
    ]
    about = requests.get(f"{front}/info", timeout=30).json()
    assert (about["index"], about["shards"], about["ntotal"]) == ("sharded flat_ip sharded flat_ip", 2, 300)
    many = [f"title {n}" for n in range(512)]
    answer = requests.post(
        f"{front}/retrieve", json={"queries": many, "topk": 1, "return_scores": False}, timeout=60
    ).json()["result"]
    assert len(answer) == 512


def test_what_cannot_be_merged(documents: list[Document], parts: list[Path], tmp_path: Path) -> None:
    halves = documents[:150], documents[150:]
    with pytest.raises(BadIndex, match="frequencies_sha256"):
        ShardedSearcher([HashedIndex.build(half) for half in halves])
    with pytest.raises(BadIndex, match="dim"):
        ShardedSearcher([HashedIndex.build(documents, dim=dim) for dim in (64, 128)])
    with pytest.raises(BadIndex, match="BM25"):
        ShardedSearcher([Bm25Index.build(half) for half in halves])
    save_index(HashedIndex.build(documents), tmp_path / "other")
    done = run_cli("serve", "--port", "0", "--index", parts[0], tmp_path / "other")
    assert done.returncode == 2 and "--shard I/N" in done.stderr


def test_a_shard_that_is_gone_is_503(
    serve_here: Callable[[SearchService], str], documents: list[Document]
) -> None:
    class Failing:
        ntotal = 3

        def __init__(self) -> None:
            self.broken = False

        def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
            if self.broken:
                raise ZeroDivisionError
            return [[] for _ in queries]

        def info(self) -> dict[str, str | int | float]:
            return {"index": "none", "encoder": "x", "corpus_sha256": ""}

    behind = Failing()
    shard = serve_here(SearchService(lambda: behind))
    wait_ready(shard)
    front = serve_here(SearchService(lambda: ShardedSearcher([RemoteShard(shard)])))
    wait_ready(front)
    assert requests.post(f"{front}/retrieve", json={"query": "a"}, timeout=30).json() == {"result": [[]]}
    behind.broken = True
    response = requests.post(f"{front}/retrieve", json={"query": "b"}, timeout=30)
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert shard in response.json()["detail"]
    behind.broken = False
    assert requests.post(f"{front}/retrieve", json={"query": "b"}, timeout=30).status_code == 200
    with pytest.raises(Unavailable, match="no server at"):
        RemoteShard("http://127.0.0.1:9")
