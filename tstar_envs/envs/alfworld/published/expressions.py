"""PDDL as nested lists of words."""

from __future__ import annotations

import re
from typing import TypeAlias

from tstar_envs.data.limits import JSON_DEPTH
from tstar_envs.errors import BadData

Expression: TypeAlias = "str | list[Expression]"
_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*")


def read_definition(text: str, where: str, what: str = "problem") -> list[Expression]:
    """The parts of a ``(define ...)`` expression, in lower case, as planners read them.

    Args:
        text: PDDL.
        where: how errors call the file.
        what: "problem" or "domain", for the message.

    Raises:
        BadData: not one such expression, or brackets nested more deeply than the limit.
    """
    stack: list[list[Expression]] = [[]]
    for token in _TOKEN.findall(_COMMENT.sub("", text).lower()):
        if token == "(":
            stack.append([])
            if len(stack) > 20:  # looking the limit up takes its time
                JSON_DEPTH.check(len(stack), f"{where}, PDDL {what}")
        elif token == ")":
            if len(stack) == 1:
                raise BadData(f"{where}: the PDDL {what} closes a bracket that it did not open")
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(token)
    whole = stack[0][0] if len(stack) == 1 and stack[0] else None
    if not isinstance(whole, list) or whole[:1] != ["define"]:
        raise BadData(
            f"{where}: the PDDL {what} must be one expression (define ...), with every bracket closed"
        )
    return whole
