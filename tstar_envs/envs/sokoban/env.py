"""Sokoban environment: push every box onto a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tstar_envs.core import TextEnv
from tstar_envs.data.faults import check_skip_bad
from tstar_envs.data.locate import PathLike, chosen_path
from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.sokoban import rules, text
from tstar_envs.envs.sokoban.level import (
    SOLVER_SECONDS,
    SOLVER_STATES,
    State,
    Task,
    check_solver_bounds,
    print_level,
    read_command,
)
from tstar_envs.envs.sokoban.rules import TaskView, ViewOptions, view_of
from tstar_envs.envs.sokoban.tasks import DIFFICULTIES, load_path, load_shipped
from tstar_envs.errors import SolverLimit, UnknownOption
from tstar_envs.horizon import warn_if_horizon_is_short
from tstar_envs.outcome import Outcome
from tstar_envs.tools import tool
from tstar_envs.utils import StableRandom, check_option

REWARDS = ("success", "shaped")
STATE_KEYS = ("player", "region")
QUICK_SOLVE_STATES = 5_000  # limit of a search that only serves a warning


class SokobanEnv(TextEnv[TaskView, State]):
    r"""## Description
    The agent walks through a room and pushes boxes, one at a time, until every box is on a target. Boxes cannot be pulled, so
    some pushes lose the level. Every level of the mini tier has a known shortest solution: 5-12 moves with one box (easy),
    13-24 with two (medium), 25-40 with three (hard: at least 7 pushes, 4 box-lines, and a losing push along the solution).

    ## Action space
    A string: ``Up``, ``Down``, ``Left`` or ``Right``, any case, in a ReAct reply, in tags (``<action>``, or RAGEN's ``<answer>``) or
    bare (``tstar_envs.react``). With ``multi_action`` one turn has up to 10 moves joined by ``||`` or commas and costs one step.
    The game stops at success. A turn of the expert is then a walk to a box and its pushes in one direction.
    A move against a wall is valid and changes nothing.
    Anything else is invalid: a no-op that costs a step.

    ## Observation
    A string. ``grid``: rows of ``#`` wall, ``_`` floor, ``O`` target, ``X`` box, ``√`` box on target, ``P`` player, ``S`` player on
    target. ``coords``: size, floor, targets, boxes and player as (row, column) from 0. ``grid_coords``: the grid, then targets,
    boxes and player. After an invalid action the first line explains the error.

    ## Rewards
    1 when the last box reaches its target, else 0. With ``reward="shaped"`` every step before the last also gives the change of
    the share of boxes on targets; the last step gives 1 or 0.

    ## Starting state
    No box of a mini level starts on a target. A level by path may be solved at the start. Its first valid move ends the episode
    with success and changes nothing, and ``env.unwrapped.solved_at_start`` lists such levels.

    ## Episode end
    Terminated by success; truncated after ``horizon`` steps. A lost level continues until then. With ``end_when_lost`` the first
    push that makes the level unsolvable terminates it with a reward of 0.

    ## Information
    The keys of every environment (``tstar_envs.TextEnv``). On reset also ``optimal_length``, the moves of a shortest solution
    (None for levels by path; ``solve`` computes it). ``admissible_actions`` are the single moves that change something. With
    ``show_dead`` also ``dead``, True if the level is lost (exact, by search in every new state).

    ## Arguments
    ``difficulty``: "easy", "medium" or "hard".
    ``observation``: "grid", "coords" or "grid_coords".
    ``multi_action``: True allows several moves per turn.
    ``reward``: "success" or "shaped".
    ``levels``: an XSB or Boxoban text file, or a folder of them, instead of the shipped levels; see
    ``tstar_envs.envs.sokoban.tasks.load_path``.
    ``skip_bad``: False refuses files with unplayable levels and lists them all; True skips these levels, and
    ``env.unwrapped.left_out`` tells how many and why.
    ``data``: "auto" or "mini" for the shipped levels, or a path as for ``levels``; there is no full tier.
    ``state_key``: "player" uses boxes and the player's cell, "region" boxes and the cells that the player can reach.
    ``show_dead``, ``end_when_lost``: see above.
    ``solver_states``: maximum states of a search (by the expert, ``progress``, ``show_dead`` or ``end_when_lost``), 1,000,000 by
    default; then it raises SolverLimit. Mini levels need far fewer, large public levels may need more.
    ``solver_seconds``: timeout of such a search, 120 by default.
    ``split``, ``horizon``, ``prompt_style``, ``render_mode``: as in every environment.

    ## Tags
    Only a push modifies the state, with the key ``push:row,column:Direction`` of the box's cell before it; walking can be undone.
    Several pushes of one turn are joined by ``;``.

    ## Registered ids
    ``tstar/Sokoban-easy``, ``tstar/Sokoban-medium``, ``tstar/Sokoban-hard``

    ## Prompt example
    ``Thought: The box at (2, 3) belongs on (2, 1). It has to go left, and I stand at (2, 4), so I push left.\nAction: Left``

    ## Example
    >>> import gymnasium as gym
    >>> import tstar_envs
    >>> env = gym.make("tstar/Sokoban-easy")
    >>> grid, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(info["admissible_actions"][0])

    ## Rules version history
    1: first version. 2: a box that leaves a target on which it ends again is said to leave it for now (expert), punctuation around a
    move is ignored, and the prompt says how cells are counted. 3: a push away from the box's target is said to be one (expert), and
    of several moves a turn a separator at the end is ignored. 4: with ``multi_action`` the expert plays a walk and a line of pushes a
    turn, not one move; without, the last of its four wordings says "so I go up next". 5: ``<answer>`` tags hold moves too, and
    several moves may be joined by spaces and semicolons. 6: replies are parsed as in every family (``tstar_envs.react``): nothing inside a
    closed thought counts.
    7: more replies are parsed as intended: thoughts in other models' marks and thoughts that were cut off are not
    counted; boxes, quotes, headings, JSON after prose, roles, invented observations and calls of tools are stripped or parsed.
    """

    answers = False
    optimum_known = True
    # Arrow keys too, as a terminal writes them in a line.
    tools = (
        tool(
            "move",
            "Walk one cell, or push the box that is there.",
            "{direction}",
            {"direction": ("Up", "Down", "Left", "Right")},
            direction="where to",
        ),
    )
    keys: Mapping[str, str] = {
        "w": "Up",
        "s": "Down",
        "a": "Left",
        "d": "Right",
        "\x1b[a": "Up",
        "\x1b[b": "Down",
        "\x1b[d": "Left",
        "\x1b[c": "Right",
        "\x1boa": "Up",
        "\x1bob": "Down",
        "\x1bod": "Left",
        "\x1boc": "Right",
        "↑": "Up",
        "↓": "Down",
        "←": "Left",
        "→": "Right",
    }

    def __init__(
        self,
        *,
        difficulty: str = "easy",
        observation: str = "grid",
        multi_action: bool = False,
        reward: str = "success",
        data: PathLike = "auto",
        levels: PathLike | None = None,
        skip_bad: bool = False,
        state_key: str = "player",
        show_dead: bool = False,
        end_when_lost: bool = False,
        solver_states: int = SOLVER_STATES,
        solver_seconds: float = SOLVER_SECONDS,
        task_set: LoadedTasks[Task] | None = None,
        **options: Any,
    ) -> None:
        """See the class. ``task_set`` replaces the files with levels in memory."""
        check_option("difficulty", difficulty, tuple(DIFFICULTIES))
        check_option("observation", observation, text.OBSERVATIONS)
        check_option("reward", reward, REWARDS)
        check_option("state_key", state_key, STATE_KEYS)
        for name, value in (
            ("multi_action", multi_action),
            ("show_dead", show_dead),
            ("end_when_lost", end_when_lost),
        ):
            if not isinstance(value, bool):
                raise UnknownOption(f"{name} must be True or False, got {value!r}")
        check_solver_bounds(solver_states, solver_seconds)
        super().__init__(**options)
        bounds = (solver_states, float(solver_seconds))
        self._view_options = ViewOptions(
            observation,
            multi_action,
            reward == "shaped",
            state_key == "region",
            show_dead,
            end_when_lost,
            *bounds,
        )
        check_skip_bad(skip_bad)
        path = chosen_path(data, levels, "levels")
        option = "levels" if levels is not None else "data"
        self._set = task_set or (
            load_shipped(difficulty) if path is None else load_path(path, option, skip_bad)
        )
        self.tier, self.left_out, self.solved_at_start = self._set.tier, self._set.left_out, self._set.solved
        if path is not None and options.get("horizon") is None and not multi_action:
            warn_if_horizon_is_short(self, path)

    def task_ids(self, split: str | None = None) -> Sequence[str]:
        """See ``TextEnv``."""
        return self._set.by_split[self._check_split(split or self.split)]

    def _load_task(self, task_id: str) -> tuple[TaskView, str]:
        task = self._set.task(task_id)
        return view_of(task, self._view_options), task.split

    def _start(self, view: TaskView) -> tuple[State, str]:
        return view.task.start, view.observation(view.task.start)

    def _task_content(self, view: TaskView) -> str:
        return print_level(view.task.room, view.task.start)

    def _instruction(self, view: TaskView) -> str:
        return text.INSTRUCTION

    def _apply(self, view: TaskView, state: State, action: str) -> Outcome[State]:
        return rules.apply(view, state, action)

    def _admissible(self, view: TaskView, state: State) -> Sequence[str]:
        return view.admissible(state)

    def _reset_extra(self, view: TaskView, state: State) -> Mapping[str, Any]:
        known = bool(view.task.moves) or view.task.id in self._set.solved
        return {**(view.extra(state) or {}), "optimal_length": len(view.task.moves) if known else None}

    def _state_fingerprint(self, view: TaskView, state: State) -> str:
        return view.fingerprint(state)

    def _state_key(self, view: TaskView, state: State) -> str:
        return view.key(state)

    def _oracle_step(self, view: TaskView, state: State, paraphrase: int) -> tuple[str, str] | None:
        return view.expert.next_step(state, paraphrase)

    def _suboptimal_action(self, view: TaskView, state: State, rng: StableRandom) -> tuple[str, str]:
        return view.expert.mistake(state, rng)

    @classmethod
    def practice(cls, seed: int | str, *, difficulty: str = "easy", **options: Any) -> SokobanEnv:
        """Create an environment with new train levels, whose rooms occur in no valid or test level."""
        from tstar_envs.envs.sokoban.generate import practice_set

        check_option("difficulty", difficulty, tuple(DIFFICULTIES))
        return cls(
            difficulty=difficulty, task_set=practice_set(seed, difficulty), **{"split": "train", **options}
        )

    def least_steps(self, task_id: str, seconds: float) -> int | None:
        """See ``tstar_envs.horizon.reach``; counts moves, not turns of ``multi_action``."""
        level = self._set.task(task_id)
        if level.moves:
            return len(level.moves)
        from tstar_envs.envs.sokoban.solver import solve_state  # lazy: only needed for levels by path

        try:
            moves = solve_state(level.room, level.start, QUICK_SOLVE_STATES, seconds)
        except SolverLimit as error:
            return error.at_least
        return None if moves is None else len(moves)

    def _distance(self, view: TaskView, state: State) -> float | None:
        moves = view.expert.plan(state)
        return None if moves is None else float(len(moves))

    def modifies_state(self, action: str) -> bool:
        """Check whether an action may modify the state: true for every well-formed move, since any may push."""
        return not read_command(action, self._view_options.multi_action).problem

    def prompt(self, style: str | None = None) -> str:
        """See ``TextEnv``."""
        style = self._check_style(style)
        return text.prompt(
            style,
            self._view_options.observation,
            self._view_options.multi_action,
            None if self.horizon_varies else self.horizon,
        )

    def highlights(self, observation: str) -> list[tuple[int, int, str]]:
        """See ``TextEnv``."""
        return text.highlights(observation)

    def level_text(self) -> str:
        """Get the start of the current level as XSB text, for ``tstar_envs.envs.sokoban.solve``.

        Raises:
            ResetNeeded: ``reset`` was not called yet.
        """
        task = self._running()[0].task
        return print_level(task.room, task.start)
