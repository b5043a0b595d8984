"""A search service for agents over text passages, drop-in compatible with Search-R1's.

In a process: ``HashedIndex.build(read_corpus("corpus.jsonl")).search(["who wrote it?"], topk=3)``.
As a service: ``python -m retriever serve``. Importing this package loads neither faiss nor bm25s nor torch.
"""

from retriever.bm25 import Bm25Index
from retriever.corpus import Document, read_corpus, stream_corpus
from retriever.encoders import Encoder, HashedTfidfEncoder, TransformerEncoder
from retriever.errors import (
    BadCorpus,
    BadIndex,
    BadSetting,
    MissingCorpus,
    MissingDependency,
    MissingModel,
    RetrieverError,
    Unavailable,
    WriteFailed,
)
from retriever.index import DenseIndex, HashedIndex, Hit, RemoteShard, Searcher, ShardedSearcher
from retriever.storage import load_index, save_index

__all__ = [
    "BadCorpus",
    "BadIndex",
    "BadSetting",
    "Bm25Index",
    "DenseIndex",
    "Document",
    "Encoder",
    "HashedIndex",
    "HashedTfidfEncoder",
    "Hit",
    "MissingCorpus",
    "MissingDependency",
    "MissingModel",
    "RemoteShard",
    "RetrieverError",
    "Searcher",
    "ShardedSearcher",
    "TransformerEncoder",
    "Unavailable",
    "WriteFailed",
    "load_index",
    "read_corpus",
    "save_index",
    "stream_corpus",
]
