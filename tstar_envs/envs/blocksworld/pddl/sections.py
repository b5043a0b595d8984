"""PDDL files as lists within lists, and the sections of a problem."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from tstar_envs.data.expressions import Expressions, Unbalanced, read_expressions, without_comments
from tstar_envs.errors import BadData

EXPECTED = "expected a problem of the 4-operator Blocksworld domain (tstar_envs.envs.blocksworld.domain_pddl() writes it)"
_DOMAIN_START = re.compile(r"\(\s*+define\s*+\(\s*+domain\b", re.IGNORECASE)
_PROBLEM_START = re.compile(r"\(\s*+define\s*+\(\s*+problem\b", re.IGNORECASE)


def is_domain(text: str) -> bool:
    """Whether a PDDL text is a domain and no problem."""
    code = without_comments(text.removeprefix("\ufeff"))
    return _DOMAIN_START.match(code.lstrip()) is not None and _PROBLEM_START.search(code) is None


def fail(where: str, what: str, item: Any = None) -> NoReturn:
    """Raise BadData, with the line on which ``item`` begins."""
    raise BadData(f"{where}: {what}{f' (line {item.line})' if isinstance(item, Expressions) else ''}")


def read_sections(text: str, where: str) -> dict[str, Expressions]:
    """The sections of a problem by keyword, each without it.

    Args:
        text: contents of a file.
        where: what the text is called in errors.

    Raises:
        BadData: it is not one problem with the sections that a problem needs.
    """
    text = text.removeprefix("\ufeff")  # the mark that some editors begin a file with
    if is_domain(text):
        fail(where, f"this is a domain, not a problem; {EXPECTED}")
    code = without_comments(text)
    if len(_PROBLEM_START.findall(code)) + len(_DOMAIN_START.findall(code)) > 1:
        fail(
            where,
            "more than one (define ...), a domain and a problem or several problems; put each into a file of its own",
        )
    tree = _parse(text, where)
    if len(tree) != 1 or not isinstance(tree[0], list) or tree[0][:1] != ["define"]:
        fail(where, f"not one (define ...) but {text[:60]!r}; {EXPECTED}")
    sections: dict[str, Expressions] = {}
    for part in tree[0][1:]:
        if not isinstance(part, Expressions) or not part or not isinstance(part[0], str):
            fail(where, f"{written(part)} is no section; {EXPECTED}", part)
        if part[0] in sections:
            fail(where, f"section {part[0]} occurs twice", part)
        sections[part[0]] = part
    for keyword in ("problem", ":objects", ":init", ":goal"):
        if keyword not in sections:
            fail(where, f"section ({keyword} ...) is missing; {EXPECTED}")
    for keyword in (":constraints", ":htn"):
        if keyword in sections:
            fail(
                where,
                f"section ({keyword} ...) would be part of the task, and is not read",
                sections[keyword],
            )
    for section in sections.values():
        del section[0]
    return sections


def _parse(text: str, where: str) -> Expressions:
    """A text as lists within lists."""
    try:
        return read_expressions(text)
    except Unbalanced as error:
        if error.missing:
            fail(where, f"{error.missing} closing parentheses are missing (line {error.line})")
        fail(where, f"a closing parenthesis too many (line {error.line})")


def written(item: Any) -> str:
    """A piece of the text for an error message, cut to a readable length. Goes one level deep: texts may be nested without end."""
    if isinstance(item, list):
        item = f"({' '.join(part if isinstance(part, str) else '(...)' for part in item[:20])})"
    return str(item) if len(str(item)) <= 80 else f"{str(item)[:80]}..."
