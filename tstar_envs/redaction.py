"""Redaction: hide secrets in outgoing text, and replace control characters and lone surrogates."""

from __future__ import annotations

import base64
import html
import json
import math
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from urllib.request import getproxies

HIDDEN = "***"
_SURE = 8  # minimum length of a value that is redacted everywhere; shorter ones only if they mix letters with other characters
_SHORTEST = 6
# PGPASSWORD and HFTOKEN have no separator between their words.
_SECRET_NAME = re.compile(
    r"(?:(?<![a-z])(?:key|passphrase|pwd|authorization|auth|bearer|credentials?|creds?|cookie|pat|sas|sig|signature|webhook)"
    r"|ai_?key|api_?key|access_?key|token|secret|password|passwd)(?![a-z])",
    re.IGNORECASE,
)
_SECRET_FIELDS = ("code",)  # of a URL: Azure's name for a function key
# Keys recognized by their form: OpenAI and similar, GitHub, Hugging Face, Google, Amazon, Slack; JSON web tokens, headers.
_MARKS = ("sk-", "gh", "hf_", "AIza", "AKIA", "xox", "gsk_", "xai-", "nvapi-", "eyJ", "earer ")
_SHAPED = re.compile(
    r"(?<![\w\-])(?:sk-[\w\-]{16,}+|gh[pousr]_\w{20,}+|github_pat_\w{20,}+|hf_\w{20,}+|AIza[\w\-]{30,}+|AKIA[0-9A-Z]{16}|"
    r"xox[abprs]-[\w\-]{10,}+|(?:gsk_|xai-|nvapi-)[\w\-]{20,}+|eyJ[\w\-]{6,}+\.[\w\-]{6,}+\.[\w\-]{4,}+|"
    r"(?<=earer )(?=[^\d\s]{0,64}\d)[\w.~+/\-]{12,}+=*+)"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ADDRESS = re.compile(r"(?<![a-z0-9+.\-])[a-z][a-z0-9+.\-]*+://[^\s\"'<>]++", re.IGNORECASE)
# name=value and "name": "value"; `--name value`. A header names its kind before the value.
_NAMED = re.compile(
    r"(?<![\w\-])(?P<name>-{0,2}[a-z][\w\-]*+)(?:[\"']?\s*+[=:]\s*+|(?<=\w)(?P<space>\s++))[\"']?(?:(?:bearer|basic|token)\s++)?"
    r"(?P<value>[^\s\"',;{}]{1,4096}+)",
    re.IGNORECASE,
)
_QUERY_FIELD = re.compile(r"(?<=[?&])(?P<name>[^=&#?]++)=[^&#]*+")
_known: dict[str, str] = {}  # spelling of a secret -> replacement; the longest first


def keep_secret(value: str) -> None:
    """Redact a value from now on in all outgoing text.

    Args:
        value: the secret. A short one, or a short plain word ("none"), is ignored: it would match unrelated text.
    """
    value = _bare(value)
    if _may_be_secret(value):
        _keep(value, HIDDEN)


def _may_be_secret(value: str) -> bool:
    """Check whether a value is neither short nor a short plain word ("region" as a ``state_key``)."""
    mixed = not value.isalpha() and any(sign.isalpha() for sign in value)
    return len(value) >= _SURE or (len(value) >= _SHORTEST and mixed)


def keep_address_secrets(url: str) -> None:
    """Keep the name and password of a URL, and secret fields of its query, as secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:  # not a URL: its user reports that
        return
    who, at, _ = parts.netloc.rpartition("@")
    if at:
        _keep(f"//{who}@", f"//{HIDDEN}@")
        if ":" in who or not who.isalpha():  # a name without a password may be a plain word
            keep_secret(who)
        keep_secret(_base64(unquote(who)))
        for part in who.split(":", 1)[1:]:
            keep_secret(part)
            keep_secret(unquote(part))
    for name, value in parse_qsl(parts.query):
        keep_named_secret("key" if name.lower() in _SECRET_FIELDS else name, value)


def keep_named_secret(name: str, value: Any) -> None:
    """Keep a value as a secret if its name is secret, and secrets in URLs, at any depth."""
    if isinstance(value, Mapping):
        for inner, content in value.items():
            keep_named_secret(f"{name}.{inner}" if is_secret_name(name) else str(inner), content)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for content in value:
            keep_named_secret(name, content)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        text = str(value)
        if is_secret_name(name):
            keep_secret(text)
        for address in _ADDRESS.findall(text):
            keep_address_secrets(address)


def keep_environment_secrets() -> None:
    """Keep environment variables with secret names, and secrets in URLs among them (proxies, databases)."""
    for name, value in os.environ.items():
        for address in _ADDRESS.findall(value):
            keep_address_secrets(address)
        plain_word = value.isalpha() and value.islower() and len(value) < 12  # "disabled"
        if is_secret_name(name) and not plain_word and not (value.startswith("/") and Path(value).exists()):
            keep_secret(value)
    for proxy in getproxies().values():
        keep_address_secrets(proxy)


def keep_argument_secrets(arguments: Sequence[str]) -> None:
    """Keep the secrets of a command line: ``api_key=...``, ``--token ...``, ``Authorization: Bearer ...``, URLs."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if before.startswith("--") and "=" not in before and is_secret_name(before):
            keep_secret(argument)
        start = 0
        while (found := _NAMED.search(argument, start)) is not None:
            if is_secret_name(found["name"]) and (not found["space"] or found["name"].startswith("--")):
                keep_secret(found["value"])
                start = found.end()
            else:  # the apparent value may be the next name
                start = found.start("value")
        for address in _ADDRESS.findall(argument):
            keep_address_secrets(address)


def is_secret_name(name: str) -> bool:
    """Check whether a field of this name is secret (``api_key``, ``X-Auth-Token``; not ``max_tokens``)."""
    return _SECRET_NAME.search(_CAMEL.sub("_", name)) is not None


def redacted(text: str) -> str:
    """Redact a text: known secrets, their first halves, and texts that have the form of a key."""
    if any(mark in text for mark in _MARKS):
        text = _SHAPED.sub(HIDDEN, text)
    for secret, shown in _known.items():  # longest first: two spellings may share a prefix
        text = text.replace(secret, shown)
    for secret, shown in _known.items():
        head = secret[: max(_SURE, len(secret) // 2)]
        start = text.find(head)
        while start >= 0:
            end = start + len(head)
            while end < len(text) and end - start < len(secret) and text[end] == secret[end - start]:
                end += 1
            text = f"{text[:start]}{shown}{text[end:]}"
            start = text.find(head, start + len(shown))
    return text


def redacted_parts(value: Any) -> Any:
    """Copy JSON values with every text ``redacted``."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {redacted_parts(name): redacted_parts(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_parts(inner) for inner in value]
    return value


def redacted_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Copy the fields of a request for settings, without the values of secret names."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if is_secret_name(name) and value is not None:
            found[name] = HIDDEN
        else:
            found[name] = redacted_fields(value) if isinstance(value, Mapping) else redacted_parts(value)
    return found


def without_secrets(value: Any, name: str = "") -> Any:
    """Copy options without secrets, recognized only by their names and the form of URLs.

    Unlike ``redacted``, the result does not depend on other secrets of this process, so that written options can be compared.

    Args:
        value: options as JSON values; ``HIDDEN`` replaces each secret.
        name: name of the option with this value.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Mapping):
        return {
            inner: without_secrets(content, f"{name}.{inner}" if is_secret_name(name) else str(inner))
            for inner, content in value.items()
        }
    if isinstance(value, list | tuple):
        return [without_secrets(content, name) for content in value]
    if is_secret_name(name) and _may_be_secret(_bare(str(value))):
        return HIDDEN
    return _ADDRESS.sub(_address_without_secrets, value) if isinstance(value, str) else value


def redact_tracebacks() -> None:
    """Install an exception hook that redacts tracebacks."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))

    sys.excepthook = show


def _address_without_secrets(found: re.Match[str]) -> str:
    """Replace name, password and secret query fields of a URL by ``HIDDEN``."""
    try:
        place = urlsplit(found[0]).netloc
    except ValueError:
        return found[0]
    who, at, host = place.rpartition("@")
    shown = found[0].replace(f"//{place}", f"//{HIDDEN}@{host}", 1) if who and at else found[0]
    return _QUERY_FIELD.sub(
        lambda part: f"{part['name']}={HIDDEN}" if is_secret_name(part["name"]) else part[0], shown
    )


def _keep(value: str, shown: str) -> None:
    """Remember a value in all spellings: JSON, Python, URL, HTML and header."""
    quoted = {quote(value, safe=safe) for safe in ("", "/", ":@/")}
    json_forms = {json.dumps(value)[1:-1], json.dumps(value)[1:-1].replace("/", "\\/")}
    forms = {value, repr(value)[1:-1], html.escape(value), *json_forms, *quoted, *map(_lower_escapes, quoted)}
    if shown == HIDDEN:
        octets = value.encode("utf-8", "replace")
        # Base64 in the middle of a longer text starts at one of three offsets; the characters at its ends depend on the neighbours.
        encoded = [_base64("\0" * before + value)[start:] for before, start in ((0, 0), (1, 2), (2, 3))]
        whole = [text.rstrip("=")[: -1 if text[-1] == "=" else None] for text in encoded]
        forms |= {octets.hex(), *whole, *(text.replace("+", "-").replace("/", "_") for text in whole)}
    if not forms <= _known.keys():
        every = {**_known, **dict.fromkeys(forms, shown)}
        _known.clear()
        _known.update(sorted(every.items(), key=lambda pair: -len(pair[0])))


def _bare(value: str) -> str:
    """Strip what may surround a secret: quotes of a .env file, a header's kind."""
    value = value.strip().strip("\"'").strip()
    return (
        value.partition(" ")[2].strip()
        if value.lower().startswith(("bearer ", "basic ", "token "))
        else value
    )


def _base64(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "replace")).decode("ascii")


def _lower_escapes(quoted: str) -> str:
    return re.sub("%[0-9A-F]{2}", lambda escape: escape[0].lower(), quoted)


REPLACED = "\N{REPLACEMENT CHARACTER}"
# Control characters, including those that change the direction of the following text.
_CONTROLS = (*range(32), 127, *range(128, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INERT = {code: REPLACED for code in _CONTROLS if chr(code) not in "\n\t"}


def encodable(text: str) -> str:
    """Make a text encodable in UTF-8: lone surrogates become U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encodable_parts(value: Any) -> Any:
    """Copy values that JSON can hold: every text ``encodable``, null for a number that is not finite."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable_parts(name): encodable_parts(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encodable_parts(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def printable(text: str) -> str:
    """Make a text safe for terminals and pages: encodable, without control characters and secrets."""
    return encodable(redacted(text)).translate(_INERT)
