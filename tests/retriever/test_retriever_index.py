"""Ranking: against brute force, exact ties, independence of batches."""

import math
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import faiss
import numpy as np
import pytest
from conftest import environment, make_documents
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import retriever
from retriever import (
    BadSetting,
    Bm25Index,
    Document,
    HashedIndex,
    HashedTfidfEncoder,
    Hit,
    MissingDependency,
)
from retriever.corpus import tokenise
from retriever.index import DenseIndex
from retriever.vectors import BlockScan, Kind, trained

Index = HashedIndex | Bm25Index
BOTH = pytest.mark.parametrize("kind", [HashedIndex, Bm25Index])


def ids(hits: list[Hit]) -> list[str]:
    return [hit.document.id for hit in hits]


def make_queries(documents: list[Document], count: int, seed: int = 1) -> tuple[list[str], list[str]]:
    """Four to eight words of one passage in any order, and the id of that passage."""
    generator = random.Random(seed)
    sources = generator.choices(documents, k=count)
    queries = [" ".join(generator.sample(tokenise(d.contents), k=generator.randint(4, 8))) for d in sources]
    return queries, [document.id for document in sources]


def tfidf_cosines(documents: list[Document], query: str) -> NDArray[np.float64]:
    """Exact TF-IDF with the encoder's weighting, over words instead of projected buckets."""
    counts = [Counter(tokenise(document.contents)) for document in documents]
    frequency = Counter(word for count in counts for word in count)

    def vector(count: Counter[str]) -> dict[str, float]:
        weights = {
            word: (1 + math.log(times)) * (math.log((1 + len(documents)) / (1 + frequency[word])) + 1)
            for word, times in count.items()
            if word in frequency
        }
        norm = math.sqrt(sum(weight**2 for weight in weights.values()))
        return {word: weight / norm for word, weight in weights.items()}

    asked = vector(Counter(tokenise(query)))
    vectors = [vector(count) for count in counts]
    return np.array([sum(asked[w] * v.get(w, 0.0) for w in asked) for v in vectors])


def bm25_scores(documents: list[Document], query: str, k1: float, b: float) -> NDArray[np.float64]:
    """BM25 with Lucene's idf, written from the formula."""
    counts = [Counter(tokenise(document.contents)) for document in documents]
    lengths = np.array([count.total() for count in counts], np.float64)
    scores = np.zeros(len(documents))
    for word in tokenise(query):
        times = np.array([count[word] for count in counts], np.float64)
        frequency = np.count_nonzero(times)
        idf = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
        scores += idf * times / (times + k1 * (1 - b + b * lengths / lengths.mean()))
    return scores


@pytest.mark.parametrize(("k1", "b"), [(1.5, 0.75), (0.9, 0.4), (1.2, 0.0)])
def test_bm25_is_bm25(k1: float, b: float) -> None:
    documents = [*make_documents(150, words=12), Document("empty", ""), Document("w", "ka1 ka1 ka1")]
    index = Bm25Index.build(documents, k1=k1, b=b)
    for query in [*make_queries(documents[:150], 25)[0], "ka1 ka1 nowhere", "ka0"]:
        scores = bm25_scores(documents, query, k1, b)
        hits = index.search([query], 10)[0]
        assert [hit.score for hit in hits] == pytest.approx(sorted(scores[scores > 0])[::-1][:10], abs=2e-6)
        for hit in hits:
            assert hit.score == pytest.approx(scores[documents.index(hit.document)], abs=2e-6)


def test_hashed_approximates_tfidf() -> None:
    documents = make_documents(500)
    index = HashedIndex.build(documents)
    queries, sources = make_queries(documents, 60)
    errors, found, found_exactly = [], 0, 0
    for query, source, hits in zip(queries, sources, index.search(queries, 3), strict=True):
        cosines = tfidf_cosines(documents, query)
        errors += [hit.score - cosines[int(hit.document.id)] for hit in index.search([query], 500)[0]]
        found += source in ids(hits)
        found_exactly += int(source) in np.argsort(-cosines)[:3]
    # A projection to n dimensions errs by sqrt((1 + cosine**2 - ...) / n), about 1/sqrt(n), unbiased.
    assert np.std(errors) < 1.1 / math.sqrt(512)
    assert abs(np.mean(errors)) < 0.1 / math.sqrt(512)
    assert found_exactly >= 0.97 * len(queries)
    assert found >= 0.93 * len(queries)


def test_projection_keeps_norms_and_buckets_do_not_collide() -> None:
    texts = [document.contents for document in make_documents(60)]
    wide = HashedTfidfEncoder(dim=4096).fit(texts)
    vectors = wide.encode_documents(texts)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    assert np.abs(wide.encode_queries(["ka0"]) @ wide.encode_queries(["ka1"]).T) < 5 / math.sqrt(4096)


@BOTH
def test_batch_equals_singles(kind: type[Index], documents: list[Document]) -> None:
    index = kind.build(documents)
    queries = [*make_queries(documents, 200)[0], "", "no-such-word", "Zélie", "ZÉLIE quarrow?"]
    together = index.search(queries, 5)
    assert together == [index.search([query], 5)[0] for query in queries]
    assert together[-4:-2] == [[], []]
    assert ids(together[-2])[0] == ids(together[-1])[0] == "7"


@BOTH
def test_topk_is_a_prefix_and_is_clamped(kind: type[Index], documents: list[Document]) -> None:
    some = documents[8:48]
    index = kind.build(some)
    query = "title " + make_queries(some, 1)[0][0]
    everything = ids(index.search([query], 1000)[0])
    assert len(everything) == len(set(everything)) == index.ntotal
    for topk in (1, 2, 17, 40):
        assert ids(index.search([query], topk)[0]) == everything[:topk]
    assert ids(index.search([query], 0)[0]) == ids(index.search([query], -3)[0]) == everything[:1]
    assert index.search([], 3) == []


@BOTH
def test_ties_stand_in_document_order(kind: type[Index]) -> None:
    generator = random.Random(3)
    documents = [Document(f"twin {i}", "alpha beta") for i in range(200)]
    documents += [Document(f"other {i}", "gamma delta") for i in range(200)]
    generator.shuffle(documents)
    index = kind.build(documents)
    twins = [document.id for document in documents if document.id.startswith("twin")]
    for queries in (["beta"], ["beta"] * 8):
        for hits in index.search(queries, 50):
            assert ids(hits) == twins[:50]
            assert len({hit.score for hit in hits}) == 1


def test_scores_fall_and_are_rounded(documents: list[Document]) -> None:
    for kind in (HashedIndex, Bm25Index):
        for hits in kind.build(documents).search(make_queries(documents, 20)[0], 10):
            scores = [hit.score for hit in hits]
            assert scores == sorted(scores, reverse=True)
            assert all(score == round(score, 6) for score in scores)


VECTORS_SHA256 = "1db31af4b70101edb1c4bf6506dd8f66e26444ef635399d043187a7209d041ec"


def test_same_bytes_in_every_process() -> None:
    program = (
        "import hashlib; from conftest import make_documents; from retriever import *\n"
        "d = make_documents(80); v = HashedTfidfEncoder().fit(x.contents for x in d)\n"
        "b = v.encode_documents([x.contents for x in d]).tobytes()\n"
        "r = [k.build(d).search(['ka1 ro2 mi3', 'title 5'], 9) for k in (HashedIndex, Bm25Index)]\n"
        "print(hashlib.sha256(b).hexdigest(), hashlib.sha256(repr(r).encode()).hexdigest())"
    )
    folder = str(__file__).rpartition("/")[0]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=environment(PYTHONHASHSEED=seed, OMP_NUM_THREADS=threads),
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, threads in (("0", "1"), ("1", "2"))
    }
    assert len(outputs) == 1
    # Pinned: another machine, Python or NumPy has to make these very vectors.
    assert outputs.pop().split()[0] == VECTORS_SHA256


def test_block_and_order_do_not_matter(documents: list[Document]) -> None:
    texts = [document.contents for document in documents]
    encoder = HashedTfidfEncoder().fit(texts)
    whole = encoder.encode_documents(texts)
    assert np.array_equal(encoder.encode_documents(texts[::-1])[::-1], whole)
    assert np.array_equal(np.concatenate([encoder.encode_documents([t]) for t in texts[:20]]), whole[:20])
    assert np.array_equal(HashedTfidfEncoder().fit(texts[::-1]).encode_documents(texts), whole)
    assert not np.array_equal(HashedTfidfEncoder(seed=1).fit(texts).encode_documents(texts), whole)


@pytest.mark.parametrize(
    "settings", [{"dim": 0}, {"dim": 12}, {"buckets": 0}, {"seed": -1}, {"seed": 1 << 64}]
)
def test_bad_settings(settings: dict[str, int]) -> None:
    with pytest.raises(BadSetting, match=next(iter(settings))):
        HashedTfidfEncoder(**settings)


def test_threads_of_others_are_left_alone(documents: list[Document]) -> None:
    before = faiss.omp_get_max_threads()
    HashedIndex.build(documents, threads=before + 1).search(["ka1"], 3)
    assert faiss.omp_get_max_threads() == before


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(["flat", "fp16", "sq8"]),
    count=st.integers(1, 2_000),
    queries=st.integers(1, 40),
    topk=st.integers(1, 60),
    copies=st.integers(1, 5),
    seed=st.integers(0, 1_000),
)
def test_blocks_find_what_faiss_finds(
    kind: Kind, count: int, queries: int, topk: int, copies: int, seed: int
) -> None:
    """Whatever the sizes: less than a block, several, and vectors that are there more than once."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((count, 16)).astype(np.float32)
    vectors[count // copies :] = vectors[: count - count // copies][:: 1 if copies < 3 else -1]
    index = trained(kind, 16, count, vectors)
    index.add(vectors)
    asked = rng.standard_normal((queries, 16)).astype(np.float32)
    wanted = min(topk, count)
    found = BlockScan(index).search(asked, wanted)
    scores, _ = index.search(asked, wanted)
    assert found.shape == (queries, wanted)
    for row, query in enumerate(asked):
        assert len(set(found[row].tolist())) == wanted
        own = index.reconstruct_batch(found[row]).astype(np.float64) @ query
        np.testing.assert_allclose(own, scores[row], atol=2e-5)  # ties may be others


@pytest.mark.parametrize("kind", ["flat", "fp16", "sq8"])
def test_a_batch_decodes_each_vector_once(
    kind: Kind, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FAISS would decode the vectors for each query."""
    encoder = HashedTfidfEncoder(dim=64, seed=0).fit([d.contents for d in documents])
    rows = encoder.encode_documents([d.contents for d in documents])
    vectors = trained(kind, 64, len(documents), rows)
    vectors.add(rows)
    index, asked, search = DenseIndex(documents, encoder, vectors), [], vectors.search

    def scanned(queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        asked.append(len(queries))
        return search(queries, count)

    monkeypatch.setattr(vectors, "search", scanned)
    queries, _ = make_queries(documents, 64)
    index.search(queries, 3)
    assert asked == []
    index.search(queries[:1], 3)
    assert asked == [1]


@pytest.mark.parametrize("kind", ["flat", "fp16", "sq8"])
def test_one_query_finds_what_it_finds_among_many(kind: Kind, documents: list[Document]) -> None:
    encoder = HashedTfidfEncoder(dim=64, seed=0).fit([d.contents for d in documents])
    rows = encoder.encode_documents([d.contents for d in documents])
    vectors = trained(kind, 64, len(documents), rows)
    vectors.add(rows)
    index = DenseIndex(documents, encoder, vectors)
    asked, _ = make_queries(documents, 64)
    together = index.search(asked, 5)
    assert together == [index.search([query], 5)[0] for query in asked]
    assert together[:3] == index.search(asked[:3], 5)


def test_faiss_minus_one_is_dropped(documents: list[Document], monkeypatch: pytest.MonkeyPatch) -> None:
    index = HashedIndex.build(documents)
    monkeypatch.setattr(index, "candidates", lambda vectors, _: np.array([[3, -1, 5, -1]] * len(vectors)))
    # Candidates this few always look like a tie at the cut, so let the index believe it saw them all.
    monkeypatch.setattr(HashedIndex, "ntotal", 2)
    assert sorted(ids(index.search(["ka1 ka2"], 2)[0])) == ["3", "5"]


@pytest.mark.parametrize(("kind", "module"), [(HashedIndex, "faiss"), (Bm25Index, "bm25s")])
def test_missing_library(
    kind: type[Index], module: str, documents: list[Document], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingDependency, match=r"pip install -c constraints.txt -e '.\[search\]'"):
        kind.build(documents)


@pytest.mark.parametrize("first", ["", "import jax.lax"], ids=["unloaded", "loaded"])
def test_bm25_leaves_jax_alone(first: str, tmp_path: Path) -> None:
    """JAX takes most of a GPU's memory with its first number, which bm25s has it sort where it can be imported."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").touch()
    (tmp_path / "jax" / "lax.py").write_text("def top_k(numbers, k):\n    raise SystemExit('JAX was used')\n")
    program = (
        f"import sys\n{first}\nloaded = sys.modules.get('jax')\nfrom retriever import Bm25Index, Document\n"
        "index = Bm25Index.build([Document('1', 'red blue'), Document('2', 'green')])\n"
        "assert [hit.document.id for hit in index.search(['green'], 1)[0]] == ['2']\n"
        "assert sys.modules.get('jax') is loaded\nimport jax.lax"
    )
    given = environment()
    given["PYTHONPATH"] = os.pathsep.join(filter(None, [str(tmp_path), given.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, "-c", program], env=given, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_import_is_light() -> None:
    program = (
        "import sys, retriever\n"
        "heavy = {'faiss', 'bm25s', 'torch', 'fastapi', 'tstar_envs', 'tstar_train'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True)
    assert all(getattr(retriever, name) for name in retriever.__all__)
