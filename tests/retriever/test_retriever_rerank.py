"""A cross-encoder as second stage, with a tiny randomly initialised one made here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from conftest import run_here, serving, wait_ready

from retriever import (
    BadSetting,
    CrossEncoder,
    Document,
    HashedIndex,
    Hit,
    MissingModel,
    RerankedSearcher,
    ShardedSearcher,
    load_index,
)
from retriever.cli import Serve, loader
from retriever.corpus import tokenise
from retriever.errors import BadIndex
from retriever.service import SearchService

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def make_cross_encoder(folder: Path, words: list[str], labels: int = 1, head: bool = True) -> Path:
    """Two layers of 32 numbers over whole words, with a classifier; its scores are chance, but spread."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        num_labels=labels,
        initializer_range=0.5,
    )
    cls = transformers.BertForSequenceClassification if head else transformers.BertModel
    cls(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def words(documents: list[Document]) -> list[str]:
    return sorted({word for document in documents for word in tokenise(document.contents)})


@pytest.fixture(scope="module")
def model(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cross_encoder(tmp_path_factory.mktemp("models") / "tiny-cross", words)


def by_hand(model: Path, query: str, text: str) -> Any:
    """The logits of one pair alone, without padding or batches."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    batch = tokenizer([query], [text], truncation=True, max_length=64, return_tensors="pt")
    with torch.inference_mode():
        loaded = transformers.AutoModelForSequenceClassification.from_pretrained(model).eval()
        return loaded(**batch).logits[0].double().numpy()


def test_scores_are_those_of_the_model(
    model: Path, documents: list[Document], words: list[str], tmp_path: Path
) -> None:
    encoder = CrossEncoder(str(model))
    pairs = [(f"ka{n} ro{n}", document.text) for n, document in enumerate(documents[:40])]
    pairs += [("ka1 " * 40, "ro1 " * 90), ("\ud800", "?!"), ("ka1", "")]
    scores = encoder.scores(pairs)
    for row in (0, 17, 39, 40, 42):
        assert scores[row] == pytest.approx(by_hand(model, *pairs[row])[0], abs=2e-4)
    assert encoder.scores(pairs[::-1]).tolist() == pytest.approx(scores[::-1].tolist(), abs=2e-4)
    assert len(set(scores[:40].tolist())) > 30 and encoder.scores([]).shape == (0,)
    two = make_cross_encoder(tmp_path / "two", words, labels=2)
    no, yes = by_hand(two, *pairs[0])
    assert CrossEncoder(str(two)).scores(pairs[:1])[0] == pytest.approx(yes - no, abs=2e-4)


def test_the_candidates_are_ranked_again(model: Path, documents: list[Document]) -> None:
    first, encoder = HashedIndex.build(documents), CrossEncoder(str(model))
    searcher = RerankedSearcher(first, encoder, candidates=20)
    queries = ["ka1 ro2 mi3", "title 9", "", "nowordofit"]
    found = searcher.search(queries, 5)
    for query, row in zip(queries, found, strict=True):
        candidates = first.search([query], 20)[0]
        scores = encoder.scores([(query, f"{hit.document.title}\n{hit.document.text}") for hit in candidates])
        best = sorted(range(len(candidates)), key=lambda place: (-scores[place], place))[:5]
        assert [hit.document.id for hit in row] == [candidates[place].document.id for place in best]
        assert [hit.score for hit in row] == pytest.approx([scores[place] for place in best], abs=2e-4)
    assert found[0] != first.search(queries[:1], 5)[0] and found[2:] == [[], []]
    assert len(searcher.search(["ka1 ro2 mi3"], 30)[0]) == 30, "topk above the candidates"
    about = searcher.info()
    assert about["encoder"] == "hashed_tfidf reranked" and about["reranker_sha256"] == encoder.weights_sha256
    with pytest.raises(BadIndex, match="reranker"):
        ShardedSearcher([first, searcher])


def test_ties_keep_their_first_order(model: Path) -> None:
    class Same:
        ntotal = 6

        def search(self, queries: list[str], topk: int) -> list[list[Hit]]:
            return [[Hit(Document(name, '"Same"\nka1 ro1'), 1.0) for name in "dbfaec"] for _ in queries]

        def info(self) -> dict[str, str | int | float]:
            return {"encoder": "any"}

    rows = RerankedSearcher(Same(), CrossEncoder(str(model))).search(["ka1"] * 7, 4)  # type: ignore[arg-type]  # a class without the base
    assert ["".join(hit.document.id for hit in row) for row in rows] == ["dbfa"] * 7


def test_models_that_cannot_rank(
    words: list[str], model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(MissingModel, match="no trained classifier"):
        CrossEncoder(str(make_cross_encoder(tmp_path / "bare", words, head=False)))
    with pytest.raises(BadSetting, match="3 labels"):
        CrossEncoder(str(make_cross_encoder(tmp_path / "three", words, labels=3)))
    with pytest.raises(MissingModel, match="the reranker 'nowhere' cannot be loaded"):
        CrossEncoder("nowhere")
    with pytest.raises(BadSetting, match="at least 8"):
        CrossEncoder(str(model), max_tokens=7)
    done = run_here(capsys, "serve", "--rerank", model, "--rerank-candidates", "0")
    assert (done.returncode, "--rerank-candidates 0" in done.stderr) == (2, True)


BODY = {"queries": ["ka1 ro2 mi3"], "topk": 5, "return_scores": True}


def check_answer(url: str, model: Path, index_folder: Path) -> None:
    hits = requests.post(f"{url}/retrieve", json=BODY, timeout=60).json()["result"][0]
    searcher = RerankedSearcher(load_index(index_folder), CrossEncoder(str(model)), 20)
    expected = searcher.search(["ka1 ro2 mi3"], 5)[0]
    assert [hit["document"]["id"] for hit in hits] == [hit.document.id for hit in expected]
    assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected], abs=2e-4)
    about = requests.get(f"{url}/info", timeout=10).json()
    assert about["reranker"] == str(model) and about["rerank_candidates"] == 20


def test_served(model: Path, index_folder: Path, serve_here: Callable[[SearchService], str]) -> None:
    command = Serve(index=(str(index_folder),), rerank=str(model), rerank_candidates=20)
    url = serve_here(SearchService(loader(command, lambda error: None)))
    wait_ready(url)
    check_answer(url, model, index_folder)


@pytest.mark.slow
def test_served_by_a_process(model: Path, index_folder: Path) -> None:
    with serving("--index", index_folder, "--rerank", model, "--rerank-candidates", "20") as url:
        check_answer(url, model, index_folder)
