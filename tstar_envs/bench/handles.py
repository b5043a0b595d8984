"""File handles: as many episodes at once as the system lets this process have open connections and pipes for."""

from __future__ import annotations

import sys
from pathlib import Path

from tstar_envs.bench.agents.chat import ChatAgent
from tstar_envs.bench.agents.command import CommandAgent
from tstar_envs.bench.agents.protocol import Agent
from tstar_envs.errors import UnknownOption

if sys.platform != "win32":
    import resource

# A program has three pipes and what starting it takes, an endpoint a connection and one that is just being closed.
_OF_A_PROGRAM, _OF_A_CONNECTION = 6, 2
_SPARE = 32  # data files, a search service, the record
_OPEN = Path("/proc/self/fd")


def require_handles(count: int, agent: Agent) -> None:
    """Raise this process's limit of open files as far as so many episodes at once need it.

    Args:
        count: episodes that are played at the same time.
        agent: who plays each of them.

    Raises:
        UnknownOption: the system does not let it have so many; the message holds the most that it does.
    """
    of_each = 0
    if isinstance(agent, CommandAgent):
        of_each = _OF_A_PROGRAM
    elif isinstance(agent, ChatAgent):
        of_each = _OF_A_CONNECTION
    if sys.platform == "win32" or not of_each:  # pragma: no cover - no such limit there
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(_OPEN.iterdir())) if _OPEN.exists() else 64
    needed = count * of_each + opened + _SPARE
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        can = max(1, (hard - opened - _SPARE) // of_each)
        raise UnknownOption(
            f"--concurrency {count} needs {needed} open files, {of_each} for each episode, and this process may have {hard}: choose "
            f"--concurrency {can} or less, or raise the limit (ulimit -Hn)"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
