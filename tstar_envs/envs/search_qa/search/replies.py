"""What is read out of the replies of search services: passages, waiting times, and which dialect they speak."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from hashlib import blake2b
from typing import Any

from tstar_envs.data.files import parse_json
from tstar_envs.envs.search_qa.search.exchange import Reply
from tstar_envs.envs.search_qa.search.passage import Passage
from tstar_envs.errors import BadData

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
