"""S-expressions (PDDL) as nested lists, with line numbers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*+")


class Expressions(list[Any]):
    """Parenthesized list of words and lists.

    Attributes:
        line: line on which it begins, from 1; 0 for the top-level list of a text.
    """

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


class Unbalanced(ValueError):
    """Unbalanced parentheses.

    Attributes:
        missing: number of missing closing parentheses; 0 if there is a surplus one.
        line: line of the surplus one, or of the innermost unclosed list.
    """

    def __init__(self, missing: int, line: int) -> None:
        super().__init__(missing, line)
        self.missing, self.line = missing, line


def without_comments(text: str) -> str:
    """Strip comments from a text: from a semicolon to the end of the line."""
    return _COMMENT.sub("", text)


def read_expressions(text: str, check_depth: Callable[[int], None] | None = None) -> Expressions:
    """Parse all expressions of a text, in lower case as planners do; comments are skipped.

    Args:
        check_depth: called with the nesting depth at each opening parenthesis; may raise.

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
