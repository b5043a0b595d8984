"""Any OpenAI-compatible chat endpoint: one request with its retries, returned as an answer with its cost.

The official client sends requests and reads answers. When to try again is decided here, so that every try is counted and a server that
asks for a minute's patience gets it.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from tstar_envs.bench.agents.pauses import Pauses
from tstar_envs.bench.failures import EndpointError
from tstar_envs.bench.usage import Call
from tstar_envs.errors import MissingExtra, TStarError, UnknownOption

if TYPE_CHECKING:
    from openai import AsyncOpenAI

PATIENCE = 300.0  # seconds that a server may ask for (Retry-After)
_TRY_AGAIN = frozenset({408, 409, 425, 429})  # and everything from 500
_TOO_LONG = (
    "context_length",
    "context length",
    "context_size",
    "context window",
    "maximum context",
    "too many tokens",
    "too long",
)


class TooLong(TStarError):
    """The endpoint refused the messages because they do not fit its model."""


@dataclass(frozen=True)
class Answer:
    """What a model answered.

    Attributes:
        text: its words.
        reasoning: what it thought, where the server returns that separately.
        tool_calls: as the message holds them: id, name and arguments (JSON text).
        call: what it cost.
    """

    text: str
    reasoning: str
    tool_calls: tuple[tuple[str, str, str], ...]
    call: Call


@dataclass
class Endpoint:
    """Where a model is asked, and how.

    Args:
        model: name, as the endpoint calls it.
        base_url: ``http://localhost:8000/v1`` for example; None takes ``OPENAI_BASE_URL``, or OpenAI's own.
        timeout: seconds a request may take.
        retries: how often a request is sent again that met 429, 5xx, a broken connection, no answer in time, or an unreadable answer.
        fields: further fields of every request; one that is None is left out, whoever sets it.

    The key comes from ``OPENAI_API_KEY``; an endpoint of one's own (``base_url``) may need none.

    Raises:
        UnknownOption: no model, no key where one is needed, or numbers that are none.
        MissingExtra: the ``openai`` package is not installed.
    """

    model: str
    base_url: str | None = None
    timeout: float = 300.0
    retries: int = 6
    fields: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.model:
            raise UnknownOption("an agent that talks to an endpoint needs the name of a model: --model NAME")
        if not self.timeout > 0 or self.retries < 0:
            raise UnknownOption(
                f"timeout must be above 0 and retries 0 or more, got {self.timeout} and {self.retries}"
            )
        base_url = self.base_url or os.environ.get("OPENAI_BASE_URL")
        if base_url is not None and not base_url.startswith(("http://", "https://")):
            raise UnknownOption(
                f"--base-url must begin with http:// or https://, got {base_url!r}: for example http://localhost:8000/v1"
            )
        key = os.environ.get("OPENAI_API_KEY")
        if not key and base_url is None:
            raise UnknownOption(
                "set OPENAI_API_KEY, or name an endpoint of your own with --base-url http://HOST:PORT/v1"
            )
        try:
            import openai
        except ModuleNotFoundError as error:
            raise MissingExtra("an agent behind an endpoint", error.name or "openai", "bench") from error
        self._openai = openai
        self._make = partial(
            openai.AsyncOpenAI, api_key=key or "none", base_url=base_url, timeout=self.timeout, max_retries=0
        )
        # Made at the first request, in the event loop that it belongs to.
        self._client: openai.AsyncOpenAI | None = None
        self._pauses = Pauses()
        self._length_field = "max_tokens"

    async def close(self) -> None:
        """Close its connections; the next request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    @property
    def shown_url(self) -> str:
        """Where requests go, without a name and password that may stand in the address: records hold it."""
        url = urlsplit(str(self._opened().base_url))
        return urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path, "", ""))

    def _opened(self) -> AsyncOpenAI:
        self._client = self._client or self._make()
        return self._client

    async def ask(
        self, messages: Sequence[dict[str, Any]], purpose: str, *, max_tokens: int, **fields: Any
    ) -> Answer:
        """Send messages and wait for the answer.

        Args:
            messages: as the chat API takes them.
            purpose: for the record, see ``Call``.
            max_tokens: longest answer.
            **fields: further fields of this request, such as ``temperature`` or ``stop``.

        Raises:
            EndpointError: no usable answer after all tries, or one that no further try would change; the message gives the last reason.
            TooLong: the messages do not fit the model.
        """
        began = time.perf_counter()
        for tries in range(1, self.retries + 2):
            try:
                completion = await self._send(messages, max_tokens, fields)
                return _read(completion, purpose, tries, time.perf_counter() - began)
            except _Unusable as unusable:
                if tries == self.retries + 1 or unusable.final:
                    often = "" if tries == 1 else f" ({tries} tries in {time.perf_counter() - began:.0f} s)"
                    raise EndpointError(
                        f"{self.shown_url} model {self.model!r}: {unusable}{often}"
                    ) from unusable.__cause__
                await asyncio.sleep(self._pauses.after(tries, unusable.wait))
        raise RuntimeError("every request ends in an answer or an error")

    async def _send(self, messages: Sequence[dict[str, Any]], max_tokens: int, fields: dict[str, Any]) -> Any:
        openai = self._openai
        body = {"messages": list(messages), self._length_field: max_tokens, **fields, **self.fields}
        body = {name: value for name, value in body.items() if value is not None}
        try:
            # All in extra_body: what this version of the client does not know is sent as it is, and messages are not looked through
            # for its types at each request, which took two thirds of the time.
            create = self._opened().chat.completions.create
            # The client's own limit begins anew with every byte that trickles in.
            async with asyncio.timeout(self.timeout):
                return await create(model=self.model, messages=[], extra_body=body)
        except openai.APIStatusError as error:
            text = _text_of(error)
            if (
                error.status_code == 400
                and self._length_field == "max_tokens"
                and "max_completion_tokens" in text
            ):
                # Newer models of OpenAI take the limit under this name only.
                self._length_field = "max_completion_tokens"
                return await self._send(messages, max_tokens, fields)
            if error.status_code in (400, 413, 422) and any(sign in text.lower() for sign in _TOO_LONG):
                raise TooLong(f"the messages do not fit the model: {text:.300}") from error
            wait = _retry_after(error.response.headers)
            again = error.status_code in _TRY_AGAIN or error.status_code >= 500
            patience = (
                f"; it asks to wait {wait:.0f} s, and {PATIENCE:.0f} are waited at most"
                if wait and wait > PATIENCE
                else ""
            )
            advice = ""
            if error.status_code == 400 and "temperature" in text and "temperature" in body:
                advice = " (--request temperature=null leaves it out)"
            message = f"HTTP {error.status_code}: {text:.300}{patience}{advice}"
            raise _Unusable(message, final=not again or bool(patience), wait=wait) from error
        except (TimeoutError, openai.APITimeoutError) as error:
            raise _Unusable(f"no answer within {self.timeout:g} s (--timeout)") from error
        except openai.APIConnectionError as error:
            raise _Unusable(f"the connection failed: {error.__cause__ or error}") from error
        except (
            openai.OpenAIError,
            ValueError,
        ) as error:  # what a body that is no JSON raises is the client's choice
            raise _Unusable(f"an unreadable answer: {type(error).__name__}: {error!s:.200}") from error


class _Unusable(Exception):
    def __init__(self, message: str, *, final: bool = False, wait: float | None = None) -> None:
        super().__init__(message)
        self.final, self.wait = final, wait


def _read(completion: Any, purpose: str, tries: int, seconds: float) -> Answer:
    choices = getattr(completion, "choices", None)
    first = choices[0] if isinstance(choices, list) and choices else None
    message = getattr(first, "message", None)
    text = getattr(message, "content", None)
    if message is None or not isinstance(text, str | None):
        raise _Unusable(f"an unreadable answer: {completion!r:.200}")
    calls = []
    for call in getattr(message, "tool_calls", None) or ():
        function = getattr(call, "function", None)
        calls.append(
            (
                str(getattr(call, "id", "")),
                str(getattr(function, "name", "")),
                str(getattr(function, "arguments", "") or ""),
            )
        )
    reasoning = next(
        (
            r
            for name in ("reasoning_content", "reasoning")
            if isinstance(r := getattr(message, name, None), str)
        ),
        "",
    )
    usage = getattr(completion, "usage", None)
    cached = getattr(getattr(usage, "prompt_tokens_details", None), "cached_tokens", None)
    call = Call(
        purpose,
        round(seconds, 4),
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens"),
        cached_tokens=cached if isinstance(cached, int) else 0,
        tries=tries,
        finish=str(getattr(first, "finish_reason", None) or ""),
    )
    return Answer(text or "", reasoning, tuple(calls), call)


def _count(usage: Any, name: str) -> int | None:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) else None


def _text_of(error: Any) -> str:
    """What a refusal says: the message inside its JSON, or its text."""
    body = error.body
    if isinstance(body, dict):
        message = body.get("message")
        return (
            " ".join((message if isinstance(message, str) else json.dumps(body)).split())
            + f" {body.get('code') or ''}".rstrip()
        )
    return " ".join(str(body or error).split())


def _retry_after(headers: Any) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110, 10.2.3: seconds or a date), None without one that can be read."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        date = email.utils.parsedate_tz(value)
        if date is None:
            return None
        seconds = email.utils.mktime_tz(date) - time.time()
    return max(0.0, seconds) if seconds == seconds else None
