"""ALFWorld as a Gymnasium environment: household tasks in text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tstar_envs.core import TextEnv
from tstar_envs.data.locate import PathLike, Published
from tstar_envs.data.tasks import LoadedTasks
from tstar_envs.envs.alfworld import rules, text
from tstar_envs.envs.alfworld.commands import can_change, fingerprint, situation
from tstar_envs.envs.alfworld.game import GIVEN, TOOLS, State
from tstar_envs.envs.alfworld.rooms import TASK_TYPES
from tstar_envs.envs.alfworld.tasks import (
    SHIPPED_SPLITS,
    SPLIT_ALIASES,
    LoadedTask,
    Task,
    load_game,
    load_game_with_put,
    load_tasks,
    published_games,
)
from tstar_envs.errors import UnknownOption
from tstar_envs.outcome import Outcome
from tstar_envs.snapshot import hash_state, state_hasher
from tstar_envs.tools import Tool, tool
from tstar_envs.utils import StableRandom, canonical, check_option

VARIANTS = ("all", *TASK_TYPES)
BACKENDS = ("own", "textworld")
COMMANDS = ("game", "put")
_PUT_TOOLS = (
    tool(
        "act",
        "Give one command.",
        "{command}",
        command="for example: go to desk 1, take mug 2 from desk 1, put mug 2 in/on shelf 1",
    ),
)


class ALFWorldEnv(TextEnv[LoadedTask, State]):
    r"""## Description
    A room of a house, in text: find things, take them, clean, heat or cool them, and bring them where the task wants them, or look
    at something under a lamp. Six types of task: ``pick`` (and place), ``look`` (at an object in light), ``clean``, ``heat``
    and ``cool`` (and place), ``pick2`` (two objects). The rules are this project's own and answer word for word as ALFWorld
    does (its PDDL games in TextWorld under its wrappers), peculiarities included; that is checked in lock-step.

    ## Action space
    A string: ``go to R``, ``open R``, ``close R``, ``take O from R``, ``move O to R`` (or ``put O in/on R``), ``examine X``, ``use O``,
    ``clean|heat|cool O with R``, ``slice O with O``, ``look``, ``inventory``, ``help``. ReAct replies and bare actions are read
    (``tstar_envs.react``). A command that is not possible is a no-op that costs a step: the observation is "Nothing happens." as
    in the original, and ``info["invalid_reason"]`` says why.

    ## Observation
    A string: on reset the welcome, the receptacles of the room, and the task; then the answer to each command.

    ## Rewards
    1 when the goal holds, 0 before.

    ## Starting state
    The game's initial state, in the middle of the room with an empty hand in all shipped games.

    ## Episode end
    Terminated when the goal holds; truncated after ``horizon`` steps.

    ## Information
    The keys of every environment (``tstar_envs.TextEnv``), and ``task_type`` on reset, as ALFRED names it.
    ``admissible_actions`` are those of the original without ``help``, in its order.

    ## Arguments
    ``variant`` (a task type, or "all"; fixed by the id), ``data`` ("auto", "mini", "full", or a folder with ``game.tw-pddl`` files; see
    ``tasks.load_tasks``), ``skip_bad`` (False; True: games that cannot be used are left out and counted in ``left_out``), ``backend``
    ("own", or "textworld": the original packages answer, extra ``alfworld``), ``commands`` ("game": things are put down as the game file
    words it, in shipped games ``move O to R``; "put": by ``put O in/on R``, as before ALFWorld 0.4, for agents and prompts of that time:
    rules, admissible actions, answers and experts say so, and so does ``info["commands"]`` on reset, which records keep),
    ``go_modifies`` (True: ``go to`` counts as modifying the state), ``strict`` (False; True: only exact commands are understood, as in the
    original; with ``backend="textworld"`` nothing is taken off a command either), ``explain_invalid`` (False; True: the agent reads why
    a command is refused), and ``split``, ``horizon``, ``prompt_style``, ``render_mode`` as everywhere. ``valid_seen`` is another name of
    the split ``test``.

    ## Tags
    ``go to``, ``open``, ``close``, ``take``, ``move``, ``clean``, ``heat``, ``cool``, ``slice`` and ``use`` modify the state when they
    change it: cleaning what is clean or using a lamp again does not. The others never do. With ``go_modifies=False`` walking
    changes the state, and its key, without an effect.

    ## Experts
    ``oracle()`` knows where everything is, wins by a shortest way, and finds the object at the first look; ``progress`` measures by it.
    ``oracle(kind="search")`` knows only what was shown and looks in likely places until it finds the thing; ``demonstrations`` show it
    (or the first where it is not done in time).

    ## Registered ids
    ``tstar/ALFWorld``, ``tstar/ALFWorld-pick``, ``tstar/ALFWorld-look``, ``tstar/ALFWorld-clean``, ``tstar/ALFWorld-heat``,
    ``tstar/ALFWorld-cool``, ``tstar/ALFWorld-pick2``

    ## Prompt example
    ``Thought: I need a mug. The cabinet 3 is a likely place for one, so I go there.\nAction: go to cabinet 3``

    ## Rules version history
    1: first version. 2: replies are read as in every family (``tstar_envs.react``): nothing inside a closed thought is played, ``<answer>``
    holds a command, and what stands around a command (a full stop, quotes, a fenced block) is passed over.
    3: more replies are read as they are meant: thoughts in other models' marks and thoughts that were cut off are not
    played; boxes, quotes, headings, JSON after prose, roles, invented observations and calls of tools are taken off or read.
    In published games ``help`` and what actions are done with are as the file has them.
    """

    tools: tuple[Tool, ...] = (
        tool(
            "act",
            "Give one command.",
            "{command}",
            command="for example: go to cabinet 1, take mug 2 from cabinet 1",
        ),
    )
    answers = False
    oracle_kinds = ("expert", "search")
    demonstrated = "search"
    splits: tuple[str, ...] = SHIPPED_SPLITS

    def __init__(
        self,
        *,
        variant: str = "all",
        data: PathLike = "auto",
        skip_bad: bool = False,
        backend: str = "own",
        commands: str = "game",
        go_modifies: bool = True,
        strict: bool = False,
        split: str = "test",
        task_set: LoadedTasks[Task] | None = None,
        **options: Any,
    ) -> None:
        """See the class. ``task_set`` replaces the files by tasks in memory."""
        check_option("variant", variant, VARIANTS)
        self._set = task_set or load_tasks(variant, data, skip_bad)
        self.splits = tuple(self._set.by_split)
        super().__init__(split=SPLIT_ALIASES.get(split, split), **options)
        check_option("backend", backend, BACKENDS)
        check_option("commands", commands, COMMANDS)
        check_option("go_modifies", go_modifies, (True, False))
        check_option("strict", strict, (True, False))
        if commands == "put" and backend == "textworld":
            raise UnknownOption(
                'commands="put" needs backend="own": the original engine understands what the game file says alone'
            )
        self._put_commands = commands == "put"
        if self._put_commands:
            self.tools = _PUT_TOOLS
        self._conditions = rules.Conditions(strict, go_modifies)
        if backend == "textworld":
            from tstar_envs.envs.alfworld.engine import Mirror

            self._conditions = self._conditions._replace(mirror=Mirror())
        self.exact_replies = strict or backend == "textworld"
        self.tier, self.left_out = self._set.tier, self._set.left_out

    @classmethod
    def published(cls, **options: Any) -> tuple[Published, ...]:
        """See ``TextEnv``."""
        return (published_games(),)

    def task_ids(self, split: str | None = None) -> Sequence[str]:
        """See ``TextEnv``."""
        wanted = split or self.split
        return self._set.by_split[self._check_split(SPLIT_ALIASES.get(wanted, wanted))]

    def _load_task(self, task_id: str) -> tuple[LoadedTask, str]:
        task = self._set.task(task_id)
        return LoadedTask(
            task, load_game_with_put(task) if self._put_commands else load_game(task)
        ), task.split

    def _start(self, loaded: LoadedTask) -> tuple[State, str]:
        return rules.start(loaded, self._conditions)

    def _instruction(self, loaded: LoadedTask) -> str:
        return loaded.game.task

    def _reset_extra(self, loaded: LoadedTask, state: State) -> Mapping[str, Any]:
        return {"task_type": loaded.task.task_type, **({"commands": "put"} if self._put_commands else {})}

    def _apply(self, loaded: LoadedTask, state: State, action: str) -> Outcome[State]:
        return rules.apply(loaded, state, action, self._conditions)

    def _admissible(self, loaded: LoadedTask, state: State) -> Sequence[str]:
        if state.mirrored is not None:
            return [command for command in state.mirrored.answer.admissible if command != "help"]
        return situation(loaded.game, state.household).admissible

    def _state_fingerprint(self, loaded: LoadedTask, state: State) -> str:
        return fingerprint(loaded.game, state.household)

    def _task_content(self, loaded: LoadedTask) -> str:
        game = load_game(loaded.task)  # in its own words, whatever the options
        # Games with ALFWorld's own tools are called as before there were others.
        other = [] if game.tools == TOOLS else [game.tools]
        return canonical([*(getattr(game, name) for name in GIVEN), *other])

    def _state_key(self, loaded: LoadedTask, state: State) -> str:
        return hash_state(state_hasher(loaded.task.id), self._state_fingerprint(loaded, state).encode())

    def _oracle_step(self, loaded: LoadedTask, state: State, paraphrase: int) -> tuple[str, str] | None:
        from tstar_envs.envs.alfworld import expert  # with the planner, which most episodes never need

        return expert.next_step(loaded.game, state.household, paraphrase % expert.WORDINGS)

    def _expert_step(
        self, kind: str, loaded: LoadedTask, state: State, paraphrase: int
    ) -> tuple[str, str] | None:

        from tstar_envs.envs.alfworld import expert

        if kind == "search":
            return expert.next_search_step(
                loaded.game, state.household, state.seen, paraphrase % expert.WORDINGS
            )
        return self._oracle_step(loaded, state, paraphrase)

    def _suboptimal_action(self, loaded: LoadedTask, state: State, rng: StableRandom) -> tuple[str, str]:
        from tstar_envs.envs.alfworld import expert

        return expert.mistake(loaded.game, state.household, rng)

    @classmethod
    def practice(cls, seed: int | str, *, variant: str | None = None, **options: Any) -> ALFWorldEnv:
        """Fresh games in the training rooms, none of them a shipped valid or test game.

        Args:
            seed: of the games.
            variant: a task type; "all" or None for all in equal parts.
            **options: of the environment.
        """
        from tstar_envs.envs.alfworld.generate import practice_set

        check_option("variant", variant, (*VARIANTS, None))
        types = tuple(TASK_TYPES) if variant in (None, "all") else (str(variant),)
        return cls(task_set=practice_set(seed, types), **{"split": "train", **options})

    def _distance(self, loaded: LoadedTask, state: State) -> float | None:
        from tstar_envs.envs.alfworld import expert

        steps = expert.distance(loaded.game, state.household)
        return None if steps is None else float(steps)

    def modifies_state(self, action: str) -> bool:
        """True for every well-formed command of a verb that can change something."""
        return can_change(action) and (
            self._conditions.go_modifies or not " ".join(action.lower().split()).startswith("go to ")
        )

    def prompt(self, style: str | None = None) -> str:
        """See ``TextEnv``."""
        return text.prompt(self._check_style(style), self.horizon, self._put_commands)
