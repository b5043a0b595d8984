"""Opening the searcher that the option ``retriever`` names."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from tstar_envs.data.locate import Stamped, stamped
from tstar_envs.envs.search_qa.search.corpus import first_contents
from tstar_envs.envs.search_qa.search.embedded import EMBEDDED_BACKENDS, open_index
from tstar_envs.envs.search_qa.search.passage import Searcher
from tstar_envs.errors import UnknownOption


def open_searcher(retriever: str, corpus: Path, invented: bool = False) -> Searcher:
    """The searcher for an environment's ``retriever`` option, shared by all environments of the process.

    Args:
        retriever: a back end's name or an address.
        corpus: the passages that the questions are asked over.
        invented: they are of an invented world, so that a service with another corpus cannot have the answers: it is refused.

    Raises:
        UnknownOption: neither a back end's name nor an http(s) address.
    """
    if retriever in EMBEDDED_BACKENDS:
        return open_index(corpus, retriever)
    if retriever.startswith(("http://", "https://")):
        return _shared_client(retriever, stamped([corpus] if invented else ()))
    raise UnknownOption(
        f"retriever must be 'hashed', 'bm25' or an address starting with http://, got {retriever!r}"
    )


@lru_cache(maxsize=8)
def _shared_client(url: str, corpus: Stamped) -> Searcher:
    from tstar_envs.envs.search_qa.search.service import HttpSearcher

    return HttpSearcher(url, expected=first_contents(corpus[0][0]) if corpus else ())
