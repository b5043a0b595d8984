"""External programs as agents: JSON lines over stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from tstar_envs.agents.base import ACT, AgentEnv, AgentError, Call, Info
from tstar_envs.errors import UnknownOption
from tstar_envs.record import COUNT_OR_NONE

LONGEST_LINE = 4_000_000  # characters
_TAIL = 5  # lines of stderr quoted in an error
_LAST_WORDS = 2.0  # seconds to read the remaining output of a program that exited or closed its output
_KILL_SECONDS = 5.0  # time limit for a killed process to disappear; longer only if the system itself hangs


class CommandAgent:
    """Agent that runs an external program, one process per concurrent episode.

    Args:
        command: command line in shell syntax; no shell is started.
        timeout: time limit for a reply, in seconds.

    Raises:
        UnknownOption: empty command.
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
        self._program: _Program | None = None
        self._said: deque[str] = deque(maxlen=_TAIL)
        self._listener: asyncio.Task[None] | None = None
        self._first = False

    def another(self) -> CommandAgent:
        """Make another agent with its own process."""
        return CommandAgent(self._command, self._timeout)

    def bind(self, env: AgentEnv) -> None:
        """Prepare the ``start`` event, the program's first line of input."""
        tools = [tool.schema() for tool in env.tools]
        self._start = {
            "event": "start",
            "env": env.env_id,
            "prompt": env.prompt(),
            "horizon": env.horizon,
            "tools": tools,
        }

    def reset(self, observation: str, info: Info) -> None:
        """Keep the data of the reset for the first line of the episode."""
        self._first, self._reset_info = True, info

    async def act(self, observation: str, info: Info) -> str:
        """Send the observation and read the reply."""
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
        except (OSError, ValueError, RecursionError, asyncio.LimitOverrunError) as error:
            raise await self._failed(f"failed: {error}") from error
        given, answered = answer.get("input_tokens"), answer.get("output_tokens")
        self.calls.append(Call(ACT, round(time.perf_counter() - began, 4), given, answered))
        return str(answer["reply"])

    async def _exchange(self, event: dict[str, Any]) -> dict[str, Any]:
        program = self._program
        if program is None or program.ended.is_set():
            program = await self._started()
        _pipe(program.stdin).write(_line(event))
        line = await _before(program, self._read_line(program))
        answer = json.loads(line)
        if not isinstance(answer, dict) or not isinstance(answer.get("reply"), str):
            raise ValueError(
                f'it must answer {{"reply": "..."}} in one line, answered {line.decode(errors="replace")!r:.200}'
            )
        for name in ("input_tokens", "output_tokens"):
            if not COUNT_OR_NONE.holds(answer.get(name)):
                raise ValueError(f"{name} must be {COUNT_OR_NONE.must}, answered {answer[name]!r:.60}")
        return answer

    async def _read_line(self, program: _Program) -> bytes:
        """Read one line of the program's output.

        Raises:
            ValueError: the program exited or closed its output first.
        """
        with contextlib.suppress(ConnectionError):  # it has closed its input; its earlier output still counts
            await _pipe(program.stdin).drain()
        line: bytes = await _pipe(program.stdout).readline()
        if line:
            return line
        try:
            await asyncio.wait_for(program.ended.wait(), _LAST_WORDS)
        except TimeoutError:
            raise ValueError("it closed its output without an answer, and is still running") from None
        raise ValueError(f"it ended with status {program.status}")

    async def _started(self) -> _Program:
        await self.close()  # kill the children of a program that exited
        pipe, loop = asyncio.subprocess.PIPE, asyncio.get_running_loop()
        _, program = await loop.subprocess_exec(
            lambda: _Program(LONGEST_LINE, loop),
            *self._arguments,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        self._program = program
        self._said.clear()
        self._listener = asyncio.create_task(self._listen(_pipe(program.stderr)))
        _pipe(program.stdin).write(_line(self._start))
        return program

    async def _listen(self, stderr: asyncio.StreamReader) -> None:
        rest = b""
        while chunk := await stderr.read(65_536):
            *lines, rest = (rest + chunk).split(b"\n")
            self._hear(lines)
            rest = rest[-65_536:]  # of an endless line
        self._hear([rest])

    def _hear(self, lines: list[bytes]) -> None:
        self._said.extend(line.decode(errors="replace").rstrip() for line in lines if line.strip())

    async def _failed(self, reason: str) -> AgentError:
        await self.close()
        said = f"; its last words: {' | '.join(self._said)}" if self._said else ""
        return AgentError(f"the program {self._command!r} {reason}{said}")

    async def close(self) -> None:
        """Kill the program and its children, and close its pipes, even if another process holds them."""
        program, self._program = self._program, None
        if program is not None:
            program.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(program.ended.wait(), _KILL_SECONDS)
        if self._listener is not None:
            await asyncio.wait([self._listener], timeout=1)
            self._listener.cancel()
            self._listener = None
        if program is not None:
            program.let_go()


class _Program(asyncio.subprocess.SubprocessStreamProtocol):
    """Running program with its pipes; leader of its own session.

    Attributes:
        ended: set when the program itself has exited, even if a child still holds its pipes.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit, loop)
        self.ended = asyncio.Event()
        self._process: Any = None  # its asyncio transport

    @property
    def status(self) -> int | None:
        """Exit status, None while it runs."""
        status: int | None = self._process.get_returncode()
        return status

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport; asyncio calls this when the program has started."""
        super().connection_made(transport)
        self._process = transport

    def process_exited(self) -> None:
        """Kill the children; asyncio calls this when the program has exited."""
        # At once, while its process id cannot be reused: a session with members keeps it.
        self._end_session()
        super().process_exited()
        self.ended.set()

    def kill(self) -> None:
        """Kill the program and its whole session at once, with a signal that cannot be ignored."""
        if not self.ended.is_set():
            self._end_session()

    def let_go(self) -> None:
        """Close the pipes, which a child in another session may still hold."""
        self._process.close()

    def _end_session(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.get_pid(), signal.SIGKILL)


async def _before(program: _Program, reading: Coroutine[Any, Any, bytes]) -> bytes:
    """Await a line of output, but not long after the program exited: children may hold its pipes.

    Raises:
        ValueError: the program exited without one.
    """
    line, end = asyncio.create_task(reading), asyncio.create_task(program.ended.wait())
    try:
        await asyncio.wait({line, end}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({line}, timeout=_LAST_WORDS)
        if not line.done():
            raise ValueError(f"it ended with status {program.status}")
        return line.result()
    finally:
        line.cancel()
        end.cancel()


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, ensure_ascii=True).encode("ascii") + b"\n"


def _pipe(stream: Any) -> Any:
    """Check that a requested pipe exists."""
    if stream is None:
        raise OSError("the program has no pipe")
    return stream
