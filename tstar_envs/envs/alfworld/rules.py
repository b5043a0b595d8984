"""Rules of ALFWorld: a pure function from task, state and action to an outcome.

Transitions of the household are in ``commands``. With the original engine as backend, the agent sees its answers, which must
equal this project's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tstar_envs.envs.alfworld import text
from tstar_envs.envs.alfworld.commands import GO, effect_key, parse_command, seen_after, situation, transition
from tstar_envs.envs.alfworld.game import Answer, State
from tstar_envs.envs.alfworld.tasks import LoadedTask
from tstar_envs.outcome import Outcome

if TYPE_CHECKING:  # imported only with the original engine
    from tstar_envs.envs.alfworld.engine import Mirror


class Conditions(NamedTuple):
    """Settings of an environment that the rules need.

    Attributes:
        strict: True accepts only exact commands.
        go_modifies: True counts walking as modifying the state.
        mirror: the original engine if it is the backend, else None.
    """

    strict: bool = False
    go_modifies: bool = True
    mirror: Mirror | None = None


def start(loaded: LoadedTask, conditions: Conditions) -> tuple[State, str]:
    """Create the initial state and the first observation.

    Raises:
        MissingExtra: the original engine is not installed.
    """
    if conditions.mirror is None:
        return State(loaded.game.start), text.intro(loaded.game)
    mirrored = conditions.mirror.start(loaded.task)
    return State(loaded.game.start, mirrored=mirrored), mirrored.answer.feedback


def apply(loaded: LoadedTask, state: State, action: str, conditions: Conditions) -> Outcome[State]:
    """Apply an action.

    Raises:
        BadData: the original engine's answer differs from this project's.
    """
    game, (before, seen, mirrored) = loaded.game, state
    command, canonical, problem = parse_command(game, before, action, conditions.strict)
    if command is None:
        after, observation, effect = before, text.NOTHING_HAPPENS, ""
    else:
        after = transition(game, before, command)
        observation = text.render(game, after, command)
        changed = after is not before and (conditions.go_modifies or command.verb != GO)
        effect = effect_key(game, command) if changed else ""
        seen = seen_after(game, after, command, seen)
    won = game.won(after)
    if conditions.mirror is not None and mirrored is not None:
        typed = action if command is None else canonical
        mirrored = conditions.mirror.step(loaded.task, mirrored, typed, Answer(observation, (), won))
        observation, won = mirrored.answer.feedback, mirrored.answer.won
    return Outcome(
        State(after, seen, mirrored),
        observation,
        canonical,
        invalid_reason=problem,
        effect_key=effect,
        terminated=won,
        success=won,
        score=float(won),
        admissible=situation(game, after).admissible,
    )
