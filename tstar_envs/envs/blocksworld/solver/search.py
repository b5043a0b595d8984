"""Iterative deepening (IDA*) over extra moves: moves that put a block on the table, to be moved once more later.

The length of a plan in operators is twice the number of blocks that must move plus twice the number of extra moves; only
for these is anything to be searched (see ``moves``). The search starts from an admissible count: a block that must move and
stands above a block of its own goal support that must move as well needs an extra move. Choices are tried in an order that
the state fixes, and the first success counts, so the plan is a function of the state alone: following it never changes the
rest of it, whatever was asked before.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import NoReturn

from tstar_envs.envs.blocksworld.goal import Goal
from tstar_envs.envs.blocksworld.solver.moves import Move, MoveRules, carry, inverse
from tstar_envs.envs.blocksworld.state import TABLE, State
from tstar_envs.errors import SolverLimit

MOST_NODES = 100_000  # of a search, some seconds; shipped problems need dozens, a hundred blocks in random towers no end of them
MOST_EXTRA = 300  # extra moves, each a call within a call


class Search:
    """Optimal moves between states with an empty hand, for one goal.

    Args:
        goal: to be reached.
        held: see ``moves.MoveRules``.
        end: when it gives up, a time of ``time.monotonic``.
        seconds: how long that is, for the message.
    """

    def __init__(self, goal: Goal, held: int | None, end: float = inf, seconds: float = inf) -> None:
        self.rules = MoveRules(goal, held)
        self._end, self._seconds = end, seconds
        self._at_least = 0  # operators of a plan, as far as is known
        self._failed: dict[State, int] = {}
        self._nodes = 0

    def moves(self, state: State) -> list[tuple[Move, bool]]:
        """An optimal list of moves, each with whether it is its block's last."""
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
        """Moves to the goal with at most ``extra`` extra moves, None if there are none. Changes its arguments."""
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
