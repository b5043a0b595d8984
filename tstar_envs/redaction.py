"""Text made fit to leave the program: secrets hidden, controls and half surrogates replaced."""

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
_SURE = 8  # characters from which on a value is taken for a secret wherever it stands; of shorter ones those of letters and other signs
_SHORTEST = 6
# PGPASSWORD and HFTOKEN have no mark between their words.
_SECRET_NAME = re.compile(
    r"(?:(?<![a-z])(?:key|passphrase|pwd|authorization|auth|bearer|credentials?|creds?|cookie|pat|sas|sig|signature|webhook)"
    r"|ai_?key|api_?key|access_?key|token|secret|password|passwd)(?![a-z])",
    re.IGNORECASE,
)
_SECRET_FIELDS = ("code",)  # of an address: what Azure calls a function's key
# Keys whose form says that they are: OpenAI's and others', GitHub's, Hugging Face's, Google's, Amazon's, Slack's; tokens of JSON, headers.
_MARKS = ("sk-", "gh", "hf_", "AIza", "AKIA", "xox", "gsk_", "xai-", "nvapi-", "eyJ", "earer ")
_SHAPED = re.compile(
    r"(?<![\w\-])(?:sk-[\w\-]{16,}+|gh[pousr]_\w{20,}+|github_pat_\w{20,}+|hf_\w{20,}+|AIza[\w\-]{30,}+|AKIA[0-9A-Z]{16}|"
    r"xox[abprs]-[\w\-]{10,}+|(?:gsk_|xai-|nvapi-)[\w\-]{20,}+|eyJ[\w\-]{6,}+\.[\w\-]{6,}+\.[\w\-]{4,}+|"
    r"(?<=earer )(?=[^\d\s]{0,64}\d)[\w.~+/\-]{12,}+=*+)"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_ADDRESS = re.compile(r"(?<![a-z0-9+.\-])[a-z][a-z0-9+.\-]*+://[^\s\"'<>]++", re.IGNORECASE)
# name=value and "name": "value"; `--name value`. A header says before its value what kind of one it is.
_NAMED = re.compile(
    r"(?<![\w\-])(?P<name>-{0,2}[a-z][\w\-]*+)(?:[\"']?\s*+[=:]\s*+|(?<=\w)(?P<space>\s++))[\"']?(?:(?:bearer|basic|token)\s++)?"
    r"(?P<value>[^\s\"',;{}]{1,4096}+)",
    re.IGNORECASE,
)
_QUERY_FIELD = re.compile(r"(?<=[?&])(?P<name>[^=&#?]++)=[^&#]*+")
_known: dict[str, str] = {}  # a secret as it may be written, and what stands in its place; the longest first


def keep_secret(value: str) -> None:
    """Replace a value from now on wherever text leaves the program.

    Args:
        value: the secret. One that is short, or a short plain word ("none"), would be found in texts that do not mean it and is not kept.
    """
    value = _bare(value)
    if _may_be_secret(value):
        _keep(value, HIDDEN)


def _may_be_secret(value: str) -> bool:
    """False for what is short, and for a short plain word ("region" as a ``state_key``)."""
    mixed = not value.isalpha() and any(sign.isalpha() for sign in value)
    return len(value) >= _SURE or (len(value) >= _SHORTEST and mixed)


def keep_address_secrets(url: str) -> None:
    """Keep the name and password in an address, and secret fields of its query."""
    try:
        parts = urlsplit(url)
    except ValueError:  # no address: who uses it says so
        return
    who, at, _ = parts.netloc.rpartition("@")
    if at:
        _keep(f"//{who}@", f"//{HIDDEN}@")
        if ":" in who or not who.isalpha():  # a name alone may be a word
            keep_secret(who)
        keep_secret(_base64(unquote(who)))
        for part in who.split(":", 1)[1:]:
            keep_secret(part)
            keep_secret(unquote(part))
    for name, value in parse_qsl(parts.query):
        keep_named_secret("key" if name.lower() in _SECRET_FIELDS else name, value)


def keep_named_secret(name: str, value: Any) -> None:
    """Keep a value whose name says that it is secret, and addresses' secrets, at any depth."""
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
    """Keep environment variables whose names say so, and what addresses in them (of proxies, databases) hold of secrets."""
    for name, value in os.environ.items():
        for address in _ADDRESS.findall(value):
            keep_address_secrets(address)
        plain_word = value.isalpha() and value.islower() and len(value) < 12  # "disabled"
        if is_secret_name(name) and not plain_word and not (value.startswith("/") and Path(value).exists()):
            keep_secret(value)
    for proxy in getproxies().values():
        keep_address_secrets(proxy)


def keep_argument_secrets(arguments: Sequence[str]) -> None:
    """Keep what a command line holds of secrets: ``api_key=...``, ``--token ...``, ``Authorization: Bearer ...``, addresses."""
    for before, argument in zip(["", *arguments], arguments, strict=False):
        if before.startswith("--") and "=" not in before and is_secret_name(before):
            keep_secret(argument)
        start = 0
        while (found := _NAMED.search(argument, start)) is not None:
            if is_secret_name(found["name"]) and (not found["space"] or found["name"].startswith("--")):
                keep_secret(found["value"])
                start = found.end()
            else:  # what looks like a value may be the next name
                start = found.start("value")
        for address in _ADDRESS.findall(argument):
            keep_address_secrets(address)


def is_secret_name(name: str) -> bool:
    """True if a field of this name is secret (``api_key``, ``X-Auth-Token``; not ``max_tokens``)."""
    return _SECRET_NAME.search(_CAMEL.sub("_", name)) is not None


def redacted(text: str) -> str:
    """A text without the secrets that are known, nor the first half of one, nor what has the form of a key."""
    if any(mark in text for mark in _MARKS):
        text = _SHAPED.sub(HIDDEN, text)
    for secret, shown in _known.items():  # whole ones first: two forms of one may begin alike
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
    """A copy of JSON values in which every text is ``redacted``."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {redacted_parts(name): redacted_parts(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [redacted_parts(inner) for inner in value]
    return value


def redacted_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a request as settings may hold them: without values of secret names."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if is_secret_name(name) and value is not None:
            found[name] = HIDDEN
        else:
            found[name] = redacted_fields(value) if isinstance(value, Mapping) else redacted_parts(value)
    return found


def without_secrets(value: Any, name: str = "") -> Any:
    """A copy of options without secrets, by their names and the form of addresses alone.

    Unlike ``redacted`` it gives the same whatever else is secret in this process, so that what was written can be compared.

    Args:
        value: options as JSON values; in place of a secret stands ``HIDDEN``.
        name: of the option that it is the value of.
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
    """Let errors that nobody catches be printed without secrets."""

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stderr.write(redacted("".join(traceback.format_exception(kind, error, trace))))

    sys.excepthook = show


def _address_without_secrets(found: re.Match[str]) -> str:
    """An address with ``HIDDEN`` in place of name and password, and of secret fields of its query."""
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
    """Remember a value as JSON, Python, an address, a page and a header may write it."""
    quoted = {quote(value, safe=safe) for safe in ("", "/", ":@/")}
    json_forms = {json.dumps(value)[1:-1], json.dumps(value)[1:-1].replace("/", "\\/")}
    forms = {value, repr(value)[1:-1], html.escape(value), *json_forms, *quoted, *map(_lower_escapes, quoted)}
    if shown == HIDDEN:
        octets = value.encode("utf-8", "replace")
        # In the middle of a text that is encoded it begins at any of three places; the signs at its ends depend on its neighbours.
        encoded = [_base64("\0" * before + value)[start:] for before, start in ((0, 0), (1, 2), (2, 3))]
        whole = [text.rstrip("=")[: -1 if text[-1] == "=" else None] for text in encoded]
        forms |= {octets.hex(), *whole, *(text.replace("+", "-").replace("/", "_") for text in whole)}
    if not forms <= _known.keys():
        every = {**_known, **dict.fromkeys(forms, shown)}
        _known.clear()
        _known.update(sorted(every.items(), key=lambda pair: -len(pair[0])))


def _bare(value: str) -> str:
    """A secret without what may stand around it: quotes of a .env file, a header's kind."""
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
# Control characters, and those that turn the direction of what follows, a page's or terminal's own words included.
_CONTROLS = (*range(32), 127, *range(128, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INERT = {code: REPLACED for code in _CONTROLS if chr(code) not in "\n\t"}


def encodable(text: str) -> str:
    """A text that UTF-8 can hold: half of a surrogate pair becomes U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def encodable_parts(value: Any) -> Any:
    """A copy of values that JSON can hold: every text ``encodable``, null for a number that is none."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {encodable_parts(name): encodable_parts(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encodable_parts(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def printable(text: str) -> str:
    """A text that terminals and pages may show: encodable, without control signs and secrets."""
    return encodable(redacted(text)).translate(_INERT)
