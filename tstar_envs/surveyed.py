"""What is known of an environment without playing it: its splits, options, data, and what of them cannot be used."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from tstar_envs.data.faults import NOTHING_LEFT_OUT, LeftOut
from tstar_envs.data.locate import Published
from tstar_envs.utils import SPLITS


class Surveyed:
    """The part of ``TextEnv`` that listings and checks of data look at; a family sets what differs.

    Attributes:
        splits: names of its splits.
        tier: of its data: mini (shipped), full (published) or path.
        left_out: what of data by path cannot be used, with the option ``skip_bad``.
        solved_at_start: ids of tasks whose goal holds before the first step.
    """

    splits: tuple[str, ...] = SPLITS
    tier: str = "mini"
    left_out: LeftOut = NOTHING_LEFT_OUT
    solved_at_start: Sequence[str] = ()

    @abstractmethod
    def task_ids(self, split: str | None = None) -> Sequence[str]:
        """See ``TextEnv``."""

    @classmethod
    def option_types(cls) -> dict[str, Any]:
        """Keyword options of the constructor and their types (what the annotations stand for), the family's own first."""
        owners = [owner for owner in cls.__mro__ if issubclass(owner, Surveyed) and "__init__" in vars(owner)]
        return {
            parameter.name: parameter.annotation
            for owner in owners
            for parameter in inspect.signature(owner.__init__, eval_str=True).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        }

    @classmethod
    def survey(cls, **options: Any) -> tuple[str, dict[str, int]]:
        """The data tier found and the number of tasks per split, without what only playing needs (an index, a server)."""
        env = cls(**options)
        return env.tier, {split: len(env.task_ids(split)) for split in env.splits}

    @classmethod
    def published(cls, **options: Any) -> tuple[Published, ...]:
        """The public data of the full tier, here or not; nothing where the family has no full tier."""
        return ()

    def lacking(self, split: str) -> str:
        """Say why a split may be empty, and which splits have tasks.

        Args:
            split: the one without tasks, or with too few.
        """
        filled = [name for name in self.splits if len(self.task_ids(name))]
        advice = (
            f"it has some in: {', '.join(filled)} (split={filled[0]!r})"
            if filled
            else "choose another data tier"
        )
        if self.tier == "path":
            advice += (
                f"; files below a folder {split}/ (questions: a file named {split}) are of this split, and files without one are "
                "test tasks"
            )
        return advice
