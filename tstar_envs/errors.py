"""Errors of the suite. Each message says what happened, the value, and what to do about it."""

from __future__ import annotations

from typing import Any


class TStarError(Exception):
    """Base class: something the user can fix, shown without a traceback by the command line."""


def install(extra: str) -> str:
    """What brings the packages of an extra."""
    return f"in a clone run: pip install -c constraints.txt -e '.[{extra}]'"


class MissingExtra(TStarError, ImportError):
    """A part needs packages that are not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        self.feature, self.package, self.extra = feature, package, extra
        super().__init__(f"{feature} needs the package {package!r}, which is not installed: {install(extra)}")

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str, str]]:
        # The default would call the class with the message alone; worker processes send errors pickled.
        return MissingExtra, (self.feature, self.package, self.extra)


class MissingData(TStarError, FileNotFoundError):
    """A data file or folder is not there."""


class BadData(TStarError, ValueError):
    """A data file is there but cannot be used; the message names file, line and field.

    Attributes:
        left_out: ``tstar_envs.data.faults.LeftOut``, all faults where items were read one by one; else None.
    """

    left_out: Any = None


class WriteFailed(TStarError, OSError):
    """A file could not be written (a full disk, no permission); the message names it and what is left."""


class InUse(TStarError):
    """Another process writes the same file or folder; the message names it."""


class UnknownTask(TStarError, KeyError):
    """A task id or index that the environment does not have."""

    def __str__(self) -> str:  # KeyError would show the repr of the message
        return str(self.args[0]) if self.args else ""


class UnknownOption(TStarError, ValueError):
    """An argument with a value outside the valid ones; the message lists them."""


class PanelMismatch(TStarError, ValueError):
    """An environment plays other tasks, or under other rules, than the panel that was asked for; the message says what differs."""


class ResetNeeded(TStarError, RuntimeError):
    """A call that needs a running episode came before ``reset`` or after the end."""


class SolverLimit(TStarError, RuntimeError):
    """A solver gave up at its bound: whether there is a solution is not known.

    Attributes:
        at_least: a solution, if there is one, takes at least so many steps.
    """

    at_least: int = 0


class InfrastructureError(TStarError):
    """Something an environment relies on failed: no fault of the agent, and the episode says nothing about it.

    Raised by ``step`` before anything of the step was played. Who plays many episodes marks this one as failed and leaves it
    out; it is never scored 0.
    """


class EnvironmentFailed(TStarError):
    """An environment raised something that no action may make it raise, or returned what it must not: a fault of its code."""


class RetrieverError(InfrastructureError, ConnectionError):
    """The search service did not answer as it should, after all tries."""
