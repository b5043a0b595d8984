"""Reading problems of the 4-operator STRIPS domain, plain or in mystery words.

What is read: objects (types are ignored, and so are facts such as ``(block a)`` which only say them), an initial state that is one
complete configuration, and a goal that is a conjunction of facts. ``(not ...)`` in the initial state says what is so anyhow.
``on-table``, ``hand-empty``, ``armempty`` and the like are read as ``ontable`` and ``handempty``. Other forms of the domain (without a
hand, with a robot, with goals that are no conjunctions) are refused by their names. PDDL knows no upper case, so names come out
in lower case.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from tstar_envs.data.limits import PROBLEM_OBJECTS
from tstar_envs.envs.blocksworld.facts import ARITY, HANDEMPTY, HOLDING, Fact, fact_holds
from tstar_envs.envs.blocksworld.goal import Goal, contradiction
from tstar_envs.envs.blocksworld.pddl.initial_state import check_facts, check_towers, places_of
from tstar_envs.envs.blocksworld.pddl.sections import fail, read_sections, written
from tstar_envs.envs.blocksworld.state import State
from tstar_envs.envs.blocksworld.task import Problem
from tstar_envs.envs.blocksworld.vocabularies import MYSTERY, PLAIN
from tstar_envs.envs.blocksworld.vocabulary import Vocabulary

# With - and _ left out, as in all predicates.
_ALIASES = {"armempty": HANDEMPTY, "emptyhand": HANDEMPTY, "emptyarm": HANDEMPTY}
_NO_CONJUNCTION = frozenset(
    ("not", "or", "imply", "forall", "exists", "when", "preference", "=", "<", ">", "<=", ">=")
)
_A_TABLE = "; what stands on the table is written (ontable x)"
_OF_A_HAND = (HANDEMPTY, HOLDING)
_TYPES = ("block", "isblock", "object", "thing", "cube")  # predicates that hold of everything here
_NAME = re.compile(r"[a-z0-9_][a-z0-9_-]{0,99}")


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


class _Reader:
    """One text being read; every complaint names where it comes from."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        self._number: dict[str, int] = {}
        self._types: dict[str, str] = {}
        self._sections = read_sections(text, where)
        facts = self._sections[":init"]
        mystery = any(
            isinstance(fact, list) and fact and fact[0] in MYSTERY.predicates.values() for fact in facts
        )
        self._vocabulary = MYSTERY if mystery else PLAIN
        self._predicates = {word: fact for fact, word in self._vocabulary.predicates.items()}
        if not mystery:
            self._predicates |= _ALIASES

    def _fail(self, what: str, item: Any = None) -> NoReturn:
        fail(self._where, what, item)

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
                self._types |= dict.fromkeys(untyped, written(kind))
                untyped = []
            elif not isinstance(item, str) or not _NAME.fullmatch(item):
                self._fail(f"(:objects ...) holds {written(item)}, which is no name", section)
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
                f"({section} ...) holds {written(item)}, which is no fact of the domain; its predicates are {known}{advice}",
                item,
            )
        arguments = item[1:]
        if len(arguments) != ARITY[predicate]:
            advice = "; forms of the domain with several hands or robots are not read" * (
                predicate in _OF_A_HAND
            )
            found = f"({section} ...) holds {written(item)}: {item[0]} takes {ARITY[predicate]} blocks, not {len(arguments)}"
            self._fail(found + advice, item)
        for name in arguments:
            if not isinstance(name, str) or name not in self._number:
                advice = (
                    _A_TABLE
                    if name == "table"
                    else "; constants of a domain file are not read: name them in (:objects ...)"
                )
                self._fail(
                    f"({section} ...) holds {written(item)}, but {written(name)} is not among the objects{advice}",
                    item,
                )
        return Fact(predicate, *(self._number[name] for name in arguments))

    def _start(self, names: tuple[str, ...]) -> State:
        """The configuration that the facts of the initial state describe."""
        section = self._sections[":init"]
        facts, denied = [], []
        for item in self._conjuncts(["and", *section]):
            if isinstance(item, list) and item[:1] == ["="]:
                continue  # costs change no plan
            if isinstance(item, list) and item[:1] == ["not"] and len(item) == 2:
                denied.append((self._fact(item[1], ":init"), item))
            elif not self._says_a_type(item):
                facts.append(self._fact(item, ":init"))
        below = places_of(facts, names, self._where, section)
        for block, name in enumerate(names):
            if block not in below:
                kind = ""
                if len(set(self._types.values())) > 1 and name in self._types:
                    kind = f"; it is of type {self._types[name]}"
                kind = kind or _A_TABLE * (name == "table")
                advice = f"{kind}: only blocks are objects here, no hand, robot or table" if kind else ""
                self._fail(f"(:init ...) does not say where {name} is{advice}", section)
        state = tuple(below[block] for block in range(len(names)))
        check_towers(state, names, self._where, section)
        check_facts(state, facts, names, self._vocabulary, self._where, section)
        for fact, item in denied:
            if fact_holds(state, fact):
                denial = (
                    f"in (:init ...) {written(item[1])} is denied, but follows from the places of the blocks"
                )
                self._fail(denial, item)
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
