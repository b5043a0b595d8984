"""The client of search services: this project's, Search-R1's, and those that take one query at a time (SkyRL, verl-agent).

One keep-alive connection per process and host, whatever the number of environments. A service that loads or is full
says when to come again and is waited for; other failures are tried again with growing pauses; then it is an error of
the infrastructure, which no one scores as an answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from tstar_envs.envs.search_qa.searcher import Passage
from tstar_envs.errors import MissingExtra, RetrieverError, UnknownOption

_TIMEOUT_SECONDS = 60.0
_SHORTEST_WAIT, _LONGEST_WAIT = 0.05, 30.0
# Within the limits of this project's service, which bounds what one request may cost.
_MOST_QUERIES = 256
_MOST_CHARACTERS = 500_000
_BUSY = (429, 503)


class HttpSearcher:
    """A client of one service.

    Args:
        url: its address, with or without the final ``/retrieve``.
        tries: how often a request is sent that gets no answer, or an error of the server (5xx).
        pause_seconds: before the second try; doubled before each further one.
        patience_seconds: how long in all to wait for a service that says it is loading or full (503, 429).
        expected: contents of passages of the corpus that the questions are asked over. Before its first search a searcher asks for
            each of them; a service that finds none holds another corpus, in which the answers are not. Empty: it is not asked.
    """

    def __init__(
        self, url: str, tries: int = 4, pause_seconds: float = 0.25, patience_seconds: float = 300.0, expected: Sequence[str] = ()
    ) -> None:
        try:
            import requests
        except ImportError as error:
            raise MissingExtra("a search service over HTTP", "requests", "search") from error
        self._settings = (url, tries, pause_seconds, patience_seconds, tuple(expected))
        self._expected = tuple(expected)
        self._url = url if url.endswith("/retrieve") else url.rstrip("/") + "/retrieve"
        self._tries, self._pause, self._patience = tries, pause_seconds, patience_seconds
        self._failure = requests.RequestException
        self._one_by_one = False

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return HttpSearcher, self._settings

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """See ``Searcher``; all queries travel in one request as far as the service takes it.

        Raises:
            RetrieverError: the service cannot be reached, stays busy, answers with an error, or in another form.
            UnknownOption: it holds another corpus than the one of the questions (``expected``).
        """
        if self._expected:
            self._require_corpus()
        # Half surrogate pairs, which an agent may write, have no form in JSON that servers accept.
        texts = [query.encode("utf-8", "replace").decode("utf-8") for query in queries]
        # A service that ignores topk (Search-R1's proxies of web search) may send more than was asked for.
        return [row[:topk] for part in _portions(texts) for row in self._ask(part, topk)]

    def _require_corpus(self) -> None:
        # A passage's own contents are as near to it as a query can be, whatever the encoder; ten leave room for an approximate index.
        wanted = [_passage({"contents": contents}) for contents in self._expected]
        found = self._ask(list(self._expected), 10)
        if not any(_words(hit) == _words(w) for w, hits in zip(wanted, found, strict=True) for hit in hits):
            instead = f"; it finds {found[0][0].title!r} instead" if found[0] else ""
            raise UnknownOption(
                f"the search service at {self._url} serves another corpus than this environment's questions are asked over: it does not "
                f"know {', '.join(repr(w.title) for w in wanted)}{instead}. Serve this environment's own (docs/retriever.md, "
                "'From an environment'), or pass retriever='hashed' for the embedded one"
            )
        self._expected = ()

    def _ask(self, texts: list[str], topk: int) -> list[list[Passage]]:
        if self._one_by_one and len(texts) > 1:
            return [row for text in texts for row in self._ask([text], topk)]
        # Scores are always asked for: Search-R1's server answers wrongly when they are not.
        body: dict[str, Any] = {"queries": texts, "topk": topk, "return_scores": True}
        if len(texts) == 1:
            # Both dialects in one: either kind of server ignores the field it does not know.
            body["query"] = texts[0]
        response = self._post(body)
        if len(texts) > 1 and _wants_one_query(response):
            self._one_by_one = True
            return self._ask(texts, topk)
        if response.status_code != 200:
            raise RetrieverError(
                f"{self._url} answered {response.status_code}: {response.text[:200]}. See what it says there, or start another "
                "with 'python -m retriever serve'"
            )
        try:
            results = [[_passage(hit) for hit in hits] for hits in response.json()["result"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RetrieverError(f"{self._url} answered in an unknown form: {response.text[:200]}") from error
        if len(results) != len(texts):
            raise RetrieverError(f"{self._url} answered {len(texts)} queries with {len(results)} lists of passages")
        return results

    def _post(self, body: dict[str, Any]) -> Any:
        """Send until there is an answer that another try would not change."""
        failed, waited = 0, 0.0
        while True:
            try:
                response = _session(os.getpid()).post(self._url, json=body, timeout=_TIMEOUT_SECONDS)
            except self._failure as error:
                failed += 1
                if failed >= self._tries:
                    raise RetrieverError(
                        f"no search service at {self._url} ({type(error).__name__}, {failed} tries): start one with "
                        "'python -m retriever serve', or pass retriever='hashed' for the embedded one"
                    ) from error
            else:
                if response.status_code in _BUSY:
                    pause = _retry_after(response.headers.get("Retry-After"), self._pause)
                    if waited + pause > self._patience:
                        raise RetrieverError(
                            f"{self._url} answered {response.status_code} for {waited:.0f} s: {response.text[:200]}. "
                            "Wait until it is ready, give it more room (--queue, --threads), or start another with "
                            "'python -m retriever serve'"
                        )
                    time.sleep(pause)
                    waited += pause
                    continue
                failed += 1
                if response.status_code < 500 or failed >= self._tries:
                    return response
            time.sleep(self._pause * 2 ** (failed - 1))


@lru_cache(maxsize=1)
def _session(process: int) -> Any:
    """The session of a process: a forked child must not write into its parent's connection."""
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=1, pool_block=True))
    return session


def _portions(texts: list[str]) -> Iterator[list[str]]:
    portion: list[str] = []
    characters = 0
    for text in texts:
        if portion and (len(portion) == _MOST_QUERIES or characters + len(text) > _MOST_CHARACTERS):
            yield portion
            portion, characters = [], 0
        portion.append(text)
        characters += len(text)
    if portion:
        yield portion


def _retry_after(header: str | None, otherwise: float) -> float:
    """Seconds to wait: a number or a date (RFC 9110, 10.2.3), within bounds."""
    try:
        seconds = float(header) if header is not None else otherwise
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header or "").timestamp() - time.time()
        except ValueError:
            seconds = otherwise
    # min and max also take care of nan, which compares with nothing.
    return max(_SHORTEST_WAIT, min(_LONGEST_WAIT, seconds))


def _wants_one_query(response: Any) -> bool:
    """Whether a server refuses a list because it takes ``query``: FastAPI's answer names the missing field."""
    if response.status_code != 422:
        return False
    try:
        return any(problem["loc"][-1] == "query" and problem["type"] == "missing" for problem in response.json()["detail"])
    except (ValueError, KeyError, TypeError, IndexError):
        return False


def _words(passage: Passage) -> list[str]:
    return f"{passage.title} {passage.text}".split()


def _passage(hit: dict[str, Any]) -> Passage:
    # Without scores a server sends the documents bare.
    document = hit["document"] if "document" in hit else dict(hit)
    if isinstance(document, str):
        document = {"contents": document}
    contents = document["contents"]
    title, _, text = contents.partition("\n")
    # Many passages have one title (those of an article), so where there is no id the contents tell whether one was seen before.
    id_ = document.get("id")
    if id_ is None:
        id_ = blake2b(contents.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return Passage(str(id_), document.get("title") or title.strip('"'), document.get("text") or text)
