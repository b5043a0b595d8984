"""TextEnv: what every environment of the suite has in common.

A family supplies tasks and pure rules (state, action) -> Outcome; this class turns them into Gymnasium's ``reset`` and
``step``, fills ``info``, keeps the step count and the horizon, and gives snapshot/restore, so that the contract is
written once.
"""

from __future__ import annotations

import hashlib
import inspect
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

import gymnasium as gym

from tstar_envs.errors import ResetNeeded, UnknownOption, UnknownTask
from tstar_envs.react import parse_reply, render_reply
from tstar_envs.spaces import Unicode
from tstar_envs.stable_random import StableRandom

SPLITS = ("train", "valid", "test")
PROMPT_STYLES = ("react", "tags")
LONGEST_ACTION = 1_000_000  # characters of one reply; longer strings are still answered, never raised on

NOTHING: Mapping[str, Any] = MappingProxyType({})

Task = TypeVar("Task")
State = TypeVar("State")


class Outcome(NamedTuple, Generic[State]):
    """What the rules say an action did.

    Attributes:
        state: the state after it (the same object if nothing changed).
        observation: what the agent is told.
        action: the canonical form of the action, "" if it could not be read.
        invalid_reason: why it was a no-op, "" for a valid action.
        effect_key: canonical key of the change that counts as modifying the state, "" if there is none. Movement that can
            always be undone (Sokoban: walking) changes the state, and its key, without an effect.
        terminated: whether the episode is over.
        success: whether the task is solved.
        score: in [0, 1]; the terminal reward.
        extra: further ``info`` entries of this family.
        shaping: reward of a step that does not end the episode, 0 unless an option of the family asks for it.
        admissible: the admissible actions after it and
        state_key: the key of the state after it, where the rules know them already; None and "" are looked up.
    """

    state: State
    observation: str
    action: str
    invalid_reason: str = ""
    effect_key: str = ""
    terminated: bool = False
    success: bool = False
    score: float = 0.0
    extra: Mapping[str, Any] = NOTHING
    shaping: float = 0.0
    admissible: Sequence[str] | None = None
    state_key: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot(Generic[State]):
    """Everything an episode's future depends on; immutable and picklable."""

    task_id: str
    split: str
    state: State
    step: int
    observation: str
    over: bool
    success: bool = False
    score: float = 0.0


class TextEnv(gym.Env[str, str], Generic[Task, State]):
    """Base of all environments; see DESIGN section 2 for the contract.

    Subclasses set ``metadata`` (with ``rules_version``), call ``super().__init__`` and write the methods marked
    abstract. All randomness comes from ``self.np_random``.

    Args:
        split: ``train``, ``valid`` or ``test`` (or a further split of the family): where ``reset`` draws tasks from.
        horizon: steps until truncation; None means the family's own.
        prompt_style: ``react`` or ``tags``, the default of ``prompt`` and of the oracle's replies.
        render_mode: None or ``ansi``.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1, "rules_version": "1"}
    default_horizon: int = 20
    longest_observation: int = 20_000
    splits: tuple[str, ...] = SPLITS
    tier: str = "mini"

    def __init__(
        self,
        *,
        split: str = "test",
        horizon: int | None = None,
        prompt_style: str = "react",
        render_mode: str | None = None,
        **unknown: Any,
    ) -> None:
        if unknown:
            valid = ", ".join(sorted(self.option_types()))
            raise UnknownOption(f"{self._name()} has no option {sorted(unknown)[0]!r}; valid: {valid}")
        check_option("split", split, self.splits)
        check_option("prompt_style", prompt_style, PROMPT_STYLES)
        check_option("render_mode", render_mode, (None, "ansi"))
        if horizon is not None and (isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1):
            raise UnknownOption(f"horizon must be a whole number of at least 1 (or None for the default), got {horizon!r}")
        self.split = split
        self.horizon = horizon or self.default_horizon
        self.prompt_style = prompt_style
        self.render_mode = render_mode
        self.observation_space = Unicode(self.longest_observation)
        self.action_space = Unicode(LONGEST_ACTION)
        self._task: Task | None = None
        self._state: State | None = None
        self._task_id = ""
        self._task_split = split
        self._step_count = 0
        self._observation = ""
        self._over = True
        self._success = False
        self._score = 0.0

    # What a family writes -------------------------------------------------------------------------------------------

    @abstractmethod
    def task_ids(self, split: str | None = None) -> Sequence[str]:
        """Ids of the tasks of a split (default: the environment's own), in a fixed order."""

    @abstractmethod
    def _load_task(self, task_id: str) -> tuple[Task, str]:
        """The task and its split; UnknownTask if there is none of that id."""

    @abstractmethod
    def _start(self, task: Task) -> tuple[State, str]:
        """The start state and the first observation."""

    @abstractmethod
    def _apply(self, task: Task, state: State, action: str) -> Outcome[State]:
        """The rules: what an action does. Never raises on any string."""

    @abstractmethod
    def _instruction(self, task: Task) -> str:
        """The goal in words."""

    @abstractmethod
    def _state_fingerprint(self, task: Task, state: State) -> str:
        """Text that is equal exactly for equal states."""

    @abstractmethod
    def _oracle_step(self, task: Task, state: State, wording: int) -> tuple[str, str] | None:
        """The expert's thought and action, or None if the state is lost; ``wording`` chooses how the thought is put."""

    @abstractmethod
    def _mistake(self, task: Task, state: State, draw: StableRandom) -> tuple[str, str]:
        """A believable wrong thought and action, for states an expert alone would never see."""

    @classmethod
    @abstractmethod
    def practice(cls, seed: int | str, **options: Any) -> TextEnv[Any, Any]:
        """An environment of this family with freshly generated train tasks that share no task with valid or test."""

    @abstractmethod
    def _distance(self, task: Task, state: State) -> float | None:
        """Steps left for the oracle, None if the state is lost."""

    @abstractmethod
    def modifies_state(self, action: str) -> bool:
        """The static predicate modifies_state(a): whether an action of this kind can change the state."""

    @abstractmethod
    def prompt(self, style: str | None = None) -> str:
        """The rules and the action grammar as an agent is told them, in ``react`` or ``tags`` style."""

    def _admissible(self, task: Task, state: State) -> Sequence[str] | None:
        """Admissible actions, or None where the set is open."""
        return None

    def _state_key(self, task: Task, state: State) -> str:
        """See ``state_key``; a family that remembers keys gives the same ones here."""
        return hash_state(state_hasher(self._task_id), self._state_fingerprint(task, state))

    def _reset_extra(self, task: Task, state: State) -> Mapping[str, Any]:
        """Further entries of ``info`` on reset."""
        return {}

    @classmethod
    def prepare_group_step(cls, envs: Sequence[TextEnv[Any, Any]], replies: Sequence[str]) -> None:
        """Called by GroupEnv before the rows step one by one: a family may do shared work here (one search request)."""

    # Gymnasium ------------------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: seeds ``np_random``, which draws the task.
            options: ``{"task": id or index}`` names the task; an index counts within the environment's split.

        Returns:
            The first observation and info.

        Raises:
            UnknownTask: no such task, or the split is empty.
        """
        super().reset(seed=seed)
        unknown = set(options or {}) - {"task"}
        if unknown:
            raise UnknownOption(f"unknown reset option {sorted(unknown)[0]!r}; valid: 'task' (an id or an index)")
        self._begin(self._choose_task((options or {}).get("task")))
        return self._observation, self._first_info()

    def _choose_task(self, wanted: Any) -> str:
        ids = self.task_ids(self.split)
        if isinstance(wanted, str):
            return str(wanted)  # numpy strings too, but info holds plain ones
        if not len(ids):
            raise UnknownTask(f"split {self.split!r} of {self._name()} has no tasks; choose another split or another data tier")
        if wanted is None:
            return ids[int(self.np_random.integers(len(ids)))]
        # Integral: indexes drawn with numpy are welcome.
        if isinstance(wanted, bool) or not isinstance(wanted, Integral) or not 0 <= int(wanted) < len(ids):
            raise UnknownTask(f"task {wanted!r}: an index must be a whole number from 0 to {len(ids) - 1} in split {self.split!r}")
        return ids[int(wanted)]

    def _begin(self, task_id: str) -> None:
        self._task, self._task_split = self._load_task(task_id)
        self._task_id = task_id
        self._state, first = self._start(self._task)
        self._observation = self._fit(first)
        self._step_count = 0
        self._over = False
        self._success, self._score = False, 0.0

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Play one reply; see ``tstar_envs.react`` for its forms. No string raises.

        Raises:
            ResetNeeded: before ``reset`` or after the end of an episode.
        """
        task, state = self._running()
        if self._over:
            raise ResetNeeded(f"the episode of task {self._task_id!r} is over: call reset() before the next step()")
        reply = parse_reply(str(action))
        outcome = self._apply(task, state, reply.action)
        self._state = state = outcome.state
        self._step_count += 1
        observation = outcome.observation
        if len(observation) > self.longest_observation:
            observation = self._fit(observation)
        self._observation = observation
        terminated = outcome.terminated
        truncated = not terminated and self._step_count >= self.horizon
        self._over = over = terminated or truncated
        self._success, self._score = outcome.success, outcome.score
        admissible = None if over else outcome.admissible or self._admissible(task, state)
        info = self._info(task, admissible)
        if outcome.extra is not NOTHING:
            info.update(outcome.extra)
        info["thought"] = reply.thought
        info["action"] = outcome.action
        info["action_valid"] = not outcome.invalid_reason
        info["invalid_reason"] = outcome.invalid_reason
        info["modifies_state"] = outcome.effect_key != ""
        info["effect_key"] = outcome.effect_key
        info["state_key"] = outcome.state_key or self._state_key(task, state)
        return observation, outcome.score if over else outcome.shaping, terminated, truncated, info

    def render(self) -> str | None:
        """The current observation in ``ansi`` mode, else None."""
        return self._observation if self.render_mode == "ansi" else None

    def _first_info(self) -> dict[str, Any]:
        """``info`` of a reset, or of a restored state."""
        task, state = self._running()
        admissible = None if self._over else self._admissible(task, state)
        return {**self._info(task, admissible), **self._reset_extra(task, state)}

    def _info(self, task: Task, admissible: Sequence[str] | None) -> dict[str, Any]:
        """What ``info`` holds on reset and on step."""
        return {
            "task_id": self._task_id,
            "split": self._task_split,
            "instruction": self._instruction(task),
            "step": self._step_count,
            "horizon": self.horizon,
            "admissible_actions": None if admissible is None else list(admissible),
            "success": self._success,
            "score": self._score,
        }

    def _fit(self, observation: str) -> str:
        """Cut an observation to the space's bound, saying so in the text."""
        if len(observation) <= self.longest_observation:
            return observation
        note = "\n[observation cut here]"
        return observation[: self.longest_observation - len(note)] + note

    def _running(self) -> tuple[Task, State]:
        if self._task is None or self._state is None:
            raise ResetNeeded(f"{self._name()} has no episode yet: call reset() first")
        return self._task, self._state

    def _name(self) -> str:
        return self.spec.id if self.spec is not None else type(self).__name__

    @classmethod
    def option_types(cls) -> dict[str, str]:
        """Keyword options of the constructor and their annotations, the family's own first."""
        owners = [owner for owner in cls.__mro__ if issubclass(owner, TextEnv) and "__init__" in vars(owner)]
        return {
            parameter.name: str(parameter.annotation)
            for owner in owners
            for parameter in inspect.signature(owner.__init__).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        }

    @classmethod
    def survey(cls, **options: Any) -> tuple[str, dict[str, int]]:
        """The data tier found and the number of tasks per split, without what only playing needs (an index, a server)."""
        env = cls(**options)
        return env.tier, {split: len(env.task_ids(split)) for split in cls.splits}

    # Beyond Gymnasium -----------------------------------------------------------------------------------------------

    def state_key(self) -> str:
        """blake2b of the current state: equal exactly for equal states of one task."""
        return self._state_key(*self._running())

    def snapshot(self) -> Snapshot[State]:
        """The episode so far, to continue from later with ``restore``."""
        _, state = self._running()
        return Snapshot(self._task_id, self._task_split, state, self._step_count, self._observation, self._over, self._success, self._score)

    def restore(self, snapshot: Snapshot[State]) -> tuple[str, dict[str, Any]]:
        """Continue exactly from a snapshot (also one taken from another instance of the same id and options)."""
        self._task, self._task_split = self._load_task(snapshot.task_id)
        self._task_id = snapshot.task_id
        self._state = snapshot.state
        self._step_count = snapshot.step
        self._observation = snapshot.observation
        self._over = snapshot.over
        self._success, self._score = snapshot.success, snapshot.score
        return self._observation, self._first_info()

    def oracle(self, wording: int = 0) -> str | None:
        """The next expert reply (thought and action) from the current state; None if it is lost or the episode is over.

        Deterministic; draws nothing from the environment's generator.

        Args:
            wording: demonstrations vary how the thought is put; the action does not depend on it.
        """
        task, state = self._running()
        step = None if self._over else self._oracle_step(task, state, wording)
        return None if step is None else render_reply(*step, style=self.prompt_style)

    def mistake(self, seed: int | str) -> str:
        """A believable wrong reply in the current state, the same for the same seed (perturbed demonstrations use it)."""
        task, state = self._running()
        return render_reply(*self._mistake(task, state, StableRandom(f"mistake/{seed}")), style=self.prompt_style)

    def progress(self) -> float:
        """1 - (distance left / distance at the start), in [0, 1]; 1 when solved, 0 for a lost state."""
        task, state = self._running()
        left, whole = self._distance(task, state), self._distance(task, self._start(task)[0])
        if left is None or not whole:
            return 0.0
        return min(1.0, max(0.0, 1.0 - left / whole))

    def demonstrations(self, n: int, style: str | None = None) -> list[str]:
        """``n`` oracle episodes from train tasks as text, for few-shot prompts.

        Args:
            n: how many; the first n tasks of the train split.
            style: ``react`` or ``tags``, default the environment's.
        """
        style = style or self.prompt_style
        check_option("style", style, PROMPT_STYLES)
        ids = self.task_ids("train")
        if not 0 <= n <= len(ids):
            raise UnknownOption(f"{n} demonstrations wanted, but split 'train' of {self._name()} has {len(ids)} tasks")
        kept = self.snapshot() if self._task is not None else None
        try:
            return [self._demonstrate(task_id, style) for task_id in ids[:n]]
        finally:  # the search service may fail, and the caller's episode must survive that
            if kept is not None:
                self.restore(kept)
            else:
                self._task, self._state, self._over = None, None, True

    def _demonstrate(self, task_id: str, style: str) -> str:
        self._begin(task_id)
        lines = [self._observation]
        while not self._over:
            step = self._oracle_step(*self._running(), 0)
            if step is None:
                break
            self.step(render_reply(*step))
            lines += [render_reply(*step, style=style), f"Observation: {self._observation}"]
        return "\n".join(lines[:-1] if self._over else lines)


def state_hasher(task_id: str) -> hashlib.blake2b:
    """What the keys of all states of a task start from."""
    return hashlib.blake2b(f"{task_id}\0".encode("utf-8", "surrogatepass"), digest_size=16)


def hash_state(hasher: hashlib.blake2b, fingerprint: str) -> str:
    """The key of a state, from its task's ``state_hasher`` and text that is equal exactly for equal states of the task."""
    own = hasher.copy()
    own.update(fingerprint.encode("utf-8", "surrogatepass"))
    return own.hexdigest()


def check_option(name: str, value: object, valid: Sequence[object]) -> None:
    """Raise UnknownOption unless ``value`` is one of ``valid``."""
    if value not in valid:
        raise UnknownOption(f"{name} must be one of {', '.join(repr(v) for v in valid)}, got {value!r}")
