"""What an environment may do for a person who plays it in a terminal (``python -m tstar_envs play``)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class Displayed:
    """The part of ``TextEnv`` that ``play`` alone looks at; agents never see any of it, and a family may leave all of it out.

    Attributes:
        keys: what a person may type, in lower case, and the action that it stands for.
    """

    keys: Mapping[str, str] = MappingProxyType({})

    def highlights(self, observation: str) -> list[tuple[int, int, str]]:
        """What is coloured in an observation of the current task: (start, end, style), the styles as rich writes them."""
        return []

    def picture(self) -> str:
        """What is drawn below an observation that is only words, "" where there is nothing to draw."""
        return ""
