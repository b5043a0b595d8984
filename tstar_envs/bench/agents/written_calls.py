"""Calls of tools that a server without a parser for its model left in the text, in the forms of many models."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tstar_envs.bench.agents.answers import ToolCall
from tstar_envs.data.files import parse_json
from tstar_envs.errors import BadData

# What begins a call, or a list of them, and what ends it.
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
# gpt-oss addresses its calls; the name may stand before the channel or after.
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
_MOST_PYTHON = 5_000  # characters of a call that is written as in Python


def written_calls(text: str, names: Sequence[str]) -> tuple[ToolCall, ...]:
    """Calls that stand in the text.

    Args:
        text: what follows the model's thoughts.
        names: of the tools; an object or call alone is one only if it names one of them.
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
    """Calls in gpt-oss's channels, in all that it wrote: what is addressed to a tool is no thought."""
    calls = [
        (call["name"], text[call.end() :].partition("<|")[0].strip()) for call in _ADDRESSED.finditer(text)
    ]
    return tuple(ToolCall(f"written_{n}", *call) for n, call in enumerate(calls))


def _written(mark: str, piece: str) -> list[tuple[str, str]]:
    """Name and arguments of the calls in the piece behind a mark."""
    if mark in ("<function=", "<invoke name="):
        return _tagged(piece)
    if piece.startswith("<function="):
        return _tagged(piece.removeprefix("<function=").partition("</function>")[0])
    for between in _BETWEEN:
        head, found, arguments = piece.partition(between)
        if found:
            if head.strip() == "function":  # DeepSeek V3 says of what type a call is
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
    """``move`` of Kimi's ``functions.move:0``."""
    return head.strip().removeprefix("functions.").partition(":")[0]


def _tagged(piece: str) -> list[tuple[str, str]]:
    """A call whose name and arguments stand in tags, or its arguments as JSON."""
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
    """Arguments in GLM's tags."""
    values = {}
    for pair in text.split("<arg_key>")[1:]:
        key, _, rest = pair.partition("</arg_key>")
        values[key.strip()] = rest.partition("<arg_value>")[2].partition("</arg_value>")[0].strip()
    return values


def _listed(piece: str) -> list[tuple[str, str]]:
    """Calls in JSON, one or a list."""
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
    """A call as Llama 4, LFM and Gemma write it: ``[move(direction="Up")]``."""
    named = _PYTHON_CALL.match(piece) if len(piece) <= _MOST_PYTHON else None
    if named is None:
        return []
    given = {found["name"]: found["value"][1:-1] for found in _KEYWORD.finditer(piece, named.end())}
    return [(named["name"], json.dumps(given))]
