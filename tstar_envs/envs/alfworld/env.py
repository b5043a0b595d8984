"""ALFWorld as a Gymnasium environment: household tasks in text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tstar_envs.choices import PROMPT_STYLES, check_option
from tstar_envs.contents import canonical
from tstar_envs.core import TextEnv
from tstar_envs.data.home import Published
from tstar_envs.envs.alfworld import feedback, oracle, planner, rules, search, text
from tstar_envs.envs.alfworld.distribution import TASK_TYPES
from tstar_envs.envs.alfworld.game import GIVEN, Game, State
from tstar_envs.envs.alfworld.reading import can_change, read_command
from tstar_envs.envs.alfworld.tasks import (
    SPLIT_ALIASES,
    SPLITS,
    HouseTask,
    TaskSet,
    load_game,
    load_old_game,
    load_tasks,
    published_games,
    task_data,
)
from tstar_envs.envs.alfworld.textworld_game import FEATURE, Answer, TextWorldGame
from tstar_envs.errors import BadData, UnknownOption, UnknownTask
from tstar_envs.outcome import Outcome
from tstar_envs.stable_random import StableRandom
from tstar_envs.state_hash import hash_state, state_hasher
from tstar_envs.tier import PathLike
from tstar_envs.tools import Tool, tool

VARIANTS = ("all", *TASK_TYPES)
BACKENDS = ("own", "textworld")
COMMANDS = ("game", "put")

_OLD_TOOLS = (
    tool(
        "act",
        "Give one command.",
        "{command}",
        command="for example: go to desk 1, take mug 2 from desk 1, put mug 2 in/on shelf 1",
    ),
)


class Loaded(NamedTuple):
    """A task and its game."""

    task: HouseTask
    game: Game


class Position(NamedTuple):
    """Where an episode stands.

    Attributes:
        state: of the household.
        seen: the receptacles whose contents were shown.
        mirrored: under the original engine what was typed and its answer, else None.
    """

    state: State
    seen: search.Seen = search.NOTHING_SEEN
    mirrored: Mirrored | None = None


class Mirrored(NamedTuple):
    """The original engine's side of a position: what was typed to get there, and its answer."""

    history: tuple[str, ...]
    answer: Answer


class ALFWorldEnv(TextEnv[Loaded, Position]):
    r"""## Description
    A room of a house, told in text: find things, take them, clean, heat or cool them, and bring them where the task wants them, or look
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
    Terminated when the goal holds; truncated after ``horizon`` steps (30).

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
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1, "rules_version": "2"}
    tools: tuple[Tool, ...] = (
        tool(
            "act",
            "Give one command.",
            "{command}",
            command="for example: go to cabinet 1, take mug 2 from cabinet 1",
        ),
    )
    default_horizon = 30
    answers = False
    oracle_kinds = ("expert", "search")
    demonstrated = "search"
    splits = SPLITS

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
        task_set: TaskSet | None = None,
        **options: Any,
    ) -> None:
        """See the class. ``task_set`` replaces the files by tasks in memory."""
        super().__init__(split=SPLIT_ALIASES.get(split, split), **options)
        check_option("variant", variant, VARIANTS)
        check_option("backend", backend, BACKENDS)
        check_option("commands", commands, COMMANDS)
        check_option("go_modifies", go_modifies, (True, False))
        check_option("strict", strict, (True, False))
        if commands == "put" and backend == "textworld":
            raise UnknownOption(
                'commands="put" needs backend="own": the original engine understands what the game file says alone'
            )
        self._old_words = commands == "put"
        if self._old_words:
            self.tools = _OLD_TOOLS
        self._backend, self._go_modifies, self._strict = backend, go_modifies, strict
        self.exact_replies = strict or backend == "textworld"
        self._set = task_set or load_tasks(variant, data, skip_bad)
        self.tier, self.left_out = self._set.tier, self._set.left_out
        self._live: tuple[str, tuple[str, ...], TextWorldGame] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            **vars(self),
            "_live": None,
        }  # the original engine stays at home; it is started again where it is needed

    @classmethod
    def published(cls, **options: Any) -> tuple[Published, ...]:
        """See ``TextEnv``."""
        return (published_games(),)

    def task_ids(self, split: str | None = None) -> Sequence[str]:
        """See ``TextEnv``."""
        wanted = split or self.split
        wanted = SPLIT_ALIASES.get(wanted, wanted)
        check_option("split", wanted, self.splits)
        return self._set.by_split[wanted]

    def _load_task(self, task_id: str) -> tuple[Loaded, str]:
        try:
            task = self._set.tasks[task_id]
        except KeyError:
            raise UnknownTask(
                f"no task {task_id!r} in {self._name()} ({self.tier}); see env.unwrapped.task_ids(split)"
            ) from None
        return Loaded(task, load_old_game(task) if self._old_words else load_game(task)), task.split

    def _start(self, task: Loaded) -> tuple[Position, str]:
        game = task.game
        if self._backend == "textworld":
            _, answer = self._replay(task, ())
            return Position(game.start, mirrored=Mirrored((), answer)), answer.feedback
        return Position(game.start), feedback.intro(game)

    def _instruction(self, task: Loaded) -> str:
        return task.game.task

    def _reset_extra(self, task: Loaded, state: Position) -> Mapping[str, Any]:
        return {"task_type": task.task.task_type, **({"commands": "put"} if self._old_words else {})}

    def _apply(self, task: Loaded, state: Position, action: str) -> Outcome[Position]:
        game, (before, seen, mirrored) = task.game, state
        command, canonical, refusal = read_command(game, before, action, self._strict)
        if command is None:
            after, told, effect = before, feedback.NOTHING_HAPPENS, ""
        else:
            after = rules.apply(game, before, command)
            told = feedback.tell(game, after, command)
            changed = after is not before and (self._go_modifies or command.verb != rules.GO)
            effect = rules.effect_key(game, command) if changed else ""
            seen = search.seen_after(game, after, command, seen)
        won = game.won(after)
        if mirrored is not None:
            mirrored = self._mirror(
                task, mirrored, action if command is None else canonical, Answer(told, (), won)
            )
            told, won = mirrored.answer.feedback, mirrored.answer.won
        admissible = rules.situation(game, after).admissible
        return (
            Position(after, seen, mirrored),
            told,
            canonical,
            refusal,
            effect,
            won,
            won,
            float(won),
            None,
            0.0,
            admissible,
            "",
        )

    def _mirror(self, task: Loaded, before: Mirrored, typed: str, ours: Answer) -> Mirrored:
        """The next answer of the original engine.

        Raises:
            BadData: it does not answer as this project's rules do, so tags and expert would be wrong.
        """
        live, _ = self._replay(task, before.history)
        history = (*before.history, typed)
        self._live = None  # if the engine fails, it is in no known state
        answer = live.step(typed)
        self._live = task.task.id, history, live
        if (answer.feedback, answer.won) != (ours.feedback, ours.won):
            raise BadData(
                f"task {task.task.id!r}: after {typed!r:.80} the original engine says {answer.feedback!r:.200}, and the rules of "
                f"this project {ours.feedback!r:.200}; please report the game"
            )
        return Mirrored(history, answer)

    def _replay(self, task: Loaded, history: tuple[str, ...]) -> tuple[TextWorldGame, Answer]:
        """The original engine after the given commands, and its answer where it had to be started again (else an empty one)."""
        if self._live is not None and self._live[:2] == (task.task.id, history) and history:
            return self._live[2], Answer("", (), False)
        known = self._live[2] if self._live is not None and self._live[0] == task.task.id else None
        game = known or TextWorldGame(task_data(task.task, FEATURE))
        answer = game.reset()
        for typed in history:
            answer = game.step(typed)
        self._live = task.task.id, history, game
        return game, answer

    def _admissible(self, task: Loaded, state: Position) -> Sequence[str]:
        if state.mirrored is not None:
            return [command for command in state.mirrored.answer.admissible if command != "help"]
        return rules.situation(task.game, state.state).admissible

    def _state_fingerprint(self, task: Loaded, state: Position) -> str:
        return rules.fingerprint(task.game, state.state)

    def _task_content(self, task: Loaded) -> str:
        game = load_game(task.task)  # in its own words, whatever the options
        return canonical([getattr(game, name) for name in GIVEN])

    def _state_key(self, task: Loaded, state: Position) -> str:
        return hash_state(state_hasher(task.task.id), self._state_fingerprint(task, state).encode())

    def _oracle_step(self, task: Loaded, state: Position, wording: int) -> tuple[str, str] | None:
        return oracle.next_step(task.game, state.state, wording % oracle.WORDINGS)

    def _expert_step(self, kind: str, task: Loaded, state: Position, wording: int) -> tuple[str, str] | None:
        if kind == "search":
            return search.next_step(task.game, state.state, state.seen, wording % oracle.WORDINGS)
        return self._oracle_step(task, state, wording)

    def _mistake(self, task: Loaded, state: Position, draw: StableRandom) -> tuple[str, str]:
        return oracle.mistake(task.game, state.state, draw)

    @classmethod
    def practice(cls, seed: int | str, *, variant: str | None = None, **options: Any) -> ALFWorldEnv:
        """Fresh games in the training rooms, none of them a shipped valid or test game.

        Args:
            seed: of the games.
            variant: a task type; "all" or None for all in equal parts.
            **options: of the environment.
        """
        from tstar_envs.envs.alfworld.practice import practice_set

        check_option("variant", variant, (*VARIANTS, None))
        types = tuple(TASK_TYPES) if variant in (None, "all") else (str(variant),)
        return cls(task_set=practice_set(seed, types), **{"split": "train", **options})

    def _distance(self, task: Loaded, state: Position) -> float | None:
        steps = planner.distance(task.game, state.state)
        return None if steps is None else float(steps)

    def modifies_state(self, action: str) -> bool:
        """True for every well-formed command of a verb that can change something."""
        return can_change(action) and (
            self._go_modifies or not " ".join(action.lower().split()).startswith("go to ")
        )

    def prompt(self, style: str | None = None) -> str:
        """See ``TextEnv``."""
        style = style or self.prompt_style
        check_option("style", style, PROMPT_STYLES)
        return text.prompt(style, self.horizon, self._old_words)
