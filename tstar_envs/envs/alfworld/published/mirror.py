"""The original engine beside an episode: it follows to wherever the episode stands, and its answers are compared with this project's."""

from __future__ import annotations

from typing import Any

from tstar_envs.envs.alfworld.published.export import task_data
from tstar_envs.envs.alfworld.published.textworld_game import FEATURE, TextWorldGame
from tstar_envs.envs.alfworld.state import Answer, Mirrored
from tstar_envs.envs.alfworld.task import Task
from tstar_envs.errors import BadData


class Mirror:
    """Starts the engine when it is needed, and plays again what was typed where an episode was put somewhere else meanwhile."""

    def __init__(self) -> None:
        self._live: tuple[str, tuple[str, ...], TextWorldGame] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_live": None}  # the engine stays at home; it is started again where it is needed

    def start(self, task: Task) -> Mirrored:
        """The start of a game.

        Raises:
            MissingExtra: the engine is not installed.
        """
        _, answer = self._replay(task, ())
        return Mirrored((), answer)

    def step(self, task: Task, before: Mirrored, typed: str, ours: Answer) -> Mirrored:
        """The next answer of the engine.

        Raises:
            BadData: it does not answer as this project's rules do, so tags and expert would be wrong.
        """
        live, _ = self._replay(task, before.history)
        history = (*before.history, typed)
        self._live = None  # if the engine fails, it is in no known state
        answer = live.step(typed)
        self._live = task.id, history, live
        if (answer.feedback, answer.won) != (ours.feedback, ours.won):
            raise BadData(
                f"task {task.id!r}: after {typed!r:.80} the original engine says {answer.feedback!r:.200}, and the rules of "
                f"this project {ours.feedback!r:.200}; please report the game"
            )
        return Mirrored(history, answer)

    def _replay(self, task: Task, history: tuple[str, ...]) -> tuple[TextWorldGame, Answer]:
        """The engine after the given commands, and its answer where it had to be started again (else an empty one)."""
        if self._live is not None and self._live[:2] == (task.id, history) and history:
            return self._live[2], Answer("", (), False)
        known = self._live[2] if self._live is not None and self._live[0] == task.id else None
        game = known or TextWorldGame(task_data(task, FEATURE))
        answer = game.reset()
        for typed in history:
            answer = game.step(typed)
        self._live = task.id, history, game
        return game, answer
