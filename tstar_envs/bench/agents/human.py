"""A person at the terminal as an agent, so that a table can hold what people do under the same rules: no hints, no undo."""

from __future__ import annotations

import sys

from tstar_envs.bench.agents.protocol import Info
from tstar_envs.bench.failures import AgentError
from tstar_envs.bench.what_agents_see import EnvironmentView
from tstar_envs.redaction import printable


class HumanAgent:
    """Shows what an agent is shown, and reads one line a turn."""

    concurrency = 1

    def bind(self, env: EnvironmentView) -> None:
        """Show the rules once."""
        sys.stderr.write(f"{printable(env.prompt())}\n")

    def reset(self, observation: str, info: Info) -> None:
        """Say that a task begins."""
        sys.stderr.write(f"\n{'=' * 20} {info['task_id']}, at most {info['horizon']} turns {'=' * 20}\n")

    def act(self, observation: str, info: Info) -> str:
        """Read a reply.

        Raises:
            AgentError: the input has ended.
        """
        sys.stderr.write(f"\n{printable(observation)}\n[turn {info['step'] + 1} of {info['horizon']}] ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise AgentError("the person left: the input has ended")
        return line.rstrip("\n")
