"""A table of what code that others write may do wrong: environments and agents, to be held over every command that runs them.

``ENVIRONMENTS`` and ``AGENTS`` hold classes by name with what must be said of each. Within ``registered()`` the environments are
``foreign_code:mine/NAME`` (in a process of its own: ``registered_foreign_code:mine/NAME``), the agents are ``foreign_code:NAME``.
All are well behaved in the first episode of a process and misbehave
from the second one on (call ``forget`` before each run), unless what they do wrong comes before any episode (``at_start``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from lamps_environment import Lamps

from tstar_envs import EnvEntry, InfrastructureError, register
from tstar_envs.agents.base import Call
from tstar_envs.outcome import Outcome
from tstar_envs.registry import OWN_ENTRIES


class NoException(BaseException):
    """A class of its own below ``BaseException``, as some libraries have."""


class Unspeakable(Exception):
    """Its message cannot be had."""

    def __str__(self) -> str:
        raise ValueError("no message")


RAISED: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("my bug"),
    "SystemExit": lambda: SystemExit(0),
    "SystemExit_in_words": lambda: SystemExit("I give up"),
    "GeneratorExit": GeneratorExit,
    "StopIteration": lambda: StopIteration("it is over"),
    "StopAsyncIteration": StopAsyncIteration,
    "CancelledError": asyncio.CancelledError,
    "TimeoutError": TimeoutError,
    "MemoryError": MemoryError,
    "NoException": lambda: NoException("odd"),
    "Unspeakable": Unspeakable,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [SystemExit(0), ValueError("x")]),
    "lines": lambda: ValueError("one\ntwo\ud800" * 5000),
}


@dataclass(frozen=True)
class Wrong:
    """One way to go wrong.

    Attributes:
        made: the class.
        said: a pattern of what must be said.
        at_start: whether it is known before any episode is played.
        only_agents_that_bind: whether it shows only where an agent asks for the prompt.
    """

    made: type[Any]
    said: str
    at_start: bool = False
    only_agents_that_bind: bool = False


_EPISODES = {"begun": 0}


def forget() -> None:
    """Start counting episodes anew."""
    _EPISODES["begun"] = 0


def _bad() -> bool:
    return _EPISODES["begun"] > 1


class WellBehaved(Lamps):
    """What the agents of the table play."""


class Counting(Lamps):
    """Counts the episodes of the process."""

    def reset(self, **how: Any) -> Any:
        _EPISODES["begun"] += 1
        return super().reset(**how)


ENTRIES: list[EnvEntry] = []


def _register(name: str) -> None:
    ENTRIES.append(
        EnvEntry(
            id=f"mine/{name}",
            family="lamps",
            entry_point=f"{__name__}:{name}",
            horizon=12,
            rules_version="1",
            extra="",
            summary="turn all lamps on",
        )
    )


@contextmanager
def registered() -> Iterator[None]:
    """Register the environments for the time of a ``with`` block: other tests go through all that there are."""
    for entry in ENTRIES:
        register(entry)
    try:
        yield
    finally:
        for entry in ENTRIES:
            OWN_ENTRIES.pop(entry.id, None)


def _env(name: str, **methods: Any) -> type[Counting]:
    """A class, as if it stood here under its name."""
    cls = type(name, (Counting,), {"__module__": __name__, **methods})
    globals()[name] = cls
    _register(name)
    return cls


_register("WellBehaved")


def _giving(method: str, give: Callable[[Any], Any], at_once: bool = False) -> Callable[..., Any]:
    """A method that gives something else than it should, made of what it should give."""

    def bad(self: Any, *args: Any, **options: Any) -> Any:
        given = getattr(Counting, method)(self, *args, **options)
        return give(given) if at_once or _bad() else given

    bad.__name__ = method
    return bad


def _raising(method: str, error: Callable[[], BaseException], at_once: bool = False) -> Callable[..., Any]:
    def bad(self: Any, *args: Any, **options: Any) -> Any:
        given = getattr(Counting, method)(self, *args, **options)
        if at_once or _bad():
            raise error()
        return given

    bad.__name__ = method
    return bad


async def _later() -> None:
    """What a method gives that was written with ``async``."""


ENVIRONMENTS: dict[str, Wrong] = {}
BEFORE = ("__init__", "task_ids")  # called before an episode is played
IN_AN_EPISODE = (
    "_load_task",
    "_start",
    "_instruction",
    "_apply",
    "_admissible",
    "_state_fingerprint",
    "_reset_extra",
    "reset",
    "step",
)
for _method in (*BEFORE, *IN_AN_EPISODE):
    for _kind, _error in RAISED.items():
        _name = f"Raises_{_kind}_in_{_method.strip('_')}"
        _said = rf"the environment raised {_kind.partition('_')[0]}"
        if _kind == "lines":
            _said = r"the environment raised ValueError: one two\\udcXX?|ValueError: one two"
        ENVIRONMENTS[_name] = Wrong(
            _env(_name, **{_method: _raising(_method, _error, _method in BEFORE)}),
            _said.replace("the environment raised", "(the|making the) environment raised"),
            _method in BEFORE,
        )

# For each method: values that it must not give, and what is said of them.
OUTCOMES: dict[str, list[Any]] = {
    "observation": [None, 3, b"seen", ["seen"]],
    "action": [None, 3, ["flip", "1"]],
    "invalid_reason": [None, True, 0],
    "effect_key": [None, 3, ["1"], ("lamp", 1)],
    "state_key": [None, 3, b"key"],
    "terminated": [None, "no", 1, [], np.array([True, False])],
    "success": [None, "no", "yes", 1, 0.5],
    "score": [float("nan"), float("inf"), -1.0, 5, "1", None, True, 10**400, 1j, np.array([1.0, 2.0])],
    "shaping": [float("nan"), float("-inf"), "0", None],
    "extra": [3, ["em"], {3: 4}, "em"],
    "admissible": ["flip 1", 3, [3], ["flip 1", None], {"flip 1": 1}],
    "state": [None],
}
_NUMBER = 0


def _add(kind: str, said: str, at_start: bool = False, binding: bool = False, **methods: Any) -> None:
    global _NUMBER
    _NUMBER += 1
    name = f"{kind}_{_NUMBER}"
    ENVIRONMENTS[name] = Wrong(_env(name, **methods), said, at_start, binding)


def _with(field: str, value: Any) -> Callable[[Outcome[Any]], Outcome[Any]]:
    return lambda outcome: replace(outcome, **{field: value})


for _field, _values in OUTCOMES.items():
    for _value in _values:
        _names = "admissible actions" if _field == "admissible" else "info" if _field == "extra" else _field
        _add(
            f"Outcome_{_field}",
            rf"the environment's _apply must [^,]*{_names}.*found",
            _apply=_giving("_apply", _with(_field, _value)),
        )
RETURNS: dict[str, list[Any]] = {
    "_apply": [None, 3, "seen", ("state", "seen"), {"observation": "seen"}],
    "_start": [None, "seen", ((),), (None, "seen"), ((True,) * 6, 3), [(True,) * 6, "seen"]],
    "_load_task": [None, 3, (None, "test"), (7, 4), (7,)],
    "_instruction": [None, 3, b"do"],
    "_admissible": [3, "flip 1", [3], {"flip 1"}, iter(["flip 1"])],
    "_state_fingerprint": [None, 3, b"key"],
    "_reset_extra": [None, 3, [("a", 1)]],
    "reset": [None, "seen", ("seen",), (3, {}), ("seen", None), ("seen", {}), ("seen", {"split": 3})],
    "step": [
        None,
        "seen",
        ("seen", 0.0, False, {}),
        (3, 0.0, False, False, {}),
        ("seen", "0", False, False, {}),
        ("seen", float("nan"), False, False, {}),
        ("seen", 0.0, "no", False, {}),
        ("seen", 0.0, False, None, {}),
        ("seen", 0.0, False, False, None),
        ("seen", 0.0, False, False, {}),
        ["seen", 0.0, False, False, {}],
    ],
}
for _method, _values in RETURNS.items():
    for _value in _values:
        _add(
            f"Returns_from_{_method.strip('_')}",
            rf"the environment's {_method} must",
            **{_method: _giving(_method, lambda given, value=_value: value)},
        )
    if _method not in ("reset", "step"):
        _add(
            f"Async_{_method}",
            rf"the environment's {_method} must",
            **{_method: _giving(_method, lambda given: _later())},
        )
for _reward in (2.0, -0.5, "1", float("nan")):
    _add(
        "Last_reward",
        "the environment's step must return a",
        step=_giving("step", lambda given, r=_reward: (given[0], r, True, False, given[4])),
    )
for _field, _value in [
    ("thought", None),
    ("action", 3),
    ("action_valid", "yes"),
    ("modifies_state", None),
    ("effect_key", 3),
    ("state_key", None),
    ("success", "no"),
]:
    _add(
        f"Info_{_field}",
        rf"the environment's step must return info whose '{_field}'",
        step=_giving("step", lambda given, f=_field, v=_value: (*given[:2], True, False, {**given[4], f: v})),
    )
_add(
    "Infinite_figure",
    "the environment's step must return info whose 'f1' is a finite number",
    step=_giving("step", lambda given: (*given[:2], True, False, {**given[4], "f1": float("inf")})),
)
_add(
    "Odd_fact",
    "the environment's reset must return info whose 'task_type' is a text",
    reset=_giving("reset", lambda given: (given[0], {**given[1], "task_type": ["pick"]})),
)
for _ids in (
    None,
    3,
    "lamps-50",
    [50, 51],
    ["lamps-50", "lamps-50"],
    {"lamps-50"},
    iter(["lamps-50"]),
    [None],
):
    _add(
        "Task_ids",
        r"the environment's task_ids\('test'\) must give",
        at_start=True,
        task_ids=_giving("task_ids", lambda given, ids=_ids: ids, at_once=True),
    )
for _attribute, _value in [("tier", 3), ("horizon", "x"), ("horizon", 0), ("tools", 3), ("splits", "test")]:
    _add(
        f"Attribute_{_attribute}",
        rf"the environment's {_attribute} must be",
        at_start=True,
        **{_attribute: property(lambda self, v=_value: v, lambda self, value: None)},
    )
for _value in (None, 3, {9: InfrastructureError("x")}, {0: "down"}, {"0": InfrastructureError("x")}):
    _add(
        "Prepares",
        "the environment's prepare_group_step must",
        prepare_group_step=classmethod(lambda cls, envs, replies, v=_value: v if _bad() else {}),
    )
for _value in (None, 3):
    _add(
        "Prompt",
        "the environment's prompt.* must give a text",
        at_start=True,
        binding=True,
        prompt=_giving("prompt", lambda given, v=_value: v, at_once=True),
    )
_add(
    "Shrinks",
    "no task 'lamps-5",
    task_ids=lambda self, split=None: [] if _bad() else Counting.task_ids(self, split),
)


# Agents ---------------------------------------------------------------------------------------------------------------


class Playing:
    """Flips one lamp after another; made anew for each episode that is played at once."""

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        _EPISODES["begun"] += 1
        self.turn = 0

    def act(self, observation: str, info: dict[str, Any]) -> Any:
        self.turn += 1
        return f"Action: flip {self.turn}"

    def bind(self, env: Any) -> None:
        self.prompt = env.prompt()

    def again(self, observation: str, reward: float, info: dict[str, Any]) -> Any:
        return False

    def close(self) -> Any:
        return None


class Calm:
    """What plays the environments of the table: it neither counts nor asks."""

    def reset(self, observation: str, info: dict[str, Any]) -> None:
        self.turn = 0

    async def act(self, observation: str, info: dict[str, Any]) -> str:
        await asyncio.sleep(0)
        self.turn += 1
        return f"Action: flip {self.turn}"


class Binding(Calm):
    """One that asks for the prompt."""

    def bind(self, env: Any) -> None:
        self.prompt = env.prompt()


AGENTS: dict[str, Wrong] = {}
AGENT_METHODS = ("act", "reset", "again", "close", "bind")


def _agent(name: str, said: str, at_start: bool = False, **members: Any) -> None:
    cls = type(name, (Playing,), {"__module__": __name__, **members})
    globals()[name] = cls
    AGENTS[name] = Wrong(cls, said, at_start)


def _agent_raising(method: str, error: Callable[[], BaseException], waits: bool) -> Callable[..., Any]:
    at_once = method in ("bind", "close")

    def bad(self: Any, *args: Any) -> Any:
        given = getattr(Playing, method)(self, *args)
        if at_once or _bad():
            raise error()
        return given

    async def bad_later(self: Any, *args: Any) -> Any:
        await asyncio.sleep(0)
        return bad(self, *args)

    found = bad_later if waits else bad
    found.__name__ = method
    return found


def _agent_giving(method: str, value: Callable[[], Any]) -> Callable[..., Any]:
    def bad(self: Any, *args: Any) -> Any:
        given = getattr(Playing, method)(self, *args)
        return value() if _bad() else given

    bad.__name__ = method
    return bad


class OddAwaitable:
    """Waits for nothing that could be waited for."""

    def __await__(self) -> Any:
        yield "no future"


async def _generator() -> Any:
    yield "flip 1"


for _method in AGENT_METHODS:
    for _kind, _error in RAISED.items():
        for _waits in (False, True) if _method != "bind" else (False,):
            # A coroutine turns a StopIteration into a RuntimeError itself.
            _class = "RuntimeError" if _waits and _kind == "StopIteration" else _kind.partition("_")[0]
            _class = "ValueError: one two" if _kind == "lines" else _class
            _agent(
                f"{'Async_' if _waits else ''}{_kind}_in_{_method}",
                rf"the agent raised {_class}",
                _method == "bind",
                **{_method: _agent_raising(_method, _error, _waits)},
            )
for _number, _make in enumerate(
    [
        lambda: None,
        lambda: 3,
        lambda: b"flip 1",
        lambda: ["flip 1"],
        lambda: {"content": "flip 1"},
        object,
        lambda: iter("flip"),
        _generator,
        lambda: "x" * 5_000_000,
    ]
):
    _agent(
        f"Acts_{_number}",
        r"act\(observation, info\) must return (a str|at most)",
        act=_agent_giving("act", _make),
    )
_agent(
    "Awaits_nothing",
    r"the agent raised RuntimeError: Task got bad yield",
    act=_agent_giving("act", OddAwaitable),
)
for _number, _value in enumerate(["no", 3, [True], object(), np.array([True, False])]):
    _agent(
        f"Again_{_number}",
        r"again\(observation, reward, info\) must return True or False",
        again=_agent_giving("again", lambda v=_value: v),
    )
_agent("Again_for_ever", "it must say False in the end", again=_agent_giving("again", lambda: True))
for _number, _calls in enumerate([3, "act", (), {"act": 1}, dict]):
    _agent(f"Calls_{_number}", "calls must be a list", True, calls=_calls)
for _number, _calls in enumerate([3, (), [3], ["act"], [{"purpose": "act"}], [Call]]):

    def _changing(self: Any, observation: str, info: dict[str, Any], calls: Any = _calls) -> Any:
        if _bad():
            self.calls = calls
        return Playing.act(self, observation, info)

    _agent(f"Calls_later_{_number}", "calls must be a list", act=_changing)
for _number, _call in enumerate(
    [
        lambda: Call("act", float("nan")),
        lambda: Call("act", -1.0),
        lambda: Call(3, 1.0),  # type: ignore[arg-type]
        lambda: Call("act", 1.0, -5, 3),
        lambda: Call("act", 1.0, 10**400, 3),
        lambda: Call("act", 1.0, True, 3),
        lambda: Call("act", 1.0, 3, 3, None),  # type: ignore[arg-type]
        lambda: Call("act", 1.0, text=b"x"),  # type: ignore[arg-type]
    ]
):

    def _noting(self: Any, observation: str, info: dict[str, Any], call: Any = _call) -> Any:
        if _bad():
            self.calls = [call()]
        return Playing.act(self, observation, info)

    _agent(f"Call_{_number}", "the agent's calls hold one whose .* must be", act=_noting)
for _attribute, _value in [
    ("settings", 3),
    ("settings", {"x": object()}),
    ("settings", {"x": float("nan")}),
    ("settings", {3: 4}),
    ("settings", {"x": (1, 2)}),
    ("concurrency", "8"),
    ("concurrency", 0),
    ("concurrency", -1),
    ("concurrency", 1.5),
    ("concurrency", True),
    ("concurrency", 10**9),
    ("env_options", ["horizon"]),
    ("env_options", {"horizon": object()}),
    ("env_options", {3: 4}),
    ("close", True),
    ("again", "no"),
    ("bind", 3),
]:
    _NUMBER += 1
    _agent(f"Trait_{_attribute}_{_NUMBER}", rf"{_attribute} must be .*, found", True, **{_attribute: _value})
for _attribute in ("settings", "concurrency", "calls", "env_options", "close", "again", "bind", "privileged"):

    def _reading(self: Any) -> Any:
        raise SystemExit(0)

    _agent(f"Reading_{_attribute}", "raised SystemExit", True, **{_attribute: property(_reading)})


async def _bind_later(self: Any, env: Any) -> None:
    """Nobody would wait for it."""


_agent("Async_bind", "bind must not be a coroutine", True, bind=_bind_later)


async def _task_that_exits() -> None:
    raise SystemExit(0)


async def _starting_a_task(self: Any, observation: str, info: dict[str, Any]) -> str:
    if _bad():
        self.task = asyncio.ensure_future(_task_that_exits())
        await asyncio.sleep(0.01)
    return Playing.act(self, observation, info)  # type: ignore[no-any-return]


async def _stopping_the_loop(self: Any, observation: str, info: dict[str, Any]) -> str:
    if _bad():
        asyncio.get_running_loop().stop()
        await asyncio.sleep(1)
    return Playing.act(self, observation, info)  # type: ignore[no-any-return]


async def _cancelling_all(self: Any, observation: str, info: dict[str, Any]) -> str:
    for task in asyncio.all_tasks() if _bad() else ():
        task.cancel()
    await asyncio.sleep(0)
    return Playing.act(self, observation, info)  # type: ignore[no-any-return]


_agent("Stops_the_loop", "the agent stopped the event loop", act=_stopping_the_loop)
_agent("Cancels_all", "the agent cancelled tasks of the event loop", act=_cancelling_all)
_agent("Task_exits", "a task that the agent started raised SystemExit", act=_starting_a_task)
# Only where several episodes are played at once.
ANOTHERS: dict[str, Wrong] = {}
for _number, _another in enumerate(
    [lambda self: None, lambda self: 3, lambda self: self, lambda self: Playing.act]
):
    _name = f"Another_{_number}"
    globals()[_name] = type(_name, (Playing,), {"__module__": __name__, "another": _another})
    ANOTHERS[_name] = Wrong(globals()[_name], r"another\(\) must make one more agent", True)


def is_said(wanted: str, text: str) -> bool:
    """Whether a pattern is in what was printed, however the terminal broke its lines."""
    return re.search(wanted, " ".join(text.split())) is not None
