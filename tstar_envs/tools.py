"""Typed tools: actions for agents and harnesses that call functions instead of writing action lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tstar_envs.data.files import parse_json
from tstar_envs.errors import BadData
from tstar_envs.react import closing_bracket, render_reply

# Follows the rules if a model calls these tools, since the rules describe actions as text.
TOOLS_NOTE = "Act by calling one of the tools in each turn, instead of writing an Action line; what you think may stand before the call."

NOT_PLAYED = "Not played: one call is played in each turn, the first."


class BadCall(ValueError):
    """Invalid tool call: unknown name, or an argument that is missing, unknown or not among the choices."""


@dataclass(frozen=True)
class Tool:
    """One kind of action as a function.

    Attributes:
        name: name of the function.
        description: description of the function for the model.
        action: template of the action, with the parameters in braces: ``search[{query}]``.
        parameters: parameter name -> description; all are required strings.
        choices: valid values of parameters that have only a few.
    """

    name: str
    description: str
    action: str
    parameters: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]

    def schema(self) -> dict[str, Any]:
        """Build the tool's schema for chat APIs (``tools=[...]``)."""
        properties = {
            name: {
                "type": "string",
                "description": text,
                **({"enum": list(self.choices[name])} if name in self.choices else {}),
            }
            for name, text in self.parameters.items()
        }
        parameters = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": parameters},
        }

    def text(self, arguments: Mapping[str, Any]) -> str:
        """Render a call as an action.

        Raises:
            BadCall: an argument is missing, unknown, not a string, or not among the choices.
        """
        if arguments.keys() != self.parameters.keys():
            raise BadCall(
                f"{self.name} takes {', '.join(self.parameters)}; got {', '.join(map(str, arguments)) or 'nothing'}"
            )
        for name, value in arguments.items():
            if not isinstance(value, str) or not value.strip():
                raise BadCall(f"{self.name}: {name} must be a text, got {value!r:.80}")
            if name in self.choices and value not in self.choices[name]:
                raise BadCall(
                    f"{self.name}: {name} must be one of {', '.join(self.choices[name])}, got {value!r:.80}"
                )
        return self.action.format(**{name: " ".join(value.split()) for name, value in arguments.items()})


def tool(
    name: str,
    description: str,
    action: str,
    choices: Mapping[str, tuple[str, ...]] | None = None,
    /,
    **parameters: str,
) -> Tool:
    """Describe a tool: ``tool("move", "Walk or push.", "{direction}", direction="where to")``."""
    return Tool(name, description, action, parameters, choices or {})


def call_of(tools: tuple[Tool, ...], action: str) -> tuple[str, dict[str, str]] | None:
    """Find the call (name, arguments) for an action, the reverse of ``action_of``; None if impossible."""
    for one in tools:
        pieces = re.split(r"(\{\w+\})", one.action)
        pattern = "".join(
            f"(?P<{piece[1:-1]}>.+)" if piece.startswith("{") else re.escape(piece) for piece in pieces
        )
        match = re.fullmatch(pattern, action, re.IGNORECASE)
        if match is None:
            continue
        arguments = {name: _choice(value, one.choices.get(name)) for name, value in match.groupdict().items()}
        if None not in arguments.values():
            return one.name, {name: value for name, value in arguments.items() if value is not None}
    return None


_CALL = re.compile(r"\s*+(\w{1,40})[ \t]{0,4}([\[(])")
_ARGUMENT = re.compile(r"\s*+(?:(\w{1,40})[ \t]{0,4}[=:][ \t]{0,4})?")
_QUOTES = {'"': '"', "'": "'", "`": "`", "\u201c": "\u201d", "\u2018": "\u2019"}


def written_call(tools: tuple[Tool, ...], action: str) -> str:
    """Convert a call written as text, such as ``search("Oslo")``, ``move[Up]`` or ``stack(block="a", onto="b")``, to its action.

    Args:
        action: action as parsed from a reply.

    Returns:
        ``action`` itself if it is not a valid call of a tool.
    """
    match = _CALL.match(action)
    one = next((one for one in tools if match is not None and one.name == match[1].lower()), None)
    if match is None or one is None:
        return action
    opening = match.end() - 1
    end = closing_bracket(action, opening)
    inside = action[match.end() : end].strip() if end >= 0 else ""
    if match[2] == "[" and one.action.startswith(
        f"{one.name}["
    ):  # the environment's own form, which parses the rest itself
        plain = _unquoted(inside)
        return f"{one.name}[{plain}]{action[end + 1 :]}" if end >= 0 and plain != inside else action
    names = list(one.parameters)
    parts = [inside] if len(names) == 1 else inside.split(",")
    if not inside or len(parts) != len(names):
        return action
    given: dict[str, str] = {}
    for name, part in zip(names, parts, strict=True):
        key = _ARGUMENT.match(part)
        named = key[1] if key is not None and key[1] in names else None
        value = _unquoted((part[key.end() :] if key is not None and named else part).strip())
        chosen = _choice(value, one.choices.get(named or name))
        if chosen is None:
            return action
        given[named or name] = chosen
    try:
        return one.text(given)
    except BadCall:
        return action


def _unquoted(text: str) -> str:
    """Strip one pair of quotes around the whole text."""
    closing = _QUOTES.get(text[:1])
    if closing is None or len(text) < 2 or not text.endswith(closing):
        return text
    inner = text[1:-1]
    return text if text[0] in inner or closing in inner else inner.strip()


def _choice(value: str, choices: tuple[str, ...] | None) -> str | None:
    """Find a value among the choices of a parameter, in any case; None if it is not among them."""
    return (
        value
        if choices is None
        else next((choice for choice in choices if choice.lower() == value.lower()), None)
    )


# Beginnings of possible tags: <think>, </action>, <|channel|>, [/think].
_MARK = re.compile(r"[<\u25c1](?=[\s/|]*+[^\W\d])|\[(?=[\s/]*+(?:think|thought|reason))", re.IGNORECASE)


def inert(thought: str) -> str:
    """Neutralize markup in a separate thought, so that nothing in it parses as an action."""
    return _MARK.sub("\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", thought)


def _in_case(value: Any, choices: tuple[str, ...] | None) -> Any:
    """Convert an argument to the case of its choice, if it is one."""
    return (_choice(value.strip(), choices) or value) if isinstance(value, str) and choices else value


def reply_to_call(tools: tuple[Tool, ...], name: str, arguments: str, thought: str = "") -> tuple[str, str]:
    """Convert a model's call to a reply, with the fault of the call ("" if valid).

    An invalid call is played as an invalid action that quotes it; this costs a step.

    Args:
        arguments: JSON text from the chat API.
        thought: text of the model before the call.
    """
    said = " ".join(inert(thought).split())
    try:
        return render_reply(said, action_of(tools, name, arguments)), ""
    except BadCall as error:
        # One line, without tags, and with a prefix that no action has: nothing in a broken call parses as an action.
        return render_reply(said, f"no call: {inert(' '.join(f'{name}({arguments})'.split()))}"), str(error)


def _object_in(arguments: str) -> str:
    """Extract the arguments' JSON object from a JSON string, a fenced block, or a closing tag."""
    text = arguments.strip().removesuffix("</tool_call>").strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].removesuffix("```").strip()
    if text.startswith('"'):
        try:
            inner = parse_json(text, "the arguments", object)
        except BadData:
            return text
        text = inner if isinstance(inner, str) else text
    return text or "{}"


def action_of(tools: tuple[Tool, ...], name: str, arguments: str) -> str:
    """Convert a model's call to an action.

    Args:
        arguments: JSON text from the chat API.

    Raises:
        BadCall: unknown tool, arguments that are not a JSON object, or invalid ones.
    """
    # Some servers put a namespace before the name, or a mark of the model's own format after it.
    called = name.removeprefix("functions.").partition("<|")[0].strip().lower()
    for one in tools:
        if one.name.lower() == called:
            try:
                given = parse_json(_object_in(arguments), name)
            except BadData as error:
                raise BadCall(
                    f"{name}: the arguments are no JSON object: {error}; got {arguments!r:.200}"
                ) from error
            # As in an action line, any case is accepted.
            return one.text({key: _in_case(value, one.choices.get(key)) for key, value in given.items()})
    raise BadCall(f"there is no tool {name!r}; valid: {', '.join(one.name for one in tools)}")
