"""Text encoders: their protocol, hashed TF-IDF, transformers, and encoders of the user."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, get_args

import numpy as np
from numpy.typing import NDArray

from retriever.corpus import tokenise
from retriever.errors import (
    BadIndex,
    BadSetting,
    EncoderFailed,
    MissingModel,
    RetrieverError,
    import_optional,
)

# Term weights are multiples of this, so float32 sums are exact (below 2**24 steps): a vector
# has the same bytes for any summation order, batch, thread count or SIMD width.
_WEIGHT_STEP = 2.0**-8
# Texts per block: limits the memory of a build to some tens of MB at 512 dimensions.
_BLOCK = 128
_SIGNS_PER_DIGEST = 512
_FILE = "encoder.npz"
_LONGEST_KEPT = 64  # longest word, in characters, whose bucket is cached


class Encoder(Protocol):
    """Interface of an encoder. Queries and documents may be encoded differently.

    A subclass must define ``dim``, ``encode_documents`` and ``encode_queries``; equal texts must give equal vectors
    (docs/adding_an_encoder.md).

    Attributes:
        lexical: True if case and punctuation never matter, and a text without words has no vector.
        counted: True if the encoder needs counts over all documents (`count`, `set_counts`) before it encodes.
    """

    lexical: ClassVar[bool] = False
    counted: ClassVar[bool] = False

    @property
    def kind(self) -> str:
        """Name by which an index finds its encoder again: ``hashed``, ``transformer`` or ``module:Class``."""
        return f"{type(self).__module__}:{type(self).__qualname__}"

    @property
    def dim(self) -> int:
        """Length of every vector."""

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode documents, shape ``(len(texts), dim)``; rows have unit length or are all zero."""

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode queries, shape ``(len(texts), dim)``; a query with an all-zero row has no hits."""

    def info(self) -> dict[str, str | int]:
        """Return name and settings, for ``/info`` and the manifest; an index opens only if they are as built."""
        return {"encoder": self.kind, "dim": self.dim}

    def save(self, folder: Path) -> None:
        """Save the encoder's state into an existing folder; by default nothing."""

    @classmethod
    def load(cls, folder: Path, threads: int = 1) -> Self:
        """Load a saved encoder; by default the class is called without arguments.

        Args:
            folder: Folder that `save` wrote to.
            threads: CPU threads for encoding.
        """
        return cls()

    def count(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        """Count the terms of a chunk of documents, shape (n, 2), if ``counted``: term and number of texts."""
        return np.empty((0, 2), np.uint32)

    def set_counts(self, documents: int, counts: NDArray[np.uint32]) -> None:
        """Set the counts of all chunks, if ``counted``.

        Args:
            documents: Number of counted texts.
            counts: The rows of all calls of `count`, shape (n, 2).
        """
        return


def is_named(encoder: str) -> bool:
    """Check whether a name has the form ``module:Class``."""
    module, colon, name = encoder.partition(":")
    return bool(colon) and all(part.isidentifier() for part in [*module.split("."), *name.split(".")])


def encoder_class(kind: str) -> type[Encoder]:
    """Find the class of an encoder by its `Encoder.kind`; ``module:Class`` is imported.

    Raises:
        BadSetting: The class cannot be imported, or lacks a member of `Encoder`.
    """
    found: Any = _ENCODERS.get(kind)
    if found is not None:
        return found  # type: ignore[no-any-return]  # one of two classes
    module, _, path = kind.partition(":")
    try:
        found = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:  # importing runs the user's code
        raise BadSetting(
            f"the encoder {kind} cannot be imported: {type(error).__name__}: {error}. Start where {module} can be imported, or set "
            "PYTHONPATH."
        ) from error
    lacking = [name for name in _MEMBERS if not hasattr(found, name)]
    if not isinstance(found, type) or lacking:
        said = (
            f"it lacks {', '.join(lacking)}" if isinstance(found, type) else f"it is a {type(found).__name__}"
        )
        raise BadSetting(
            f"the encoder {kind} must be a class with the members of retriever.Encoder, but {said}."
        )
    return found


def make_encoder(given: str | TransformerSettings, dim: int = 512, threads: int = 1) -> Encoder:
    """Make an encoder, not yet counted.

    Args:
        given: ``hashed``, ``module:Class`` (called without arguments), or the settings of a transformer.
        dim: Vector length of the hashed encoder.
        threads: CPU threads of a transformer.

    Raises:
        BadSetting: A setting is out of range, or the class is no encoder.
        MissingModel, MissingDependency: The transformer cannot be loaded.
    """
    if isinstance(given, TransformerSettings):
        return TransformerEncoder(given, threads)
    if given == "hashed":
        return HashedTfidfEncoder(dim)
    cls = encoder_class(given)
    try:
        return cls()
    except RetrieverError:
        raise
    except Exception as error:  # the user's code
        raise BadSetting(
            f"the encoder {given} cannot be made without arguments: {type(error).__name__}: {error}."
        ) from error


def encoded(encoder: Encoder, texts: Sequence[str], queries: bool = False) -> NDArray[np.float32]:
    """Encode texts and check the vectors.

    Args:
        encoder: Encoder, possibly of the user.
        texts: Documents, or queries.
        queries: True to encode queries.

    Raises:
        EncoderFailed: The encoder raised, or its vectors have another shape or type, or are not finite.
    """
    method = "encode_queries" if queries else "encode_documents"
    try:
        vectors = getattr(encoder, method)(texts)
    except (RetrieverError, MemoryError, OSError):
        raise
    except Exception as error:  # the user's code, or torch
        raise EncoderFailed(f"{method} of {encoder.kind} raised {type(error).__name__}: {error}.") from error
    shape, dtype = getattr(vectors, "shape", None), getattr(vectors, "dtype", None)
    if shape != (len(texts), encoder.dim) or dtype != np.float32 or not np.isfinite(vectors).all():
        raise EncoderFailed(
            f"{method} of {encoder.kind} must return finite float32 of shape {(len(texts), encoder.dim)}, got "
            f"{type(vectors).__name__} of shape {shape} and type {dtype}."
        )
    result: NDArray[np.float32] = vectors
    return result


def _bucket(token: str, buckets: int) -> int:
    # Long words are not cached: a hundred thousand of them could take gigabytes.
    return short_bucket(token, buckets) if len(token) <= _LONGEST_KEPT else _digest(token, buckets)


@lru_cache(maxsize=1 << 17)
def short_bucket(token: str, buckets: int) -> int:
    """Hash a token of ordinary length, cached."""
    return _digest(token, buckets)


def _digest(token: str, buckets: int) -> int:
    # blake2b, not hash(), which depends on PYTHONHASHSEED.
    return int.from_bytes(hashlib.blake2b(token.encode(), digest_size=8).digest(), "little") % buckets


def _sign_bits(bucket: int, dim: int, seed: int) -> bytes:
    """Draw the packed signs of one bucket, independent of all others."""
    key = seed.to_bytes(8, "little")
    digests = (
        hashlib.blake2b(bucket.to_bytes(8, "little") + part.to_bytes(4, "little"), key=key).digest()
        for part in range(-(-dim // _SIGNS_PER_DIGEST))
    )
    return b"".join(digests)[: dim // 8]


class HashedTfidfEncoder(Encoder):
    """Hashed TF-IDF vectors, projected to ``dim`` by seeded random signs and normalised to unit length.

    `fit` only counts document frequencies. A term that is in no document is ignored; in exact TF-IDF it
    could not change a ranking either.

    >>> from retriever import HashedTfidfEncoder
    >>> encoder = HashedTfidfEncoder(dim=64).fit(["a red fox", "a blue whale"])
    >>> encoder.encode_queries(["red whale"]).shape
    (1, 64)

    Args:
        dim: Vector length, a positive multiple of 8.
        buckets: Number of hash buckets; terms in one bucket count as one term.
        seed: Seed of the projection, 0 <= seed < 2**64.

    Raises:
        BadSetting: A setting is out of range.
    """

    lexical, counted = True, True

    @property
    def kind(self) -> str:
        """See `Encoder`."""
        return "hashed"

    def __init__(self, dim: int = 512, buckets: int = 1 << 20, seed: int = 0) -> None:
        if dim < 8 or dim % 8:
            raise BadSetting(f"dim must be a positive multiple of 8, got {dim}.")
        if buckets < 1:
            raise BadSetting(f"buckets must be positive, got {buckets}.")
        if not 0 <= seed < 1 << 64:
            raise BadSetting(f"seed must be in [0, 2**64), got {seed}.")
        self._dim, self.buckets, self.seed = dim, buckets, seed
        self.set_frequencies(0, np.empty(0, np.int64), np.empty(0, np.int64))

    @property
    def dim(self) -> int:
        """Length of every vector."""
        return self._dim

    def fit(self, texts: Iterable[str]) -> HashedTfidfEncoder:
        """Count document frequencies, replacing earlier ones, and return ``self``."""
        frequencies: Counter[int] = Counter()
        documents = 0
        for text in texts:
            documents += 1
            frequencies.update(self.buckets_of(text))
        used = sorted(frequencies)
        counts = [frequencies[bucket] for bucket in used]
        return self.set_frequencies(documents, np.array(used, np.int64), np.array(counts, np.int64))

    def count(self, texts: Sequence[str]) -> NDArray[np.uint32]:
        """Count the texts of each bucket, as rows (bucket, texts)."""
        occurrences = [bucket for text in texts for bucket in self.buckets_of(text)]
        buckets, counts = np.unique(np.array(occurrences, np.uint32), return_counts=True)
        return np.stack([buckets, counts.astype(np.uint32)], axis=1)

    def set_counts(self, documents: int, counts: NDArray[np.uint32]) -> None:
        """See `Encoder.set_counts`."""
        total = np.zeros(self.buckets, np.int64)
        for start in range(0, len(counts), 1 << 22):
            block = counts[start : start + (1 << 22)]
            np.add.at(total, block[:, 0], block[:, 1])
        used = np.flatnonzero(total)
        self.set_frequencies(documents, used, total[used])

    def buckets_of(self, text: str) -> set[int]:
        """Hash the terms of one text to buckets."""
        return {_bucket(token, self.buckets) for token in tokenise(text)}

    def set_frequencies(
        self, documents: int, used: NDArray[np.int64], frequencies: NDArray[np.int64]
    ) -> HashedTfidfEncoder:
        """Set document frequencies that were counted elsewhere, and return ``self``.

        Args:
            documents: Number of counted texts.
            used: Buckets that occur, ascending.
            frequencies: Number of texts of each bucket, the same length.
        """
        self._documents, self._used, self._frequencies = documents, used, frequencies
        self._column = {bucket: column for column, bucket in enumerate(used.tolist())}
        # Smoothed as in scikit-learn's TfidfTransformer(smooth_idf=True).
        self._idf = np.log((1 + documents) / (1 + frequencies)) + 1
        # Signs are drawn on demand: all of them would take 64 bytes a term at 512 dimensions, and a
        # second per million terms when an index is opened.
        self._signs = np.zeros((len(used), self.dim // 8), np.uint8)
        self._signed = np.zeros(len(used), bool)
        return self

    def _signs_of(self, columns: list[int]) -> NDArray[np.uint8]:
        wanted = np.unique(columns)
        for column in wanted[~self._signed[wanted]].tolist():
            bits = _sign_bits(int(self._used[column]), self.dim, self.seed)
            self._signs[column] = np.frombuffer(bits, np.uint8)
            self._signed[column] = True
        signs: NDArray[np.uint8] = self._signs[columns]
        return signs

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode texts as unit vectors, shape ``(len(texts), dim)``.

        All zero for a text without a known term.
        """
        vectors = np.zeros((len(texts), self.dim), np.float32)
        for start in range(0, len(texts), _BLOCK):
            self._encode_block(texts[start : start + _BLOCK], vectors[start : start + _BLOCK])
        return vectors

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Encode queries exactly as documents."""
        return self.encode_documents(texts)

    def _encode_block(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        rows: list[int] = []
        starts: list[int] = []
        columns: list[int] = []
        counts: list[int] = []
        for row, text in enumerate(texts):
            found = (self._column.get(_bucket(token, self.buckets)) for token in tokenise(text))
            terms = Counter(column for column in found if column is not None)
            if terms:
                rows.append(row)
                starts.append(len(columns))
                columns.extend(terms.keys())
                counts.extend(terms.values())
        if not rows:
            return
        raw = (1 + np.log(np.array(counts, np.float64))) * self._idf[columns]
        weights = (np.rint(raw / _WEIGHT_STEP) * _WEIGHT_STEP).astype(np.float32)
        signs = 2 * np.unpackbits(self._signs_of(columns), axis=1).astype(np.float32) - 1
        # One product per text: `np.add.reduceat` over the whole block takes five times as long.
        spans = pairwise([*starts, len(columns)])
        sums = np.stack([weights[start:end] @ signs[start:end] for start, end in spans])
        # Sums are exact multiples of the step, so their squares add up exactly in float64.
        norms = np.sqrt(np.square(sums, dtype=np.float64).sum(axis=1))
        # In toy dimensions the signs of few terms can cancel to zero; such a row stays zero.
        vectors[rows] = (sums / np.where(norms > 0, norms, 1)[:, None]).astype(np.float32)

    def info(self) -> dict[str, str | int]:
        """Return the encoder's name and settings."""
        settings: dict[str, str | int] = {"dim": self.dim, "buckets": self.buckets, "seed": self.seed}
        # Shards may only be merged if their words were counted over the same corpus.
        counted = hashlib.sha256(
            np.array([self._documents]).tobytes() + self._used.tobytes() + self._frequencies.tobytes()
        )
        return {"encoder": "hashed_tfidf", **settings, "frequencies_sha256": counted.hexdigest()}

    def save(self, folder: Path) -> None:
        """Save settings and document frequencies to a NumPy archive (``encoder.npz``)."""
        np.savez(
            folder / _FILE,
            settings=np.array([self.dim, self.buckets, self._documents], np.int64),
            seed=np.array(self.seed, np.uint64),
            buckets=self._used,
            frequencies=self._frequencies,
        )

    @classmethod
    def load(cls, folder: Path, threads: int = 1) -> Self:
        """Load a saved encoder; it encodes with one thread.

        Raises:
            FileNotFoundError: The file is missing.
            OSError, ValueError, KeyError: The file is malformed.
        """
        with np.load(folder / _FILE, allow_pickle=False) as archive:
            dim, buckets, documents = (int(value) for value in archive["settings"])
            encoder = cls(dim, buckets, int(archive["seed"]))
            encoder.set_frequencies(documents, archive["buckets"], archive["frequencies"])
            return encoder


Pooling = Literal["mean", "cls"]
_MODEL_FILE = "encoder.json"
_BATCH = 32
_MOST_TOKENS = 512
# E5 models were trained with these prefixes (intfloat/e5-base-v2: "query: ", "passage: ").
_E5_PREFIXES = ("query: ", "passage: ")


class TransformerSettings(NamedTuple):
    """Settings of a transformer encoder."""

    model: str
    pooling: Pooling
    query_prefix: str
    passage_prefix: str
    max_tokens: int


def settings_for(
    model: str,
    pooling: Pooling | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    max_tokens: int | None = None,
) -> TransformerSettings:
    """Fill in defaults: from a sentence-transformers folder, and E5's prefixes if the name says E5.

    Args:
        model: Name on the Hugging Face hub, or a folder.
        pooling: ``mean`` over the tokens, or ``cls`` for the first token.
        query_prefix: Prefix of every query.
        passage_prefix: Prefix of every passage.
        max_tokens: Maximum input length, at most the model's; longer text is truncated.

    Raises:
        BadSetting: A value is out of range.
    """
    folder = Path(model)
    if folder.is_dir():
        model = str(folder.resolve())
    if pooling is None:
        said = _read_json(folder / "1_Pooling" / "config.json")
        pooling = "cls" if said.get("pooling_mode_cls_token") else "mean"
    if pooling not in get_args(Pooling):
        raise BadSetting(f"pooling must be mean or cls, got {pooling!r}.")
    if max_tokens is None:
        said = _read_json(folder / "sentence_bert_config.json")
        max_tokens = int(said.get("max_seq_length") or _MOST_TOKENS)
    if max_tokens < 3:
        raise BadSetting(f"max_tokens must be at least 3, got {max_tokens}.")
    prefixes = _E5_PREFIXES if "e5" in folder.name.lower().replace("_", "-").split("-") else ("", "")
    return TransformerSettings(
        model=model,
        pooling=pooling,
        query_prefix=prefixes[0] if query_prefix is None else query_prefix,
        passage_prefix=prefixes[1] if passage_prefix is None else passage_prefix,
        max_tokens=max_tokens,
    )


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = json.loads(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


class LoadedTransformer(NamedTuple):
    """Transformer in evaluation mode, with its tokenizer.

    Attributes:
        tokenizer: Tokenizer of transformers.
        model: Model of transformers, on ``device``.
        device: ``cuda`` if there is one, else ``cpu``.
        longest: Maximum input length in tokens.
        untrained: Names of weights that the file lacks, which are random.
    """

    tokenizer: Any
    model: Any
    device: str
    longest: int
    untrained: list[str]


def load_transformer(auto: str, name: str, threads: int, role: str) -> LoadedTransformer:
    """Load a model of transformers from safetensors, without remote code, on the GPU if there is one.

    Args:
        auto: Class of transformers, such as ``AutoModel``.
        name: Folder, or a name on the Hugging Face hub.
        threads: CPU threads of torch, for the whole process.
        role: Names the model in an error: ``encoder`` or ``reranker``.

    Raises:
        MissingModel: The model cannot be loaded or downloaded.
        MissingDependency: transformers or torch is not installed.
    """
    torch, transformers = import_optional("torch"), import_optional("transformers")
    torch.set_num_threads(threads)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        model, about = getattr(transformers, auto).from_pretrained(
            name, use_safetensors=True, trust_remote_code=False, dtype=torch.float32, output_loading_info=True
        )
    # Each of these libraries raises its own errors, down to a bare Exception.
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise MissingModel(
            f"the {role} {name!r} cannot be loaded: {reason[0] if reason else type(error).__name__}. Name a folder "
            "with config.json, model.safetensors and tokenizer files, or a model of the Hugging Face hub."
        ) from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.eval().to(device)
    longest = getattr(model.config, "max_position_embeddings", _MOST_TOKENS)
    return LoadedTransformer(tokenizer, model, device, longest, sorted(about["missing_keys"]))


def weights_digest(model: Any, tokenizer: Any) -> str:
    """Compute the SHA-256 of a model's weights and vocabulary."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    digest.update(json.dumps(tokenizer.get_vocab(), sort_keys=True).encode())
    return digest.hexdigest()


def batches_by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """Deal positions into batches of similar length, which saves padding."""
    order = sorted(range(len(lengths)), key=lambda position: lengths[position])
    for start in range(0, len(order), size):
        yield order[start : start + size]


class TransformerEncoder(Encoder):
    """Transformer encoder, on the GPU if there is one.

    >>> from retriever import TransformerEncoder
    >>> from retriever.encoders import settings_for
    >>> encoder = TransformerEncoder(settings_for("intfloat/e5-base-v2"))  # doctest: +SKIP

    Args:
        settings: Settings from `settings_for`.
        threads: CPU threads of torch, for the whole process.

    Raises:
        MissingModel: The model cannot be loaded or downloaded.
        MissingDependency: transformers or torch is not installed.
    """

    @property
    def kind(self) -> str:
        """See `Encoder`."""
        return "transformer"

    def __init__(self, settings: TransformerSettings, threads: int = 1) -> None:
        self._torch = import_optional("torch")
        self.settings = settings
        loaded = load_transformer("AutoModel", settings.model, threads, "encoder")
        self._tokenizer, self._model, self._device = loaded.tokenizer, loaded.model, loaded.device
        self._max_tokens = min(settings.max_tokens, loaded.longest)
        self.weights_sha256 = weights_digest(self._model, self._tokenizer)

    @property
    def dim(self) -> int:
        """Length of every vector."""
        return int(self._model.config.hidden_size)

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `retriever.encoders.Encoder`."""
        return self._encode([self.settings.passage_prefix + text for text in texts])

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `retriever.encoders.Encoder`; a blank query has a row of zeros."""
        vectors = self._encode([self.settings.query_prefix + text for text in texts])
        vectors[[not text.strip() for text in texts]] = 0
        return vectors

    def _encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        torch = self._torch
        vectors = np.empty((len(texts), self.dim), np.float32)
        # The tokenizer works on UTF-8, which cannot encode lone surrogates.
        clean = [text.encode("utf-8", "replace").decode("utf-8") for text in texts]
        with torch.inference_mode():
            for rows in batches_by_length([len(text) for text in clean], _BATCH):
                batch = self._tokenizer(
                    [clean[row] for row in rows],
                    padding=True,
                    truncation=True,
                    max_length=self._max_tokens,
                    return_tensors="pt",
                ).to(self._device)
                hidden = self._model(**batch).last_hidden_state
                if self.settings.pooling == "cls":
                    pooled = hidden[:, 0]
                else:
                    mask = batch["attention_mask"][..., None].to(hidden.dtype)
                    pooled = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1)
                vectors[rows] = torch.nn.functional.normalize(pooled, dim=-1).cpu().numpy()
        return vectors

    def info(self) -> dict[str, str | int]:
        """Return the encoder's name, settings and weights digest."""
        return {
            "encoder": "transformer",
            "dim": self.dim,
            **self.settings._asdict(),
            "weights_sha256": self.weights_sha256,
        }

    def save(self, folder: Path) -> None:
        """Save the settings and the weights digest, not the weights."""
        content = {"settings": self.settings._asdict(), "weights_sha256": self.weights_sha256}
        (folder / _MODEL_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="ascii")

    @classmethod
    def load(cls, folder: Path, threads: int = 1) -> Self:
        """Load a saved encoder.

        Raises:
            BadIndex: The weights of the model have changed.
            MissingModel: The model cannot be loaded.
            OSError, ValueError, KeyError, TypeError: The file is malformed.
        """
        content = json.loads((folder / _MODEL_FILE).read_text(encoding="ascii"))
        encoder = cls(TransformerSettings(**content["settings"]), threads)
        if encoder.weights_sha256 != content["weights_sha256"]:
            raise BadIndex(
                f"{folder / _MODEL_FILE}: the weights of {encoder.settings.model!r} have changed since the index was built; "
                "restore the model or build the index again."
            )
        return encoder


_ENCODERS: dict[str, Any] = {"hashed": HashedTfidfEncoder, "transformer": TransformerEncoder}
_MEMBERS = (
    *("lexical", "counted", "kind", "dim", "encode_documents", "encode_queries", "info", "save", "load"),
    *("count", "set_counts"),
)
