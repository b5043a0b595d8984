r"""Search service for agents over text passages, drop-in compatible with Search-R1's.

Serve it over HTTP with ``python -m retriever serve``, or use it in a process:

>>> from retriever import Document, HashedIndex
>>> index = HashedIndex.build([Document("1", '"Dune"\nA novel by Frank Herbert.'), Document("2", '"Solaris"\nA novel by Lem.')])
>>> [hit.document.title for hit in index.search(["who wrote Dune?"], topk=1)[0]]
['Dune']

Importing this package loads neither faiss nor bm25s nor torch.
"""

from retriever.bm25 import Bm25Index
from retriever.corpus import Document, read_corpus, stream_corpus
from retriever.encoders import Encoder, HashedTfidfEncoder, TransformerEncoder
from retriever.errors import (
    BadCorpus,
    BadIndex,
    BadSetting,
    EncoderFailed,
    MissingCorpus,
    MissingDependency,
    MissingModel,
    RetrieverError,
    SearchFailed,
    Unavailable,
    WriteFailed,
)
from retriever.index import DenseIndex, HashedIndex, Hit, RemoteShard, Searcher, ShardedSearcher
from retriever.rerank import CrossEncoder, RerankedSearcher
from retriever.storage import load_index, save_index
from retriever.web import HttpSource, WebSearcher

__all__ = [
    "BadCorpus",
    "BadIndex",
    "BadSetting",
    "Bm25Index",
    "CrossEncoder",
    "DenseIndex",
    "Document",
    "Encoder",
    "EncoderFailed",
    "HashedIndex",
    "HashedTfidfEncoder",
    "Hit",
    "HttpSource",
    "MissingCorpus",
    "MissingDependency",
    "MissingModel",
    "RemoteShard",
    "RerankedSearcher",
    "RetrieverError",
    "SearchFailed",
    "Searcher",
    "ShardedSearcher",
    "TransformerEncoder",
    "Unavailable",
    "WebSearcher",
    "WriteFailed",
    "load_index",
    "read_corpus",
    "save_index",
    "stream_corpus",
]
