"""The messages of an OpenEnv session: actions, observations, its state, and errors that the client can read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tstar_envs.errors import InfrastructureError, MissingExtra, TStarError
from tstar_envs.redaction import encodable_parts


def missing(error: ImportError) -> MissingExtra:
    """The error for a package that is not installed, or a version of OpenEnv that lacks a name."""
    lacks = error.name if isinstance(error, ModuleNotFoundError) and error.name else "openenv>=0.10,<0.11"
    return MissingExtra("the OpenEnv server", lacks, "openenv")


try:
    from openenv.core.env_server import Action, Observation, State
    from pydantic import Field, ValidationError
except ImportError as error:
    raise missing(error) from error


class ServedError(RuntimeError):
    """What went wrong, as the client reads it: the kind of the suite's error and its message."""


class TStarAction(Action):
    """One turn: a ``reply`` as a model wrote it, or a call of one of the tools that the first observation names."""

    reply: str | None = Field(
        default=None, description="thought and action as text, for example 'Thought: ...\\nAction: right'"
    )
    tool_name: str | None = Field(default=None, description="a typed tool, in place of a reply")
    arguments: dict[str, Any] = Field(default_factory=dict, description="of the tool")
    thought: str = Field(default="", description="what the model thought before it called the tool")

    @classmethod
    def model_validate(cls, obj: Any, **how: Any) -> TStarAction:
        """Validate as pydantic does, and name the faults: OpenEnv answers a ValidationError with "Invalid message" alone."""
        try:
            action: TStarAction = super().model_validate(encodable_parts(obj), **how)
            return action
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'action'}: {fault['msg']}" for fault in error.errors()
            )
            raise ServedError(
                f"this is no action: {faults}; an action has {', '.join(cls.model_fields)}"
            ) from error


class TStarObservation(Observation):
    """What the environment shows. ``metadata`` is the environment's info, and with which rules and tasks it plays."""

    text: str = Field(description="the observation")
    prompt: str = Field(
        default="", description="on reset: the rules and the grammar of actions, as an agent is told them"
    )
    tools: list[dict[str, Any]] = Field(
        default_factory=list, description="on reset: the tools, as chat APIs take them"
    )
    admissible_actions: list[str] | None = Field(
        default=None, description="null where the set is open or the episode over"
    )
    success: bool = Field(default=False, description="whether the task is solved")


class TStarState(State):
    """The state of a session: which environment, and the task that is played."""

    env: str = Field(default="", description="Gymnasium id")
    task_id: str | None = Field(default=None, description="of the episode, null before the first")
    split: str | None = Field(default=None, description="that the task is of")


@contextmanager
def errors_for_client() -> Iterator[None]:
    """Turn errors of the suite into ones whose message reaches the client."""
    try:
        yield
    except TStarError as error:
        again = (
            " (nothing was played and nothing is scored: try the same step again)"
            if isinstance(error, InfrastructureError)
            else ""
        )
        raise ServedError(f"{type(error).__name__}: {error}{again}") from error
