"""Rules of Blocksworld: a pure function from (view, state, action) to an outcome.

The view is the task under the conditions it is played in, with the texts of its states; what an operator does to a state is in
``operators``.
"""

from __future__ import annotations

from dataclasses import replace

from tstar_envs.envs.blocksworld.commands import read_command
from tstar_envs.envs.blocksworld.operators import transition
from tstar_envs.envs.blocksworld.state import State
from tstar_envs.envs.blocksworld.text import GOAL_REACHED
from tstar_envs.envs.blocksworld.view import TaskView
from tstar_envs.outcome import Outcome


def apply(view: TaskView, state: State, action: str) -> Outcome[State]:
    """What an action does."""
    observation, admissible, key, towers = view.show(state)
    if action not in admissible:
        unchanged = Outcome(state, observation, "", admissible=admissible, state_key=key)
        command = read_command(action, view.language.labels, view.language.vocabulary)
        if command.operator is None:
            return _refused(unchanged, command.problem)
        action = view.language.action(command.operator)
        if action not in admissible:
            reason = view.language.refusal(state, command.operator)
            return _refused(replace(unchanged, action=action), reason)
    if view.solved_at_start:  # any legal operator ends the episode, and none spoils it
        text = f"{observation}\n{GOAL_REACHED}"
        return Outcome(state, text, action, "", "", True, True, 1.0, admissible=admissible, state_key=key)
    operator = view.language.operator(action)
    after = transition(state, operator)
    observation, admissible, key, _ = view.shown.get(after) or view.show_after(after, towers, operator)
    solved, score = view.task.problem.goal.holds(after), 0.0
    if solved:
        observation, score = f"{observation}\n{GOAL_REACHED}", 1.0
    # By place: by name it takes longer.
    return Outcome(after, observation, action, "", action, solved, solved, score, None, 0.0, admissible, key)


def _refused(unchanged: Outcome[State], reason: str) -> Outcome[State]:
    observation = f"Invalid action: {reason}.\n{unchanged.observation}"
    return replace(unchanged, observation=observation, invalid_reason=reason)
