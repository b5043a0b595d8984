"""Any program as an agent: JSON lines over its stdin and stdout.

Each line that the program reads is an object with ``event``:

- ``start``, once: ``env``, ``prompt`` (the rules), ``horizon`` and ``tools``. No answer is expected.
- ``reset``, at the beginning of an episode, and ``step``, after each reply: ``observation`` and ``info``. It answers with one line,
  ``{"reply": "..."}``; ``input_tokens`` and ``output_tokens`` beside it are counted, other fields are left alone.

Its stderr is free for its own use; the last lines of it are quoted in the error when the program fails. A program
that ends, answers in another form or answers too late fails the episode, and is started anew for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
import time
from collections import deque
from typing import Any

from tstar_envs.bench.agents.protocol import Info
from tstar_envs.bench.failures import AgentError
from tstar_envs.bench.usage import ACT, Call
from tstar_envs.bench.what_agents_see import EnvironmentView
from tstar_envs.errors import UnknownOption

LONGEST_LINE = 4_000_000  # characters
_TAIL = 5  # lines of stderr that an error quotes


class CommandAgent:
    """A program, one process for each episode that is played at the same time.

    Args:
        command: as a shell would read it; no shell is started.
        timeout: seconds for a reply.

    Raises:
        UnknownOption: no command.
    """

    def __init__(self, command: str, timeout: float = 300.0) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise UnknownOption(f"agent command:{command}: {error}") from error
        if not self._arguments:
            raise UnknownOption("agent command needs a program: --agent 'command:python my_agent.py'")
        self._command, self._timeout = command, timeout
        self.calls: list[Call] = []
        self._start: dict[str, Any] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._said: deque[str] = deque(maxlen=_TAIL)
        self._listener: asyncio.Task[None] | None = None
        self._first = False

    def another(self) -> CommandAgent:
        """One with a process of its own."""
        return CommandAgent(self._command, self._timeout)

    def bind(self, env: EnvironmentView) -> None:
        """Prepare the ``start`` event that the program reads first."""
        tools = [tool.schema() for tool in env.tools]
        self._start = {
            "event": "start",
            "env": env.env_id,
            "prompt": env.prompt(),
            "horizon": env.horizon,
            "tools": tools,
        }

    def reset(self, observation: str, info: Info) -> None:
        """Keep what only reset gives for the first line of the episode."""
        self._first, self._reset_info = True, info

    async def act(self, observation: str, info: Info) -> str:
        """Send the observation, read the reply."""
        began = time.perf_counter()
        event = {
            "event": "reset" if self._first else "step",
            "observation": observation,
            "info": self._reset_info if self._first else info,
        }
        self._first = False
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._exchange(event)
        except TimeoutError as error:
            raise await self._failed(f"gave no reply within {self._timeout:g} s (--timeout)") from error
        except (OSError, ValueError, asyncio.LimitOverrunError) as error:
            raise await self._failed(f"failed: {error}") from error
        given, answered = (
            value if isinstance(value := answer.get(name), int) else None
            for name in ("input_tokens", "output_tokens")
        )
        self.calls.append(Call(ACT, round(time.perf_counter() - began, 4), given, answered))
        return str(answer["reply"])

    async def _exchange(self, event: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._started()
        _pipe(process.stdin).write(_line(event))
        await _pipe(process.stdin).drain()
        line = await _pipe(process.stdout).readline()
        if not line:
            await process.wait()
            raise ValueError(f"it ended with status {process.returncode}")
        answer = json.loads(line)
        if not isinstance(answer, dict) or not isinstance(answer.get("reply"), str):
            raise ValueError(
                f'it must answer {{"reply": "..."}} in one line, answered {line.decode(errors="replace")!r:.200}'
            )
        return answer

    async def _started(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        self._process = process = await asyncio.create_subprocess_exec(
            *self._arguments, stdin=pipe, stdout=pipe, stderr=pipe, limit=LONGEST_LINE
        )
        self._said.clear()
        self._listener = asyncio.create_task(self._listen(_pipe(process.stderr)))
        _pipe(process.stdin).write(_line(self._start))
        return process

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stderr.read(65_536):
            *lines, rest = (rest + chunk).split(b"\n")
            self._hear(lines)
            rest = rest[-65_536:]  # of a line without end
        self._hear([rest])

    def _hear(self, lines: list[bytes]) -> None:
        self._said.extend(line.decode(errors="replace").rstrip() for line in lines if line.strip())

    async def _failed(self, reason: str) -> AgentError:
        await self.close()
        said = f"; its last words: {' | '.join(self._said)}" if self._said else ""
        return AgentError(f"the program {self._command!r} {reason}{said}")

    async def close(self) -> None:
        """End the program."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            await process.wait()
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=1)
            self._listener.cancel()
            self._listener = None


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=True).encode("ascii") + b"\n"


def _pipe(stream: Any) -> Any:
    """A pipe that was asked for is there."""
    if stream is None:
        raise OSError("the program has no pipe")
    return stream
