"""Optimal planner: iterative deepening over moves of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import NamedTuple, NoReturn

from tstar_envs.envs.blocksworld.problem import (
    ANYWHERE,
    HAND,
    PICK_UP,
    PUT_DOWN,
    SOLVER_SECONDS,
    STACK,
    TABLE,
    UNSTACK,
    Goal,
    Operator,
    State,
    goal_towers,
    transition,
)
from tstar_envs.errors import SolverLimit

Move = tuple[int, int]  # block, new place


class MoveRules:
    """Move rules for one goal, between configurations with an empty hand.

    A configuration is two lists: the place below each block, and the block above it (``TABLE`` for none).

    Args:
        goal: the goal.
        held: block that the hand holds in the end, None for none. Like the goal's clear blocks it must end without a block on it.
    """

    def __init__(self, goal: Goal, held: int | None) -> None:
        self._below = goal.below
        self.held = held
        self._bare = goal.clear if held is None else goal.clear | {held}
        self._on_top = {under: block for block, under in goal.places if under != TABLE}
        # Blocks are tried in the order of the goal's facts, the others by number.
        named = [block for block, _ in goal.places]
        self._order = named + [b for b in range(goal.blocks) if b not in set(named)]
        self._towers = [[block for block in tower if block != TABLE] for tower in goal_towers(goal)]

    def must_move(self, below: Sequence[int], above: Sequence[int]) -> list[bool]:
        """Compute for each block whether it must move; ``above`` is the inverse of ``below``."""
        must = [False] * len(below)
        for bottom, under in enumerate(below):
            if under != TABLE:
                continue
            block, moving = bottom, False
            while block != TABLE:
                moving = moving or self._misplaced(block, below[block])
                must[block] = moving
                block = above[block]
        return must

    def _misplaced(self, block: int, under: int) -> bool:
        """Check whether a block must move because of itself or the block below it."""
        if self._below[block] not in (ANYWHERE, under):
            return True
        if under == TABLE:
            return False
        # The block that must be held leaves its place anyway.
        return self._on_top.get(under, block) != block or (under in self._bare and block != self.held)

    def least_extra(self, below: list[int], must: list[bool]) -> int:
        """Compute a lower bound of the extra moves.

        These are the blocks above a moving part of their own goal support.
        """
        count = 0
        for block, moving in enumerate(must):
            if not moving or below[block] == TABLE:
                continue
            support, wanted = set(), self._below[block]
            while wanted >= 0:
                support.add(wanted)
                wanted = self._below[wanted]
            under = below[block]
            while under != TABLE:
                if under in support and must[under]:
                    count += 1
                    break
                under = below[under]
        return count

    def in_the_way(self, above: list[int], must: list[bool]) -> dict[int, None]:
        """Order the blocks to move aside.

        Those that cover the next block of a tower, or its place, come first.
        """
        order: dict[int, None] = {}
        for tower in self._towers:
            following = next((block for block in tower if must[block]), TABLE)
            for block in (following, self._below[following] if following != TABLE else TABLE):
                if block >= 0:
                    while above[block] != TABLE:
                        block = above[block]
                    order[block] = None
        return order | dict.fromkeys(self._order)

    def final_move(self, above: list[int], must: list[bool]) -> Move | None:
        """Find the first block that can go to its final place now; building before clearing."""
        clearing: Move | None = None
        for block in self._order:
            if must[block] and above[block] == TABLE:
                wanted = self._below[block]
                if wanted < 0:
                    clearing = clearing or (block, TABLE)
                elif above[wanted] == TABLE and not must[wanted]:
                    return block, wanted
        return clearing

    def drop(self, state: State, held: int) -> Move:
        """Choose the place for a held block: its final place if that is ready, else the table."""
        below = [TABLE if under == HAND else under for under in state]
        above = inverse(below)
        wanted = self._below[held]
        ready = wanted >= 0 and above[wanted] == TABLE and not self.must_move(below, above)[wanted]
        return held, wanted if ready else TABLE


def inverse(below: Sequence[int]) -> list[int]:
    """Compute the block above each block, ``TABLE`` for none."""
    above = [TABLE] * len(below)
    for block, under in enumerate(below):
        if under >= 0:
            above[under] = block
    return above


def carry(below: list[int], above: list[int], block: int, place: int) -> None:
    """Move a clear block, updating both lists of a configuration."""
    if below[block] >= 0:
        above[below[block]] = TABLE
    below[block] = place
    if place >= 0:
        above[place] = block


def blocks_to_move(state: State, goal: Goal) -> list[bool]:
    """Compute for each block whether it must move before the goal can hold.

    A held block must.
    """
    must = MoveRules(goal, goal.held).must_move(state, inverse(state))
    return [moving or under == HAND for moving, under in zip(must, state, strict=True)]


MOST_NODES = 100_000  # nodes per search, some seconds; shipped problems need dozens
MOST_EXTRA = 300  # extra moves; each is a level of recursion


class Search:
    """Search for optimal moves between states with an empty hand, for one goal.

    Args:
        goal: the goal.
        held: see ``MoveRules``.
        end: deadline, a time of ``time.monotonic``.
        seconds: the timeout in seconds, for the error message.
    """

    def __init__(self, goal: Goal, held: int | None, end: float = inf, seconds: float = inf) -> None:
        self.rules = MoveRules(goal, held)
        self._end, self._seconds = end, seconds
        self._at_least = 0  # lower bound of the plan length
        self._failed: dict[State, int] = {}
        self._nodes = 0

    def moves(self, state: State) -> list[tuple[Move, bool]]:
        """Compute an optimal list of moves, each with True if it is its block's last."""
        below, above = list(state), inverse(state)
        must = self.rules.must_move(below, above)
        extra = self.rules.least_extra(below, must)
        self._failed.clear()
        while True:
            self._at_least = 2 * (sum(must) + extra)
            if extra > MOST_EXTRA:
                self._give_up(below, f"with {MOST_EXTRA} extra moves")
            found = self._deepen(below[:], above[:], must[:], extra)
            if found is not None:
                return found
            extra += 1

    def _deepen(
        self, below: list[int], above: list[int], must: list[bool], extra: int
    ) -> list[tuple[Move, bool]] | None:
        """Search for moves to the goal with at most ``extra`` extra moves.

        Returns None if there are none. Modifies its arguments.
        """
        self._nodes += 1
        if self._nodes > MOST_NODES:
            self._give_up(below, f"in {MOST_NODES:,} steps of the search")
        if monotonic() > self._end:
            self._give_up(below, f"in {self._seconds:g} seconds (solver_seconds allows more)")
        done: list[tuple[Move, bool]] = []
        while (move := self.rules.final_move(above, must)) is not None:
            carry(below, above, *move)
            must[move[0]] = False
            done.append((move, True))
        if not any(must):
            return done
        if extra == 0 or self.rules.least_extra(below, must) > extra:
            return None
        key = tuple(below)
        if self._failed.get(key, -1) >= extra:
            return None
        for block in self.rules.in_the_way(above, must):
            if must[block] and above[block] == TABLE and below[block] != TABLE:
                new_below, new_above = below[:], above[:]
                carry(new_below, new_above, block, TABLE)
                rest = self._deepen(new_below, new_above, must[:], extra - 1)
                if rest is not None:
                    return [*done, ((block, TABLE), False), *rest]
        self._failed[key] = extra
        return None

    def _give_up(self, below: Sequence[int], when: str) -> NoReturn:
        error = SolverLimit(
            f"no shortest plan for these {len(below)} blocks was found {when}; the problem can be "
            "played, but the expert's help and lengths need a smaller one"
        )
        error.at_least = self._at_least
        raise error


class Step(NamedTuple):
    """Step of a plan.

    It has the operator, and True if its move brings the block to its final place.
    """

    operator: Operator
    final: bool


def optimal_plan(state: State, goal: Goal, seconds: float = SOLVER_SECONDS) -> list[Step]:
    """Compute a shortest plan, empty if the goal holds; deterministic for state and goal.

    Every goal without a contradiction (``problem.contradiction``) is reachable from every state.

    Raises:
        SolverLimit: the search gave up after ``MOST_NODES`` nodes (problems of 20 blocks need hundreds), or after the timeout.
    """
    if goal.holds(state):
        return []
    best: list[Step] | None = None
    end = monotonic() + seconds
    candidates = _last_holds(goal)
    for held in candidates:
        try:
            plan = _plan(state, goal, Search(goal, held, end, seconds))
        except SolverLimit as error:
            error.at_least *= len(candidates) == 1  # with another held block it might be less
            raise
        if best is None or len(plan) < len(best):
            best = plan
    return best or []


def _last_holds(goal: Goal) -> list[int | None]:
    """List the blocks that the hand may hold at the end of an optimal plan.

    The final put-down can only be saved if clearing a block is a goal by itself, because facts about places need a put-down.
    """
    if goal.held is not None:
        return [goal.held]
    if goal.hand_empty or not goal.clear:
        return [None]
    covered = {under for _, under in goal.places if under >= 0}
    free = [
        b
        for b in range(goal.blocks)
        if goal.below[b] == ANYWHERE and b not in covered and b not in goal.clear
    ]
    return [None, *free]


def _plan(state: State, goal: Goal, search: Search) -> list[Step]:
    """Compute a shortest plan that ends with a search's held block (None for an empty hand)."""
    held = search.rules.held
    plan: list[Step] = []
    if HAND in state:
        block, place = search.rules.drop(state, state.index(HAND))
        operator = Operator(PUT_DOWN, block) if place == TABLE else Operator(STACK, block, place)
        plan.append(Step(operator, place == goal.below[block] or goal.below[block] == ANYWHERE))
        state = transition(state, operator)
    below = list(state)
    for (block, place), final in search.moves(state):
        plan.append(Step(_take(block, below[block]), final))
        plan.append(
            Step(Operator(PUT_DOWN, block) if place == TABLE else Operator(STACK, block, place), final)
        )
        below[block] = place
    if held is not None:
        plan.append(Step(_take(held, below[held]), True))
    return plan


def _take(block: int, under: int) -> Operator:
    return Operator(PICK_UP, block) if under == TABLE else Operator(UNSTACK, block, under)
