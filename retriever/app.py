"""The HTTP face: Search-R1's ``POST /retrieve`` and routes for health, identity and metrics.

What Search-R1's own server gets wrong is right here: bare documents when ``return_scores`` is false,
no passage for FAISS's -1, limits, and an open port while the index loads. There is no authentication,
as in Search-R1; bind to loopback or stand behind something that has one.
"""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import PlainTextResponse
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from retriever.admission import Bodies, Refused
from retriever.errors import Unavailable
from retriever.guard import HostNames
from retriever.index import Searcher
from retriever.metrics import CONTENT_TYPE
from retriever.schema import (
    Limits,
    Refusal,
    Rejection,
    RetrieveRequest,
    RetrieveResponse,
    response_body,
    response_rows,
)
from retriever.service import SearchService

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


def create_app(
    service: SearchService,
    topk: int = 3,
    limits: Limits | None = None,
    body_seconds: float = 30.0,
    hosts: HostNames | None = None,
) -> FastAPI:
    """Make the application.

    Args:
        service: Started when the server starts, so that the port is open while the index loads.
        topk: Documents per query where a request names no number.
        limits: What one request may ask for.
        body_seconds: In which the body of a request has to arrive.
        hosts: The values of the header ``Host`` that are answered; None answers all.

    Returns:
        An ASGI application with /retrieve, /health, /ready, /info and /metrics.
    """
    bounds = limits or Limits()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.stop()

    # No documentation pages: they would load scripts from a foreign host. /openapi.json stays.
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
                # Behind the body, so that a stranger's large ones are bounded like any other.
                if reason := strange(request):
                    return _json({"detail": reason}, 403)
                return await found(body, request)
        except Refused as refused:
            return _json({"detail": refused.detail}, refused.status, refused.headers)
        except Unavailable as error:
            return _unavailable(error)
        except ClientDisconnect:
            # Nobody reads this; without it the log would show an error.
            return _json({"detail": "the client went away"}, 400)

    async def found(body: bytes, request: Request) -> Response:
        """What is found for a body.

        Raises:
            Unavailable: See `SearchService.search`.
        """
        try:
            # Read by pydantic, whatever the content type: junk of any kind is one kind of error.
            asked = RetrieveRequest.model_validate_json(body, context=bounds)
        except ValidationError as error:
            # The input is not quoted: it may be long, and NaN or lone surrogates are no JSON.
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
        """200 whenever the process answers."""
        return _json({"status": "ok"})

    def when_ready(describe: Callable[[Searcher], dict[str, object]]) -> Response:
        try:
            return _json(describe(service.searcher()))
        except Unavailable as error:
            return _unavailable(error)

    @app.get("/ready", dependencies=ours, responses={503: _BUSY})
    async def ready() -> Response:
        """200 once the index is loaded, 503 before."""
        return when_ready(lambda searcher: {"status": "ready", "ntotal": searcher.ntotal})

    @app.get("/info", dependencies=ours, responses={503: _BUSY})
    async def info() -> Response:
        """What is served: index type, encoder, dimension, size, corpus digest, version."""
        about = {"default_topk": topk, "max_queries": bounds.queries, "version": _version()}
        return when_ready(lambda searcher: {**searcher.info(), "ntotal": searcher.ntotal, **about})

    @app.get("/metrics", dependencies=ours, response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Counters in the Prometheus text format."""
        ntotal = service.searcher().ntotal if service.ready else 0
        text = service.metrics.render(service.pending, service.ready, ntotal)
        return Response(text, media_type=CONTENT_TYPE)

    return app
