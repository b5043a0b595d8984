"""Actions as typed tools, for agents and harnesses that call functions instead of writing action lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tstar_envs.data.files import parse_json
from tstar_envs.errors import BadData
from tstar_envs.react import closing_bracket, render_reply

# What follows the rules where a model calls these tools: the rules describe actions as text.
TOOLS_NOTE = "Act by calling one of the tools in each turn, instead of writing an Action line; what you think may stand before the call."

NOT_PLAYED = "Not played: one call is played in each turn, the first."


class BadCall(ValueError):
    """A call that no tool takes: another name, an argument that is missing, unknown or not among the choices."""


@dataclass(frozen=True)
class Tool:
    """One kind of action.

    Attributes:
        name: of the function.
        description: what it does, for the model.
        action: the action text, with the parameters in braces: ``search[{query}]``.
        parameters: name -> what it is; all are strings and all are required.
        choices: for parameters that take one of a few values.
    """

    name: str
    description: str
    action: str
    parameters: Mapping[str, str]
    choices: Mapping[str, tuple[str, ...]]

    def schema(self) -> dict[str, Any]:
        """The tool's schema in the form that chat APIs take (``tools=[...]``)."""
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
        """The action that a call stands for.

        Raises:
            BadCall: an argument is missing, unknown, no string, or none of the choices.
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
    """The call that stands for an action: (name, arguments), the reverse of ``action_of``; None where no tool can say it."""
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
    """The action that a call written as text stands for, such as ``search("Oslo")``, ``move[Up]`` or ``stack(block="a", onto="b")``.

    Args:
        tools: of the environment.
        action: as it was read from a reply.

    Returns:
        ``action`` itself where it is no call of a tool, or one that does not fit it.
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
    ):  # the environment's own form; what follows it is its business
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
    """A text without one pair of quotes around the whole."""
    closing = _QUOTES.get(text[:1])
    if closing is None or len(text) < 2 or not text.endswith(closing):
        return text
    inner = text[1:-1]
    return text if text[0] in inner or closing in inner else inner.strip()


def _choice(value: str, choices: tuple[str, ...] | None) -> str | None:
    """A value as a parameter takes it: as one of its choices, in whatever case it came; None where it is none of them."""
    return (
        value
        if choices is None
        else next((choice for choice in choices if choice.lower() == value.lower()), None)
    )


# The beginning of what may be a tag: <think>, </action>, <|channel|>, [/think].
_MARK = re.compile(r"[<\u25c1](?=[\s/|]*+[^\W\d])|\[(?=[\s/]*+(?:think|thought|reason))", re.IGNORECASE)


def inert(thought: str) -> str:
    """A separate thought in which nothing can be read as its end or as an action."""
    return _MARK.sub("\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", thought)


def _in_case(value: Any, choices: tuple[str, ...] | None) -> Any:
    """An argument as the tool writes it, where it is one of the choices in another case."""
    return (_choice(value.strip(), choices) or value) if isinstance(value, str) and choices else value


def reply_to_call(tools: tuple[Tool, ...], name: str, arguments: str, thought: str = "") -> tuple[str, str]:
    """What is played of a model's call: the reply, and what is wrong with the call ("" if nothing).

    A call that no tool takes is played as an invalid action that quotes it, which costs a step.

    Args:
        tools: of the environment.
        name: of the function that was called.
        arguments: JSON text, as the chat API gives it.
        thought: what the model said before the call.
    """
    said = " ".join(inert(thought).split())
    try:
        return render_reply(said, action_of(tools, name, arguments)), ""
    except BadCall as error:
        # In one line, without tags, and with words in front that no action has: nothing of a broken call is read as an action.
        return render_reply(said, f"no call: {inert(' '.join(f'{name}({arguments})'.split()))}"), str(error)


def _object_in(arguments: str) -> str:
    """The JSON object in arguments: out of a text in JSON, a block, or the tag that ends a call."""
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
    """The action that a model's call stands for.

    Args:
        tools: of the environment.
        name: of the function that was called.
        arguments: JSON text, as the chat API gives it.

    Raises:
        BadCall: no such tool, arguments that are no JSON object, or wrong ones.
    """
    # Some servers leave a name space in front of the name, or a mark of the model's own form behind it.
    called = name.removeprefix("functions.").partition("<|")[0].strip().lower()
    for one in tools:
        if one.name.lower() == called:
            try:
                given = parse_json(_object_in(arguments), name)
            except BadData as error:
                raise BadCall(
                    f"{name}: the arguments are no JSON object: {error}; got {arguments!r:.200}"
                ) from error
            # As in an action line, case is the model's own business.
            return one.text({key: _in_case(value, one.choices.get(key)) for key, value in given.items()})
    raise BadCall(f"there is no tool {name!r}; valid: {', '.join(one.name for one in tools)}")
