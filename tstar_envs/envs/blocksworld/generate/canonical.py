"""The canonical form of a problem, equal exactly for problems that differ only in the names of their blocks."""

from __future__ import annotations

from typing import Any

from tstar_envs.envs.blocksworld.goal import Goal
from tstar_envs.envs.blocksworld.state import TABLE, State
from tstar_envs.envs.blocksworld.task import Problem

CanonicalForm = tuple[Any, ...]


def canonical_form(problem: Problem) -> CanonicalForm:
    """A value that two problems share exactly if renaming blocks turns one into the other.

    Every block has at most one block below and one above it, in the start and in the goal, so from any first block all
    blocks connected with it are visited in one order that no name decides. A connected part is described by the least of
    its descriptions over all first blocks, the problem by its parts in order.
    """
    start, goal = problem.start, problem.goal
    relations = [start, _inverse(start), goal.below, _inverse(goal.below)]
    left = set(range(len(start)))
    parts = []
    while left:
        first = min(left)
        part = _visit(first, relations)
        left.difference_update(part)
        parts.append(min(_describe(_visit(block, relations), start, goal) for block in part))
    return goal.hand_empty, *sorted(parts)


def _inverse(below: tuple[int, ...]) -> tuple[int, ...]:
    above = [TABLE] * len(below)
    for block, under in enumerate(below):
        if under >= 0:
            above[under] = block
    return tuple(above)


def _visit(first: int, relations: list[tuple[int, ...]]) -> list[int]:
    """All blocks connected with ``first``, in the order of a breadth-first walk."""
    order, seen = [first], {first}
    for block in order:
        for relation in relations:
            other = relation[block]
            if other >= 0 and other not in seen:
                seen.add(other)
                order.append(other)
    return order


def _describe(order: list[int], start: State, goal: Goal) -> tuple[tuple[int, ...], ...]:
    number = {block: position for position, block in enumerate(order)}
    # What is no block keeps its own (negative) code: table, hand, anywhere.
    return tuple(
        (
            number.get(start[b], start[b]),
            number.get(goal.below[b], goal.below[b]),
            b in goal.clear,
            b == goal.held,
        )
        for b in order
    )
