"""The client of search services: this project's, Search-R1's, and those that take one query at a time (SkyRL, verl-agent).

A service that loads or is full says when to come again and is waited for; other failures are tried again with growing pauses;
then it is an error of the infrastructure, which no one scores as an answer.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tstar_envs.data.files import parse_json
from tstar_envs.envs.search_qa.search import queries
from tstar_envs.envs.search_qa.search.exchange import NoReplyError, Reply, exchange
from tstar_envs.envs.search_qa.search.passage import Passage
from tstar_envs.envs.search_qa.search.replies import read_passage, retry_after, wants_one_query, words_of
from tstar_envs.errors import BadData, MissingExtra, RetrieverError, UnknownOption
from tstar_envs.foreign_text import encodable
from tstar_envs.redaction import keep_address_secrets, redacted

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
        self,
        url: str,
        tries: int = 4,
        pause_seconds: float = 0.25,
        patience_seconds: float = 300.0,
        expected: Sequence[str] = (),
    ) -> None:
        if importlib.util.find_spec("requests") is None:
            raise MissingExtra("a search service over HTTP", "requests", "search")
        self._settings = (url, tries, pause_seconds, patience_seconds, tuple(expected))
        self._expected = tuple(expected)
        self._url = url if url.endswith("/retrieve") else url.rstrip("/") + "/retrieve"
        keep_address_secrets(url)
        self._shown_url = redacted(self._url)
        self._tries, self._pause, self._patience = tries, pause_seconds, patience_seconds
        self._one_by_one = False
        self._reads_words: bool | None = None

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
        texts = [encodable(query) for query in queries]
        # A service that ignores topk (Search-R1's proxies of web search) may send more than was asked for.
        return [row[:topk] for part in _portions(texts) for row in self._ask(part, topk)]

    def query_key(self, query: str) -> str:
        """What two queries have in common that must have one answer.

        A service of this project over words says so (``/info``) and takes them as ``queries.query_key`` does. To another one case and
        punctuation may matter ("C++" and "C#"), so there it is the query itself.

        Raises:
            RetrieverError: the service cannot be reached, or stays busy.
        """
        if self._reads_words is None:
            self._reads_words = self._is_lexical()
        return queries.query_key(query) if self._reads_words else query

    def _is_lexical(self) -> bool:
        reply = self._send("GET", self._url.removesuffix("/retrieve") + "/info", None)
        if reply.status != 200:
            return False
        try:
            return parse_json(reply.text, self._url).get("encoder") in ("hashed_tfidf", "none")
        except BadData:
            return False

    def _require_corpus(self) -> None:
        # A passage's own contents are as near to it as a query can be, whatever the encoder; ten leave room for an approximate index.
        wanted = [read_passage({"contents": contents}) for contents in self._expected]
        found = self._ask(list(self._expected), 10)
        if not any(
            words_of(hit) == words_of(w) for w, hits in zip(wanted, found, strict=True) for hit in hits
        ):
            instead = f"; it finds {found[0][0].title!r} instead" if found[0] else ""
            raise UnknownOption(
                f"the search service at {self._shown_url} serves another corpus than this environment's questions are asked over: "
                f"it does not know {', '.join(repr(w.title) for w in wanted)}{instead}. Serve this environment's own (docs/retriever.md, "
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
        reply = self._send("POST", self._url, body)
        if len(texts) > 1 and wants_one_query(reply):
            self._one_by_one = True
            return self._ask(texts, topk)
        if reply.status != 200:
            raise RetrieverError(
                f"{self._shown_url} answered {reply.status}: {reply.text[:200]}. See what it says there, or start another "
                "with 'python -m retriever serve'"
            )
        try:
            results = [
                [read_passage(hit) for hit in hits]
                for hits in parse_json(reply.content.decode("utf-8-sig"), self._shown_url)["result"]
            ]
        except (BadData, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RetrieverError(
                f"{self._shown_url} answered in an unknown form: {reply.text[:200]} ({error!s:.200})"
            ) from error
        if len(results) != len(texts):
            raise RetrieverError(
                f"{self._shown_url} answered {len(texts)} queries with {len(results)} lists of passages"
            )
        return results

    def _send(self, method: str, url: str, body: object) -> Reply:
        """Send until there is an answer that another try would not change."""
        failed, waited = 0, 0.0
        while True:
            try:
                reply = exchange(method, url, body)
            except NoReplyError as error:
                failed += 1
                if failed >= self._tries:
                    raise RetrieverError(
                        f"no search service at {redacted(url)} ({error}, {failed} tries): start one with "
                        "'python -m retriever serve', or pass retriever='hashed' for the embedded one"
                    ) from error
            else:
                if reply.status in _BUSY:
                    pause = retry_after(reply.headers.get("Retry-After"), self._pause)
                    if waited + pause > self._patience:
                        raise RetrieverError(
                            f"{redacted(url)} answered {reply.status} for {waited:.0f} s: {reply.text[:200]}. "
                            "Wait until it is ready, give it more room (--queue, --threads), or start another with "
                            "'python -m retriever serve'"
                        )
                    time.sleep(pause)
                    waited += pause
                    continue
                failed += 1
                # A foreign service may answer anything to a route that it does not have.
                if reply.status < 500 or method == "GET" or failed >= self._tries:
                    return reply
            time.sleep(self._pause * 2 ** (failed - 1))


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
