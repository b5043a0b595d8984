"""The request and response bodies of ``POST /retrieve``, as Search-R1 and its successors send them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, StrictStr, ValidationInfo, model_validator

from retriever.index import MAX_TOPK, Hit


@dataclass(frozen=True)
class Limits:
    """What one request may ask for; each has an option of ``serve`` that its message names.

    Attributes:
        queries: queries in one request (Search-R1's training script sends 2,560 at once).
        query_characters: characters in one query.
        body_bytes: bytes of its body.
        passages: queries times passages each, which bounds the answer: a passage has some kilobytes on the wire.
    """

    queries: int = 8_192
    query_characters: int = 16_384
    body_bytes: int = 16 << 20
    passages: int = 131_072


def _first_fault(value: object) -> object:
    # pydantic would make an error of each: a million wrong entries would be gigabytes.
    if isinstance(value, list):
        for number, entry in enumerate(value):
            if not isinstance(entry, str):
                raise ValueError(f"entry {number} is no text")
    return value


def _lenient_count(value: object) -> object:
    # What remains of pydantic's lax mode: "3" and 3.0 are 3. True would be 1, which nobody means.
    if isinstance(value, bool):
        raise ValueError("a whole number is expected, not a truth value")
    return value


def _lenient_flag(value: object) -> object:
    return False if value is None else value


class RetrieveRequest(BaseModel):
    """One request: ``queries`` (Search-R1, verl) or ``query`` (SkyRL, verl-agent).

    Where both are given ``queries`` counts, so that one body can serve both kinds of server. Fields of
    other dialects are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    queries: Annotated[list[StrictStr] | StrictStr | None, BeforeValidator(_first_fault)] = None
    query: StrictStr | None = None
    # As lenient as the models of the peers, which leave pydantic in its lax mode.
    topk: Annotated[int | None, BeforeValidator(_lenient_count)] = None
    return_scores: Annotated[bool, BeforeValidator(_lenient_flag)] = False

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> "RetrieveRequest":
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
        """The queries as a list, whichever field held them."""
        if self.queries is None:
            return [] if self.query is None else [self.query]
        return [self.queries] if isinstance(self.queries, str) else self.queries

    def clamped_topk(self, default: int, ntotal: int) -> int:
        """``topk`` within [1, min(100, ntotal)]; null and 0 mean ``default``, as in Search-R1."""
        return max(1, min(self.topk or default, MAX_TOPK, ntotal))


class RetrievedDocument(BaseModel):
    """A passage; ``contents`` is title line and body as in the corpus, ``title`` has no quotes."""

    id: str
    contents: str
    title: str
    text: str


class ScoredDocument(BaseModel):
    """A passage with its score; higher is better, and only comparable within one query."""

    document: RetrievedDocument
    score: float


class RetrieveResponse(BaseModel):
    """One list per query, best first: scored if ``return_scores`` was true, else bare documents."""

    result: list[list[ScoredDocument]] | list[list[RetrievedDocument]]


class Refusal(BaseModel):
    """Why a request was not answered."""

    detail: str


class Problem(BaseModel):
    """What is wrong with one field of a request."""

    type: str
    loc: list[str | int]
    msg: str


class Rejection(BaseModel):
    """What is wrong with a request."""

    detail: list[Problem]


def response_rows(hits: Sequence[Sequence[Hit]], return_scores: bool) -> bytes:
    """Return the JSON of some lists of a `RetrieveResponse`, separated by commas, for `response_body`.

    Built directly, because validating what the server itself made would cost more than the search; and
    in ASCII, because a corpus may hold lone surrogates, which have no UTF-8.
    """

    def entry(hit: Hit) -> dict[str, object]:
        found = hit.document
        document = {"id": found.id, "contents": found.contents, "title": found.title, "text": found.text}
        return {"document": document, "score": hit.score} if return_scores else dict(document)

    return json.dumps([[entry(hit) for hit in row] for row in hits])[1:-1].encode("ascii")


def response_body(portions: Sequence[bytes]) -> bytes:
    """Return the JSON of a `RetrieveResponse` from what `response_rows` made of its portions."""
    return b'{"result": [' + b", ".join(portion for portion in portions if portion) + b"]}"
