"""S-expressions (PDDL) as lists within lists, with the lines on which they begin."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*+")


class Expressions(list[Any]):
    """A list in parentheses, of words and lists.

    Attributes:
        line: on which it begins, from 1; 0 for the list of all that a text holds.
    """

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


class Unbalanced(ValueError):
    """A parenthesis that closes nothing, or some that nothing closes.

    Attributes:
        missing: how many closing ones are missing; 0 where there is one too many.
        line: of the one too many, or on which the innermost list begins that is not closed.
    """

    def __init__(self, missing: int, line: int) -> None:
        super().__init__(missing, line)
        self.missing, self.line = missing, line


def without_comments(text: str) -> str:
    """A text without what stands between a semicolon and the end of its line."""
    return _COMMENT.sub("", text)


def read_expressions(text: str, check_depth: Callable[[int], None] | None = None) -> Expressions:
    """All that a text holds, in lower case, as planners read it.

    Args:
        text: the text; comments are left out.
        check_depth: called with how many lists are open, wherever one opens; it may refuse.

    Raises:
        Unbalanced: the parentheses do not match.
    """
    stack = [Expressions(0)]
    for number, line in enumerate(without_comments(text).lower().split("\n"), start=1):
        for token in _TOKEN.findall(line):
            if token == "(":
                stack.append(Expressions(number))
                if check_depth is not None:
                    check_depth(len(stack))
            elif token == ")":
                if len(stack) == 1:
                    raise Unbalanced(0, number)
                done = stack.pop()
                stack[-1].append(done)
            else:
                stack[-1].append(token)
    if len(stack) > 1:
        raise Unbalanced(len(stack) - 1, stack[-1].line)
    return stack[0]
