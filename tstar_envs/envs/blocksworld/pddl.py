"""Reading and writing Blocksworld in PDDL: the 4-operator STRIPS domain, plain or in mystery words.

What is read: objects (types are ignored), an initial state that is one complete configuration, and a goal that is a
conjunction of facts. ``on-table`` and ``arm-empty``, as some generators write, are read as ``ontable`` and ``handempty``.
PDDL knows no upper case, so names come out in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

from tstar_envs.envs.blocksworld.problem import Problem
from tstar_envs.envs.blocksworld.rules import (
    ARITY,
    CLEAR,
    HAND,
    HANDEMPTY,
    HOLDING,
    ON,
    ONTABLE,
    PICK_UP,
    PUT_DOWN,
    STACK,
    TABLE,
    UNSTACK,
    Fact,
    Goal,
    State,
    contradiction,
)
from tstar_envs.envs.blocksworld.vocabulary import MYSTERY, PLAIN, Vocabulary
from tstar_envs.errors import BadData

MOST_BLOCKS = 100  # optimal planning is NP-hard and observations are bounded; nothing of use is larger
_ALIASES = {"on-table": ONTABLE, "arm-empty": HANDEMPTY}
_TOKEN = re.compile(r"[()]|[^\s()]+")
_NAME = re.compile(r"[a-z0-9_][a-z0-9_-]*")
_EXPECTED = "expected a problem of the 4-operator Blocksworld domain (tstar_envs.envs.blocksworld.domain_pddl() writes it)"
_DOMAIN = """\
(define (domain {domain})
  (:requirements :strips)
  (:predicates ({clear} ?x) ({ontable} ?x) ({handempty}) ({holding} ?x) ({on} ?x ?y))
  (:action {pick}
    :parameters (?x)
    :precondition (and ({clear} ?x) ({ontable} ?x) ({handempty}))
    :effect (and ({holding} ?x) (not ({clear} ?x)) (not ({ontable} ?x)) (not ({handempty}))))
  (:action {put}
    :parameters (?x)
    :precondition ({holding} ?x)
    :effect (and ({clear} ?x) ({ontable} ?x) ({handempty}) (not ({holding} ?x))))
  (:action {stack}
    :parameters (?x ?y)
    :precondition (and ({holding} ?x) ({clear} ?y))
    :effect (and ({on} ?x ?y) ({clear} ?x) ({handempty}) (not ({holding} ?x)) (not ({clear} ?y))))
  (:action {unstack}
    :parameters (?x ?y)
    :precondition (and ({on} ?x ?y) ({clear} ?x) ({handempty}))
    :effect (and ({holding} ?x) ({clear} ?y) (not ({on} ?x ?y)) (not ({clear} ?x)) (not ({handempty})))))
"""


def write_domain(vocabulary: Vocabulary = PLAIN) -> str:
    """The domain file."""
    verbs = vocabulary.verbs
    return _DOMAIN.format(
        domain=vocabulary.domain, pick=verbs[PICK_UP], put=verbs[PUT_DOWN], stack=verbs[STACK], unstack=verbs[UNSTACK],
        **vocabulary.predicates,
    )  # fmt: skip


def write_problem(problem: Problem, title: str, vocabulary: Vocabulary = PLAIN) -> str:
    """The problem file; ``title`` becomes part of its name, what PDDL forbids replaced; mystery leaves it out, as it may name blocks."""

    def written(fact: Fact) -> str:
        blocks = [problem.names[block] for block in fact.arguments]
        return f"({' '.join([vocabulary.predicates[fact.predicate], *blocks])})"

    name = f"{vocabulary.domain}-{re.sub(r'[^a-z0-9_-]+', '-', title.lower()) if vocabulary is PLAIN else 'problem'}"
    return (
        f"(define (problem {name})\n"
        f"  (:domain {vocabulary.domain})\n"
        f"  (:objects {' '.join(problem.names)})\n"
        f"  (:init {' '.join(map(written, state_facts(problem.start)))})\n"
        f"  (:goal (and {' '.join(map(written, problem.goal.facts))})))\n"
    )


def state_facts(state: State) -> list[Fact]:
    """Every fact that holds in a state."""
    facts = [] if HAND in state else [Fact(HANDEMPTY)]
    for block, under in enumerate(state):
        facts.append(Fact(HOLDING, block) if under == HAND else Fact(ONTABLE, block) if under == TABLE else Fact(ON, block, under))
        if under != HAND and block not in state:
            facts.append(Fact(CLEAR, block))
    return facts


def is_domain(text: str) -> bool:
    """Whether a PDDL text is a domain and no problem."""
    return [token.lower() for token in _tokens(text)[:4]] == ["(", "define", "(", "domain"]


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


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(re.sub(r";[^\n]*", "", text.removeprefix("\ufeff")))  # the mark that some editors begin a file with


class _Reader:
    """One text being read; every complaint names where it comes from."""

    def __init__(self, text: str, where: str) -> None:
        self._where = where
        self._number: dict[str, int] = {}
        self._sections = self._split(text)
        facts = self._sections[":init"]
        mystery = any(isinstance(fact, list) and fact and fact[0] in MYSTERY.predicates.values() for fact in facts)
        self._vocabulary = MYSTERY if mystery else PLAIN
        self._predicates = {word: fact for fact, word in self._vocabulary.predicates.items()} | ({} if mystery else _ALIASES)

    def _fail(self, what: str) -> NoReturn:
        raise BadData(f"{self._where}: {what}")

    def _split(self, text: str) -> Mapping[str, list[Any]]:
        """The sections of the problem by keyword."""
        if is_domain(text):
            self._fail(f"this is a domain, not a problem; {_EXPECTED}")
        tree = self._tree([token.lower() for token in _tokens(text)])
        if len(tree) != 1 or not isinstance(tree[0], list) or tree[0][:1] != ["define"]:
            self._fail(f"not one (define ...) but {text[:60]!r}; {_EXPECTED}")
        sections: dict[str, list[Any]] = {}
        for part in tree[0][1:]:
            if not isinstance(part, list) or not part or not isinstance(part[0], str):
                self._fail(f"{_written(part)} is no section; {_EXPECTED}")
            if part[0] in sections:
                self._fail(f"section {part[0]} occurs twice")
            sections[part[0]] = part[1:]
        for keyword in ("problem", ":objects", ":init", ":goal"):
            if keyword not in sections:
                self._fail(f"section ({keyword} ...) is missing; {_EXPECTED}")
        return sections

    def _tree(self, tokens: list[str]) -> list[Any]:
        stack: list[list[Any]] = [[]]
        for token in tokens:
            if token == "(":
                stack.append([])
            elif token == ")":
                if len(stack) == 1:
                    self._fail("a closing parenthesis too many")
                inner = stack.pop()
                stack[-1].append(inner)
            else:
                stack[-1].append(token)
        if len(stack) > 1:
            self._fail(f"{len(stack) - 1} closing parentheses are missing")
        return stack[0]

    def problem(self) -> tuple[Problem, Vocabulary]:
        names = self._objects()
        self._number = {name: block for block, name in enumerate(names)}
        facts = [item for item in self._sections[":init"] if not (isinstance(item, list) and item[:1] == ["="])]  # costs change no plan
        start = self._start([self._fact(item, ":init") for item in facts], names)
        if len(self._sections[":goal"]) != 1:
            self._fail("(:goal ...) must hold one condition: a fact, or (and fact ...)")
        goal = Goal(tuple(self._fact(item, ":goal") for item in self._conjuncts(self._sections[":goal"][0])), len(names))
        if problem := contradiction(goal, names):
            self._fail(f"the goal cannot be reached: {problem}")
        return Problem(names, start, goal), self._vocabulary

    def _objects(self) -> tuple[str, ...]:
        names: list[str] = []
        items = iter(self._sections[":objects"])
        for item in items:
            if item == "-":
                next(items, None)  # a type
            elif not isinstance(item, str) or not _NAME.fullmatch(item):
                self._fail(f"(:objects ...) holds {_written(item)}, which is no name")
            elif item in names:
                self._fail(f"(:objects ...) names {item} twice")
            else:
                names.append(item)
        if not 1 <= len(names) <= MOST_BLOCKS:
            self._fail(f"(:objects ...) must name 1 to {MOST_BLOCKS} blocks, not {len(names)}")
        return tuple(names)

    def _conjuncts(self, condition: Any) -> list[Any]:
        """The facts of a condition, ``and`` taken apart at any depth."""
        found, waiting = [], [condition]
        while waiting:
            item = waiting.pop(0)
            if isinstance(item, list) and item[:1] == ["and"]:
                waiting = item[1:] + waiting
            else:
                found.append(item)
        return found

    def _fact(self, item: Any, section: str) -> Fact:
        if not isinstance(item, list) or not item or not isinstance(item[0], str) or item[0] not in self._predicates:
            known = ", ".join(self._vocabulary.predicates.values())
            self._fail(f"({section} ...) holds {_written(item)}, which is no fact of the domain; its predicates are {known}")
        predicate, arguments = self._predicates[item[0]], item[1:]
        if len(arguments) != ARITY[predicate]:
            self._fail(f"({section} ...) holds {_written(item)}: {item[0]} takes {ARITY[predicate]} blocks, not {len(arguments)}")
        for name in arguments:
            if not isinstance(name, str) or name not in self._number:
                self._fail(f"({section} ...) holds {_written(item)}, but {_written(name)} is not among the objects")
        return Fact(predicate, *(self._number[name] for name in arguments))

    def _start(self, facts: list[Fact], names: tuple[str, ...]) -> State:
        """The configuration that the facts of the initial state describe."""
        below: dict[int, int] = {}
        for fact in facts:
            if fact.predicate in (ON, ONTABLE, HOLDING):
                place = HAND if fact.predicate == HOLDING else fact.under
                if below.setdefault(fact.block, place) != place:
                    self._fail(f"in (:init ...) {names[fact.block]} is in two places")
        for block, name in enumerate(names):
            if block not in below:
                self._fail(f"(:init ...) does not say where {name} is")
        state = tuple(below[block] for block in range(len(names)))
        for block, name in enumerate(names):
            if state.count(block) > 1:
                self._fail(f"in (:init ...) {state.count(block)} blocks are on {name}")
            under, steps = state[block], 0
            while under >= 0:
                under, steps = state[under], steps + 1
                if steps > len(names):
                    self._fail(f"in (:init ...) {name} is in a circle of blocks, with no table below")
            if under == HAND and state[block] != HAND:
                self._fail(f"in (:init ...) {name} is on a block that is held")
        if state.count(HAND) > 1:
            self._fail(f"in (:init ...) {state.count(HAND)} blocks are held")
        self._compare(state, facts, names)
        return state

    def _compare(self, state: State, facts: list[Fact], names: tuple[str, ...]) -> None:
        """The facts about clear blocks and the hand must be those of the configuration."""
        given, true = set(facts), set(state_facts(state))
        for fact in sorted(given ^ true):
            words = [self._vocabulary.predicates[fact.predicate], *(names[block] for block in fact.arguments)]
            fault = "is missing, but follows from the places of the blocks" if fact in true else "contradicts the places of the blocks"
            self._fail(f"in (:init ...) ({' '.join(words)}) {fault}")


def _written(item: Any) -> str:
    """A piece of the text for an error message, cut to a readable length. Goes one level deep: texts may be nested without end."""
    if isinstance(item, list):
        item = f"({' '.join(part if isinstance(part, str) else '(...)' for part in item)})"
    return str(item) if len(item) <= 80 else f"{item[:80]}..."
