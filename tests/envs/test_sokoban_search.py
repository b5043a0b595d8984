"""The search from both ends in rooms with much space, against tables of all states and lengths found from one end only."""

import random
from math import comb

import pytest

from tstar_envs.envs.sokoban import parse_level, solve
from tstar_envs.envs.sokoban.levels import Room, State, cells
from tstar_envs.envs.sokoban.plan import solution
from tstar_envs.envs.sokoban.retrograde import DistanceTable
from tstar_envs.envs.sokoban.rules import DIRECTIONS, is_solved, move
from tstar_envs.envs.sokoban.search import MOST_SOLVED, Search
from tstar_envs.envs.sokoban.solver import solve_state

# Random halls; A* from one end, the solver before, found their lengths: in 2 and in 22 seconds, with 400,000 and 1,600,000 states.
HALLS = {
    36: """\
##########
#    .  .#
#        #
#.$      #
#       @#
#    $   #
#        #
#.  $  $ #
#        #
##########""",
    42: """\
##########
#        #
#    $@  #
#  $ $$  #
#        #
#  .     #
#.  .    #
#        #
#.       #
##########""",
}


def room_of(size: int, targets: int, draw: random.Random) -> Room:
    """An empty square room with so many targets."""
    inner = [row * (size + 2) + column for row in range(1, size + 1) for column in range(1, size + 1)]
    floor = sum(1 << cell for cell in inner)
    return Room(size + 2, size + 2, floor, sum(1 << cell for cell in draw.sample(inner, targets)))


def any_state(room: Room, boxes: int, draw: random.Random) -> State:
    *chosen, player = draw.sample(list(cells(room.floor)), boxes + 1)
    return sum(1 << cell for cell in chosen), player


@pytest.mark.parametrize("length", HALLS)
def test_an_empty_hall_with_four_boxes_fits_the_default_bound(length: int) -> None:
    moves = solve(HALLS[length])
    assert moves is not None and len(moves) == length
    room, state = parse_level(HALLS[length])
    for name in moves:
        state, _ = move(room, state, DIRECTIONS.index(name))
    assert is_solved(room, state)


@pytest.mark.parametrize(("size", "boxes", "targets"), [(5, 3, 3), (6, 2, 2), (4, 4, 6), (5, 3, 24), (5, 4, 20)])
def test_open_rooms_against_a_table_of_all_states(size: int, boxes: int, targets: int) -> None:
    """Lengths, lost states and the very moves, whether there are few solved layouts or too many to search from."""
    draw = random.Random(f"{size} {boxes} {targets}")
    room = room_of(size, targets, draw)
    table = DistanceTable(room, boxes)
    lost = 0
    for _ in range(60):
        state = any_state(room, boxes, draw)
        length = table(state)
        moves = solve_state(room, state)
        assert moves == (None if length is None else solution(room, state, length, table))
        lost += moves is None
    assert lost < 60


def test_both_kinds_of_search_are_tested_above() -> None:
    assert comb(6, 4) <= MOST_SOLVED < comb(24, 3) < comb(20, 4)


def test_moves_left_are_exact_along_every_optimal_way() -> None:
    """Whatever the search tells of states right after a push is what the table says, and no optimal push is missing."""
    draw = random.Random(5)
    room = room_of(5, 3, draw)
    table = DistanceTable(room, 3)
    told = 0
    while told < 30:
        state = any_state(room, 3, draw)
        length = table(state)
        if not length:
            continue
        found = Search(room, state, 1_000_000).run()
        assert found is not None and found[0] == length
        todo, seen = [(state, length)], {state}
        while todo:
            here, left = todo.pop()
            for direction in range(4):
                after, pushed = move(room, here, direction)
                if after not in seen and table(after) == left - 1:
                    seen.add(after)
                    todo.append((after, left - 1))
                    assert pushed < 0 or found[1](after) == left - 1
        told += 1
