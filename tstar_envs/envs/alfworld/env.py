"""ALFWorld environment: household tasks in text."""

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
    A room of a house, in text. The agent finds objects, takes them, cleans, heats or cools them, and puts them where the task
    says, or looks at one under a lamp. There are six task types: ``pick`` (and place), ``look`` (at an object in light),
    ``clean``, ``heat`` and ``cool`` (and place), ``pick2`` (two objects). The rules are this project's own. They answer word for
    word like ALFWorld (its PDDL games in TextWorld under its wrappers), quirks included, which tests check in lockstep.

    ## Action space
    A string: ``go to R``, ``open R``, ``close R``, ``take O from R``, ``move O to R`` (or ``put O in/on R``), ``examine X``, ``use O``,
    ``clean|heat|cool O with R``, ``slice O with O``, ``look``, ``inventory``, ``help``. ReAct replies and bare actions are parsed
    (``tstar_envs.react``). An impossible command is a no-op that costs a step: the observation is "Nothing happens." as
    in the original, and ``info["invalid_reason"]`` explains it.

    ## Observation
    A string: on reset the welcome, the receptacles of the room and the task; then the answer to each command.

    ## Rewards
    1 when the goal holds, 0 before.

    ## Starting state
    The game's initial state; in all shipped games the agent is in the middle of the room with an empty hand.

    ## Episode end
    Terminated when the goal holds; truncated after ``horizon`` steps.

    ## Information
    The keys of every environment (``tstar_envs.TextEnv``), and on reset ``task_type``, ALFRED's name of it.
    ``admissible_actions`` are the original's without ``help``, in its order.

    ## Arguments
    ``variant``: a task type, or "all"; fixed by the id.
    ``data``: "auto", "mini", "full", or a folder with ``game.tw-pddl`` files; see ``tasks.load_tasks``.
    ``skip_bad``: True skips unusable games and counts them in ``left_out``; False refuses them.
    ``backend``: "own", or "textworld" for the original engine (extra ``alfworld``).
    ``commands``: "game" uses the wording of the game file, ``move O to R`` in shipped games. "put" uses ``put O in/on R``, as before
    ALFWorld 0.4, for agents and prompts of that time; this holds for rules, admissible actions, answers and experts, and is
    recorded in ``info["commands"]`` on reset.
    ``go_modifies``: True (default) counts ``go to`` as modifying the state.
    ``strict``: True accepts only exact commands, as in the original; with ``backend="textworld"`` commands are passed unchanged.
    ``explain_invalid``: True tells the agent why a command is not possible. ``list_actions``: True ends each observation with the
    admissible actions.
    ``split``, ``horizon``, ``prompt_style``, ``render_mode``: as in every environment. ``valid_seen`` is an alias of the split ``test``.

    ## Tags
    ``go to``, ``open``, ``close``, ``take``, ``move``, ``clean``, ``heat``, ``cool``, ``slice`` and ``use`` modify the state if they
    change it; cleaning a clean object or using a lamp again does not. The others never do. With ``go_modifies=False`` walking
    changes the state and its key, but does not count as an effect.

    ## Experts
    ``oracle()`` knows where everything is and wins in the fewest steps; ``progress`` is measured by it.
    ``oracle(kind="search")`` knows only what was shown and searches likely places. ``demonstrations`` use it, or the first one if
    it does not finish in time.

    ## Registered ids
    ``tstar/ALFWorld``, ``tstar/ALFWorld-pick``, ``tstar/ALFWorld-look``, ``tstar/ALFWorld-clean``, ``tstar/ALFWorld-heat``,
    ``tstar/ALFWorld-cool``, ``tstar/ALFWorld-pick2``

    ## Prompt example
    ``Thought: I need a mug. The cabinet 3 is a likely place for one, so I go there.\nAction: go to cabinet 3``

    ## Example
    >>> import gymnasium as gym
    >>> import tstar_envs
    >>> env = gym.make("tstar/ALFWorld", data="mini")
    >>> welcome, info = env.reset(seed=0)
    >>> observation, reward, terminated, truncated, info = env.step(info["admissible_actions"][0])
    >>> env.step("fly away")[0]
    'Nothing happens.'

    ## Rules version history
    1: first version. 2: replies are parsed as in every family (``tstar_envs.react``): nothing inside a closed thought counts, ``<answer>``
    holds a command, and punctuation around a command (a full stop, quotes, a fenced block) is ignored.
    3: more replies are parsed as intended: thoughts in other models' marks and thoughts that were cut off are not
    counted; boxes, quotes, headings, JSON after prose, roles, invented observations and calls of tools are stripped or parsed.
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
        """See the class. ``task_set`` replaces the files with tasks in memory."""
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
                'commands="put" needs backend="own": the original engine only understands the wording of the game file'
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
        game = load_game(loaded.task)  # in its own wording, whatever the options
        # Games with ALFWorld's own tools keep the digest that they had before other tools existed.
        other = [] if game.tools == TOOLS else [game.tools]
        return canonical([*(getattr(game, name) for name in GIVEN), *other])

    def _state_key(self, loaded: LoadedTask, state: State) -> str:
        return hash_state(state_hasher(loaded.task.id), self._state_fingerprint(loaded, state).encode())

    def _oracle_step(self, loaded: LoadedTask, state: State, paraphrase: int) -> tuple[str, str] | None:
        from tstar_envs.envs.alfworld import expert  # lazy: most episodes do not need the planner

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
        """Create an environment with new games in the training rooms, without shipped valid or test games.

        Args:
            seed: seed of the games.
            variant: a task type; "all" or None for all in equal parts.
            **options: options of the environment.
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
        """Check whether a command may modify the state: true for well-formed commands of state-changing verbs."""
        return can_change(action) and (
            self._conditions.go_modifies or not " ".join(action.lower().split()).startswith("go to ")
        )

    def prompt(self, style: str | None = None) -> str:
        """See ``TextEnv``."""
        return text.prompt(self._check_style(style), self.horizon, self._put_commands)
