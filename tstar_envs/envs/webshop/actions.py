"""Reads an action: exactly as the original does, or as an agent means it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tstar_envs.react import bracket_content


class ParsedAction(NamedTuple):
    """An action: ``name`` and lower-cased ``argument``, and ``problem`` where it is none."""

    name: str
    argument: str
    problem: str = ""

    @property
    def canonical(self) -> str:
        """The action as it is written."""
        return f"{self.name}[{self.argument}]"


def parse_action(action: str) -> ParsedAction:
    r"""Read an action as the original's ``re.match(r'(.+)\[(.+)\]')`` does, in linear time.

    The name is case-sensitive, the argument is lower-cased, the last brackets count, and what follows them is ignored.
    """
    line = action.partition("\n")[0]
    close = line.rfind("]")
    opening = line.rfind("[", 1, max(1, close - 1))
    if close < 0 or opening < 0:
        return ParsedAction("", "", "an action is written search[keywords] or click[button]")
    name, argument = line[:opening], line[opening + 1 : close].lower()
    if name not in ("search", "click"):
        return ParsedAction(
            "", "", f"there is no action {name[:40]!r}; use search[keywords] or click[button]"
        )
    return ParsedAction(name, argument)


def read_action(action: str, buttons: Mapping[str, str]) -> ParsedAction:
    """Read an action as an agent means it: the name in any case, and the bracket that balances ends the argument.

    Args:
        action: what was asked.
        buttons: what the page has to click (``clickables``). One whose text has odd white space or brackets is found as well.
    """
    opening = action.find("[")
    name = action[:opening].strip().lower()
    content = bracket_content(action, opening) if name in ("search", "click") else None
    if content is None:
        return parse_action(action)  # which says what is wrong
    argument = " ".join(content.lower().split())
    if name == "search":
        return (
            ParsedAction(name, argument)
            if argument
            else ParsedAction("", "", "search[...] needs words between the brackets")
        )
    exact = action[opening + 1 : max(action.rfind("]"), opening)].lower()
    for wanted in (exact, argument, argument.strip("\"'`")):
        if wanted in buttons:
            return ParsedAction(name, wanted)
        spaced = [text for text in buttons if " ".join(text.split()) == " ".join(wanted.split())]
        if len(spaced) == 1:
            return ParsedAction(name, spaced[0])
    return ParsedAction(name, argument)
