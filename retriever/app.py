"""HTTP application: request and response models, routes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    StrictStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from starlette.requests import ClientDisconnect

from retriever.errors import SearchFailed, Unavailable
from retriever.http_limits import Bodies, HostNames, Refused
from retriever.index import MAX_TOPK, Hit, Searcher
from retriever.recall import CONTENT_TYPE
from retriever.service import SearchService


@dataclass(frozen=True)
class Limits:
    """Limits of one request.

    Each is an option of ``serve``, and the error message names it.

    Attributes:
        queries: maximum number of queries (Search-R1's training script sends 2,560 at once).
        query_characters: maximum length of one query, in characters.
        body_bytes: maximum size of the body, in bytes.
        passages: maximum number of queries times ``topk``. It bounds the response: a passage takes some kilobytes on the wire.
    """

    queries: int = 8_192
    query_characters: int = 16_384
    body_bytes: int = 16 << 20
    passages: int = 131_072


def _first_fault(value: object) -> object:
    # pydantic reports every wrong entry; a million of them would take gigabytes.
    if isinstance(value, list):
        for number, entry in enumerate(value):
            if not isinstance(entry, str):
                raise ValueError(f"entry {number} is not a string")
    return value


def _lenient_count(value: object) -> object:
    # pydantic's lax mode accepts "3" and 3.0 as 3, and also True as 1, which is a mistake here.
    if isinstance(value, bool):
        raise ValueError("a whole number is expected, not a truth value")
    return value


def _lenient_flag(value: object) -> object:
    return False if value is None else value


class RetrieveRequest(BaseModel):
    """One request: ``queries`` (Search-R1, verl) or ``query`` (SkyRL, verl-agent).

    If both are given, ``queries`` is used, so one body works with both kinds of server. Unknown fields are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    queries: Annotated[list[StrictStr] | StrictStr | None, BeforeValidator(_first_fault)] = None
    query: StrictStr | None = None
    # Lenient on purpose: Search-R1 and other servers use pydantic's lax mode.
    topk: Annotated[int | None, BeforeValidator(_lenient_count)] = None
    return_scores: Annotated[bool, BeforeValidator(_lenient_flag)] = False

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> RetrieveRequest:
        limits = info.context if isinstance(info.context, Limits) else Limits()
        if self.queries is None and self.query is None:
            raise ValueError('give "queries" (a list of strings or a string) or "query" (a string)')
        texts = self.texts()
        if len(texts) > limits.queries:
            raise ValueError(
                f"{len(texts)} queries; at most {limits.queries} in one request (and a body of {limits.body_bytes} bytes): "
                "send several requests, or serve with a higher --max-queries"
            )
        longest = max(map(len, texts), default=0)
        if longest > limits.query_characters:
            raise ValueError(
                f"a query of {longest} characters; at most {limits.query_characters}: shorten it, or serve with a higher "
                "--max-query-characters"
            )
        return self

    def texts(self) -> list[str]:
        """List the queries, whichever field they came in."""
        if self.queries is None:
            return [] if self.query is None else [self.query]
        return [self.queries] if isinstance(self.queries, str) else self.queries

    def clamped_topk(self, default: int, ntotal: int) -> int:
        """Clamp ``topk`` to [1, min(100, ntotal)]; null and 0 mean ``default``, as in Search-R1."""
        return max(1, min(self.topk or default, MAX_TOPK, ntotal))


class RetrievedDocument(BaseModel):
    """A passage.

    ``contents`` is title line and body as in the corpus, ``title`` has no quotes.
    """

    id: str
    contents: str
    title: str
    text: str


class ScoredDocument(BaseModel):
    """A passage with its score; higher is better, and only comparable within one query."""

    document: RetrievedDocument
    score: float


class RetrieveResponse(BaseModel):
    """One list per query, best first; with scores if ``return_scores`` was true."""

    result: list[list[ScoredDocument]] | list[list[RetrievedDocument]]


class Refusal(BaseModel):
    """Error message of a refused request."""

    detail: str


class Problem(BaseModel):
    """Validation error of one field."""

    type: str
    loc: list[str | int]
    msg: str


class Rejection(BaseModel):
    """Validation errors of a request."""

    detail: list[Problem]


def response_rows(hits: Sequence[Sequence[Hit]], return_scores: bool) -> bytes:
    """Serialize part of a `RetrieveResponse` to JSON lists separated by commas, for `response_body`.

    pydantic is bypassed: validating the server's own output would cost more than the search.
    The JSON is ASCII because a corpus may hold lone surrogates, which UTF-8 cannot encode.
    """

    def entry(hit: Hit) -> dict[str, object]:
        found = hit.document
        document = {"id": found.id, "contents": found.contents, "title": found.title, "text": found.text}
        return {"document": document, "score": hit.score} if return_scores else dict(document)

    return json.dumps([[entry(hit) for hit in row] for row in hits])[1:-1].encode("ascii")


def response_body(portions: Sequence[bytes]) -> bytes:
    """Join portions from `response_rows` into the JSON of a `RetrieveResponse`."""
    return b'{"result": [' + b", ".join(portion for portion in portions if portion) + b"]}"


# The route reads the body itself, so the OpenAPI schema is written by hand.
_REQUEST_SCHEMA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": RetrieveRequest.model_json_schema()}},
    }
}
_BUSY: dict[str, Any] = {
    "description": "Loading, or full; Retry-After says in how many seconds to come again.",
    "model": Refusal,
    "headers": {"Retry-After": {"schema": {"type": "integer"}}},
}


def _json(content: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # ASCII, because an error message may quote a path or query that UTF-8 cannot encode.
    return Response(json.dumps(content).encode("ascii"), status, headers, "application/json")


def _unavailable(error: Unavailable) -> Response:
    return _json({"detail": str(error)}, 503, {"Retry-After": str(error.retry_after)})


def _version() -> str:
    try:
        return version("tstar")
    except PackageNotFoundError:
        return "not installed"


def create_app(
    service: SearchService,
    topk: int = 3,
    limits: Limits | None = None,
    body_seconds: float = 30.0,
    hosts: HostNames | None = None,
) -> FastAPI:
    """Create the ASGI application.

    Args:
        service: The search service. It starts with the server, so the port is open while the index loads.
        topk: Documents per query if a request does not say.
        limits: Limits of one request.
        body_seconds: Timeout for receiving the body of a request.
        hosts: Accepted values of the ``Host`` header; None accepts all.

    Returns:
        An ASGI application with /retrieve, /health, /ready, /info and /metrics.
    """
    bounds = limits or Limits()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.stop()

    # No documentation pages: they load scripts from another host. /openapi.json is served.
    app = FastAPI(title="retriever", version=_version(), lifespan=lifespan, docs_url=None, redoc_url=None)

    bodies = Bodies(bounds.body_bytes, body_seconds)

    def strange(request: Request) -> str:
        headers = request.headers
        return "" if hosts is None else hosts.refuse(headers.get("host"), headers.get("origin"))

    async def known_host(request: Request) -> None:
        if reason := strange(request):
            raise HTTPException(403, reason)

    async def answer(request: Request) -> Response:
        try:
            async with bodies.held(request) as body:
                # After the body is read, so that its size limit holds for unknown hosts too.
                if reason := strange(request):
                    return _json({"detail": reason}, 403)
                return await found(body, request)
        except Refused as refused:
            return _json({"detail": refused.detail}, refused.status, refused.headers)
        except Unavailable as error:
            return _unavailable(error)
        except SearchFailed as error:
            return _json({"detail": str(error)}, 502)
        except ClientDisconnect:
            # The client is gone; without a response the log would show an error.
            return _json({"detail": "the client went away"}, 400)

    async def found(body: bytes, request: Request) -> Response:
        """Search for the queries of a request body.

        Raises:
            Unavailable: See `SearchService.search`.
        """
        try:
            # pydantic parses it, whatever the content type, so any junk gives the same kind of error.
            asked = RetrieveRequest.model_validate_json(body, context=bounds)
        except ValidationError as error:
            # The input is not quoted: it may be long, and NaN or lone surrogates are not JSON.
            return _json(
                {"detail": error.errors(include_url=False, include_context=False, include_input=False)}, 422
            )
        queries, count = asked.texts(), asked.clamped_topk(topk, service.searcher().ntotal)
        if len(queries) * count > bounds.passages:
            said = (
                f"{len(queries)} queries with {count} passages each; at most {bounds.passages} passages in one answer: ask for fewer, "
                "or serve with a higher --max-passages"
            )
            return _json({"detail": [{"type": "value_error", "loc": ["topk"], "msg": said}]}, 422)
        portions = []
        async with aclosing(service.search_in_portions(queries, count)) as answers:
            async for hits in answers:
                portions.append(response_rows(hits, asked.return_scores))
                if len(portions) > 1 and await request.is_disconnected():
                    raise ClientDisconnect
        return Response(response_body(portions), media_type="application/json")

    @app.post(
        "/retrieve",
        response_model=RetrieveResponse,
        openapi_extra=_REQUEST_SCHEMA,
        responses={
            403: {"description": "Not by this host name.", "model": Refusal},
            408: {"description": "The body did not arrive in time.", "model": Refusal},
            413: {"description": "The body is too large.", "model": Refusal},
            422: {"description": "Not a request of this form, or beyond its limits.", "model": Rejection},
            502: {"description": "The HTTP search service behind this one failed.", "model": Refusal},
            503: _BUSY,
        },
    )
    async def retrieve(request: Request) -> Response:
        """Find passages for one or many queries."""
        status = 500
        try:
            response = await answer(request)
            status = response.status_code
        finally:
            service.metrics.requests[status] += 1
        return response

    ours = [Depends(known_host)]

    @app.get("/health", dependencies=ours)
    async def health() -> Response:
        """Answer 200 as long as the process is alive."""
        return _json({"status": "ok"})

    def when_ready(describe: Callable[[Searcher], dict[str, object]]) -> Response:
        try:
            return _json(describe(service.searcher()))
        except Unavailable as error:
            return _unavailable(error)

    @app.get("/ready", dependencies=ours, responses={503: _BUSY})
    async def ready() -> Response:
        """Answer 200 once the index is loaded, 503 before."""
        return when_ready(lambda searcher: {"status": "ready", "ntotal": searcher.ntotal})

    @app.get("/info", dependencies=ours, responses={503: _BUSY})
    async def info() -> Response:
        """Describe the index: type, encoder, dimension, size, corpus digest, version."""
        about = {"default_topk": topk, "max_queries": bounds.queries, "version": _version()}
        return when_ready(lambda searcher: {**searcher.info(), "ntotal": searcher.ntotal, **about})

    @app.get("/metrics", dependencies=ours, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Export counters in the Prometheus text format."""
        ntotal = service.searcher().ntotal if service.ready else 0
        text = service.metrics.render(service.pending, service.ready, ntotal)
        return Response(text, media_type=CONTENT_TYPE)

    return app
