"""OpenAI-compatible endpoints: requests with retries and backoff, and the error messages of many servers."""

from __future__ import annotations

import asyncio
import dataclasses
import email.utils
import json
import os
import random
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from tstar_envs.agents.answers import Answer, Unreadable, error_in, parse_body, read_answer
from tstar_envs.agents.base import EndpointError
from tstar_envs.agents.connection import OPENAI, Connections, Response, proxies_said
from tstar_envs.data.files import MODEL_REPLY_BYTES
from tstar_envs.errors import BadData, MissingExtra, TStarError, UnknownOption
from tstar_envs.redaction import (
    encodable_parts,
    keep_address_secrets,
    keep_environment_secrets,
    keep_named_secret,
    keep_secret,
    redacted,
)

_TRY_AGAIN = frozenset({408, 409, 425, 429})  # retry on these, and from 500 on
_READ = 5_000  # characters of an error that are searched
_QUOTED = 300  # characters of an error quoted in a message
# Messages too long: a word for "too long" and a word for the limit. The Chinese ones are "exceed", "upper limit", "length" and
# "input".
_EXCESS = re.compile(
    r"exceed|maximum|max length|longer|larger|greater|shorter|too (?:large|long|many|big)|reduce|must be <=|range of|overflow|"
    r"truncat|up to \d|limit is|maxlength|> model_max|\u8d85|\u4e0a\u9650"
)
_EXCEEDED = re.compile(
    r"context|prompt|input|tokens?(?![a-z])|token |length|messages|n_ctx|max_model_len|\u957f\u5ea6|\u8f93\u5165"
)
# The requested answer is too long; dropping turns does not help.
_ANSWER_LIMIT = re.compile(
    r"max_?(?:completion_|new_|output_)?tokens|completion tokens|output tokens", re.IGNORECASE
)
_MESSAGES = re.compile(r"context|prompt|input|messages|model(?:'s)? (?:max(?!imum output)|len)|max_model_len")
# Other parts of a request that can be too long.
_OTHER_PART = re.compile(r"\b(?:stop|tools?|functions?|schema|image|parameter)\b")
_OF_MESSAGES = re.compile(r"context|prompt|messages|tokens?(?![a-z])")
# Waiting does not help, though the status suggests a retry.
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
    """Error response of an endpoint.

    Attributes:
        status: HTTP status, or the code of an error inside a response of status 200.
        body: response body, parsed if it is JSON.
        headers: headers with lower-case names.
        inside: True if the error came inside a response of status 200.
    """

    status: int
    body: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    inside: bool = False

    @classmethod
    def of_error(cls, error: Any) -> Refusal:
        """Make a Refusal of an error inside status 200; the default code is a server error's."""
        code = error.get("code") if isinstance(error, dict) else None
        text = str(code)
        known = text.isascii() and text.isdigit() and 400 <= int(text[:9]) < 600
        return cls(int(text) if known else 502, {"error": error}, inside=True)

    @property
    def text(self) -> str:
        """Message, type and code, with secrets redacted before truncation."""
        return redacted(" ".join(_says(self.body).split()))

    @property
    def words(self) -> str:
        """First characters of the text in lower case."""
        return self.text[:_READ].lower()

    @property
    def is_too_long(self) -> bool:
        """True if shorter messages may fit the model (or the tokens-per-minute limit)."""
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
        """Requested delay in seconds, None if it names none."""
        milliseconds = self.headers.get("retry-after-ms", "")
        if milliseconds.isascii() and milliseconds.replace(".", "", 1).isdigit():
            return float(milliseconds[:20]) / 1000
        asked = _retry_after(self.headers.get("retry-after"))
        if asked is not None:
            return asked
        for delay in _values(self.body, "retryDelay"):  # Google's name
            found = _DELAY.fullmatch(delay) if isinstance(delay, str) else None
            if found is not None:
                return float(found[1])
        return None

    @property
    def is_final(self) -> bool:
        """True if a retry cannot help."""
        words = self.words
        if self.status == 501 or _FOR_GOOD.search(words) or (self.wait is None and _SPENT.search(words)):
            return True
        if self.status >= 500:
            return _NOT_MADE_FOR_IT.search(words) is not None
        return self.status not in _TRY_AGAIN

    def told(self) -> str:
        """Summary in one sentence, for a message."""
        return f"HTTP {'200 with an error ' if self.inside else ''}{self.status}: {self.text:.{_QUOTED}}"

    def advice(self, sent: Mapping[str, Any], url: str) -> str:
        """Advise the user on a remedy; "" if the message already names it."""
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
    """Peculiarities of an endpoint, learned from its error responses.

    Attributes:
        length_field: name of the field for the token limit of the answer.
        system: True if it accepts messages of role ``system``.
        stop: True if it accepts ``stop``; otherwise answers are truncated here.
        stream: True if it only answers with event streams.
        whole_messages: True if it accepts its own tool-call messages back with all fields.
    """

    length_field: str = "max_tokens"
    system: bool = True
    stop: bool = True
    stream: bool = False
    whole_messages: bool = True

    def learn(self, refusal: Refusal, sent: Mapping[str, Any]) -> bool:
        """Learn from an error response how to change the request.

        Returns:
            True if something was learned and a retry is worthwhile.
        """
        if refusal.status in (401, 403, 429):
            return False
        words, messages = refusal.words, sent.get("messages", ())
        if "max_tokens" in sent and "max_completion_tokens" in words and self.length_field == "max_tokens":
            # Newer OpenAI models accept the limit only under this name.
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
        """Convert messages to a form that this endpoint accepts."""
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
    """Reduce a tool-call message to the fields that every endpoint knows."""
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
    """Check whether an error is about fields of the server's own messages."""
    return any(name in words for name in (*fields, "extra inputs", "additional propert")) if fields else False


def _own_fields(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Iterate over the server's extra fields in tool-call messages."""
    for message in messages:
        if message.get("tool_calls"):
            yield from (name.lower() for name in message.keys() - {"role", "content", "tool_calls"})
            for call in message["tool_calls"]:
                yield from (name.lower() for name in call.keys() - {"id", "type", "function"})


def _says(body: Any) -> str:
    """Extract the message, type and code of an error, or its text."""
    if isinstance(body, list) and body:  # Gemini wraps its errors in a list
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
    )  # message of the provider behind a router
    more = [
        str(error[name])
        for name in ("type", "code", "status", "error_type")
        if isinstance(error.get(name), str | int)
    ]
    more = [text for text in dict.fromkeys(more) if text and text not in message and not text.isdigit()]
    message = f"{message} {behind}" if isinstance(behind, str) else message
    return f"{message} ({', '.join(more)})" if more else message


def _values(body: Any, name: str, depth: int = 6) -> Iterator[Any]:
    """Iterate over all values with a given name, anywhere in an error body."""
    if depth and isinstance(body, dict):
        for key, value in body.items():
            if key == name:
                yield value
            yield from _values(value, name, depth - 1)
    elif depth and isinstance(body, list):
        for value in body:
            yield from _values(value, name, depth - 1)


def _retry_after(value: str | None) -> float | None:
    """Parse a Retry-After header to seconds; None if it is malformed (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = email.utils.parsedate_tz(value)
            seconds = float("nan") if date is None else email.utils.mktime_tz(date) - time.time()
        except (ValueError, OverflowError):  # a year outside the calendar
            return None
    return max(0.0, seconds) if seconds == seconds else None


# Seconds of backoff: doubled with each try, then multiplied by a random factor from 0.5 to 1.
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0


class Backoff:
    """Exponential backoff with jitter, so that clients refused together do not retry together."""

    def __init__(self) -> None:
        self._jitter = random.Random()

    def after(self, tries: int, asked_for: float | None) -> float:
        """Compute the delay before the next try, in seconds.

        Args:
            asked_for: delay requested by the server (``Retry-After``) in seconds, None if none; it is waited in full, plus some jitter.
        """
        usual = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (tries - 1)) * self._jitter.uniform(0.5, 1.0)
        return (
            usual
            if asked_for is None
            else asked_for + self._jitter.uniform(0.0, min(1.0, FIRST_WAIT + asked_for / 10))
        )


PATIENCE = 300.0  # longest delay, in seconds, that a server may request (Retry-After)
_EMPTY = "(no text)"  # replaces an empty assistant message, which Mistral and Anthropic reject


class TooLong(TStarError):
    """Messages too long for the endpoint's model."""


@dataclass
class Endpoint:
    """Client of one model at an OpenAI-compatible endpoint.

    Args:
        model: name of the model at the endpoint.
        base_url: such as ``http://localhost:8000/v1``; None takes ``OPENAI_BASE_URL``, or OpenAI's own.
        timeout: time limit of a request, in seconds.
        retries: maximum retries after 429, 5xx, a broken connection, a timeout, or an unreadable answer.
        fields: extra fields of every request; a field set to None is always left out. ``extra_body``, as in OpenAI's client, is merged
            with the others.

    The key comes from ``OPENAI_API_KEY``, stripped of white space. A custom endpoint (``base_url``) may need none.

    Raises:
        UnknownOption: no model, a missing key, invalid numbers, or an unusable URL, proxy or key.
        MissingExtra: the ``aiohttp`` package is not installed.
    """

    model: str
    base_url: str | None = field(default=None, repr=False)  # may hold a password, and so may fields
    timeout: float = 300.0
    retries: int = 6
    fields: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.model:
            raise UnknownOption("an agent that talks to an endpoint needs the name of a model: --model NAME")
        if not self.timeout > 0 or self.retries < 0:
            raise UnknownOption(
                f"timeout must be above 0 and retries 0 or more, got {self.timeout} and {self.retries}"
            )
        key = os.environ.get("OPENAI_API_KEY", "").strip()
        base_url = self.base_url or os.environ.get("OPENAI_BASE_URL", "").strip() or None
        keep_environment_secrets()
        keep_secret(key)
        keep_address_secrets(base_url or "")
        keep_named_secret("", self.fields)
        _check_address(base_url)
        _check_key(key, base_url)
        self.fields = _flat_fields(self.fields)
        MODEL_REPLY_BYTES.value()  # report an invalid variable now, not in every request
        try:
            # No connection is opened here: they belong to the event loop of the first request.
            self._connections = Connections(base_url, key or "none")
        except MissingExtra:
            raise
        except Exception as error:  # noqa: BLE001 - any library may reject a URL, a proxy or a certificate file
            raise UnknownOption(
                redacted(
                    f"no connection can be prepared to {_without_name(base_url or OPENAI)}: {type(error).__name__}: "
                    f"{str(error).rstrip('.')}. Check the address, the proxies and the file of certificates; set are: "
                    f"{proxies_said()}"
                )
            ) from None
        self._pauses = Backoff()
        self._dialect = Dialect()

    async def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        await self._connections.close()

    @property
    def shown_url(self) -> str:
        """Base URL without name and password, for the record."""
        return _without_name(self._connections.base_url)

    async def ask(
        self, messages: Sequence[Mapping[str, Any]], purpose: str, *, max_tokens: int, **fields: Any
    ) -> Answer:
        """Send messages and wait for the answer, with retries and backoff.

        Args:
            messages: as the chat API takes them.
            purpose: purpose of the request, see ``Call``.
            max_tokens: token limit of the answer.
            **fields: extra fields of this request, such as ``temperature`` or ``stop``.

        Raises:
            EndpointError: no usable answer after all retries, or an error that a retry cannot change; the message has the last reason.
            TooLong: the messages do not fit the model.
        """
        began = time.perf_counter()
        for tries in range(1, self.retries + 2):
            try:
                body, sent = await self._send(messages, max_tokens, fields)
                answer = read_answer(body, purpose, tries, time.perf_counter() - began)
                return answer if self._dialect.stop else _cut(answer, sent.get("stop"))
            except (_Unusable, Unreadable) as unusable:
                final, wait = getattr(unusable, "final", False), getattr(unusable, "wait", None)
                if tries == self.retries + 1 or final:
                    often = "" if tries == 1 else f" ({tries} tries in {time.perf_counter() - began:.0f} s)"
                    # Not raised from the original error: the client's exceptions quote headers and bodies.
                    raise EndpointError(
                        redacted(f"{self.shown_url} model {self.model!r}: {unusable}{often}")
                    ) from None
            await asyncio.sleep(self._pauses.after(tries, wait))
        raise RuntimeError("every request ends in an answer or an error")

    async def _send(
        self, messages: Sequence[Mapping[str, Any]], max_tokens: int, fields: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Send one request; return the completion and the body that was sent."""
        while True:
            dialect = dataclasses.replace(self._dialect)
            sent = {"messages": messages, dialect.length_field: max_tokens, **fields, **self.fields}
            body = {name: value for name, value in sent.items() if value is not None}
            if not dialect.stop:
                body.pop("stop", None)
            if dialect.stream:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            body["messages"] = [_sendable(message) for message in dialect.prepared(messages)]
            try:
                response = await self._exchange({"model": self.model, **encodable_parts(body)})
                completion = parse_body(
                    response.content, "event-stream" in response.headers.get("content-type", "")
                )
                error = error_in(completion)
                if error is None:
                    return completion, sent
                refusal = Refusal.of_error(error)
            except _Refused as refused:
                refusal = refused.refusal
            if refusal.is_too_long:
                raise TooLong(f"the messages do not fit the model: {refusal.text:.300}")
            # Concurrent requests are refused together; what one has learned applies to the others.
            learned = dialect != self._dialect or self._dialect.learn(refusal, {**body, "messages": messages})
            if not learned:
                raise self._unusable(refusal, body)

    async def _exchange(self, body: dict[str, Any]) -> Response:
        """Receive a response of a status below 400, within the size limit."""
        sent = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        try:
            async with asyncio.timeout(self.timeout):
                response = await self._connections.post(sent)
        except TimeoutError:
            raise _Unusable(f"no answer within {self.timeout:g} s (--timeout)") from None
        except BadData as error:
            raise _Unusable(f"an unreadable answer: {error}") from None
        # A refused or lost connection, an unknown certificate, an invalid header: raised by any layer.
        except Exception as error:  # noqa: BLE001
            raise _Unusable(f"the connection failed: {_reason(error)}") from None
        if response.status >= 400:
            raise _Refused(_refusal(response))
        return response

    def _unusable(self, refusal: Refusal, sent: Mapping[str, Any]) -> _Unusable:
        wait = refusal.wait
        impatient = wait is not None and wait > PATIENCE
        patience = (
            f"; it asks to wait {wait:.0f} s, and {PATIENCE:.0f} are waited at most" if impatient else ""
        )
        advice = refusal.advice(sent, self.shown_url)
        return _Unusable(
            f"{refusal.told()}{patience}{advice}", final=refusal.is_final or impatient, wait=wait
        )


class _Unusable(Exception):
    def __init__(self, message: str, *, final: bool = False, wait: float | None = None) -> None:
        super().__init__(message)
        self.final, self.wait = final, wait


class _Refused(Exception):
    """Error response of the endpoint."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.told())
        self.refusal = refusal


def _refusal(response: Response) -> Refusal:
    """Parse an error response."""
    text = response.content.decode("utf-8", "replace")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = text
    return Refusal(response.status, encodable_parts(body), response.headers)


def _check_address(base_url: str | None) -> None:
    """Reject a base URL to which no request can be sent."""
    if base_url is None:
        return
    shown = _without_name(base_url)
    if not base_url.startswith(("http://", "https://")):
        raise UnknownOption(
            f"--base-url must begin with http:// or https://, got {shown!r}: for example http://localhost:8000/v1"
        )
    try:
        parts = urlsplit(base_url)
        usable = bool(parts.hostname) and parts.port != 0 and not any(sign.isspace() for sign in base_url)
    except ValueError:
        usable = False
    if not usable:
        raise UnknownOption(f"--base-url {shown!r} is not a URL: for example http://localhost:8000/v1")


def _check_key(key: str, base_url: str | None) -> None:
    """Reject a missing key, or one that no header can carry, without quoting it."""
    if not key and base_url is None:
        raise UnknownOption(
            "set OPENAI_API_KEY, or name your own endpoint with --base-url http://HOST:PORT/v1"
        )
    wrong = next((number for number, sign in enumerate(key, 1) if not "!" <= sign <= "~"), None)
    if wrong is not None:
        raise UnknownOption(
            f"OPENAI_API_KEY holds U+{ord(key[wrong - 1]):04X} at position {wrong} of {len(key)}, invalid in a key: copy it again"
        )


def _flat_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``extra_body`` into the fields of a request."""
    extra = fields.get("extra_body") or {}
    if not isinstance(extra, dict):
        raise UnknownOption(
            "--request extra_body takes a JSON object; its fields can also be given one by one"
        )
    for name in ("extra_headers", "extra_query"):
        if name in fields:
            raise UnknownOption(
                f"--request {name}: that is an argument of OpenAI's client, and no field of a request; leave it out"
            )
    return {**extra, **{name: value for name, value in fields.items() if name != "extra_body"}}


def _without_name(url: str) -> str:
    """Strip name, password and query from a URL."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return redacted(url)
    return redacted(urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", "")))


def _sendable(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message to a form every endpoint accepts: with text or calls, and JSON arguments."""
    if message["role"] != "assistant":
        return dict(message)
    calls = message.get("tool_calls")
    if not calls:
        return {**message, "content": message["content"] if str(message["content"] or "").strip() else _EMPTY}
    return {**message, "tool_calls": [_with_json(call) for call in calls]}


def _with_json(call: Mapping[str, Any]) -> dict[str, Any]:
    """Replace invalid arguments of a call by an empty object; the tool's answer quotes them."""
    function = call["function"]
    arguments = function.get("arguments")
    try:
        fine = isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError, RecursionError):
        fine = False
    return {**call, "function": {**function, "arguments": arguments if fine else "{}"}}


def _cut(answer: Answer, stop: Any) -> Answer:
    """Truncate an answer at the stop text, for an endpoint without ``stop``."""
    ends = [stop] if isinstance(stop, str) else stop or ()
    found = [at for at in (answer.text.find(end) for end in ends) if at >= 0]
    return dataclasses.replace(answer, text=answer.text[: min(found)]) if found else answer


def _reason(error: BaseException) -> str:
    """Describe the innermost cause of a connection error, by its message or class."""
    said = ""
    while True:
        said = redacted(str(error)).strip() or said
        inner = error.__cause__ or error.__context__
        if inner is None:
            break
        error = inner
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
