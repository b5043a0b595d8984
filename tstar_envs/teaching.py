"""What an environment may offer to those who learn from an expert: its replies, believable mistakes, distance, practice.

A family that implements none of the hooks can still be played, evaluated and trained on; asking it for an expert raises an error that says
there is none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from tstar_envs.errors import UnknownOption
from tstar_envs.react import render_reply
from tstar_envs.snapshot import Snapshot
from tstar_envs.utils import StableRandom, check_option, counted, is_whole

Task = TypeVar("Task")
State = TypeVar("State")


class Teaching(Generic[Task, State]):
    """The part of ``TextEnv`` that concerns its expert.

    A family may write ``_oracle_step`` (then ``oracle`` and ``demonstrations`` work), ``_distance`` (``progress``), ``_mistake``
    (perturbed demonstrations), and ``practice`` (tasks without end, for warm starts). With several experts it also writes
    ``_expert_step`` and sets ``oracle_kinds``.

    Attributes:
        oracle_kinds: experts that the family has.
        demonstrated: the kind that ``demonstrations`` show.
    """

    oracle_kinds: tuple[str, ...] = ("expert",)
    demonstrated: str = "expert"
    prompt_style: str
    prompt_styles: tuple[str, ...]
    horizon: int
    _task: Task | None
    _state: State | None
    _observation: str
    _over: bool
    _success: bool

    @abstractmethod
    def task_ids(self, split: str | None = None) -> Sequence[str]:
        """See ``TextEnv``, as the others up to ``_name``."""

    @abstractmethod
    def snapshot(self) -> Snapshot[State]: ...

    @abstractmethod
    def restore(self, snapshot: Snapshot[State]) -> tuple[str, dict[str, Any]]: ...

    @abstractmethod
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]: ...

    @abstractmethod
    def _start(self, task: Task) -> tuple[State, str]: ...

    @abstractmethod
    def _begin(self, task_id: str) -> None: ...

    @abstractmethod
    def _running(self) -> tuple[Task, State]: ...

    @abstractmethod
    def _check_style(self, style: str | None) -> str: ...

    @abstractmethod
    def _name(self) -> str: ...

    @abstractmethod
    def _admissible(self, task: Task, state: State) -> Sequence[str] | None: ...

    def _oracle_step(self, task: Task, state: State, wording: int) -> tuple[str, str] | None:
        """The expert's thought and action, or None if the state is lost; ``wording`` chooses how the thought is put."""
        raise UnknownOption(f"{self._name()} has no expert: its class does not define _oracle_step")

    def _expert_step(self, kind: str, task: Task, state: State, wording: int) -> tuple[str, str] | None:
        """``_oracle_step`` of one of ``oracle_kinds``; families with several override it."""
        return self._oracle_step(task, state, wording)

    def _mistake(self, task: Task, state: State, rng: StableRandom) -> tuple[str, str]:
        """A believable wrong thought and action, for states an expert alone would never see; by default any admissible action."""
        admissible = self._admissible(task, state)
        if not admissible:
            raise UnknownOption(
                f"{self._name()} lists no admissible actions and its class does not define _mistake"
            )
        return "", rng.choice(list(admissible))

    def _distance(self, task: Task, state: State) -> float | None:
        """Steps left for the oracle, None if the state is lost."""
        raise UnknownOption(
            f"{self._name()} does not know how far an episode came: its class does not define _distance"
        )

    @classmethod
    def practice(cls, seed: int | str, **options: Any) -> Any:
        """An environment of this family to practise in, whose tasks are none of valid or test; by default that of the train split.

        Args:
            seed: families that generate tasks make others for another seed.
            **options: of the environment.
        """
        return cls(**{**options, "split": "train"})

    def oracle(self, wording: int = 0, kind: str = "expert") -> str | None:
        """The next expert reply (thought and action) from the current state; None if it is lost or the episode is over.

        Deterministic; draws nothing from the environment's generator.

        Args:
            wording: demonstrations vary how the thought is put; the action does not depend on it.
            kind: one of ``oracle_kinds``. Every family has "expert", which knows the whole state and always wins; "search" (ALFWorld)
                knows only what was seen in the episode, looks for the rest, and may run out of steps.

        Raises:
            UnknownOption: a kind that the family has not.
        """
        check_option("kind", kind, self.oracle_kinds)
        task, state = self._running()
        step = None if self._over else self._expert_step(kind, task, state, wording)
        return None if step is None else render_reply(*step, style=self.prompt_style)

    def mistake(self, seed: int | str) -> str:
        """A believable wrong reply in the current state, the same for the same seed (perturbed demonstrations use it)."""
        task, state = self._running()
        return render_reply(
            *self._mistake(task, state, StableRandom(f"mistake/{seed}")), style=self.prompt_style
        )

    def progress(self) -> float:
        """1 - (distance left / distance at the start), in [0, 1]; 1 when solved, 0 for a lost state."""
        task, state = self._running()
        left, whole = self._distance(task, state), self._distance(task, self._start(task)[0])
        if left is None or whole is None:
            return 0.0
        if not whole:  # solved at the start
            return 1.0 if not left else 0.0
        return min(1.0, max(0.0, 1.0 - left / whole))

    def demonstrations(self, n: int, style: str | None = None) -> list[str]:
        """``n`` oracle episodes from train tasks as text, for few-shot prompts; of the kind ``demonstrated`` where a family has several.

        Args:
            n: how many; the first n tasks of the train split. One that the kind does not win within ``horizon`` is shown as
                "expert" plays it.
            style: one of ``prompt_styles``, default the environment's.

        Raises:
            UnknownOption: more than there are train tasks, or no train split at all.
        """
        style = self._check_style(style)
        ids = self.task_ids("train")
        if not is_whole(n):
            raise UnknownOption(f"demonstrations takes a whole number, how many, got {n!r}")
        if not 0 <= n <= len(ids):
            advice = (
                ""
                if ids
                else "; demonstrations show no other tasks, so take them from an environment with its shipped data"
            )
            raise UnknownOption(
                f"{counted(n, 'demonstration')} wanted, but split 'train' of {self._name()} has {counted(len(ids), 'task')}{advice}"
            )
        kept = self.snapshot() if self._task is not None else None
        try:
            return [self._demonstrate(task_id, style) for task_id in ids[:n]]
        finally:  # the search service may fail, and the caller's episode must survive that
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
