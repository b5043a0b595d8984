"""TextEnv: base class of all environments.

A family supplies the tasks and the pure rules, (state, action) -> Outcome. This class implements the rest of the contract once:
Gymnasium's ``reset`` and ``step``, ``info``, the step count, the horizon, and snapshot/restore.
"""

from __future__ import annotations

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, Protocol, Self, TypeVar

import gymnasium as gym

from tstar_envs.data.faults import NOTHING_LEFT_OUT, LeftOut
from tstar_envs.data.locate import Published
from tstar_envs.errors import InfrastructureError, ResetNeeded, UnknownOption, UnknownTask
from tstar_envs.foreign import checked_actions, checked_extra, checked_pair, checked_text
from tstar_envs.horizon import read_horizon, steps_of
from tstar_envs.outcome import STEP_INFO, Outcome, checked, is_plain
from tstar_envs.react import Reply, read_reply, render_reply
from tstar_envs.snapshot import Origin, Snapshot, digest, hash_state, options_of_state, state_hasher
from tstar_envs.spaces import Unicode
from tstar_envs.tools import Tool, tool, written_call
from tstar_envs.utils import (
    PROMPT_STYLES,
    SPLITS,
    StableRandom,
    check_option,
    counted,
    is_whole,
    with_actions,
)

UNREGISTERED_HORIZON = 20  # steps of an environment without a registry entry
_OPEN_SET = "{} has no list of admissible actions: leave out list_actions"
LONGEST_ACTION = 1_000_000  # characters of one reply; longer strings are answered as well, never raised on

Task = TypeVar("Task")
State = TypeVar("State")


class Entry(Protocol):
    """Fields of a registry entry that an environment reads."""

    @property
    def horizon(self) -> int: ...

    @property
    def rules_version(self) -> str: ...


def entry_of(cls: type, options: Mapping[str, Any]) -> Entry | None:
    """Look up the registry entry of an environment. The registry, which imports this module, replaces this function."""
    return None


class TextEnv(gym.Env[str, str], Generic[Task, State]):
    """Base class of all environments: Gymnasium's ``reset`` and ``step`` over text, snapshots, an expert.

    ``reset`` and ``step`` return a fresh ``info`` with ``task_id``, ``split``, ``instruction``, ``step``, ``horizon``,
    ``admissible_actions`` (a list; None if the set is open or the episode over), ``success`` and ``score``. ``step`` adds ``thought``,
    ``action`` (canonical), ``action_valid``, ``invalid_reason``, ``modifies_state`` (as executed), ``effect_key`` (canonical key of the
    change, "" if there was none) and ``state_key`` (blake2b of the state after it). An invalid action is a no-op: it costs a step and
    never ends an episode. No string raises. The reward comes at the end and is in [0, 1], unless an option of the family shapes it.

    Subclasses call ``super().__init__`` and implement the abstract methods. The horizon and the rules version come from their registry
    entry (read the version as ``metadata["rules_version"]``). All randomness comes from ``self.np_random``.

    Example:
        >>> from tstar_envs import find_entry
        >>> env = find_entry("sokoban-easy").make(split="valid")
        >>> observation, info = env.reset(options={"task": 0})
        >>> while not env.over:
        ...     observation, reward, terminated, truncated, info = env.step(env.oracle())
        >>> reward, terminated, info["success"]
        (1.0, True, True)

    Args:
        split: ``train``, ``valid``, ``test``, or a further split of the family. ``reset`` draws tasks from it.
        horizon: steps until truncation; None takes the registry's. "optimal" is the optimum of each task and "optimal*2" twice that
            (Sokoban and Blocksworld only). The prompt then names no number; ``info["horizon"]`` does.
        prompt_style: ``react``, ``tags``, or a further style of the family; the default of ``prompt`` and of the oracle's replies.
        explain_invalid: add the reason to the observation after an invalid action, even in families that follow an original without
            reasons. ``info["invalid_reason"]`` always has it.
        list_actions: append the admissible actions to each observation (not in families whose set is open).
        render_mode: None or ``ansi``.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}
    default_horizon: int = 0  # 0: take the registry's
    longest_observation: int = 20_000
    optimum_known: bool = False  # True if ``horizon`` may be a multiple of the optimum
    prompt_styles: tuple[str, ...] = PROMPT_STYLES
    # False: the family has no final answers, and ``<answer>`` tags hold an action (RAGEN's form).
    answers: bool = True
    # True: actions are taken verbatim, as in the original that a mode reproduces.
    exact_replies: bool = False
    tools: tuple[Tool, ...] = (
        tool("act", "Play one action.", "{action}", action="the action, as the rules describe it"),
    )

    oracle_kinds: tuple[str, ...] = ("expert",)
    demonstrated: str = "expert"
    splits: tuple[str, ...] = SPLITS
    tier: str = "mini"
    left_out: LeftOut = NOTHING_LEFT_OUT
    solved_at_start: Sequence[str] = ()
    keys: Mapping[str, str] = MappingProxyType({})

    # Custom environments are checked at run time, in ``step``; the suite's families are checked by tests.
    _foreign: bool = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls._foreign = not cls.__module__.startswith("tstar_envs.envs.")

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Create the instance and keep its options for ``snapshot``."""
        env = super().__new__(cls)
        env._made_with = options
        return env

    def __init__(
        self,
        *,
        split: str = "test",
        horizon: int | str | None = None,
        prompt_style: str = "react",
        explain_invalid: bool = False,
        list_actions: bool = False,
        render_mode: str | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            valid = ", ".join(sorted(self.option_types()))
            raise UnknownOption(f"{self._name()} has no option {sorted(unknown)[0]!r}; valid: {valid}")
        self._check_split(split)
        check_option("prompt_style", prompt_style, self.prompt_styles)
        check_option("render_mode", render_mode, (None, "ansi"))
        check_option("explain_invalid", explain_invalid, (True, False))
        check_option("list_actions", list_actions, (True, False))
        self._horizon_factor, steps = read_horizon(horizon, self.optimum_known, self._name())
        self.split = split
        entry = entry_of(type(self), self._made_with)
        self.metadata = {"rules_version": entry.rules_version if entry else "1", **self.metadata}
        self.default_horizon = self.default_horizon or (entry.horizon if entry else UNREGISTERED_HORIZON)
        self.horizon = self.default_horizon if steps is None else steps
        self.prompt_style = prompt_style
        self.render_mode = render_mode
        self._explain_invalid, self._list_actions = explain_invalid, list_actions
        if list_actions and type(self)._admissible is TextEnv._admissible:
            raise UnknownOption(_OPEN_SET.format(self._name()))
        self.observation_space = Unicode(self.longest_observation)
        self.action_space = Unicode(LONGEST_ACTION)
        self._made_with: dict[str, Any]
        self._origin: tuple[str, Origin] | None = None  # of the task with that id
        self._task: Task | None = None
        self._state: State | None = None
        self._task_id = ""
        self._task_split = split
        # ``info`` at the start of the episode, and after a step: copying a dict is the fastest way to a fresh one.
        self._first: dict[str, Any] = {}
        self._later: dict[str, Any] = {}
        self._step_count = 0
        self._observation = ""
        self._over, self._success, self._score = True, False, 0.0

    # A family implements ---------------------------------------------------------------------------------------------

    @abstractmethod
    def task_ids(self, split: str | None = None) -> Sequence[str]:
        """List the task ids of a split (default: the environment's own) in a fixed order."""

    @abstractmethod
    def _load_task(self, task_id: str) -> tuple[Task, str]:
        """Load a task and its split; raise UnknownTask if the id is unknown."""

    @abstractmethod
    def _start(self, task: Task) -> tuple[State, str]:
        """Build the start state and the first observation."""

    @abstractmethod
    def _apply(self, task: Task, state: State, action: str) -> Outcome[State]:
        """Apply the rules to one action. Never raises, whatever the string."""

    @abstractmethod
    def _instruction(self, task: Task) -> str:
        """Goal of a task in words."""

    @abstractmethod
    def _state_fingerprint(self, task: Task, state: State) -> str:
        """Text that is equal exactly for equal states."""

    @abstractmethod
    def prompt(self, style: str | None = None) -> str:
        """Rules and action grammar for an agent's prompt, in ``react`` or ``tags`` style."""

    # A family may override --------------------------------------------------------------------------------------------

    def modifies_state(self, action: str) -> bool:
        """Check whether an action of this kind can change the state: the static predicate modifies_state(a).

        By default, check whether it would change the state of the running episode.
        """
        return bool(self._apply(*self._running(), action).effect_key)

    def _admissible(self, task: Task, state: State) -> Sequence[str] | None:
        """List the admissible actions; None if the set is open."""
        return None

    def _state_key(self, task: Task, state: State) -> str:
        """Compute ``state_key``; a family that caches keys must return the same ones here."""
        fingerprint = self._state_fingerprint(task, state)
        if type(fingerprint) is not str:
            fingerprint = checked_text("_state_fingerprint", fingerprint)
        return hash_state(state_hasher(self._task_id), fingerprint.encode("utf-8", "surrogatepass"))

    def _reset_extra(self, task: Task, state: State) -> Mapping[str, Any]:
        """Extra entries of ``info`` on reset."""
        return {}

    @classmethod
    def prepare_group_step(
        cls, envs: Sequence[TextEnv[Any, Any]], replies: Sequence[str]
    ) -> dict[int, InfrastructureError]:
        """Prepare a step of all rows of a GroupEnv: a hook for batching, as of search requests.

        Returns:
            Row index -> error, for rows that cannot step now; empty if all can.
        """
        return {}

    def _oracle_step(self, task: Task, state: State, paraphrase: int) -> tuple[str, str] | None:
        """Compute the expert's action, and a thought phrased by ``paraphrase``; None if the state is lost."""
        raise UnknownOption(f"{self._name()} has no expert: its class does not define _oracle_step")

    def _expert_step(self, kind: str, task: Task, state: State, paraphrase: int) -> tuple[str, str] | None:
        """Compute the step of one of ``oracle_kinds``; families with several kinds override it."""
        return self._oracle_step(task, state, paraphrase)

    def _suboptimal_action(self, task: Task, state: State, rng: StableRandom) -> tuple[str, str]:
        """Draw a plausible wrong thought and action, for off-expert states; default: any admissible action."""
        admissible = self._admissible(task, state)
        if not admissible:
            raise UnknownOption(
                f"{self._name()} lists no admissible actions and its class does not define _suboptimal_action"
            )
        return "", rng.choice(list(admissible))

    def _distance(self, task: Task, state: State) -> float | None:
        """Count the steps left for the oracle; None if the state is lost."""
        raise UnknownOption(f"{self._name()} cannot measure progress: its class does not define _distance")

    @classmethod
    def published(cls, **options: Any) -> tuple[Published, ...]:
        """Public data of the full tier, present or missing; empty if the family has no full tier."""
        return ()

    def highlights(self, observation: str) -> list[tuple[int, int, str]]:
        """Find the spans of an observation to colour: (start, end, style), in rich's style names."""
        return []

    def picture(self) -> str:
        """Draw the current state below a purely verbal observation; "" if there is nothing to draw."""
        return ""

    # Gymnasium ------------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: seed of ``np_random``, which draws the task.
            options: ``{"task": id or index}`` chooses the task; an index counts within the environment's split.

        Returns:
            The first observation and info.

        Raises:
            UnknownTask: no such task, or the split is empty.
        """
        super().reset(seed=seed)
        wanted = None
        if options:
            unknown = options.keys() - {"task"}
            if unknown:
                raise UnknownOption(
                    f"unknown reset option {sorted(unknown)[0]!r}; valid: 'task' (an id or an index)"
                )
            wanted = options.get("task")
        self._begin(self._choose_task(wanted))
        return self._observation, self._first_info()

    def _choose_task(self, wanted: Any) -> str:
        if isinstance(wanted, str):
            return str(wanted)  # NumPy strings are accepted too, but info holds plain ones
        ids = self.task_ids(self.split)
        if not len(ids):
            raise UnknownTask(
                f"split {self.split!r} of {self._name()} has no tasks; {self.lacking(self.split)}"
            )
        if wanted is None:
            return ids[int(self.np_random.integers(len(ids)))]
        if not is_whole(wanted) or not 0 <= int(wanted) < len(ids):
            raise UnknownTask(
                f"task {wanted!r}: an index must be a whole number from 0 to {len(ids) - 1} in split {self.split!r}"
            )
        return ids[int(wanted)]

    def _begin(self, task_id: str) -> None:
        task = self._open(task_id)
        self._state, first = checked_pair("_start", "state, first observation", self._start(task))
        self._observation = self._fit(checked_text("_start", first))
        if self._list_actions:
            known = checked_actions("_admissible", self._admissible(task, self._state))
            if known is None:
                raise UnknownOption(_OPEN_SET.format(self._name()))
            self._observation = self._fit(self._observation, known)
        self._step_count = 0
        self._over = False
        self._success, self._score = False, 0.0

    def _open(self, task_id: str) -> Task:
        """Load a task and make it current."""
        task, split = checked_pair("_load_task", "task, split", self._load_task(task_id))
        return self._take_up(task_id, task, checked_text("_load_task", split))

    def _take_up(self, task_id: str, task: Task, split: str) -> Task:
        """Make a task current; its entries of ``info`` stay the same for the whole episode."""
        if self._horizon_factor is not None:
            optimum = self._distance(task, self._start(task)[0])
            self.horizon = steps_of(self._horizon_factor, optimum, task_id)
        self._task, self._task_id, self._task_split = task, task_id, split
        self._first = {
            "task_id": task_id,
            "split": self._task_split,
            "instruction": checked_text("_instruction", self._instruction(task)),
            "step": 0,
            "horizon": self.horizon,
            "admissible_actions": None,
            "success": False,
            "score": 0.0,
        }
        self._later = {**self._first, **STEP_INFO}
        return task

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one reply, in any form of ``tstar_envs.react``. No string raises.

        Returns:
            Observation, reward, terminated, truncated and ``info``.

        Raises:
            ResetNeeded: called before ``reset`` or after the end of an episode.
            InfrastructureError: a service that the environment needs failed (search). Nothing was played, and the same step may be
                retried. Never a reward of 0.
            SolverLimit: an option needs a solution (Sokoban's ``show_dead`` and ``end_when_lost``) and the solver gave up. Nothing was
                played; a higher ``solver_states`` helps.
        """
        task, state = self._task, self._state
        if self._over or task is None or state is None:
            self._running()
            raise ResetNeeded(
                f"the episode of task {self._task_id!r} is over: call reset() before the next step()"
            )
        thought, asked, _ = self.read_reply(action if type(action) is str else str(action))
        outcome = self._apply(task, state, asked)
        if self._foreign and not is_plain(outcome):
            outcome = checked(outcome)
        state, observation, invalid_reason = outcome.state, outcome.observation, outcome.invalid_reason
        if invalid_reason and self._explain_invalid and invalid_reason not in observation:
            observation = f"Invalid action: {invalid_reason}.\n{observation}"
        if len(observation) > self.longest_observation:
            observation = self._fit(observation)
        self._state, self._observation = state, observation
        self._success, self._score = outcome.success, outcome.score
        self._step_count = count = self._step_count + 1
        truncated = not outcome.terminated and count >= self.horizon
        self._over = over = outcome.terminated or truncated
        info = self._later.copy()
        if outcome.extra is not None:
            info.update(outcome.extra)
        if not over:
            known = outcome.admissible or self._admissible(task, state)
            if self._foreign:
                known = checked_actions("_admissible", known)
            info["admissible_actions"] = None if known is None else list(known)
            if self._list_actions and known is not None:
                observation = self._observation = self._fit(observation, known)
        info["step"] = count
        info["success"] = outcome.success
        info["score"] = outcome.score
        info["thought"] = thought
        info["action"] = outcome.action
        if invalid_reason:
            info["action_valid"] = False
            info["invalid_reason"] = invalid_reason
        if outcome.effect_key:
            info["modifies_state"] = True
            info["effect_key"] = outcome.effect_key
        info["state_key"] = outcome.state_key or self._state_key(task, state)
        return observation, outcome.score if over else outcome.shaping, outcome.terminated, truncated, info

    @property
    def horizon_varies(self) -> bool:
        """True if each task has its own ``horizon``, a multiple of its optimum."""
        return self._horizon_factor is not None

    def read_reply(self, reply: str) -> Reply:
        """Parse a reply into thought and action as ``step`` does (``tstar_envs.react``)."""
        read = read_reply(reply, self.exact_replies, self.answers)
        if self.exact_replies or ("(" not in read.action and "[" not in read.action):
            return read
        return read._replace(action=written_call(self.tools, read.action))

    def render(self) -> str | None:
        """Return the current observation in ``ansi`` mode, else None."""
        return self._observation if self.render_mode == "ansi" else None

    def _first_info(self) -> dict[str, Any]:
        """Build the ``info`` of a reset or of a restored state."""
        task, state = self._running()
        info = self._first.copy()
        info["step"], info["success"], info["score"] = self._step_count, self._success, self._score
        if not self._over:
            info["admissible_actions"] = checked_actions("_admissible", self._admissible(task, state))
        info.update(checked_extra("_reset_extra", self._reset_extra(task, state)))
        return info

    def _fit(self, observation: str, actions: Sequence[str] = ()) -> str:
        """Truncate an observation to the limit of the space, with a note in the text, and append the admissible actions."""
        limit, note = self.longest_observation, "\n[observation cut here]"
        least = limit - len(with_actions("", actions))
        if len(observation) > least:
            observation = observation[: max(0, least - len(note))] + note
        return with_actions(observation, actions)[:limit]

    def _running(self) -> tuple[Task, State]:
        if self._task is None or self._state is None:
            raise ResetNeeded(f"{self._name()} has no episode yet: call reset() first")
        return self._task, self._state

    def _check_split(self, split: str) -> str:
        """Return the split; raise UnknownOption with the valid ones if it is unknown."""
        if split not in self.splits:
            raise UnknownOption(
                f"split must be one of {', '.join(map(repr, self.splits))} in {self._name()}, got {split!r}"
            )
        return split

    def _check_style(self, style: str | None) -> str:
        """Return the prompt style (None: the environment's own); raise UnknownOption with the valid ones."""
        check_option("style", chosen := style or self.prompt_style, self.prompt_styles)
        return chosen

    def _name(self) -> str:
        return self.spec.id if self.spec is not None else type(self).__name__

    # The running episode, and snapshots of it -------------------------------------------------------------------------

    @property
    def task(self) -> Task:
        """Current task as the family keeps it; immutable. ResetNeeded before the first ``reset``."""
        return self._running()[0]

    @property
    def state(self) -> State:
        """Current state as the family's rules take it; never changed in place. ResetNeeded before the first ``reset``."""
        return self._running()[1]

    @property
    def over(self) -> bool:
        """True if only ``reset`` may come next: no episode has begun, or it was terminated or truncated."""
        return self._over

    def state_key(self) -> str:
        """Hash the current state (blake2b): equal exactly for equal states of one task."""
        return self._state_key(*self._running())

    def snapshot(self) -> Snapshot[State]:
        """Take a snapshot of the episode, to continue later with ``restore``."""
        task, state = self._running()
        return Snapshot(
            self._task_id,
            self._task_split,
            state,
            self._step_count,
            self._observation,
            self._over,
            self._success,
            self._score,
            self._origin_of(self._task_id, task),
        )

    def _origin_of(self, task_id: str, task: Task) -> Origin:
        """Origin of the snapshots of a task; cached, since an environment's data do not change."""
        if self._origin is None or self._origin[0] != task_id:
            options = options_of_state(type(self), self._made_with)
            self._origin = task_id, Origin(type(self).__name__, options, digest(self._snapshot_content(task)))
        return self._origin[1]

    def _snapshot_content(self, task: Task) -> str:
        """Text that must be equal for a snapshot to belong to this task."""
        return self._task_content(task)

    def _task_content(self, task: Task) -> str:
        """Text that identifies the data of a task.

        It differs if tasks of one id have different data (another folder, a changed file) in anything an agent is shown or that decides
        success and score. It is the same on every machine and, in every family, with all options.
        """
        state, observation = self._start(task)
        return f"{self._instruction(task)}\0{observation}\0{self._state_fingerprint(task, state)}"

    def task_digest(self, task_id: str) -> str:
        """Hash the content of a task (``_task_content``), whatever the options. Equal on every machine.

        Raises:
            UnknownTask: no task has that id.
        """
        return digest(self._task_content(self._load_task(task_id)[0]))

    def world_digest(self) -> str:
        """Hash the data shared by all tasks (corpus, shop); "" if there are none."""
        return ""

    def restore(self, snapshot: Snapshot[State]) -> tuple[str, dict[str, Any]]:
        """Return to a snapshot, and return its observation and ``info``. Another instance's fits under equal options.

        Raises:
            UnknownOption: not a snapshot, damaged, or taken with other options or other data. The running episode stays as it was.
            UnknownTask: this environment does not have its task. The running episode stays as it was.
        """
        if not isinstance(snapshot, Snapshot):
            raise UnknownOption(f"restore takes a snapshot made by snapshot(), got {snapshot!r:.80}")
        if not isinstance(snapshot.task_id, str):
            raise UnknownOption(f"this snapshot is damaged: its task id is {snapshot.task_id!r:.80}")
        task, split = self._load_task(snapshot.task_id)
        snapshot.check(self._origin_of(snapshot.task_id, task))
        try:
            self._state_key(task, snapshot.state)
            self._admissible(task, snapshot.state)
        except Exception as error:  # a state of another form may raise anything in the rules of a family
            raise UnknownOption(
                f"this snapshot is damaged: {snapshot.state!r:.80} is not a state of task {snapshot.task_id!r}"
            ) from error
        self._take_up(snapshot.task_id, task, split)
        self._state = snapshot.state
        self._step_count = snapshot.step
        self._observation = snapshot.observation
        self._over = snapshot.over
        self._success, self._score = snapshot.success, snapshot.score
        return self._observation, self._first_info()

    # Options, splits, data ----------------------------------------------------------------------------------------------

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """Map the constructor's keyword options to their types (resolved annotations), the family's own first."""
        owners = [owner for owner in cls.__mro__ if issubclass(owner, TextEnv) and "__init__" in vars(owner)]
        return {
            parameter.name: parameter.annotation
            for owner in owners
            for parameter in inspect.signature(owner.__init__, eval_str=True).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        }

    @classmethod
    def survey(cls, **options: Any) -> tuple[str, dict[str, int]]:
        """Report data tier and tasks per split, without loading an index or connecting to a server."""
        env = cls(**options)
        return env.tier, {split: len(env.task_ids(split)) for split in env.splits}

    def lacking(self, split: str) -> str:
        """Explain why a split may be empty, and which splits have tasks.

        Args:
            split: the split without tasks, or with too few.
        """
        filled = [name for name in self.splits if len(self.task_ids(name))]
        advice = "choose another data tier"
        if filled:
            advice = f"it has some in: {', '.join(filled)} (split={filled[0]!r})"
        if self.tier == "path":
            advice += (
                f"; files below a folder {split}/ (questions: a file named {split}) are of this split, and files without one are "
                "test tasks"
            )
        return advice

    # The expert: replies, suboptimal actions, progress, demonstrations --------------------------------------------------

    @classmethod
    def practice(cls, seed: int | str, **options: Any) -> Any:
        """Make a training environment without tasks of valid or test; by default the train split.

        Args:
            seed: families that generate tasks generate different ones for each seed.
            **options: options of the environment.
        """
        return cls(**{**options, "split": "train"})

    def oracle(self, paraphrase: int = 0, kind: str = "expert", *, wording: int | None = None) -> str | None:
        """Compute the expert's next reply; None if the state is lost or the episode over.

        Deterministic. Draws nothing from the environment's generator.

        Args:
            paraphrase: chooses the phrasing of the thought (demonstrations vary it); the action does not depend on it.
            kind: one of ``oracle_kinds``. "expert", in every family, knows the whole state and always wins. "search" (ALFWorld) knows
                only the observations of the episode, searches for the rest, and may run out of steps.
            wording: deprecated name of ``paraphrase``.

        Raises:
            UnknownOption: the family does not have this kind.
        """
        if wording is not None:
            warnings.warn(
                "oracle(wording=...) is now oracle(paraphrase=...)", DeprecationWarning, stacklevel=2
            )
            paraphrase = wording
        check_option("kind", kind, self.oracle_kinds)
        task, state = self._running()
        step = None if self._over else self._expert_step(kind, task, state, paraphrase)
        return None if step is None else render_reply(*step, style=self.prompt_style)

    def mistake(self, seed: int | str) -> str:
        """Compute a plausible wrong reply for perturbed demonstrations; the same seed gives the same reply."""
        task, state = self._running()
        return render_reply(
            *self._suboptimal_action(task, state, StableRandom(f"mistake/{seed}")), style=self.prompt_style
        )

    def progress(self) -> float:
        """Measure progress in [0, 1]: 1 - (distance left / distance at the start); 0 if lost."""
        task, state = self._running()
        left, whole = self._distance(task, state), self._distance(task, self._start(task)[0])
        if left is None or whole is None:
            return 0.0
        if not whole:  # solved at the start
            return 1.0 if not left else 0.0
        return min(1.0, max(0.0, 1.0 - left / whole))

    def demonstrations(self, n: int, style: str | None = None) -> list[str]:
        """Render ``n`` oracle episodes of train tasks as text, for few-shot prompts.

        A family with several kinds of oracle shows ``demonstrated``.

        Args:
            n: number of demonstrations, of the first n tasks of the train split. A task that the kind does not win within ``horizon`` is
                shown as "expert" plays it.
            style: one of ``prompt_styles``, default the environment's.

        Raises:
            UnknownOption: there are fewer train tasks, or no train split.
        """
        style = self._check_style(style)
        ids = self.task_ids("train")
        if not is_whole(n):
            raise UnknownOption(f"demonstrations takes a whole number, how many, got {n!r}")
        if not 0 <= n <= len(ids):
            advice = "" if ids else "; take them from an environment with its shipped data"
            raise UnknownOption(
                f"{counted(n, 'demonstration')} wanted, but split 'train' of {self._name()} has {counted(len(ids), 'task')}{advice}"
            )
        kept = self.snapshot() if self._task is not None else None
        try:
            return [self._demonstrate(task_id, style) for task_id in ids[:n]]
        finally:  # the caller's episode must survive a failure of the search service
            if kept is not None:
                self.restore(kept)
            else:
                self._task, self._state, self._over = None, None, True

    def _demonstrate(self, task_id: str, style: str) -> str:
        text = ""
        for kind in dict.fromkeys((self.demonstrated, "expert")):
            text = self._played_by(kind, task_id, style)
            if self._success:
                break
        return text

    def _played_by(self, kind: str, task_id: str, style: str) -> str:
        self._begin(task_id)
        lines = [self._observation]
        while not self._over:
            step = self._expert_step(kind, *self._running(), 0)
            if step is None:
                break
            self.step(render_reply(*step))
            lines += [render_reply(*step, style=style), f"Observation: {self._observation}"]
        return "\n".join(lines[:-1] if self._over else lines)
