"""Second stage of a search: a cross-encoder reads each query together with its candidates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from retriever.corpus import Document
from retriever.encoders import batches_by_length, load_transformer, weights_digest
from retriever.errors import BadSetting, EncoderFailed, MissingModel, import_optional
from retriever.index import Hit, Searcher

_BATCH = 32
# Padding changes the last digits of a float32 score; rounded, equal passages tie and keep their order.
_DECIMALS = 4


class CrossEncoder:
    """Cross-encoder: a sequence classifier of transformers that scores pairs of query and passage.

    A model of one label gives its logit, one of two labels the difference of its logits (relevant minus not). It runs on the GPU if
    there is one.

    >>> from retriever import CrossEncoder
    >>> CrossEncoder("cross-encoder/ms-marco-MiniLM-L6-v2").scores([("who wrote Dune?", "Frank Herbert")])  # doctest: +SKIP

    Args:
        model: Folder, or a name on the Hugging Face hub. Weights are loaded from safetensors only, without remote code.
        threads: CPU threads of torch, for the whole process.
        max_tokens: Maximum length of a pair, at most the model's; the longer of the two texts is truncated.

    Raises:
        MissingModel: The model cannot be loaded, or has no trained classifier.
        BadSetting: It has more than two labels, or ``max_tokens`` is too small.
        MissingDependency: transformers or torch is not installed.
    """

    def __init__(self, model: str, threads: int = 1, max_tokens: int = 512) -> None:
        if max_tokens < 8:
            raise BadSetting(f"max_tokens of the reranker must be at least 8, got {max_tokens}.")
        self.model = model
        self._torch = import_optional("torch")
        loaded = load_transformer("AutoModelForSequenceClassification", model, threads, "reranker")
        if loaded.untrained:
            raise MissingModel(
                f"the reranker {model!r} has no trained classifier ({', '.join(loaded.untrained[:3])} are not in its weights): name a "
                "cross-encoder, such as cross-encoder/ms-marco-MiniLM-L6-v2."
            )
        self._tokenizer, self._model, self._device = loaded.tokenizer, loaded.model, loaded.device
        self._labels = int(self._model.config.num_labels)
        if self._labels > 2:
            raise BadSetting(
                f"the reranker {model!r} has {self._labels} labels; a cross-encoder has 1 (a score) or 2 (not relevant, relevant)."
            )
        self.max_tokens = min(max_tokens, loaded.longest)
        self.weights_sha256 = weights_digest(self._model, self._tokenizer)

    def scores(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float64]:
        """Score pairs of query and passage, in batches of similar length; higher is better.

        Raises:
            EncoderFailed: A score is not finite.
        """
        found = np.empty(len(pairs), np.float64)
        # The tokenizer works on UTF-8, which cannot encode lone surrogates.
        clean = [tuple(text.encode("utf-8", "replace").decode("utf-8") for text in pair) for pair in pairs]
        with self._torch.inference_mode():
            for rows in batches_by_length([len(query) + len(text) for query, text in clean], _BATCH):
                batch = self._tokenizer(
                    [clean[row][0] for row in rows],
                    [clean[row][1] for row in rows],
                    padding=True,
                    truncation="longest_first",
                    max_length=self.max_tokens,
                    return_tensors="pt",
                ).to(self._device)
                logits = self._model(**batch).logits.double()
                score = logits[:, 0] if self._labels == 1 else logits[:, 1] - logits[:, 0]
                found[rows] = score.cpu().numpy()
        if not np.isfinite(found).all():
            raise EncoderFailed(
                f"the reranker {self.model!r} gave a score that is not finite; check its weights."
            )
        return np.round(found, _DECIMALS) + 0.0


class RerankedSearcher:
    """Searcher whose best candidates are ranked again by a cross-encoder; ties keep their first order.

    >>> from retriever import CrossEncoder, RerankedSearcher, load_index
    >>> index = RerankedSearcher(load_index("index"), CrossEncoder("my_reranker"))  # doctest: +SKIP

    Args:
        searcher: First stage.
        encoder: Scores the candidates; a hit's score is then its logit, rounded to four decimals.
        candidates: Passages of the first stage per query; more if ``topk`` is larger.

    Raises:
        BadSetting: ``candidates`` is not positive.
    """

    def __init__(self, searcher: Searcher, encoder: CrossEncoder, candidates: int = 50) -> None:
        if candidates < 1:
            raise BadSetting(f"candidates of the reranker must be positive, got {candidates}.")
        self._searcher, self._encoder, self._candidates = searcher, encoder, candidates

    @property
    def ntotal(self) -> int:
        """Number of documents of the first stage."""
        return self._searcher.ntotal

    def info(self) -> dict[str, str | int | float]:
        """Return the first stage's settings and the reranker's; the encoder's name says that words alone do not decide."""
        about = self._searcher.info()
        return {
            **about,
            "encoder": f"{about.get('encoder', 'none')} reranked",
            "reranker": self._encoder.model,
            "reranker_sha256": self._encoder.weights_sha256,
            "rerank_candidates": self._candidates,
            "rerank_max_tokens": self._encoder.max_tokens,
        }

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See `retriever.index.Searcher.search`; the candidates of all queries are scored together."""
        topk = max(1, topk)
        rows = self._searcher.search(queries, max(topk, self._candidates))
        pairs = [
            (query, _read(hit.document)) for query, row in zip(queries, rows, strict=True) for hit in row
        ]
        scores = iter(self._encoder.scores(pairs).tolist())
        scored = [[Hit(hit.document, next(scores)) for hit in row] for row in rows]
        # sorted() is stable, so ties keep the order of the first stage.
        return [sorted(row, key=lambda hit: -hit.score)[:topk] for row in scored]


def _read(document: Document) -> str:
    """Join title and text as a cross-encoder reads them."""
    return f"{document.title}\n{document.text}".strip()
