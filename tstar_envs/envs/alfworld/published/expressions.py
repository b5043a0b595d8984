"""The one expression of a PDDL file."""

from __future__ import annotations

from typing import TypeAlias

from tstar_envs.data.expressions import Expressions, Unbalanced, read_expressions
from tstar_envs.data.limits import JSON_DEPTH
from tstar_envs.errors import BadData

Expression: TypeAlias = "str | list[Expression]"


def read_definition(text: str, where: str, what: str = "problem") -> list[Expression]:
    """The parts of a ``(define ...)`` expression, in lower case, as planners read them.

    Args:
        text: PDDL.
        where: how errors call the file.
        what: "problem" or "domain", for the message.

    Raises:
        BadData: not one such expression, or brackets nested more deeply than the limit.
    """

    def check_depth(depth: int) -> None:
        if depth > 20:  # looking the limit up takes its time
            JSON_DEPTH.check(depth, f"{where}, PDDL {what}")

    try:
        found = read_expressions(text, check_depth)
    except Unbalanced as error:
        if not error.missing:
            raise BadData(f"{where}: the PDDL {what} closes a bracket that it did not open") from None
        found = Expressions(0)
    whole: Expression | None = found[0] if found else None
    if not isinstance(whole, list) or whole[:1] != ["define"]:
        raise BadData(
            f"{where}: the PDDL {what} must be one expression (define ...), with every bracket closed"
        )
    return whole
