"""Optimal plans in operators, from any state to any goal, partial goals included.

The search (``search``) runs over moves of whole towers' tops: a block from its place to another, which is two operators.
"""

from __future__ import annotations

from time import monotonic
from typing import NamedTuple

from tstar_envs.envs.blocksworld.goal import ANYWHERE, Goal
from tstar_envs.envs.blocksworld.operators import PICK_UP, PUT_DOWN, STACK, UNSTACK, Operator, transition
from tstar_envs.envs.blocksworld.solver.search import Search
from tstar_envs.envs.blocksworld.state import HAND, TABLE, State
from tstar_envs.errors import SolverLimit

SOLVER_SECONDS = 20.0


class Step(NamedTuple):
    """An operator of a plan, and whether it belongs to a move that brings its block to its last place."""

    operator: Operator
    final: bool


def optimal_plan(state: State, goal: Goal, seconds: float = SOLVER_SECONDS) -> list[Step]:
    """A shortest plan in operators, empty if the goal holds; the same for the same state and goal.

    Every goal without a contradiction (``goal.contradiction``) can be reached from every state.

    Raises:
        SolverLimit: the search gave up after ``search.MOST_NODES`` nodes (problems of 20 blocks need hundreds), or after so many seconds.
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
            error.at_least *= len(candidates) == 1  # with another block in the hand it might be less
            raise
        if best is None or len(plan) < len(best):
            best = plan
    return best or []


def _last_holds(goal: Goal) -> list[int | None]:
    """What the hand may hold at the end of an optimal plan.

    Putting a block down can be saved at the end only where clearing something is a goal by itself: facts about places come
    true by putting down.
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
    """A shortest plan that ends with what a search wants in the hand (None: nothing)."""
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
