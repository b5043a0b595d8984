"""Parsing of chat completions, and of tool calls in their text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tstar_envs.agents.base import Call, plausible_count
from tstar_envs.data.files import parse_json
from tstar_envs.errors import BadData
from tstar_envs.redaction import encodable_parts, redacted

_THOUGHT_PARTS = ("thinking", "reasoning", "reasoning_content")
_LINE_END = re.compile(
    "\r\n|\n|\r"
)  # of a stream of events; texts in it may hold other separators as they are
_QUOTED = 200  # characters of a completion quoted in a message


class Unreadable(Exception):
    """Unreadable completion; a retry may help."""


class ToolCall(NamedTuple):
    """Tool call: id, name of the function, arguments as JSON text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Answer:
    """Parsed completion of a model.

    Attributes:
        text: text of the message.
        reasoning: thoughts, if the server returns them separately.
        tool_calls: tool calls of the message.
        call: tokens, time and tries.
        message: the assistant's message verbatim, for models that need their own extra fields back.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    call: Call
    message: Mapping[str, Any] = field(default_factory=dict)


def parse_body(content: bytes, streamed: bool) -> dict[str, Any]:
    """Parse the body of a response into a completion; every text is encodable as UTF-8.

    Args:
        streamed: True if the body is an event stream; its chunks are merged into one completion.

    Raises:
        Unreadable: neither a completion nor a stream of one.
    """
    text = content.decode("utf-8-sig", "replace")
    try:
        if streamed or text.lstrip()[:6] in ("data: ", "data:{", "event:"):
            return _together(_events(text))
        body: dict[str, Any] = encodable_parts(parse_json(text, "the answer", object))
    except BadData as error:
        raise Unreadable(f"an unreadable answer: {error}: {_quoted(text)}") from None
    if (
        isinstance(body, list) and body and isinstance(body[0], dict) and body[0].get("error")
    ):  # Gemini wraps its errors in a list
        body = body[0]
    if not isinstance(body, dict):
        raise Unreadable(f"an unreadable answer: {_quoted(text)}")
    return body


def read_answer(body: Mapping[str, Any], purpose: str, tries: int, seconds: float) -> Answer:
    """Extract the answer from a completion.

    Args:
        purpose: purpose of the request, see ``Call``.

    Raises:
        Unreadable: there is no message, or it holds anything but text and calls.
    """
    first = _first_choice(body)
    message = first.get("message")
    if not isinstance(message, dict):
        raise Unreadable(f"an unreadable answer: {_quoted(json.dumps(body))}")
    message = _with_call_list(message)
    text, thought = _words(message)
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = plausible_count(details.get("cached_tokens")) if isinstance(details, dict) else None
    call = Call(
        purpose,
        round(seconds, 4),
        plausible_count(usage.get("prompt_tokens")),
        plausible_count(usage.get("completion_tokens")),
        cached_tokens=cached or 0,
        tries=tries,
        finish=str(first.get("finish_reason") or "")[:100],
    )
    return Answer(text, thought, _calls(message), call, message)


def error_in(body: Mapping[str, Any]) -> Any:
    """Find an error in a response of status 200, or in its first choice; None if there is none."""
    if body.get("error"):
        return body["error"]
    if body.get("object") == "error":
        return dict(body)
    first = _first_choice(body)
    if first.get("error"):
        return first["error"]
    return {"message": "finish_reason is 'error'"} if first.get("finish_reason") == "error" else None


def _first_choice(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first choice of a completion or chunk, an empty one if there is none."""
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else {}


def _words(message: Mapping[str, Any]) -> tuple[str, str]:
    """Extract the text and the separate thoughts of a message."""
    content = message.get("content")
    text, thought = "", ""
    if isinstance(content, str):
        text = content
    elif isinstance(content, list):
        for part in content:
            if isinstance(part, str):
                text += part
            elif isinstance(part, dict) and (
                part.get("type") in _THOUGHT_PARTS or part.get("thought") is True
            ):
                thought += _flat(part)
            elif isinstance(part, dict):
                text += _flat(part)
    elif content is not None:
        raise Unreadable(f"an unreadable answer: content {_quoted(repr(content))}")
    for name in ("reasoning_content", "reasoning", "thinking"):
        if not thought and isinstance(separate := message.get(name), str):
            thought = separate
    return text, thought


def _flat(part: Any) -> str:
    """Extract the text of a part of a message, including nested parts."""
    if isinstance(part, str):
        return part
    if isinstance(part, list):
        return "".join(map(_flat, part))
    if isinstance(part, dict):
        return next(
            (_flat(part[name]) for name in ("text", "value", *_THOUGHT_PARTS, "refusal") if part.get(name)),
            "",
        )
    return ""


def _with_call_list(message: dict[str, Any]) -> dict[str, Any]:
    """Normalize tool calls to a list: a single call, a flat one, and OpenAI's legacy form too."""
    given = message.get("tool_calls")
    if not given and isinstance(message.get("function_call"), dict):
        given = [{"function": message["function_call"]}]
        message = {name: value for name, value in message.items() if name != "function_call"}
    if isinstance(given, dict):
        given = [given]
    if not isinstance(given, list):
        return message
    flat = ("name", "arguments")
    calls = [
        {
            **{k: v for k, v in call.items() if k not in flat},
            "function": {k: call[k] for k in flat if k in call},
        }
        if isinstance(call, dict) and "function" not in call and "name" in call
        else call
        for call in given
    ]
    return {**message, "tool_calls": calls}


def _calls(message: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    """Extract the tool calls of a message, each with an id and arguments as JSON text."""
    given = message.get("tool_calls") or []
    if not isinstance(given, list):
        raise Unreadable(f"an unreadable answer: tool_calls {_quoted(repr(given))}")
    calls = []
    for number, call in enumerate(given):
        function = call.get("function") if isinstance(call, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict) or not isinstance(name, str):
            raise Unreadable(f"an unreadable answer: a tool call {_quoted(repr(call))}")
        arguments = function.get("arguments")
        arguments = (
            arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
        )
        calls.append(ToolCall(str(call.get("id") or f"call_{number}"), name, arguments))
    return tuple(calls)


def _events(text: str) -> Iterator[dict[str, Any]]:
    """Iterate over the chunks of an event stream.

    Raises:
        Unreadable: the stream is incomplete.
        BadData: a chunk is not a JSON object.
    """
    ended = False
    for line in _LINE_END.split(text):
        data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            ended = True
        elif data:
            chunk: dict[str, Any] = encodable_parts(parse_json(data, "an event"))
            ended = ended or bool(chunk.get("error") or _first_choice(chunk).get("finish_reason"))
            yield chunk
    if not ended:
        raise Unreadable(f"an unreadable answer: the stream broke off: {redacted(text)[-_QUOTED:]}")


def _together(chunks: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Merge the chunks of a stream into one completion."""
    words: dict[str, list[str]] = {}
    others: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    usage: Any = None
    finish: Any = None
    for chunk in chunks:
        if chunk.get("error"):
            return {"error": chunk["error"]}
        usage = chunk.get("usage") or usage
        first = _first_choice(chunk)
        finish = first.get("finish_reason") or finish
        if first.get("error"):
            return {"error": first["error"]}
        delta = first.get("delta")
        for name, value in (delta if isinstance(delta, dict) else {}).items():
            if name == "tool_calls" and isinstance(value, list):
                _add_calls(calls, value)
            elif isinstance(value, str) and name != "role":
                words.setdefault(name, []).append(value)
            elif isinstance(value, list):
                before = others.get(name)
                others[name] = [*(before if isinstance(before, list) else ()), *value]
            elif value is not None:
                others[name] = value
    if not (words or others or calls or finish):
        raise Unreadable("an unreadable answer: a stream without a message")
    message = {**others, **{name: "".join(pieces) for name, pieces in words.items()}, "role": "assistant"}
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


def _add_calls(calls: dict[int, dict[str, Any]], pieces: Sequence[Any]) -> None:
    """Append a chunk's fragments of tool calls to those of earlier chunks."""
    for piece in pieces:
        if not isinstance(piece, dict):
            raise Unreadable(f"an unreadable answer: a tool call {_quoted(repr(piece))}")
        index = piece.get("index")
        call = calls.setdefault(index if isinstance(index, int) else len(calls), {})
        function = piece.get("function")
        call.update(
            {
                name: value
                for name, value in piece.items()
                if name not in ("function", "index") and value is not None
            }
        )
        whole = call.setdefault("function", {})
        for name, value in (function if isinstance(function, dict) else {}).items():
            together = name == "arguments" and isinstance(value, str) and isinstance(whole.get(name), str)
            whole[name] = whole[name] + value if together else value


def _quoted(text: str) -> str:
    return redacted(text)[:_QUOTED]


# Opening and closing marks of a call, or of a list of calls.
_MARKS = (
    ("<tool_call>", "</tool_call>"),  # Hermes, Qwen, GLM, Granite 4, Hunyuan
    ("<invoke name=", "</invoke>"),  # MiniMax, Claude, DeepSeek V3.2
    ("<function=", "</function>"),  # Qwen3-Coder, Seed-OSS, Llama 3.1
    ("[TOOL_CALLS]", "</s>"),  # Mistral
    ("<|python_tag|>", "<|eom_id|>"),  # Llama
    ("<|tool_call_begin|>", "<|tool_call_end|>"),  # Kimi
    ("<\uff5ctool\u2581call\u2581begin\uff5c>", "<\uff5ctool\u2581call\u2581end\uff5c>"),  # DeepSeek
    ("<|tool_call_start|>", "<|tool_call_end|>"),  # LFM
    ("<|tool_call|>", "<|/tool_call|>"),  # Granite 3, Phi
    ("<|START_ACTION|>", "<|END_ACTION|>"),  # Command A
    ("<|plugin|>", "<|action_end|>"),  # InternLM
    ("<TOOLCALL>", "</TOOLCALL>"),  # Nemotron
    ("<tool_calls>", "</tool_calls>"),  # Jamba
    ("```tool_code", "```"),  # Gemma
)
_BETWEEN = (
    "[ARGS]",
    "<|tool_call_argument_begin|>",
    "<\uff5ctool\u2581sep\uff5c>",
)  # a name and its arguments
_DSML = "\uff5cDSML\uff5c"  # in the tags of DeepSeek V3.2
# gpt-oss addresses its calls; the name may stand before or after the channel.
_ADDRESSED = re.compile(
    r"to=functions\.(?P<name>[\w\-]{1,64})(?:[^<]|<\|(?:channel|constrain)\|>){0,80}<\|message\|>"
)
_BLOCK_MARK = re.compile(r"```(?:json)?")
_PARAMETER = re.compile(r"<parameter name=[\"']?(?P<name>[\w\-]{1,64})[^<>]{0,80}>")
_NAMED = re.compile(r"[\"']?(?P<name>[\w\-.]{1,64}+)[\"']?[^<>]{0,80}>")
_PYTHON_CALL = re.compile(r"\[?\s{0,8}(?P<name>[A-Za-z_][\w.]{0,63})\(")
_KEYWORD = re.compile(
    r"(?<!\w)(?P<name>\w{1,64})\s{0,4}=\s{0,4}(?P<value>\"[^\"\\]*+(?:\\.[^\"\\]*+)*+\"|'[^'\\]*+(?:\\.[^'\\]*+)*+')"
)
_MOST_PYTHON = 5_000  # characters of a call in Python syntax


def written_calls(text: str, names: Sequence[str]) -> tuple[ToolCall, ...]:
    """Parse tool calls in the text of a message.

    Args:
        names: names of the tools. A bare JSON object or a bare call counts only if it names one of them.
    """
    text = text.replace(_DSML, "")
    found: list[tuple[str, str]] = []
    for mark, end in _MARKS:
        pieces = [piece.partition(end)[0].strip() for piece in text.split(mark)[1:]]
        found = [call for piece in pieces for call in _written(mark, piece)]
        if found:
            break
    if not found:
        alone = _BLOCK_MARK.sub("", text).strip()
        found = [call for call in (*_listed(alone), *_as_in_python(alone)) if call[0] in names]
    return tuple(ToolCall(f"written_{n}", *call) for n, call in enumerate(found))


def addressed_calls(text: str) -> tuple[ToolCall, ...]:
    """Parse the calls in gpt-oss's channels, anywhere in its output: text addressed to a tool is not thought."""
    calls = [
        (call["name"], text[call.end() :].partition("<|")[0].strip()) for call in _ADDRESSED.finditer(text)
    ]
    return tuple(ToolCall(f"written_{n}", *call) for n, call in enumerate(calls))


def _written(mark: str, piece: str) -> list[tuple[str, str]]:
    """Parse name and arguments of the calls in the text after an opening mark."""
    if mark in ("<function=", "<invoke name="):
        return _tagged(piece)
    if piece.startswith("<function="):
        return _tagged(piece.removeprefix("<function=").partition("</function>")[0])
    for between in _BETWEEN:
        head, found, arguments = piece.partition(between)
        if found:
            if head.strip() == "function":  # DeepSeek V3 writes the type of a call first
                head, _, arguments = arguments.partition("\n")
            return [(_name(head), _BLOCK_MARK.sub("", arguments).strip())]
    name, _, rest = piece.partition("\n")
    name, _, more = name.partition("<arg_key>")
    rest = f"<arg_key>{more}\n{rest}" if more else rest
    if "<arg_key>" in rest:
        return [(name.strip(), json.dumps(_keys(rest)))]
    if rest.strip().startswith("```"):
        return [(name.strip(), _BLOCK_MARK.sub("", rest).strip())]
    return _listed(piece) or _as_in_python(piece)


def _name(head: str) -> str:
    """Extract ``move`` from Kimi's ``functions.move:0``."""
    return head.strip().removeprefix("functions.").partition(":")[0]


def _tagged(piece: str) -> list[tuple[str, str]]:
    """Parse a call with its name and arguments in tags, or with JSON arguments."""
    named = _NAMED.match(piece)
    if named is None:
        return []
    rest = piece[named.end() :].strip()
    if rest.startswith("{"):
        return [(named["name"], rest)]
    values = {}
    for parameter in rest.split("<parameter=")[1:]:
        key, _, value = parameter.partition(">")
        values[key.strip()] = value.partition("</parameter>")[0].strip()
    for found in _PARAMETER.finditer(rest):
        values[found["name"]] = rest[found.end() :].partition("</parameter>")[0].strip()
    return [(named["name"], json.dumps(values))]


def _keys(text: str) -> dict[str, str]:
    """Parse arguments in GLM's tags."""
    values = {}
    for pair in text.split("<arg_key>")[1:]:
        key, _, rest = pair.partition("</arg_key>")
        values[key.strip()] = rest.partition("<arg_value>")[2].partition("</arg_value>")[0].strip()
    return values


def _listed(piece: str) -> list[tuple[str, str]]:
    """Parse one JSON call, or a list of them."""
    try:
        content: Any = parse_json(piece, "a call", object)
    except BadData:
        return []
    calls = []
    for call in content if isinstance(content, list) else [content]:
        name = call.get("name", call.get("tool_name")) if isinstance(call, dict) else None
        if isinstance(name, str):
            given = call.get("arguments", call.get("parameters", {}))
            calls.append((name, given if isinstance(given, str) else json.dumps(given)))
    return calls


def _as_in_python(piece: str) -> list[tuple[str, str]]:
    """Parse a call in Python syntax (Llama 4, LFM, Gemma): ``[move(direction="Up")]``."""
    named = _PYTHON_CALL.match(piece) if len(piece) <= _MOST_PYTHON else None
    if named is None:
        return []
    given = {found["name"]: found["value"][1:-1] for found in _KEYWORD.finditer(piece, named.end())}
    return [(named["name"], json.dumps(given))]
