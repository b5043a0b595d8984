"""Refusals of endpoints, read in the words of many servers."""

from __future__ import annotations

import email.utils
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tstar_envs.redaction import redacted

_TRY_AGAIN = frozenset({408, 409, 425, 429})  # and everything from 500
_READ = 5_000  # characters of a refusal that are looked at
_QUOTED = 300  # characters of a refusal that a message quotes
# That the messages are too long: a word of excess and a word of what is exceeded. The Chinese ones are "exceed", "upper limit",
# "length" and "input".
_EXCESS = re.compile(
    r"exceed|maximum|max length|longer|larger|greater|shorter|too (?:large|long|many|big)|reduce|must be <=|range of|overflow|"
    r"truncat|up to \d|limit is|maxlength|> model_max|\u8d85|\u4e0a\u9650"
)
_EXCEEDED = re.compile(
    r"context|prompt|input|tokens?(?![a-z])|token |length|messages|n_ctx|max_model_len|\u957f\u5ea6|\u8f93\u5165"
)
# That the answer asked for is too long, which no turn left out changes.
_ANSWER_LIMIT = re.compile(
    r"max_?(?:completion_|new_|output_)?tokens|completion tokens|output tokens", re.IGNORECASE
)
_MESSAGES = re.compile(r"context|prompt|input|messages|model(?:'s)? (?:max(?!imum output)|len)|max_model_len")
# Other parts of a request that can be too long.
_OTHER_PART = re.compile(r"\b(?:stop|tools?|functions?|schema|image|parameter)\b")
_OF_MESSAGES = re.compile(r"context|prompt|messages|tokens?(?![a-z])")
# What waiting does not change, though the status says to try again.
_FOR_GOOD = re.compile(
    r"insufficient_quota|billing_(?:hard_limit|not_active)|credit balance|account (?:is )?(?:suspended|deactivated|not active)|arrears|"
    r"\u4f59\u989d\u4e0d\u8db3|\u6b20\u8d39"  # the balance does not suffice, arrears
)
_SPENT = re.compile(r"exceeded your current quota|out of credits|insufficient (?:credits|balance|funds)")
_NOT_MADE_FOR_IT = re.compile(
    r"requires? --?\w|not (?:yet )?supported|unsupported|not implemented|does not support"
)
_DELAY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")


@dataclass(frozen=True)
class Refusal:
    """An answer that is an error.

    Attributes:
        status: of HTTP, or the code of an error that came with status 200.
        body: what it says, parsed where it is JSON.
        headers: with names in lower case.
        inside: whether it came with status 200.
    """

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    inside: bool = False

    @classmethod
    def of_error(cls, error: Any) -> Refusal:
        """The refusal that came with status 200; one without a code is the server's fault."""
        code = error.get("code") if isinstance(error, dict) else None
        text = str(code)
        known = text.isascii() and text.isdigit() and 400 <= int(text[:9]) < 600
        return cls(int(text) if known else 502, {"error": error}, inside=True)

    @property
    def text(self) -> str:
        """Its words, type and code, without secrets (taken out before anything is cut)."""
        return redacted(" ".join(_says(self.body).split()))

    @property
    def words(self) -> str:
        """The beginning of it in lower case."""
        return self.text[:_READ].lower()

    @property
    def is_too_long(self) -> bool:
        """True if fewer messages may fit the model (or the tokens of a minute)."""
        if self.status == 413:
            return True
        words = self.words
        if self.status == 429:
            return "request too large" in words or "too large for" in words
        if self.status not in (400, 422, 500, 503) and not self.inside:
            return False
        if not (_EXCESS.search(words) and _EXCEEDED.search(words)):
            return False
        if _OTHER_PART.search(words) and not _OF_MESSAGES.search(words):
            return False
        return _ANSWER_LIMIT.search(words) is None or _MESSAGES.search(words) is not None

    @property
    def wait(self) -> float | None:
        """Seconds that it asks to wait, None where it does not say."""
        milliseconds = self.headers.get("retry-after-ms", "")
        if milliseconds.isascii() and milliseconds.replace(".", "", 1).isdigit():
            return float(milliseconds[:20]) / 1000
        asked = _retry_after(self.headers.get("retry-after"))
        if asked is not None:
            return asked
        for delay in _values(self.body, "retryDelay"):  # Google's
            found = _DELAY.fullmatch(delay) if isinstance(delay, str) else None
            if found is not None:
                return float(found[1])
        return None

    @property
    def is_final(self) -> bool:
        """True if no further try would change it."""
        words = self.words
        if self.status == 501 or _FOR_GOOD.search(words) or (self.wait is None and _SPENT.search(words)):
            return True
        if self.status >= 500:
            return _NOT_MADE_FOR_IT.search(words) is not None
        return self.status not in _TRY_AGAIN

    def told(self) -> str:
        """It in one sentence, for a message."""
        return f"HTTP {'200 with an error ' if self.inside else ''}{self.status}: {self.text:.{_QUOTED}}"

    def advice(self, sent: Mapping[str, Any], url: str) -> str:
        """Advice on what to do about it, "" where it says that itself.

        Args:
            sent: the body of the request.
            url: the base URL it was sent to.
        """
        words = self.words
        if self.status in (400, 422) and "temperature" in words and "temperature" in sent:
            return " (--request temperature=null leaves it out)"
        if self.status in (400, 422) and _ANSWER_LIMIT.search(words) and _EXCESS.search(words):
            return " (--max-tokens N asks for fewer)"
        if "--jinja" in words:
            return " (start llama-server with --jinja, or leave --tools out)"
        if self.status == 401:
            return " (the key is read from OPENAI_API_KEY)"
        if self.status in (404, 405) and not re.search(r"/v\d", url):
            return f" (base URLs mostly end in /v1: --base-url {url.rstrip('/')}/v1)"
        return ""


@dataclass
class Dialect:
    """The way an endpoint wants to be asked, as its refusals have told.

    Attributes:
        length_field: name of the bound on the answer.
        system: whether it takes messages of role ``system``.
        stop: whether it takes ``stop``; else answers are cut here.
        stream: whether it answers in streams of events only.
        whole_messages: whether it takes back all fields of its own messages that call tools.
    """

    length_field: str = "max_tokens"
    system: bool = True
    stop: bool = True
    stream: bool = False
    whole_messages: bool = True

    def learn(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """Read from a refusal how to ask otherwise.

        Args:
            refusal: the answer.
            sent: the body of the request.

        Returns:
            Whether anything was learned, so that the same request is worth another try.
        """
        if refusal.status in (401, 403, 429):
            return False
        words, messages = refusal.words, sent.get("messages", ())
        if "max_tokens" in sent and "max_completion_tokens" in words and self.length_field == "max_tokens":
            # Newer models of OpenAI take the limit under this name only.
            self.length_field = "max_completion_tokens"
        elif (
            not self.stream
            and "stream" in words
            and re.search(r"only|must|requires?|enable|non-stream", words)
        ):
            self.stream = True
        elif self.stop and "stop" in sent and re.search(r"\bstop\b", words) and _REFUSED.search(words):
            self.stop = False
        elif self.system and _has_system(messages) and _NO_SYSTEM.search(words):
            self.system = False
        elif self.whole_messages and _names_one(words, [*_own_fields(messages)]):
            self.whole_messages = False
        else:
            return False
        return True

    def prepared(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages as this endpoint takes them."""
        found = [dict(message) for message in messages]
        if not self.whole_messages:
            found = [bare(message) if message.get("tool_calls") else message for message in found]
        if not self.system and _has_system(found):
            rules, *rest = found
            if rest and rest[0].get("role") == "user":
                found = [{**rest[0], "content": f"{rules['content']}\n\n{rest[0]['content']}"}, *rest[1:]]
            else:
                found = [{**rules, "role": "user"}, *rest]
        return found


def bare(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message that calls tools, with the fields alone that every endpoint knows."""
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {name: call["function"][name] for name in ("name", "arguments")},
        }
        for call in message["tool_calls"]
    ]
    return {"role": "assistant", "content": message.get("content"), "tool_calls": calls}


_REFUSED = re.compile(
    r"support|not allowed|not permitted|unknown|unrecogni[sz]ed|invalid|unexpected|forbidden"
)
_NO_SYSTEM = re.compile(
    r"system (?:role|message|prompt|instruction)s?\b.*?(?:not|unsupported)|developer instruction|roles? must alternate|"
    r"(?:not support|unsupported|invalid|unknown|unexpected)\w*\b.{0,80}\bsystem\b|only user and (?:assistant|model)|"
    r"role: input should be ['\"]?user\b(?!.*system)|"
    r"\brole:? ['\"`]?system['\"`]?.{0,40}(?:not|unsupported|invalid)"
)


def _has_system(messages: Sequence[Mapping[str, Any]]) -> bool:
    return bool(messages) and messages[0].get("role") == "system"


def _names_one(words: str, fields: Sequence[str]) -> bool:
    """True if a refusal is about fields of the server's own messages."""
    return any(name in words for name in (*fields, "extra inputs", "additional propert")) if fields else False


def _own_fields(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Names of the fields of a server's own in messages that call tools."""
    for message in messages:
        if message.get("tool_calls"):
            yield from (name.lower() for name in message.keys() - {"role", "content", "tool_calls"})
            for call in message["tool_calls"]:
                yield from (name.lower() for name in call.keys() - {"id", "type", "function"})


def _says(body: Any) -> str:
    """The words of an error: its message, type and code, or the text as it is."""
    if isinstance(body, list) and body:  # Gemini wraps its errors
        body = body[0]
    if not isinstance(body, dict):
        return str(body)
    inner = body.get("error")
    error: dict[str, Any] = (
        inner
        if isinstance(inner, dict)
        else {"message": inner, **{k: v for k, v in body.items() if k != "error"}}
    )
    message = next(
        (
            error[name]
            for name in ("message", "detail", "error_msg", "msg")
            if isinstance(error.get(name), str) and error[name]
        ),
        None,
    )
    if not isinstance(inner, dict) and isinstance(inner, str) and inner:
        message = inner
    if message is None:
        return json.dumps(body)
    metadata = error.get("metadata")
    behind = (
        metadata.get("raw") if isinstance(metadata, dict) else None
    )  # what the provider behind a router said
    more = [
        str(error[name])
        for name in ("type", "code", "status", "error_type")
        if isinstance(error.get(name), str | int)
    ]
    more = [text for text in dict.fromkeys(more) if text and text not in message and not text.isdigit()]
    message = f"{message} {behind}" if isinstance(behind, str) else message
    return f"{message} ({', '.join(more)})" if more else message


def _values(body: Any, name: str, depth: int = 6) -> Iterator[Any]:
    """All that stands under a name anywhere in a refusal."""
    if depth and isinstance(body, dict):
        for key, value in body.items():
            if key == name:
                yield value
            yield from _values(value, name, depth - 1)
    elif depth and isinstance(body, list):
        for value in body:
            yield from _values(value, name, depth - 1)


def _retry_after(value: str | None) -> float | None:
    """Seconds that a Retry-After header asks for, None where it cannot be read (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = email.utils.parsedate_tz(value)
            seconds = float("nan") if date is None else email.utils.mktime_tz(date) - time.time()
        except (ValueError, OverflowError):  # a year that no calendar has
            return None
    return max(0.0, seconds) if seconds == seconds else None
