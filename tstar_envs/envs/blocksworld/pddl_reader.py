"""Reading Blocksworld problems in PDDL, of the 4-operator STRIPS domain, plain or in mystery words.

What is read: objects (types are ignored, and so are facts such as ``(block a)`` which only say them), an initial state that is one
complete configuration, and a goal that is a conjunction of facts. ``(not ...)`` in the initial state says what is so anyhow.
``on-table``, ``hand-empty``, ``armempty`` and the like are read as ``ontable`` and ``handempty``. Other forms of the domain (without a
hand, with a robot, with goals that are no conjunctions) are refused by their names. PDDL knows no upper case, so names come out
in lower case.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NoReturn

from tstar_envs.data.limits import PROBLEM_OBJECTS
from tstar_envs.envs.blocksworld.problem import Problem
from tstar_envs.envs.blocksworld.rules import (
    ARITY,
    CLEAR,
    HAND,
    HANDEMPTY,
    HOLDING,
    ON,
    ONTABLE,
    TABLE,
    Fact,
    Goal,
    State,
    contradiction,
    fact_holds,
    towers,
)
from tstar_envs.envs.blocksworld.vocabulary import MYSTERY, PLAIN, Vocabulary
from tstar_envs.errors import BadData

_ALIASES = {
    "armempty": HANDEMPTY,
    "emptyhand": HANDEMPTY,
    "emptyarm": HANDEMPTY,
}  # with - and _ left out, as in all predicates
_NO_CONJUNCTION = frozenset(
    ("not", "or", "imply", "forall", "exists", "when", "preference", "=", "<", ">", "<=", ">=")
)
_HANDLESS = (
    "; without any fact about the hand this is a problem of the 3-operator domain (move-b-to-b, move-b-to-t, move-t-to-b), "
    "which is not played: add (handempty)"
)
_A_TABLE = "; what stands on the table is written (ontable x)"
_OF_A_HAND = (HANDEMPTY, HOLDING)
_TYPES = (
    "block",
    "isblock",
    "object",
    "thing",
    "cube",
)  # predicates that say nothing but what everything here is
_TOKEN = re.compile(r"[()]|[^\s()]+")
_COMMENT = re.compile(r";[^\n]*+")
_NAME = re.compile(r"[a-z0-9_][a-z0-9_-]{0,99}")
_EXPECTED = "expected a problem of the 4-operator Blocksworld domain (tstar_envs.envs.blocksworld.domain_pddl() writes it)"


def state_facts(state: State) -> list[Fact]:
    """Every fact that holds in a state."""
    facts = [] if HAND in state else [Fact(HANDEMPTY)]
    for block, under in enumerate(state):
        facts.append(
            Fact(HOLDING, block)
            if under == HAND
            else Fact(ONTABLE, block)
            if under == TABLE
            else Fact(ON, block, under)
        )
        if under != HAND and block not in state:
            facts.append(Fact(CLEAR, block))
    return facts


_DOMAIN_START = re.compile(r"\(\s*+define\s*+\(\s*+domain\b", re.IGNORECASE)
_PROBLEM_START = re.compile(r"\(\s*+define\s*+\(\s*+problem\b", re.IGNORECASE)


def is_domain(text: str) -> bool:
    """Whether a PDDL text is a domain and no problem."""
    code = _COMMENT.sub("", text.removeprefix("\ufeff"))
    return _DOMAIN_START.match(code.lstrip()) is not None and _PROBLEM_START.search(code) is None


def read_problem(text: str, where: str) -> tuple[Problem, Vocabulary]:
    """Read a problem file.

    Args:
        text: its contents.
        where: what the text is called in errors (a file name).

    Returns:
        The problem, and the vocabulary it is written in.

    Raises:
        BadData: it is no such problem; the message names ``where`` and what is wrong.
    """
    return _Reader(text, where).problem()


class _List(list[Any]):
    """A list in parentheses, and the number of the line on which it begins."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


class _Reader:
    """One text being read; every complaint names where it comes from."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        self._number: dict[str, int] = {}
        self._types: dict[str, str] = {}
        self._sections = self._split(
            text.removeprefix("\ufeff")
        )  # the mark that some editors begin a file with
        facts = self._sections[":init"]
        mystery = any(
            isinstance(fact, list) and fact and fact[0] in MYSTERY.predicates.values() for fact in facts
        )
        self._vocabulary = MYSTERY if mystery else PLAIN
        self._predicates = {word: fact for fact, word in self._vocabulary.predicates.items()} | (
            {} if mystery else _ALIASES
        )

    def _fail(self, what: str, item: Any = None) -> NoReturn:
        raise BadData(f"{self._where}: {what}{f' (line {item.line})' if isinstance(item, _List) else ''}")

    def _split(self, text: str) -> Mapping[str, _List]:
        """The sections of the problem by keyword."""
        if is_domain(text):
            self._fail(f"this is a domain, not a problem; {_EXPECTED}")
        code = _COMMENT.sub("", text)
        if len(_PROBLEM_START.findall(code)) + len(_DOMAIN_START.findall(code)) > 1:
            self._fail(
                "more than one (define ...), a domain and a problem or several problems; put each into a file of its own"
            )
        tree = self._tree(text)
        if len(tree) != 1 or not isinstance(tree[0], list) or tree[0][:1] != ["define"]:
            self._fail(f"not one (define ...) but {text[:60]!r}; {_EXPECTED}")
        sections: dict[str, _List] = {}
        for part in tree[0][1:]:
            if not isinstance(part, _List) or not part or not isinstance(part[0], str):
                self._fail(f"{_written(part)} is no section; {_EXPECTED}", part)
            if part[0] in sections:
                self._fail(f"section {part[0]} occurs twice", part)
            sections[part[0]] = part
        for keyword in ("problem", ":objects", ":init", ":goal"):
            if keyword not in sections:
                self._fail(f"section ({keyword} ...) is missing; {_EXPECTED}")
        for keyword in (":constraints", ":htn"):
            if keyword in sections:
                self._fail(
                    f"section ({keyword} ...) would be part of the task, and is not read", sections[keyword]
                )
        for section in sections.values():
            del section[0]
        return sections

    def _tree(self, text: str) -> _List:
        stack = [_List(0)]
        for number, line in enumerate(text.split("\n"), start=1):
            for token in _TOKEN.findall(_COMMENT.sub("", line).lower()):
                if token == "(":
                    stack.append(_List(number))
                elif token == ")":
                    if len(stack) == 1:
                        self._fail(f"a closing parenthesis too many (line {number})")
                    inner = stack.pop()
                    stack[-1].append(inner)
                else:
                    stack[-1].append(token)
        if len(stack) > 1:
            self._fail(f"{len(stack) - 1} closing parentheses are missing", stack[-1])
        return stack[0]

    def problem(self) -> tuple[Problem, Vocabulary]:
        names = self._objects()
        self._number = {name: block for block, name in enumerate(names)}
        start = self._start(names)
        goal_section = self._sections[":goal"]
        if len(goal_section) != 1:
            self._fail("(:goal ...) must hold one condition: a fact, or (and fact ...)", goal_section)
        wanted = [item for item in self._conjuncts(goal_section[0]) if not self._says_a_type(item)]
        goal = Goal(tuple(self._fact(item, ":goal") for item in wanted), len(names))
        if problem := contradiction(goal, names):
            self._fail(f"the goal cannot be reached: {problem}", goal_section)
        return Problem(names, start, goal), self._vocabulary

    def _objects(self) -> tuple[str, ...]:
        section = self._sections[":objects"]
        items = [*self._sections.get(":constants", ()), *section]
        names: dict[str, None] = {}
        untyped: list[str] = []
        reading = iter(items)
        for item in reading:
            if item == "-":
                kind = next(reading, None)
                self._types |= dict.fromkeys(untyped, _written(kind))
                untyped = []
            elif not isinstance(item, str) or not _NAME.fullmatch(item):
                self._fail(f"(:objects ...) holds {_written(item)}, which is no name", section)
            elif item in names:
                self._fail(f"(:objects ...) names {item} twice", section)
            else:
                names[item] = None
                untyped.append(item)
        most = PROBLEM_OBJECTS.value()
        if not 1 <= len(names) <= most:
            advice = f"; {PROBLEM_OBJECTS.variable} allows more" if names else ""
            self._fail(f"(:objects ...) must name 1 to {most} blocks, not {len(names)}{advice}", section)
        return tuple(names)

    def _conjuncts(self, condition: Any) -> list[Any]:
        """The facts of a condition, ``and`` taken apart at any depth."""
        found, waiting = [], [condition]
        while waiting:
            item = waiting.pop()
            if isinstance(item, list) and item[:1] == ["and"]:
                waiting += reversed(item[1:])
            else:
                found.append(item)
        return found

    def _word(self, item: Any) -> str:
        """The predicate of a fact as this module calls it, "" if the item is no fact of the domain."""
        if not isinstance(item, list) or not item or not isinstance(item[0], str):
            return ""
        return self._predicates.get(item[0].replace("-", "").replace("_", ""), "")

    def _fact(self, item: Any, section: str) -> Fact:
        predicate = self._word(item)
        if not predicate:
            form = (
                item[0]
                if isinstance(item, list) and item and isinstance(item[0], str) and item[0] in _NO_CONJUNCTION
                else ""
            )
            advice = (
                f"; conditions with ({form} ...) are not read, only conjunctions of facts" if form else ""
            )
            known = ", ".join(self._vocabulary.predicates.values())
            self._fail(
                f"({section} ...) holds {_written(item)}, which is no fact of the domain; its predicates are {known}{advice}",
                item,
            )
        arguments = item[1:]
        if len(arguments) != ARITY[predicate]:
            advice = "; forms of the domain with several hands or robots are not read" * (
                predicate in _OF_A_HAND
            )
            found = f"({section} ...) holds {_written(item)}: {item[0]} takes {ARITY[predicate]} blocks, not {len(arguments)}"
            self._fail(found + advice, item)
        for name in arguments:
            if not isinstance(name, str) or name not in self._number:
                advice = (
                    _A_TABLE
                    if name == "table"
                    else "; constants of a domain file are not read: name them in (:objects ...)"
                )
                self._fail(
                    f"({section} ...) holds {_written(item)}, but {_written(name)} is not among the objects{advice}",
                    item,
                )
        return Fact(predicate, *(self._number[name] for name in arguments))

    def _start(self, names: tuple[str, ...]) -> State:
        """The configuration that the facts of the initial state describe."""
        facts, denied = [], []
        for item in self._conjuncts(_all_of(self._sections[":init"])):
            if isinstance(item, list) and item[:1] == ["="]:
                continue  # costs change no plan
            if isinstance(item, list) and item[:1] == ["not"] and len(item) == 2:
                denied.append((self._fact(item[1], ":init"), item))
            elif not self._says_a_type(item):
                facts.append(self._fact(item, ":init"))
        below: dict[int, int] = {}
        for fact in facts:
            if fact.predicate in (ON, ONTABLE, HOLDING):
                place = HAND if fact.predicate == HOLDING else fact.under
                if below.setdefault(fact.block, place) != place:
                    self._fail(
                        f"in (:init ...) {names[fact.block]} is in two places", self._sections[":init"]
                    )
        for block, name in enumerate(names):
            if block not in below:
                kind = (
                    f"; it is of type {self._types[name]}"
                    if len(set(self._types.values())) > 1 and name in self._types
                    else ""
                )
                kind = kind or _A_TABLE * (name == "table")
                advice = f"{kind}: only blocks are objects here, no hand, robot or table" if kind else ""
                self._fail(f"(:init ...) does not say where {name} is{advice}", self._sections[":init"])
        state = tuple(below[block] for block in range(len(names)))
        self._check_places(state, names)
        self._compare(state, facts, names)
        for fact, item in denied:
            if fact_holds(state, fact):
                self._fail(
                    f"in (:init ...) {_written(item[1])} is denied, but follows from the places of the blocks",
                    item,
                )
        return state

    def _says_a_type(self, item: Any) -> bool:
        """Whether a fact is of no predicate of the domain and of one block: ``(block a)``."""
        if (
            self._word(item)
            or not isinstance(item, list)
            or len(item) != 2
            or not all(isinstance(part, str) for part in item)
        ):
            return False
        return item[0].replace("-", "").replace("_", "") in _TYPES and item[1] in self._number

    def _check_places(self, state: State, names: tuple[str, ...]) -> None:
        """Every block stands on one that carries no other, and in the end on the table."""
        section = self._sections[":init"]
        for under, count in Counter(state).items():
            if under >= 0 and count > 1:
                self._fail(f"in (:init ...) {count} blocks are on {names[under]}", section)
        if state.count(HAND) > 1:
            self._fail(f"in (:init ...) {state.count(HAND)} blocks are held", section)
        for block, under in enumerate(state):
            if under >= 0 and state[under] == HAND:
                self._fail(f"in (:init ...) {names[block]} is on a block that is held", section)
        standing = {block for tower in towers(state) for block in tower}
        for block, under in enumerate(state):
            if block not in standing and under != HAND:
                self._fail(
                    f"in (:init ...) {names[block]} is in a circle of blocks, with no table below", section
                )

    def _compare(self, state: State, facts: list[Fact], names: tuple[str, ...]) -> None:
        """The facts about clear blocks and the hand must be those of the configuration."""
        given, true = set(facts), set(state_facts(state))
        for fact in sorted(given ^ true):
            words = [self._vocabulary.predicates[fact.predicate], *(names[block] for block in fact.arguments)]
            fault = (
                "is missing, but follows from the places of the blocks"
                if fact in true
                else "contradicts the places of the blocks"
            )
            form = _HANDLESS if fact.predicate == HANDEMPTY and fact in true else ""
            self._fail(f"in (:init ...) ({' '.join(words)}) {fault}{form}", self._sections[":init"])


def _all_of(section: _List) -> list[Any]:
    """A section as one condition."""
    return ["and", *section]


def _written(item: Any) -> str:
    """A piece of the text for an error message, cut to a readable length. Goes one level deep: texts may be nested without end."""
    if isinstance(item, list):
        item = f"({' '.join(part if isinstance(part, str) else '(...)' for part in item[:20])})"
    return str(item) if len(str(item)) <= 80 else f"{str(item)[:80]}..."
