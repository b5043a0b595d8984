"""Client of search services: this project's, Search-R1's, and those that take one query at a time."""

from __future__ import annotations

import importlib.util
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tstar_envs.data.files import REPLY_BYTES, REPLY_SECONDS, parse_json
from tstar_envs.envs.search_qa import tasks
from tstar_envs.envs.search_qa.tasks import Passage
from tstar_envs.errors import BadData, MissingExtra, RetrieverError, UnknownOption
from tstar_envs.redaction import encodable, keep_address_secrets, redacted

_SILENCE_SECONDS = 60.0
_PIECE = 1 << 16


class Reply(NamedTuple):
    """What a service answered."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """The content for a message, whatever it is."""
        return self.content.decode("utf-8", "replace")


class NoReplyError(Exception):
    """The service sent no reply or only a part of one; another try may help."""


def http_request(method: str, url: str, body: object = None) -> Reply:
    """Send a request and read its reply.

    Args:
        method: ``GET`` or ``POST``.
        url: where to.
        body: sent as JSON; None sends none.

    Raises:
        NoReplyError: the service cannot be reached, or breaks off.
        RetrieverError: its reply takes longer, or is larger, than ``TSTAR_MAX_REPLY_SECONDS`` and ``TSTAR_MAX_REPLY_BYTES`` say.
    """
    line = _line(os.getpid(), urlsplit(url).netloc)
    with line.lock:  # the time of a request begins when the connection is free
        return line.http_request(method, url, body)


@lru_cache(maxsize=64)
def _line(process: int, host: str) -> _Line:
    """The connection of a process to a host: a forked child must not write into its parent's."""
    return _Line()


class _Line:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._session = _new_session()

    def http_request(self, method: str, url: str, body: object) -> Reply:
        given_up = threading.Event()
        results: queue.SimpleQueue[Reply | Exception] = queue.SimpleQueue()
        arguments = (self._session, method, url, body, given_up, results)
        threading.Thread(target=_read_into, args=arguments, name="search reply", daemon=True).start()
        seconds = REPLY_SECONDS.value()
        try:
            result = results.get(timeout=seconds)
        # Ctrl-C too: the connection is still being read, so the next request needs another.
        except BaseException as error:
            given_up.set()
            self._session = _new_session()
            if not isinstance(error, queue.Empty):
                raise
            raise RetrieverError(
                f"{redacted(url)} did not finish its reply within {seconds} s. Ask it for less, give it more room, or set "
                f"{REPLY_SECONDS.variable} to a higher number"
            ) from None
        if isinstance(result, Exception):
            raise result
        return result


def _new_session() -> Any:
    import requests
    from requests.adapters import HTTPAdapter

    class Session(requests.Session):
        def get_redirect_target(self, resp: Any) -> None:
            """Return None, which follows no redirection: ``requests`` would first read the whole body of one, whatever its size."""

    session = Session()
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=1, pool_block=True))
    return session


def _read_into(
    session: Any,
    method: str,
    url: str,
    body: object,
    given_up: threading.Event,
    results: queue.SimpleQueue[Reply | Exception],
) -> None:
    try:
        results.put(_read(session, method, url, body, given_up))
    # Whatever goes wrong is raised again in the thread that waits.
    except Exception as error:  # noqa: BLE001
        results.put(error)


def _read(session: Any, method: str, url: str, body: object, given_up: threading.Event) -> Reply:
    import requests
    import urllib3

    content = bytearray()
    try:
        with session.request(method, url, json=body, timeout=_SILENCE_SECONDS, stream=True) as response:
            if response.is_redirect:
                target = response.headers["Location"]
                raise RetrieverError(
                    f"{redacted(url)} sends its callers on to {redacted(target)!r:.200}: if you trust it, give that address instead"
                )
            for piece in response.iter_content(_PIECE):
                content += piece
                REPLY_BYTES.check(len(content), f"the reply of {redacted(url)}")
                if given_up.is_set():
                    break
            return Reply(response.status_code, response.headers, bytes(content))
    except RetrieverError:  # an OSError too
        raise
    except BadData as error:
        raise RetrieverError(str(error)) from error
    # What breaks off inside a reply comes from several layers.
    except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise NoReplyError(type(error).__name__) from error


_SHORTEST_WAIT, _LONGEST_WAIT = 0.05, 30.0


def retry_after(header: str | None, otherwise: float) -> float:
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


def wants_one_query(reply: Reply) -> bool:
    """Whether a server refuses a list because it takes ``query``: FastAPI's answer names the missing field (pydantic 2, pydantic 1)."""
    if reply.status != 422:
        return False
    try:
        problems = parse_json(reply.text, "")["detail"]
        return any(
            p["loc"][-1] == "query" and p["type"] in ("missing", "value_error.missing") for p in problems
        )
    except (BadData, KeyError, TypeError, IndexError):
        return False


def words_of(passage: Passage) -> list[str]:
    """What of a passage does not depend on the form it travels in."""
    return f"{passage.title} {passage.text}".split()


def read_passage(hit: Mapping[str, Any]) -> Passage:
    """A passage out of a search result of any service.

    Raises:
        TypeError, KeyError: it has another form.
    """
    # Without scores a server sends the documents bare.
    document = hit["document"] if "document" in hit else dict(hit)
    if isinstance(document, str):
        document = {"contents": document}
    texts = {name: document[name] for name in ("contents", "title", "text") if document.get(name) is not None}
    if not texts or not all(isinstance(text, str) for text in texts.values()):
        raise TypeError("a document has the texts 'contents', or 'title' and 'text'")
    # Some corpora call the contents "text"; with a title beside it, it is the body alone.
    contents = texts.get("contents") or ("" if "title" in texts else texts.get("text", ""))
    heading, _, body = contents.partition("\n")
    title = unquoted(heading)
    if texts.get("title") and texts["title"] != heading:
        title = texts["title"]
    text = texts["text"] if texts.get("text") and contents != texts["text"] else body
    # Many passages have one title (those of an article), so where there is no id the contents decide whether one was seen before.
    id_ = document.get("id")
    if id_ is None:
        id_ = blake2b(
            (contents or f"{title}\n{text}").encode("utf-8", "surrogatepass"), digest_size=8
        ).hexdigest()
    return Passage(str(id_), title, text, heading if contents else None)


def unquoted(heading: str) -> str:
    """The title in the first line of a passage: without the quotes around it, doubled quotes inside made single (wiki-18's form)."""
    line = heading.strip()
    if len(line) >= 2 and line.startswith('"') and line.endswith('"'):
        return line[1:-1].replace('""', '"')
    return line


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

        A service of this project over words says so (``/info``) and takes them as ``tasks.query_key`` does. To another one case and
        punctuation may matter ("C++" and "C#"), so there it is the query itself.

        Raises:
            RetrieverError: the service cannot be reached, or stays busy.
        """
        if self._reads_words is None:
            self._reads_words = self._is_lexical()
        return tasks.query_key(query) if self._reads_words else query

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
                reply = http_request(method, url, body)
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
