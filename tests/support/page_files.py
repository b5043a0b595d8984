"""Files of evaluations for the tests of the page: made by hand, in the form that ``eval --out`` writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tstar_envs import Episode, Step, find_entry, panel
from tstar_envs.record_files import append_episode

HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror=\"window.hacked=2\"> <!-- <b>'quoted'</b> &lt; "
    "\u2028 line \u2029 \x00 \x1b[31m \u202e reversed \u2066 \ud800 {{ 7*7 }} ${window.hacked=3} " + "w" * 300
)
LONG = "z" * 100_000


def step(
    action: str,
    observation: str = "o",
    *,
    valid: bool = True,
    thought: str = "",
    reply: str | None = None,
    seconds: float = 0.5,
) -> Step:
    reply = f"Thought: {thought}\nAction: {action}" if reply is None else reply
    return Step(
        reply, thought, action, observation, valid, "" if valid else "not possible", valid, "", "s", seconds
    )


def episode(
    task: str, success: bool = False, *, env: str = "tstar/Sokoban-easy", agent: str = "a", **fields: Any
) -> Episode:
    """One that ended; ``actions`` are those of its steps."""
    steps = [step(action, f"after {action}") for action in fields.pop("actions", ("Left", "Right"))]
    given = {
        "env": env,
        "tier": "mini",
        "task": task,
        "split": "test",
        "rules_version": find_entry(env).rules_version,
        "agent": agent,
        "instruction": f"Do {task}.",
        "first_observation": f"Begin {task}.",
        "reward": float(success),
        "success": success,
        "ended": "terminated" if success else "truncated",
        "steps": steps,
    }
    return Episode(**{**given, **fields})


def write(
    path: Path, episodes: Sequence[Episode], options: Mapping[str, Any] | None = None, **settings: Any
) -> Path:
    """A file, and its settings beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    for one in episodes:
        append_episode(path, one)
    first = episodes[0] if episodes else episode("none")
    facts = {
        "format": 1,
        **{name: getattr(first, name) for name in ("env", "rules_version", "tier", "split", "agent")},
        "seed": 0,
    }
    config = path.with_name(path.name + ".config.json")
    config.write_text(json.dumps({**facts, "options": dict(options or {}), **settings}))
    return path


def tasks(count: int, solved: int, **fields: Any) -> list[Episode]:
    """Episodes of so many tasks, of which the first are solved."""
    return [episode(f"t{number:03}", number < solved, **fields) for number in range(count)]


def panel_name(env: str) -> str:
    """As a record holds it."""
    return f"v1 {panel('v1')[env].hash}"
