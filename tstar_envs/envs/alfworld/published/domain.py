"""Reads the PDDL domain of a game file: it must be ALFWorld's, which the rules of this project play, but for the tools of its actions.

Which receptacles clean, heat and cool, and which objects slice, is read as the file says it: the published games let a ``SinkType``
clean beside a ``SinkBasinType``, and the domain in the package ``alfworld`` does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tstar_envs.envs.alfworld.game.facts import TOOLS
from tstar_envs.envs.alfworld.published.expressions import Expression, read_definition
from tstar_envs.envs.alfworld.published.goal import kind_of
from tstar_envs.errors import BadData

# Operator -> (verb, predicate and variable of what it is done with). The types that may stand there are read.
TOOL_OF = {
    "cleanobject": ("clean", "receptacletype", "?r"),
    "heatobject": ("heat", "receptacletype", "?r"),
    "coolobject": ("cool", "receptacletype", "?r"),
    "sliceobject": ("slice", "objecttype", "?ko"),
}
# Digests of the operators of alfred.pddl in alfworld 0.4.2, those types left out; tests make them anew from that package.
OPERATORS = {
    "look": "c5001e4dd3ee0792",
    "inventory": "ec4138a9b7d27fac",
    "examinereceptacle": "a0631b439aa7ca8f",
    "examineobject": "94ab2531ba0dd306",
    "gotolocation": "a6e8c00418f24ec6",
    "openobject": "09169b5db7a39f59",
    "closeobject": "ee4640cf45ae1cfe",
    "pickupobject": "ee933842e9b2e13a",
    "putobject": "2643d0e1ec4eda6e",
    "cleanobject": "1662237273422ced",
    "heatobject": "3626ca4152648eb9",
    "coolobject": "8f553932bd1d966d",
    "toggleobject": "ffdae885a427fe11",
    "sliceobject": "0a61eddc67ae11aa",
    "help": "ec4138a9b7d27fac",
}


def digest(value: Any) -> str:
    """A short name of what a JSON value says."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def operator_digest(operator: Expression) -> str:
    """A short name of what an operator does: of it without what changes no game (costs, and the order in ``and`` and ``or``)."""
    return digest(_plain(operator))


class _Operators(NamedTuple):
    """What of a domain is compared and what is read: a fault ("" for none), and verb -> kinds of what it is done with."""

    fault: str
    tools: Mapping[str, frozenset[str]]


def read_tools(domain: str, where: str) -> Mapping[str, frozenset[str]]:
    """Read what the actions of a domain are done with.

    Args:
        domain: field ``pddl_domain`` of a game file.
        where: how errors call the file.

    Returns:
        As ``facts.TOOLS``: verb -> kinds.

    Raises:
        BadData: no PDDL, or an operator that differs, is missing or is none of ALFWorld's; it is named.
    """
    fault, tools = _read(domain)
    if fault:
        raise BadData(f"{where}: {fault}")
    return tools


@lru_cache(maxsize=16)  # games of one release share a domain of 17 KB
def _read(domain: str) -> _Operators:
    try:
        parts = read_definition(domain, "field 'pddl_domain'", "domain")
    except BadData as error:
        return _Operators(str(error), TOOLS)
    operators = {
        str(part[1]): part[2:]
        for part in parts
        if isinstance(part, list) and len(part) > 1 and part[0] == ":action"
    }
    tools = dict(TOOLS)
    for name in sorted({*operators, *OPERATORS}):
        if name not in operators:
            if name != "help":  # games before ALFWorld 0.4 know no help
                return _Operators(f"the domain lacks ALFWorld's operator {name!r}; {_OTHER_GAME}", TOOLS)
            continue
        operator: Expression = operators[name]
        if name in TOOL_OF:
            verb, *condition = TOOL_OF[name]
            operator, types = without_types(operator, condition)
            tools[verb] = frozenset(map(kind_of, types))
        if operator_digest(operator) != OPERATORS.get(name):
            return _Operators(f"the domain's operator {name!r:.60} is not ALFWorld's; {_OTHER_GAME}", TOOLS)
    return _Operators("", tools)


_OTHER_GAME = "the rules of this project would play another game"


def without_types(operator: Expression, condition: list[str]) -> tuple[Expression, list[str]]:
    """Take the types out of an operator's conditions on one variable.

    Args:
        operator: its parts.
        condition: predicate and variable, such as ``receptacletype ?r``.

    Returns:
        The operator with ``(or predicate variable)`` in place of such a condition, or of an ``or`` of them; and the types.
    """
    if not isinstance(operator, list):
        return operator, []
    choices = operator[1:] if operator[:1] == ["or"] else [operator]
    if choices and all(
        isinstance(choice, list) and len(choice) == 3 and choice[:2] == condition for choice in choices
    ):
        return ["or", *condition], [str(choice[2]) for choice in choices]
    parts, types = [], []
    for part in operator:
        plain, found = without_types(part, condition)
        parts.append(plain)
        types += found
    return parts, types


def _plain(expression: Expression) -> Expression:
    if not isinstance(expression, list):
        return expression
    inner = [_plain(part) for part in expression if not (isinstance(part, list) and part[:1] == ["increase"])]
    return [inner[0], *sorted(inner[1:], key=repr)] if inner[:1] in (["and"], ["or"]) else inner
