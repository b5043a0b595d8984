"""PDDL files as lists within lists, and the sections of a problem."""

from __future__ import annotations

import re
from typing import Any, NoReturn

from tstar_envs.errors import BadData

EXPECTED = "expected a problem of the 4-operator Blocksworld domain (tstar_envs.envs.blocksworld.domain_pddl() writes it)"
_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*+")
_DOMAIN_START = re.compile(r"\(\s*+define\s*+\(\s*+domain\b", re.IGNORECASE)
_PROBLEM_START = re.compile(r"\(\s*+define\s*+\(\s*+problem\b", re.IGNORECASE)


class PddlList(list[Any]):
    """A list in parentheses, and the number of the line on which it begins."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


def is_domain(text: str) -> bool:
    """Whether a PDDL text is a domain and no problem."""
    code = _COMMENT.sub("", text.removeprefix("\ufeff"))
    return _DOMAIN_START.match(code.lstrip()) is not None and _PROBLEM_START.search(code) is None


def fail(where: str, what: str, item: Any = None) -> NoReturn:
    """Raise BadData, with the line on which ``item`` begins."""
    raise BadData(f"{where}: {what}{f' (line {item.line})' if isinstance(item, PddlList) else ''}")


def read_sections(text: str, where: str) -> dict[str, PddlList]:
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
    code = _COMMENT.sub("", text)
    if len(_PROBLEM_START.findall(code)) + len(_DOMAIN_START.findall(code)) > 1:
        fail(
            where,
            "more than one (define ...), a domain and a problem or several problems; put each into a file of its own",
        )
    tree = _parse(text, where)
    if len(tree) != 1 or not isinstance(tree[0], list) or tree[0][:1] != ["define"]:
        fail(where, f"not one (define ...) but {text[:60]!r}; {EXPECTED}")
    sections: dict[str, PddlList] = {}
    for part in tree[0][1:]:
        if not isinstance(part, PddlList) or not part or not isinstance(part[0], str):
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


def _parse(text: str, where: str) -> PddlList:
    """A text as lists within lists."""
    stack = [PddlList(0)]
    for number, line in enumerate(text.split("\n"), start=1):
        for token in _TOKEN.findall(_COMMENT.sub("", line).lower()):
            if token == "(":
                stack.append(PddlList(number))
            elif token == ")":
                if len(stack) == 1:
                    fail(where, f"a closing parenthesis too many (line {number})")
                inner = stack.pop()
                stack[-1].append(inner)
            else:
                stack[-1].append(token)
    if len(stack) > 1:
        fail(where, f"{len(stack) - 1} closing parentheses are missing", stack[-1])
    return stack[0]


def written(item: Any) -> str:
    """A piece of the text for an error message, cut to a readable length. Goes one level deep: texts may be nested without end."""
    if isinstance(item, list):
        item = f"({' '.join(part if isinstance(part, str) else '(...)' for part in item[:20])})"
    return str(item) if len(str(item)) <= 80 else f"{str(item)[:80]}..."
