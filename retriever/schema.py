"""The request and response bodies of ``POST /retrieve``, as Search-R1 and its successors send them."""

import json
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, StrictBool, StrictInt, StrictStr, model_validator

from retriever.index import MAX_TOPK, Hit

MAX_QUERIES = 512
MAX_QUERY_CHARACTERS = 16_384
MAX_TOTAL_CHARACTERS = 1_000_000


class RetrieveRequest(BaseModel):
    """One request: ``queries`` (Search-R1, verl) or ``query`` (SkyRL, verl-agent).

    Where both are given ``queries`` counts, so that one body can serve both kinds of server. Fields of
    other dialects are ignored.
    """

    model_config = ConfigDict(extra="ignore")

    queries: list[StrictStr] | StrictStr | None = None
    query: StrictStr | None = None
    topk: StrictInt | None = None
    return_scores: StrictBool = False

    @model_validator(mode="after")
    def _check(self) -> "RetrieveRequest":
        if self.queries is None and self.query is None:
            raise ValueError('give "queries" (a list of strings or a string) or "query" (a string)')
        texts = self.texts()
        if len(texts) > MAX_QUERIES:
            raise ValueError(f"{len(texts)} queries; at most {MAX_QUERIES} in one request")
        longest = max(map(len, texts), default=0)
        if longest > MAX_QUERY_CHARACTERS:
            raise ValueError(f"a query of {longest} characters; at most {MAX_QUERY_CHARACTERS}")
        total = sum(map(len, texts))
        if total > MAX_TOTAL_CHARACTERS:
            raise ValueError(f"{total} characters; at most {MAX_TOTAL_CHARACTERS} in one request")
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


def response_body(hits: Sequence[Sequence[Hit]], return_scores: bool) -> bytes:
    """Return the JSON of a `RetrieveResponse`.

    Built directly, because validating what the server itself made would cost more than the search; and
    in ASCII, because a corpus may hold lone surrogates, which have no UTF-8.
    """

    def entry(hit: Hit) -> dict[str, object]:
        found = hit.document
        document = {"id": found.id, "contents": found.contents, "title": found.title, "text": found.text}
        return {"document": document, "score": hit.score} if return_scores else dict(document)

    return json.dumps({"result": [[entry(hit) for hit in row] for row in hits]}).encode("ascii")
