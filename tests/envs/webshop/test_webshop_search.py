"""Analysis and BM25 against plain twins."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webshop_exhaustive import exhaustive

from tstar_envs.envs.webshop import tasks
from tstar_envs.envs.webshop.catalogue import Catalogue
from tstar_envs.envs.webshop.search import analyze, lossy_length, make_batch, merge, stem, tokenize
from tstar_envs.envs.webshop.shop import Tagger
from tstar_envs.envs.webshop.tasks import build_store, load_shop


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("caresses", "caress"),
        ("ponies", "poni"),
        ("ties", "ti"),
        ("cats", "cat"),
        ("feed", "feed"),
        ("agreed", "agre"),
        ("plastered", "plaster"),
        ("motoring", "motor"),
        ("sing", "sing"),
        ("conflated", "conflat"),
        ("troubled", "troubl"),
        ("hopping", "hop"),
        ("falling", "fall"),
        ("filing", "file"),
        ("happy", "happi"),
        ("sky", "sky"),
        ("relational", "relat"),
        ("conditional", "condit"),
        ("digitizer", "digit"),
        ("vietnamization", "vietnam"),
        ("operator", "oper"),
        ("hopefulness", "hope"),
        ("formaliti", "formal"),
        ("electrical", "electr"),
        ("goodness", "good"),
        ("revival", "reviv"),
        ("adjustable", "adjust"),
        ("replacement", "replac"),
        ("adoption", "adopt"),
        ("probate", "probat"),
        ("rate", "rate"),
        ("cease", "ceas"),
        ("controll", "control"),
        ("roll", "roll"),
        ("is", "is"),
        ("assembli", "assembl"),
        ("assembly", "assembl"),
        ("technology", "technolog"),
        ("technologies", "technolog"),
        ("possibly", "possibl"),
    ],
)
def test_stem(word: str, expected: str) -> None:
    assert stem(word) == expected


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("wi-fi 2.7 oz", ["wi", "fi", "2.7", "oz"]),
        ("men's u.s.a. a.b 1,000 x:y", ["men's", "u.s.a", "a.b", "1,000", "x:y"]),
        ("a1.b2 3.x __ _a", ["a1", "b2", "3", "x", "_a"]),
        ("☕ tea漢字", ["☕", "tea", "漢", "字"]),
        ("x" * 300, ["x" * 255, "x" * 45]),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


def test_stop_words_and_possessives() -> None:
    assert analyze("The men's shoes, and it WAS for the Boy’s") == ["men", "shoe", "boi"]


def test_lossy_lengths() -> None:
    """Lucene's SmallFloat: exact below 40, then four significant bits above the first 24."""
    assert [lossy_length(n) for n in (0, 23, 24, 39, 40, 41, 42, 55, 56, 59, 60, 1000)] == [
        0,
        23,
        24,
        39,
        40,
        40,
        42,
        54,
        56,
        56,
        60,
        984,
    ]


TAGGER = Tagger("t", str.split)
DOCUMENTS = st.lists(st.lists(st.integers(0, 6), max_size=60), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(documents=DOCUMENTS, query=st.lists(st.integers(0, 6), max_size=5), cut=st.integers(0, 30))
def test_search_equals_plain_bm25(documents: list[list[int]], query: list[int], cut: int) -> None:
    batches = [
        make_batch(documents[:cut], 0),
        make_batch(documents[cut:], len(documents[:cut])),
    ]
    index = merge(batches, 7)
    mean = sum(map(len, documents)) / len(documents)
    scores = {}
    for number, document in enumerate(documents):
        counts, total = Counter(document), 0.0
        for term, weight in sorted(Counter(query).items()):
            frequency = sum(term in other for other in documents)
            if counts[term]:
                inverse = math.log(1 + (len(documents) - frequency + 0.5) / (frequency + 0.5))
                norm = 0.9 * (1 - 0.4 + 0.4 * lossy_length(len(document)) / mean)
                total += weight * float(np.float32(inverse * counts[term] / (counts[term] + norm)))
        if total:
            scores[number] = total
    found = index.search(query, 10)
    assert len(found) == min(10, len(scores)) and set(found) <= set(scores)
    assert [scores[n] for n in found] == pytest.approx(sorted(scores.values(), reverse=True)[:10], rel=1e-6)


TERMS = st.integers(0, 6) | st.integers(0, 30)  # some terms are common
COLLECTIONS = st.lists(st.lists(TERMS, max_size=20), min_size=1, max_size=80)


@settings(max_examples=300, deadline=None)
@given(documents=COLLECTIONS, query=st.lists(TERMS, max_size=8), limit=st.integers(1, 12))
def test_leaving_out_early_changes_no_result(
    documents: list[list[int]], query: list[int], limit: int
) -> None:
    index = merge([make_batch(documents, 0)], 31)
    assert index.search(query, limit) == exhaustive(index, query, limit)


def test_leaving_out_early_changes_no_result_of_many_documents() -> None:
    """Zipf's words, as texts have them; most documents with a word of the query are left out."""
    draw = np.random.default_rng(0)
    documents = [np.minimum(draw.zipf(1.3, draw.integers(5, 60)), 3000).tolist() for _ in range(5_000)]
    index = merge([make_batch(documents, 0)], 3001)
    seen = kept = 0
    for _ in range(80):
        query = np.minimum(draw.zipf(1.2, draw.integers(1, 15)), 3000).tolist() * int(draw.integers(1, 3))
        every = exhaustive(index, query, index.count)
        assert index.search(query, 50) == every[:50]
        seen += len(every)
        kept += len(
            index.candidates({term: n for term, n in Counter(query).items() if index.bounds[term]}, 50)
        )
    assert kept < seen / 10


def test_store_equals_memory_and_goes_on_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = load_shop("mini")
    products = [shop.catalogue.product(number) for number in range(120)]
    memory = tasks.collect(products, lambda p: float(p["pricing"][0]), "t")
    monkeypatch.setattr(tasks, "BATCH", 50)
    folder = tmp_path / "store"
    done: list[int] = []

    def stop(count: int) -> None:
        done.append(count)
        if count == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_store(folder, products, lambda p: float(p["pricing"][0]), TAGGER, stop)
    assert not folder.exists()
    drawn: list[str] = []

    def price(product: dict[str, object]) -> float:
        drawn.append(str(product["asin"]))
        return float(product["pricing"][0])  # type: ignore[index]

    build_store(folder, products, price, TAGGER)
    assert len(drawn) == 20, "only what was missing is done again"
    mapped = Catalogue.open(folder)
    assert len(mapped) == 120 and mapped.tagger == "t"
    for number in range(120):
        assert mapped.product(number) == memory.product(number) and mapped.price(number) == memory.price(
            number
        )
        assert mapped.find(products[number]["asin"]) == number
    for query in ("floor lamp", "gift for friends", "solid wood red", "the", "nothing at allx"):
        assert mapped.search(query) == memory.search(query)
    assert mapped.find("B0NONE") is None


def test_what_belongs_to_a_store_is_in_it_wherever_its_making_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products = [load_shop("mini").catalogue.product(number) for number in range(3)]
    folder = tmp_path / "store"

    def build() -> None:
        build_store(
            folder,
            products,
            lambda p: 1.0,
            TAGGER,
            beside=lambda work: (work / "left_out.json").write_text("[]"),
        )

    for owner, name in ((tasks, "write_whole"), (Path, "rename")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                build()
        assert not folder.exists()
    build()
    assert (folder / "left_out.json").read_text() == "[]" and len(Catalogue.open(folder)) == 3
