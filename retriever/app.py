"""The HTTP face: Search-R1's ``POST /retrieve`` and routes for health, identity and metrics.

What Search-R1's own server gets wrong is right here: bare documents when ``return_scores`` is false,
no passage for FAISS's -1, limits, and an open port while the index loads. There is no authentication,
as in Search-R1; bind to loopback or stand behind something that has one.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from retriever.errors import Unavailable
from retriever.index import Searcher
from retriever.metrics import CONTENT_TYPE
from retriever.schema import MAX_QUERIES, Refusal, Rejection, RetrieveRequest, RetrieveResponse, response_body
from retriever.service import SearchService

# Bounds the memory of a junk body; the longest request allowed fits, even if all of it is written in
# \u escapes and surrogate pairs (12 bytes a character).
_MAX_BODY_BYTES = 16 << 20
_MAX_HELD_BYTES = 4 * _MAX_BODY_BYTES
# The body is read by hand, so its schema is put into the OpenAPI document by hand as well.
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
    # ASCII, because an error message may quote a path or query that has no UTF-8.
    return Response(json.dumps(content).encode("ascii"), status, headers, "application/json")


def _unavailable(error: Unavailable) -> Response:
    return _json({"detail": str(error)}, 503, {"Retry-After": str(error.retry_after)})


def _version() -> str:
    try:
        return version("tstar")
    except PackageNotFoundError:
        return "not installed"


class _Bodies:
    """Reads bodies, within a bound for each and for all that are being read: a hundred slow large ones are refused."""

    def __init__(self) -> None:
        self._held = 0

    async def read(self, request: Request) -> bytes | None:
        """Return the body, or None as soon as it proves too large.

        Raises:
            Unavailable: Too much is being read already.
        """
        body = bytearray()
        try:
            async for chunk in request.stream():
                body += chunk
                self._held += len(chunk)
                if len(body) > _MAX_BODY_BYTES:
                    return None
                if self._held > _MAX_HELD_BYTES:
                    raise Unavailable(f"bodies of more than {_MAX_HELD_BYTES} bytes are being read", retry_after=1)
            return bytes(body)
        finally:
            self._held -= len(body)


def create_app(service: SearchService, topk: int = 3) -> FastAPI:
    """Make the application.

    Args:
        service: Started when the server starts, so that the port is open while the index loads.
        topk: Documents per query where a request names no number.

    Returns:
        An ASGI application with /retrieve, /health, /ready, /info and /metrics.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.stop()

    # No documentation pages: they would load scripts from a foreign host. /openapi.json stays.
    app = FastAPI(title="retriever", version=_version(), lifespan=lifespan, docs_url=None, redoc_url=None)

    bodies = _Bodies()

    async def answer(request: Request) -> Response:
        try:
            body = await bodies.read(request)
        except Unavailable as error:
            return _unavailable(error)
        except ClientDisconnect:
            # Nobody reads this; without it the log would tell of an error.
            return _json({"detail": "the client went away"}, 400)
        if body is None:
            return _json({"detail": f"the body is larger than {_MAX_BODY_BYTES} bytes"}, 413)
        try:
            # Read by pydantic, whatever the content type: junk of any kind is one kind of error.
            asked = RetrieveRequest.model_validate_json(body)
        except ValidationError as error:
            # The input is not quoted: it may be long, and NaN or lone surrogates are no JSON.
            return _json(
                {"detail": error.errors(include_url=False, include_context=False, include_input=False)}, 422
            )
        try:
            count = asked.clamped_topk(topk, service.searcher().ntotal)
            hits = await service.search(asked.texts(), count)
        except Unavailable as error:
            return _unavailable(error)
        return Response(response_body(hits, asked.return_scores), media_type="application/json")

    @app.post(
        "/retrieve",
        response_model=RetrieveResponse,
        openapi_extra=_REQUEST_SCHEMA,
        responses={
            413: {"description": "The body is too large.", "model": Refusal},
            422: {"description": "Not a request of this form, or beyond its limits.", "model": Rejection},
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

    @app.get("/health")
    async def health() -> Response:
        """200 whenever the process answers."""
        return _json({"status": "ok"})

    def when_ready(describe: Callable[[Searcher], dict[str, object]]) -> Response:
        try:
            return _json(describe(service.searcher()))
        except Unavailable as error:
            return _unavailable(error)

    @app.get("/ready", responses={503: _BUSY})
    async def ready() -> Response:
        """200 once the index is loaded, 503 before."""
        return when_ready(lambda searcher: {"status": "ready", "ntotal": searcher.ntotal})

    @app.get("/info", responses={503: _BUSY})
    async def info() -> Response:
        """What is served: index type, encoder, dimension, size, corpus digest, version."""
        limits = {"default_topk": topk, "max_queries": MAX_QUERIES, "version": _version()}
        return when_ready(lambda searcher: {**searcher.info(), "ntotal": searcher.ntotal, **limits})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters in the Prometheus text format."""
        ntotal = service.searcher().ntotal if service.ready else 0
        text = service.metrics.render(service.pending, service.ready, ntotal)
        return Response(text, media_type=CONTENT_TYPE)

    return app
