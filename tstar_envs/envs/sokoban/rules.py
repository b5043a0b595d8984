"""Rules of Sokoban: a pure function from (view, state, action) to an outcome.

The view is the task under the conditions it is played in, with the texts of its states; what a move does to a state is in ``moves``.
"""

from __future__ import annotations

from dataclasses import replace

from tstar_envs.envs.sokoban.commands import read_command
from tstar_envs.envs.sokoban.moves import DIRECTIONS, is_solved, transition
from tstar_envs.envs.sokoban.state import State
from tstar_envs.envs.sokoban.view import TaskView
from tstar_envs.outcome import Outcome

_NUMBER = {name: number for number, name in enumerate(DIRECTIONS)}


def apply(view: TaskView, state: State, action: str) -> Outcome[State]:
    """What an action does.

    Raises:
        SolverLimit: whether the state after it is lost has to be known, and the solver gave up.
    """
    direction = _NUMBER.get(action)
    if direction is None or view.solved_at_start:
        return _read(view, state, action)
    after, pushed = transition(view.room, state, direction)
    text, admissible, key, extra = view.shown.get(after) or view.show_new(after)
    if pushed < 0:
        # By place: by name it takes a quarter of a microsecond more, a tenth of a step.
        return Outcome(after, text, action, "", "", False, False, 0.0, extra, 0.0, admissible, key)
    return _push(view, state, action, after, pushed)


def _read(view: TaskView, state: State, action: str) -> Outcome[State]:
    """What an action does that is not one move in its canonical form."""
    command = read_command(action, view.options.multi_action)
    if not (command.problem or view.solved_at_start):
        return _play(view, state, command.moves)
    text, admissible, key, extra = view.show(state)
    unchanged = Outcome(state, text, "", extra=extra, admissible=admissible, state_key=key)
    if command.problem:
        observation = f"Invalid action: {command.problem}.\n{text}"
        return replace(unchanged, observation=observation, invalid_reason=command.reason)
    # At the start already: any move ends the episode, and none spoils it.
    moves = " || ".join(DIRECTIONS[direction] for direction in command.moves)
    return replace(unchanged, action=moves, terminated=True, success=True, score=1.0)


def _push(view: TaskView, before: State, action: str, after: State, pushed: int) -> Outcome[State]:
    room = view.room
    row, column = room.place(pushed)
    solved = is_solved(room, after)
    lost = view.options.end_when_lost and not solved and view.expert.plan(after) is None
    shaping = 0.0
    if view.options.shaped:
        on_targets = (after[0] & room.targets).bit_count() - (before[0] & room.targets).bit_count()
        shaping = on_targets / after[0].bit_count()
    text, admissible, key, extra = view.show(after)
    over, score = solved or lost, float(solved)
    effect = f"push:{row},{column}:{action}"
    return Outcome(after, text, action, "", effect, over, solved, score, extra, shaping, admissible, key)


def _play(view: TaskView, state: State, moves: tuple[int, ...]) -> Outcome[State]:
    """The moves of one turn; the game stops at success."""
    if len(moves) == 1:
        return apply(view, state, DIRECTIONS[moves[0]])
    done: list[Outcome[State]] = []
    for direction in moves:
        done.append(apply(view, done[-1].state if done else state, DIRECTIONS[direction]))
        if done[-1].terminated:
            break
    return replace(
        done[-1],
        action=" || ".join(outcome.action for outcome in done),
        effect_key=";".join(outcome.effect_key for outcome in done if outcome.effect_key),
        shaping=sum(outcome.shaping for outcome in done),
    )
