"""Problem files: reader and writer of Blocksworld in PDDL, and problems by path."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from tstar_envs.data.expressions import Expressions, Unbalanced, read_expressions, without_comments
from tstar_envs.data.faults import Faults, check_skip_bad
from tstar_envs.data.files import PROBLEM_BYTES, PROBLEM_OBJECTS, find_files, read_text
from tstar_envs.data.locate import PathLike, Stamped, existing, stamped
from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.blocksworld.language import MYSTERY, PLAIN, Vocabulary
from tstar_envs.envs.blocksworld.problem import (
    FACT_ARITY,
    HAND,
    HANDEMPTY,
    HOLDING,
    ON,
    ONTABLE,
    PICK_UP,
    PUT_DOWN,
    STACK,
    UNSTACK,
    Fact,
    Goal,
    Problem,
    State,
    Task,
    contradiction,
    fact_holds,
    state_facts,
    towers,
)
from tstar_envs.envs.blocksworld.tasks import task_set
from tstar_envs.errors import BadData, MissingData
from tstar_envs.utils import SPLITS

EXPECTED = "expected a problem of the 4-operator Blocksworld domain (tstar_envs.envs.blocksworld.domain_pddl() writes it)"
_DOMAIN_START = re.compile(r"\(\s*+define\s*+\(\s*+domain\b", re.IGNORECASE)
_PROBLEM_START = re.compile(r"\(\s*+define\s*+\(\s*+problem\b", re.IGNORECASE)


def is_domain(text: str) -> bool:
    """Check whether a PDDL text is a domain, not a problem."""
    code = without_comments(text.removeprefix("\ufeff"))
    return _DOMAIN_START.match(code.lstrip()) is not None and _PROBLEM_START.search(code) is None


def fail(where: str, what: str, item: Any = None) -> NoReturn:
    """Raise BadData with the line of ``item``."""
    raise BadData(f"{where}: {what}{f' (line {item.line})' if isinstance(item, Expressions) else ''}")


def read_sections(text: str, where: str) -> dict[str, Expressions]:
    """Parse the sections of a problem, by keyword.

    Args:
        text: contents of a file.
        where: name of the text in error messages.

    Raises:
        BadData: not a single problem with all needed sections.
    """
    text = text.removeprefix("\ufeff")  # byte order mark
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
            fail(where, f"{written(part)} is not a section; {EXPECTED}", part)
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
    """Parse a text to nested lists."""
    try:
        return read_expressions(text)
    except Unbalanced as error:
        if error.missing:
            fail(where, f"{error.missing} closing parentheses are missing (line {error.line})")
        fail(where, f"a closing parenthesis too many (line {error.line})")


def written(item: Any) -> str:
    """Format an item for an error message, truncated and only one level deep."""
    if isinstance(item, list):
        item = f"({' '.join(part if isinstance(part, str) else '(...)' for part in item[:20])})"
    return str(item) if len(str(item)) <= 80 else f"{str(item)[:80]}..."


_HANDLESS = (
    "; without any fact about the hand this is a problem of the 3-operator domain (move-b-to-b, move-b-to-t, move-t-to-b), "
    "which is not played: add (handempty)"
)


def places_of(
    facts: Iterable[Fact], names: Sequence[str], where: str, section: Expressions
) -> dict[int, int]:
    """Collect the place of each block in the facts.

    BadData if two facts contradict each other.
    """
    below: dict[int, int] = {}
    for fact in facts:
        if fact.predicate in (ON, ONTABLE, HOLDING):
            place = HAND if fact.predicate == HOLDING else fact.under
            if below.setdefault(fact.block, place) != place:
                fail(where, f"in (:init ...) {names[fact.block]} is in two places", section)
    return below


def check_towers(state: State, names: Sequence[str], where: str, section: Expressions) -> None:
    """Check that blocks form towers on the table, with at most one block on another."""
    for under, count in Counter(state).items():
        if under >= 0 and count > 1:
            fail(where, f"in (:init ...) {count} blocks are on {names[under]}", section)
    if state.count(HAND) > 1:
        fail(where, f"in (:init ...) {state.count(HAND)} blocks are held", section)
    for block, under in enumerate(state):
        if under >= 0 and state[under] == HAND:
            fail(where, f"in (:init ...) {names[block]} is on a block that is held", section)
    standing = {block for tower in towers(state) for block in tower}
    for block, under in enumerate(state):
        if block not in standing and under != HAND:
            fail(
                where, f"in (:init ...) {names[block]} is in a circle of blocks, with no table below", section
            )


def check_facts(
    state: State,
    facts: Iterable[Fact],
    names: Sequence[str],
    vocabulary: Vocabulary,
    where: str,
    section: Expressions,
) -> None:
    """Check that the facts about clear blocks and the hand match the towers."""
    given, true = set(facts), set(state_facts(state))
    for fact in sorted(given ^ true):
        words = [vocabulary.predicates[fact.predicate], *(names[block] for block in fact.arguments)]
        fault = (
            "is missing, but follows from the places of the blocks"
            if fact in true
            else "contradicts the places of the blocks"
        )
        form = _HANDLESS if fact.predicate == HANDEMPTY and fact in true else ""
        fail(where, f"in (:init ...) ({' '.join(words)}) {fault}{form}", section)


# Without - and _, as all predicates.
_ALIASES = {"armempty": HANDEMPTY, "emptyhand": HANDEMPTY, "emptyarm": HANDEMPTY}
_NO_CONJUNCTION = frozenset(
    ("not", "or", "imply", "forall", "exists", "when", "preference", "=", "<", ">", "<=", ">=")
)
_A_TABLE = "; what stands on the table is written (ontable x)"
_OF_A_HAND = (HANDEMPTY, HOLDING)
_TYPES = ("block", "isblock", "object", "thing", "cube")  # predicates that are always true
_NAME = re.compile(r"[a-z0-9_][a-z0-9_-]{0,99}")


def read_problem(text: str, where: str) -> tuple[Problem, Vocabulary]:
    """Parse a problem file.

    Args:
        text: contents of the file.
        where: name of the file in error messages.

    Returns:
        The problem and its vocabulary.

    Raises:
        BadData: not such a problem; the message names ``where`` and the error.
    """
    return _Reader(text, where).problem()


class _Reader:
    """Parser of one text; every error names the text."""

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
                self._fail(f"(:objects ...) holds {written(item)}, which is not a name", section)
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
        """Flatten a condition with nested ``and`` to its facts."""
        found, waiting = [], [condition]
        while waiting:
            item = waiting.pop()
            if isinstance(item, list) and item[:1] == ["and"]:
                waiting += reversed(item[1:])
            else:
                found.append(item)
        return found

    def _word(self, item: Any) -> str:
        """Get the canonical predicate of a fact, "" if it is not one of the domain."""
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
                f"({section} ...) holds {written(item)}, which is not a fact of the domain; its predicates are {known}{advice}",
                item,
            )
        arguments = item[1:]
        if len(arguments) != FACT_ARITY[predicate]:
            advice = "; forms of the domain with several hands or robots are not read" * (
                predicate in _OF_A_HAND
            )
            found = f"({section} ...) holds {written(item)}: {item[0]} takes {FACT_ARITY[predicate]} blocks, not {len(arguments)}"
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
        """Build the initial state from its facts."""
        section = self._sections[":init"]
        facts, denied = [], []
        for item in self._conjuncts(["and", *section]):
            if isinstance(item, list) and item[:1] == ["="]:
                continue  # costs do not matter
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
        """Check for a type fact such as ``(block a)``."""
        if (
            self._word(item)
            or not isinstance(item, list)
            or len(item) != 2
            or not all(isinstance(part, str) for part in item)
        ):
            return False
        return item[0].replace("-", "").replace("_", "") in _TYPES and item[1] in self._number


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
    """Write the domain file."""
    verbs = vocabulary.verbs
    return _DOMAIN.format(
        domain=vocabulary.domain,
        pick=verbs[PICK_UP],
        put=verbs[PUT_DOWN],
        stack=verbs[STACK],
        unstack=verbs[UNSTACK],
        **vocabulary.predicates,
    )


def write_problem(problem: Problem, title: str, vocabulary: Vocabulary = PLAIN) -> str:
    """Write a problem file. ``title`` becomes part of its name, with invalid characters replaced.

    It is omitted in mystery words.
    """

    def line(fact: Fact) -> str:
        blocks = [problem.names[block] for block in fact.arguments]
        return f"({' '.join([vocabulary.predicates[fact.predicate], *blocks])})"

    name = f"{vocabulary.domain}-{re.sub(r'[^a-z0-9_-]+', '-', title.lower()) if vocabulary is PLAIN else 'problem'}"
    return (
        f"(define (problem {name})\n"
        f"  (:domain {vocabulary.domain})\n"
        f"  (:objects {' '.join(problem.names)})\n"
        f"  (:init {' '.join(map(line, state_facts(problem.start)))})\n"
        f"  (:goal (and {' '.join(map(line, problem.goal.facts))})))\n"
    )


def load_path(path: PathLike, option: str = "problems", skip_bad: bool = False) -> LoadedTasks[Task]:
    """Load PDDL problems by path.

    Args:
        path: a problem file, or a folder with ``*.pddl`` problems at any depth (domain files are skipped). The task id is the
            file's name, or its path in the folder with ``/``. The split is the first folder of that path if it is train, valid
            or test, else test.
        option: name of the option in error messages.
        skip_bad: skip unusable files; ``left_out`` of the result tells how many and why.

    Raises:
        MissingData: the path does not exist or has no problem.
        BadData: some files are unusable; all are listed.
    """
    check_skip_bad(skip_bad)
    root = existing(path, option, "a PDDL problem file or a folder of them")
    files = [root]
    if root.is_dir():
        files = sorted(find_files(root, (".pddl",)), key=lambda file: file.relative_to(root).as_posix())
    return _read_files(root, stamped(files), skip_bad)


@lru_cache(maxsize=16)
def _read_files(root: Path, files: Stamped, skip_bad: bool) -> LoadedTasks[Task]:
    """Read problem files."""
    whole_folder = root.is_dir()
    tasks = []
    faults = Faults(skip_bad)
    for file, *_ in files:
        with faults.collect(file):
            text = read_text(file, PROBLEM_BYTES, fallback="latin-1")  # for authors' names in comments
            if whole_folder and is_domain(text):
                continue
            problem, _ = read_problem(text, str(file))
            name = file.relative_to(root).as_posix() if whole_folder else file.name
            first = name.partition("/")[0]
            tasks.append(Task(name, first if first in SPLITS else "test", problem))
    left_out = faults.settle(len(tasks), "problems")
    if not tasks:
        raise MissingData(f"{str(root)!r}: no *.pddl problem in this folder")
    solved = tuple(task.id for task in tasks if task.problem.goal.holds(task.problem.start))
    return replace(task_set("path", tasks), solved=solved, left_out=left_out)
