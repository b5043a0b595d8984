"""Compares the PDDL domain of a game file with ALFWorld's, which is what the rules of this project play."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

from tstar_envs.envs.alfworld.published.expressions import Expression, read_definition
from tstar_envs.errors import BadData

# Digests of the operators of alfred.pddl in alfworld 0.4.2; tests make them anew from that package.
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
    "cleanobject": "731e18d0af02c512",
    "heatobject": "dd783873a5df2c77",
    "coolobject": "1ca66574d754dcdc",
    "toggleobject": "ffdae885a427fe11",
    "sliceobject": "06a8ffc452335f24",
    "help": "ec4138a9b7d27fac",
}


def digest(value: Any) -> str:
    """A short name of what a JSON value says."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def operator_digest(operator: Expression) -> str:
    """A short name of what an operator does: of it without what changes no game (costs, and the order in ``and`` and ``or``)."""
    return digest(_plain(operator))


def check_domain(domain: str, where: str) -> None:
    """Refuse a domain whose operators are not ALFWorld's.

    Args:
        domain: field ``pddl_domain`` of a game file.
        where: how errors call the file.

    Raises:
        BadData: no PDDL, or an operator that differs, is missing or is none of ALFWorld's; it is named.
    """
    fault = _fault(domain)
    if fault:
        raise BadData(f"{where}: {fault}")


@lru_cache(maxsize=16)  # games of one release share a domain of 17 KB
def _fault(domain: str) -> str:
    try:
        parts = read_definition(domain, "field 'pddl_domain'", "domain")
    except BadData as error:
        return str(error)
    operators = {
        str(part[1]): part[2:]
        for part in parts
        if isinstance(part, list) and len(part) > 1 and part[0] == ":action"
    }
    for name in sorted({*operators, *OPERATORS}):
        if name not in operators:
            if name != "help":  # games before ALFWorld 0.4 know no help
                return f"the domain lacks ALFWorld's operator {name!r}; the rules of this project would play another game"
        elif operator_digest(operators[name]) != OPERATORS.get(name):
            return f"the domain's operator {name!r:.60} is not ALFWorld's; the rules of this project would play another game"
    return ""


def _plain(expression: Expression) -> Expression:
    if not isinstance(expression, list):
        return expression
    inner = [_plain(part) for part in expression if not (isinstance(part, list) and part[:1] == ["increase"])]
    return [inner[0], *sorted(inner[1:], key=repr)] if inner[:1] in (["and"], ["or"]) else inner
