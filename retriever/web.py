"""HTTP search services, such as web search engines, behind the retriever's protocol."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from retriever.corpus import Document, document_from
from retriever.errors import BadCorpus, BadSetting, SearchFailed, Unavailable, import_optional
from retriever.index import MAX_TOPK, Hit
from retriever.service import AnswerCache

_QUERY, _TOPK, _KEY = "{query}", "{topk}", "{key}"
_MOST_BYTES = 16 << 20
_PIECE = 1 << 16
_AGAIN = frozenset((408, 425, 429, 500, 502, 503, 504))
_PAUSE_SECONDS, _LONGEST_PAUSE = 0.5, 30.0
_REMEMBERED = 1024


@dataclass(frozen=True, kw_only=True)
class HttpSource:
    """An HTTP search service: its request, and the fields of its reply."""

    url: str = ""
    """Address of the search service. {query}, {topk} and {key} are filled in, percent-encoded."""
    body: str | None = None
    """JSON body of a POST, with "{query}", "{topk}" and "{key}" as values; default: a GET without body."""
    headers: tuple[str, ...] = ()
    """Headers as "Name: value"; {key} is filled in."""
    key_variable: str | None = None
    """Environment variable with the API key that fills {key}. The key itself is never written or shown."""
    results: str = "results"
    """Path of the list of results in the reply, such as web.results; "" if the reply is the list. A path with ? at its end may be missing:
    nothing was found."""
    id: str = "url"
    """Path of a result's id; a result without one is named by its contents."""
    title: str = "title"
    """Path of a result's title."""
    text: str = "content"
    """Path of a result's text, a string or a list of strings."""
    score: str | None = None
    """Path of a result's score, a number; default: 1 / rank."""
    timeout: float = 20.0
    """Seconds for one reply."""
    tries: int = 4
    """Attempts of a request that gets no reply, or status 408, 425, 429 or 5xx, with growing pauses."""
    patience: float = 60.0
    """Seconds that a query may wait between its attempts. Retry-After is obeyed; if it is longer, clients are told to come again."""
    parallel: int = 8
    """Requests at a time."""
    cache: Path | None = None
    """Folder that keeps the results of every query, so that episodes can be replayed. Default: none."""
    replay: bool = False
    """Answer from the cache alone: no request is sent, and a query that is not in it is an error."""

    def check(self) -> None:
        """Validate the settings.

        Raises:
            BadSetting: A setting is out of range, or the settings do not fit together; the message names it.
        """
        address = urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.netloc:
            raise BadSetting(
                f"--http.url {self.url!r} is no address: give one such as 'https://host/search?q={{query}}'."
            )
        if "@" in address.netloc:
            raise BadSetting(
                "--http.url holds a password, and the address is shown: use --http.headers with {key} instead."
            )
        places = (self.url, self.body or "", *self.headers)
        if _QUERY not in self.url + (self.body or ""):
            raise BadSetting(
                "neither --http.url nor --http.body contains {query}, so every query would be the same."
            )
        if any(_KEY in place for place in places) != (self.key_variable is not None):
            raise BadSetting(
                "{key} in --http.url, --http.body or --http.headers and --http.key-variable belong together: give both or neither."
            )
        for header in self.headers:
            if not all(part.strip() for part in header.partition(":")):
                raise BadSetting(
                    f"--http.headers {header.partition(':')[0]!r} is not of the form 'Name: value'."
                )
        for name, value, low, high in (
            ("timeout", self.timeout, 0.001, 3600),
            ("tries", self.tries, 1, 100),
            ("patience", self.patience, 0, 86_400),
            ("parallel", self.parallel, 1, 256),
        ):
            if not low <= value <= high:
                raise BadSetting(f"--http.{name} {value} is out of range; choose from {low} to {high}.")
        if self.replay and self.cache is None:
            raise BadSetting("--http.replay answers from --http.cache: name its folder.")

    def key(self) -> str:
        """Read the API key; "" if none is needed.

        Raises:
            BadSetting: The variable is not set, or holds no key.
        """
        if self.key_variable is None or self.replay:
            return ""
        key = os.environ.get(self.key_variable, "")
        if not key:
            raise BadSetting(
                f"the environment variable {self.key_variable} (--http.key-variable) is not set."
            )
        if not key.isascii() or not key.isprintable() or key != key.strip():
            raise BadSetting(
                f"the environment variable {self.key_variable} holds white space or signs that no API key has."
            )
        return key


class WebSearcher:
    """Searcher that asks an HTTP search service, one request a query.

    >>> from retriever import HttpSource, WebSearcher
    >>> source = HttpSource(url="http://127.0.0.1:8888/search?format=json&q={query}")
    >>> WebSearcher(source).search(["who wrote Dune?"], topk=3)  # doctest: +SKIP

    Args:
        source: The service.

    Raises:
        BadSetting: A setting is wrong, or the variable of the key is not set.
        MissingDependency: requests is not installed.
    """

    def __init__(self, source: HttpSource) -> None:
        source.check()
        self.source = source
        self._requests = import_optional("requests")
        self._key = source.key()
        self._body: Any = None
        if source.body is not None:
            try:
                self._body = json.loads(source.body)
            except ValueError as error:
                raise BadSetting(f"--http.body is not JSON ({error}).") from error
        self._pool = ThreadPoolExecutor(source.parallel, thread_name_prefix="web")
        self._local = threading.local()
        # If one query of a batch fails, the service asks the others again; they are answered from here.
        self._recent = AnswerCache(_REMEMBERED)
        # Everything that decides the results, and nothing that is secret.
        decisive = ("url", "body", "results", "id", "title", "text", "score")
        self._identity = {name: value for name, value in asdict(source).items() if name in decisive}
        if source.cache is not None and not source.replay:
            source.cache.mkdir(parents=True, exist_ok=True)

    @property
    def ntotal(self) -> int:
        """Largest number of documents that a search returns; the service's own number is not known."""
        return MAX_TOPK

    def info(self) -> dict[str, str | int | float]:
        """Return the service's address with its placeholders, never with the key."""
        return {
            "index": "http",
            "encoder": "http",
            "source": self.source.url,
            "replay": self.source.replay,
            "corpus_sha256": "unknown",
        }

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """See `retriever.index.Searcher.search`; order and number of the hits are the service's.

        Raises:
            Unavailable: The service is busy for longer than ``patience``, or gives no reply.
            SearchFailed: It refuses a request or replies in another format, or a replayed query is not in the cache.
        """
        topk = max(1, min(topk, MAX_TOPK))
        asked = list(dict.fromkeys(query.encode("utf-8", "replace").decode("utf-8") for query in queries))
        rows = {query: self._recent.get((query, topk)) for query in asked}
        futures = {
            query: self._pool.submit(self._found, query, topk) for query in asked if rows[query] is None
        }
        failures: list[BaseException] = []
        for query, future in futures.items():
            if (error := future.exception()) is not None:
                failures.append(error)
            else:
                rows[query] = future.result()
                self._recent.keep((query, topk), future.result())
        if failures:
            raise failures[0]
        return [rows[query.encode("utf-8", "replace").decode("utf-8")] or [] for query in queries]

    def _found(self, query: str, topk: int) -> list[Hit]:
        if not query.strip():
            return []
        path = self._cached(query, topk)
        hits = None if path is None else self._kept(path)
        if hits is None:
            if self.source.replay:
                raise SearchFailed(
                    f"the query {query!r:.200} with topk {topk} is not in {self.source.cache}: serve without --http.replay to ask for it."
                )
            hits = self._hits(self._asked(query, topk))[:topk]
            if path is not None:
                self._keep(path, query, topk, hits)
        return hits

    def _cached(self, query: str, topk: int) -> Path | None:
        if self.source.cache is None:
            return None
        asked = json.dumps({**self._identity, "query": query, "topk": topk}, sort_keys=True)
        digest = hashlib.sha256(asked.encode()).hexdigest()
        return self.source.cache / digest[:2] / f"{digest}.json"

    def _keep(self, path: Path, query: str, topk: int, hits: Sequence[Hit]) -> None:
        path.parent.mkdir(exist_ok=True)
        results = [
            {"id": hit.document.id, "contents": hit.document.contents, "score": hit.score} for hit in hits
        ]
        temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
        temporary.write_text(
            json.dumps({"query": query, "topk": topk, "results": results}) + "\n", encoding="ascii"
        )
        temporary.replace(path)

    @staticmethod
    def _kept(path: Path) -> list[Hit] | None:
        try:
            kept = json.loads(path.read_bytes())["results"]
            return [Hit(Document(str(hit["id"]), str(hit["contents"])), float(hit["score"])) for hit in kept]
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise SearchFailed(
                f"{path}: no results of a search ({error!r:.100}); remove the file."
            ) from error

    def _asked(self, query: str, topk: int) -> Any:
        """Send the request of a query, again after a pause if that may help, and return the reply's JSON."""
        waited, said = 0.0, ""
        for number in range(self.source.tries):
            status, headers, content = self._sent(query, topk)
            if status == 200:
                try:
                    return json.loads(content)
                except ValueError as error:
                    raise SearchFailed(
                        f"{self.source.url} replies with no JSON: {self._quoted(content)}"
                    ) from error
            if 300 <= status < 400:
                raise SearchFailed(
                    f"{self.source.url} redirects ({status}), which is not followed: give its target as --http.url."
                )
            if status and status not in _AGAIN:
                raise SearchFailed(f"{self.source.url} answers {status}: {self._quoted(content)}")
            said = f"answers {status}: {self._quoted(content)}" if status else content.decode()
            pause = min(_LONGEST_PAUSE, _PAUSE_SECONDS * 2**number)
            pause = _seconds(headers.get("Retry-After"), pause)
            if waited + pause > self.source.patience:
                raise Unavailable(f"{self.source.url} {said}", retry_after=max(1, int(pause)))
            if number + 1 < self.source.tries:
                time.sleep(pause)
                waited += pause
        raise Unavailable(f"{self.source.url} {said} ({self.source.tries} tries)", retry_after=5)

    def _sent(self, query: str, topk: int) -> tuple[int, Mapping[str, str], bytes]:
        """Send one request; status 0 and the reason if there is no reply. Redirects would take the key elsewhere, so none is followed."""
        if not hasattr(self._local, "session"):
            self._local.session = self._requests.Session()
        url = self.source.url
        for name, value in ((_TOPK, str(topk)), (_KEY, self._key), (_QUERY, query)):
            url = url.replace(name, quote(value, safe=""))
        headers = {
            name.strip(): value.strip().replace(_KEY, self._key)
            for name, _, value in (header.partition(":") for header in self.source.headers)
        }
        body = None if self._body is None else _filled(self._body, query, topk, self._key)
        until, content = time.monotonic() + self.source.timeout, bytearray()
        try:
            with self._local.session.request(
                "GET" if body is None else "POST",
                url,
                json=body,
                headers=headers,
                timeout=self.source.timeout,
                stream=True,
                allow_redirects=False,
            ) as reply:
                for piece in reply.iter_content(_PIECE):
                    content += piece
                    if len(content) > _MOST_BYTES:
                        raise SearchFailed(f"{self.source.url} replies with more than {_MOST_BYTES} bytes.")
                    if time.monotonic() > until:
                        return 0, {}, f"did not finish its reply within {self.source.timeout:g} s".encode()
                return reply.status_code, reply.headers, bytes(content)
        # The text of these errors quotes the address, and with it perhaps the key.
        except (self._requests.RequestException, OSError, ValueError) as error:
            return 0, {}, f"does not reply ({type(error).__name__})".encode()

    def _quoted(self, content: bytes) -> str:
        text = content.decode("utf-8", "replace")
        if self._key:
            for secret in (self._key, quote(self._key, safe=""), json.dumps(self._key)[1:-1]):
                text = text.replace(secret, "***")
        return repr(text[:200])

    def _hits(self, reply: Any) -> list[Hit]:
        path = self.source.results
        optional = path.endswith("?")
        found = _at(reply, path.removesuffix("?"))
        if found is None and optional:
            return []
        if not isinstance(found, list):
            raise SearchFailed(
                f"the reply of {self.source.url} has no list at {path.removesuffix('?')!r} (--http.results; with ? at its end it may be "
                f"missing): {self._quoted(json.dumps(reply).encode())}"
            )
        hits = [self._hit(result, rank) for rank, result in enumerate(found, 1)]
        known = [hit for hit in hits if hit.document.title or hit.document.text]
        if found and not known:
            raise SearchFailed(
                f"no result of {self.source.url} has the texts {self.source.title!r} or {self.source.text!r} (--http.title, --http.text): "
                f"{self._quoted(json.dumps(found[0]).encode())}"
            )
        # sorted() is stable: equal scores keep the service's order.
        return sorted(known, key=lambda hit: -hit.score)

    def _hit(self, result: Any, rank: int) -> Hit:
        name, title, text = (
            _at(result, path) for path in (self.source.id, self.source.title, self.source.text)
        )
        score = 1 / rank if self.source.score is None else _at(result, self.source.score)
        if isinstance(score, bool) or not isinstance(score, int | float) or not isfinite(score):
            raise SearchFailed(
                f"a result of {self.source.url} has no number at {self.source.score!r} (--http.score)."
            )
        fields = {"title": "" if title is None else title, "text": "" if text is None else text}
        try:
            document = document_from(
                {"id": "" if name is None else name, **fields}, f"a result of {self.source.url}"
            )
        except BadCorpus as error:
            raise SearchFailed(f"{error} See --http.id, --http.title and --http.text.") from error
        if not document.id:
            digest = blake2b(document.contents.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
            document = Document(digest, document.contents)
        return Hit(document, float(score))


def _at(value: Any, path: str) -> Any:
    """Follow a path of names and numbers with dots between; None if it leads nowhere."""
    for name in path.split(".") if path else ():
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return None
    return value


def _filled(body: Any, query: str, topk: int, key: str) -> Any:
    """Fill in the values of a JSON body."""
    if isinstance(body, dict):
        return {name: _filled(value, query, topk, key) for name, value in body.items()}
    if isinstance(body, list):
        return [_filled(value, query, topk, key) for value in body]
    if body == _TOPK:
        return topk
    if not isinstance(body, str):
        return body
    # The query comes last: what an agent writes is never filled in.
    return body.replace(_TOPK, str(topk)).replace(_KEY, key).replace(_QUERY, query)


def _seconds(header: str | None, otherwise: float) -> float:
    """Parse ``Retry-After`` to seconds: a number or a date (RFC 9110, 10.2.3)."""
    if header is None:
        return otherwise
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return otherwise
    return max(0.0, seconds) if seconds == seconds else otherwise
