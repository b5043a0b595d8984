"""OpenEnv: a server over an environment of the suite (OpenEnv 0.10; docs/adapters.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from threading import Lock
from typing import Any
from uuid import uuid4

from tstar_envs.core import TextEnv
from tstar_envs.errors import (
    InfrastructureError,
    MissingExtra,
    PanelMismatch,
    ResetNeeded,
    TStarError,
    UnknownOption,
    UnknownTask,
)
from tstar_envs.evalset import TaskSet, panel, task_set
from tstar_envs.redaction import encodable, encodable_parts
from tstar_envs.registry import EnvEntry, find_entry
from tstar_envs.tools import reply_to_call
from tstar_envs.utils import counted, is_whole


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


try:
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from openenv.core.env_server import ConcurrencyConfig, Environment
    from openenv.core.env_server import create_app as create_openenv_app
    from openenv.core.env_server.types import EnvironmentMetadata
except ImportError as error:
    raise missing(error) from error

SESSIONS, IDLE_SECONDS = 64, 600.0
PANEL = "v1"
PANEL_SPLIT = f"panel-{PANEL}"  # the panel's tasks, offered as one more split
# As OpenEnv calls them; every other split is its "validation".
_SPLIT_TYPES = {"train": "train", "test": "test", PANEL_SPLIT: "test"}


class Served:
    """What all sessions share: the entry, the options, and the tasks with their hashes.

    Args:
        env_id: Gymnasium id or short name.
        options: of the environment.
    """

    def __init__(self, env_id: str, options: Mapping[str, Any]) -> None:
        self.entry: EnvEntry = find_entry(env_id)
        self._split = options.get("split", "test")
        self._options = {name: value for name, value in options.items() if name != "split"}
        self._sets: dict[str, TaskSet] = {}
        self._lock = Lock()
        self.env = self.make()  # raises at once if the options or the data are wrong; never played
        self.splits = [split for split in self.env.splits if len(self.env.task_ids(split))]
        if self.entry.id in panel(PANEL).entries:
            with suppress(PanelMismatch):  # other data are here, or options that change what tasks hold
                self._sets[PANEL_SPLIT] = task_set(self.entry.id, panel=PANEL, **self._options)
                self.splits.append(PANEL_SPLIT)

    def make(self, split: str | None = None) -> TextEnv[Any, Any]:
        """An environment for one session; of a split of the Task API, by default the server's own."""
        name = "test" if split == PANEL_SPLIT else split or self._split
        return TaskSet(self.entry.id, name, self.entry.rules_version, (), "", None, self._options).make()

    def tasks(self, split: str) -> TaskSet:
        """The tasks of a split with their hash, which takes up to some seconds for the first who asks."""
        if split not in self.splits:
            raise UnknownOption(f"{self.entry.id} has no split {split!r}; valid: {', '.join(self.splits)}")
        with self._lock:
            if split not in self._sets:
                self._sets[split] = task_set(self.entry.id, split=split, **self._options)
            return self._sets[split]

    def specs(self, split: str) -> list[dict[str, Any]]:
        """The tasks of a split in the form of the Task API."""
        with errors_for_client():
            return [
                {"id": task, "index": index, "split": split}
                for index, task in enumerate(self.tasks(split).ids)
            ]


class TStarEnvironment(Environment[TStarAction, TStarObservation, TStarState]):
    """One session. It makes its environment on the first reset, because OpenEnv makes sessions for every question about tasks."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, served: Served) -> None:
        super().__init__()
        self._served = served
        self._envs: dict[str | None, TextEnv[Any, Any]] = {}
        self._env: TextEnv[Any, Any] | None = None  # the one that is played
        self._set: dict[str, Any] = {}  # of the tasks that it is played from
        self._closed = False
        self._state = TStarState(env=served.entry.id)

    # Task API -------------------------------------------------------------------------------------------------------

    def list_splits(self) -> list[dict[str, str]]:
        """The splits that have tasks, and the panel as one more where its tasks are here."""
        return [
            {"name": split, "type": _SPLIT_TYPES.get(split, "validation")} for split in self._served.splits
        ]

    def num_tasks(self, split: str) -> int:
        """How many tasks a split has."""
        return len(self._served.specs(split))

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        """All tasks of a split: id, index and split, each of which ``reset`` takes."""
        return self._served.specs(split)

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        """One task; the error for an index out of range names the range."""
        tasks = self._served.specs(split)
        with errors_for_client():
            if not 0 <= index < len(tasks):
                raise UnknownTask(
                    f"index {index} is out of range: split {split!r} has {counted(len(tasks), 'task')}"
                )
        return tasks[index]

    def get_task_range(
        self, split: str, start: int | None = None, stop: int | None = None
    ) -> list[dict[str, Any]]:
        """Tasks ``[start, stop)``, as a slice."""
        return self._served.specs(split)[start:stop]

    # Episodes -------------------------------------------------------------------------------------------------------

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        task: str | int | None = None,
        **unknown: Any,
    ) -> TStarObservation:
        """Start an episode; without ``index`` and ``task`` the seed draws the task, the same as ``env.reset(seed=seed)`` does.

        Args:
            seed: of the draw, a whole number from 0.
            episode_id: a name for ``state``.
            split: where the task is from; default: the server's.
            index: of the task in its split.
            task: its id, or an index.
            unknown: nothing else is taken, and nothing ignored.

        Raises:
            ServedError: no such split or task, or an argument that is none; an episode that is running goes on as it was.
        """
        with errors_for_client():
            self._check_open()
            wanted = self._wanted(seed, split, index, task, unknown)
            if split not in self._envs:
                self._envs[split] = self._served.make(split)
            env = self._envs[split]
            text, info = env.reset(seed=seed, options=None if wanted is None else {"task": wanted})
            self._env = env
            self._set = self._served.tasks(split or info["split"]).record()
            self._state = TStarState(
                episode_id=encodable(str(episode_id)) if episode_id else str(uuid4()),
                env=self._served.entry.id,
                task_id=info["task_id"],
                split=info["split"],
            )
            tools = [tool.schema() for tool in env.tools]
            return TStarObservation(
                text=text, prompt=env.prompt(), tools=tools, reward=None, done=False, **self._rest(info)
            )

    def step(self, action: TStarAction, timeout_s: float | None = None, **_: Any) -> TStarObservation:
        """Play one turn. A call that no tool takes is an invalid action: it costs a step as in ``eval``, and the observation says why.

        Raises:
            ServedError: there is no episode, it is over, or the action is neither a reply nor a call; or the search service failed:
                then nothing was played, and the same step may be tried again.
        """
        with errors_for_client():
            self._check_open()
            env = self._env
            if env is None:
                raise ResetNeeded(
                    "no episode is running: call reset first, in the same session (over plain HTTP every request is one of its own: "
                    "use a client of OpenEnv, which keeps a WebSocket)"
                )
            reply, wrong = _reply(env, action)
            text, reward, terminated, truncated, info = env.step(reply)
            if wrong:
                text = f"Error: {wrong}\n{text}"
            self._state.step_count = info["step"]
            return TStarObservation(
                text=text,
                reward=reward,
                done=terminated or truncated,
                **self._rest(info, truncated=truncated),
            )

    @property
    def state(self) -> TStarState:
        """The state of the session."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Id, what it is, and the version of its rules."""
        entry = self._served.entry
        return EnvironmentMetadata(
            name=entry.id,
            description=entry.summary,
            version=entry.rules_version,
            readme_content=self._served.env.prompt(),
        )

    def close(self) -> None:
        """Let go of the environment. OpenEnv closes idle sessions but keeps their connections, so later calls must say so."""
        self._closed = True
        self._env = None
        self._envs.clear()

    # ----------------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ResetNeeded("this session was idle for too long and is closed: connect anew")

    def _wanted(
        self, seed: Any, split: Any, index: Any, task: Any, unknown: Mapping[str, Any]
    ) -> str | int | None:
        """The task that a reset names, None where the seed draws it."""
        if unknown:
            raise UnknownOption(
                f"reset takes seed, episode_id, split, index and task, not {sorted(unknown)[0]!r}"
            )
        if seed is not None and (not is_whole(seed) or seed < 0):
            raise UnknownOption(f"seed must be a whole number from 0, got {seed!r:.80}")
        if index is not None and task is not None:
            raise UnknownOption(
                f"give reset an index or a task, not both: got {index!r:.80} and {task!r:.80}"
            )
        wanted = task if index is None else index
        if wanted is not None and not is_whole(wanted) and (index is not None or not isinstance(wanted, str)):
            raise UnknownOption(
                f"{'task must be an id or' if index is None else 'index must be'} a whole number, got {wanted!r:.80}"
            )
        if split is None:
            return wanted
        tasks = self._served.tasks(split)
        if isinstance(wanted, str) and wanted not in tasks.ids:
            raise UnknownTask(f"there is no task {wanted!r} in split {split!r} of {self._served.entry.id}")
        if split == PANEL_SPLIT and not isinstance(wanted, str):
            if wanted is None:
                raise UnknownOption(
                    f"nothing is drawn from split {split!r}: give reset an index below {len(tasks.ids)} or a task"
                )
            return tasks.id_at(int(wanted))
        return wanted

    def _rest(self, info: dict[str, Any], **more: Any) -> dict[str, Any]:
        """What a first and a later observation have in common."""
        own = {name: value for name, value in info.items() if name not in ("admissible_actions", "success")}
        metadata = {**own, **more, **self._set, "tier": self._served.env.tier}
        return {
            "admissible_actions": info["admissible_actions"],
            "success": info["success"],
            "metadata": metadata,
        }


def create_app(
    env_id: str, *, sessions: int = SESSIONS, idle_seconds: float = IDLE_SECONDS, **options: Any
) -> FastAPI:
    """An OpenEnv server of one environment.

    Args:
        env_id: Gymnasium id or short name.
        sessions: episodes that can be played at the same time, each in a session of its own; one more is refused.
        idle_seconds: a session without a call for so long is closed, which frees its place. OpenEnv looks every quarter of that, and
            no more often than every 5 seconds.
        options: of the environment; ``split`` is where tasks are drawn from unless a reset names another.

    Raises:
        UnknownOption: no such environment or option, or settings out of range.
        MissingExtra, MissingData: what the environment needs is not here.
    """
    if not is_whole(sessions) or sessions < 1:
        raise UnknownOption(f"sessions must be a whole number of at least 1, got {sessions!r}")
    if not 0 < idle_seconds < inf:
        raise UnknownOption(f"idle_seconds must be above 0 and finite, got {idle_seconds!r}")
    served = Served(env_id, options)
    app: FastAPI = create_openenv_app(
        partial(TStarEnvironment, served),
        TStarAction,
        TStarObservation,
        env_name=served.entry.name,
        # A bare max_concurrent_envs would switch the closing of idle sessions off.
        concurrency_config=ConcurrencyConfig(
            max_concurrent_envs=int(sessions), session_timeout=float(idle_seconds)
        ),
        state_cls=TStarState,
    )
    app.add_exception_handler(ServedError, _answer)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    return app


def _answer(request: Request, error: Exception) -> JSONResponse:
    """An error in answer to a request by plain HTTP."""
    return JSONResponse({"detail": encodable(str(error))}, 400)


def _answer_invalid(request: Request, error: Exception) -> JSONResponse:
    """As FastAPI answers, which fails where the body holds what JSON or UTF-8 cannot: infinity, half a surrogate pair."""
    faults = error.errors() if isinstance(error, RequestValidationError) else []
    told = [{name: fault[name] for name in ("type", "loc", "msg") if name in fault} for fault in faults]
    return JSONResponse({"detail": encodable_parts(told)}, 422)


def _reply(env: TextEnv[Any, Any], action: TStarAction) -> tuple[str, str]:
    """The reply to play, and what is wrong with a call that no tool takes ("" if nothing)."""
    if (action.reply is None) == (action.tool_name is None):
        raise UnknownOption("an action is either a reply (text) or a tool_name with arguments")
    if action.tool_name is None:
        if action.arguments or action.thought:
            raise UnknownOption("arguments and thought belong to a tool_name; a reply holds its own thought")
        return action.reply or "", ""
    arguments = json.dumps(action.arguments, ensure_ascii=False)
    return reply_to_call(env.tools, action.tool_name, arguments, action.thought)
