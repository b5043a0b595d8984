"""Programs as agents: JSON lines over stdin and stdout."""

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
_TAIL = 5  # lines of stderr that an error quotes
_LAST_WORDS = 2.0  # seconds for what a program that ended, or closed its output, still has to say
_KILL_SECONDS = 5.0  # for a killed process to be gone; longer only where the system itself does not answer


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
        self._program: _Program | None = None
        self._said: deque[str] = deque(maxlen=_TAIL)
        self._listener: asyncio.Task[None] | None = None
        self._first = False

    def another(self) -> CommandAgent:
        """One with a process of its own."""
        return CommandAgent(self._command, self._timeout)

    def bind(self, env: AgentEnv) -> None:
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
        """The next line of a program's output.

        Raises:
            ValueError: it ended, or closed its output, without one.
        """
        with contextlib.suppress(ConnectionError):  # it has closed its input: what it said before that counts
            await _pipe(program.stdin).drain()
        line: bytes = await _pipe(program.stdout).readline()
        if line:
            return line
        try:
            await asyncio.wait_for(program.ended.wait(), _LAST_WORDS)
        except TimeoutError:
            raise ValueError("it closed its output without an answer, and runs on") from None
        raise ValueError(f"it ended with status {program.status}")

    async def _started(self) -> _Program:
        await self.close()  # of one that ended: what it started
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
            rest = rest[-65_536:]  # of a line without end
        self._hear([rest])

    def _hear(self, lines: list[bytes]) -> None:
        self._said.extend(line.decode(errors="replace").rstrip() for line in lines if line.strip())

    async def _failed(self, reason: str) -> AgentError:
        await self.close()
        said = f"; its last words: {' | '.join(self._said)}" if self._said else ""
        return AgentError(f"the program {self._command!r} {reason}{said}")

    async def close(self) -> None:
        """End the program and what it started; its pipes are closed, whoever else holds them."""
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
    """A running program with its pipes, at the head of a session of its own.

    Attributes:
        ended: set when the program itself has ended, though a child of it may hold its pipes.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit, loop)
        self.ended = asyncio.Event()
        self._process: Any = None  # asyncio's transport of it

    @property
    def status(self) -> int | None:
        """The exit status, None while it runs."""
        status: int | None = self._process.get_returncode()
        return status

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by asyncio when it has started."""
        super().connection_made(transport)
        self._process = transport

    def process_exited(self) -> None:
        """Called by asyncio when it has ended: its children go with it."""
        # Now, while its number cannot be another's: a session that still has members keeps it.
        self._end_session()
        super().process_exited()
        self.ended.set()

    def kill(self) -> None:
        """End it at once, and all of its session; a signal that can be ignored would be."""
        if not self.ended.is_set():
            self._end_session()

    def let_go(self) -> None:
        """Close the pipes, which a child with a session of its own may still hold."""
        self._process.close()

    def _end_session(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.get_pid(), signal.SIGKILL)


async def _before(program: _Program, reading: Coroutine[Any, Any, bytes]) -> bytes:
    """The line that is read; of a program that ends, only for as long as its last words take, though a child may hold its pipes.

    Raises:
        ValueError: it ended without one.
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
    """A pipe that was asked for is there."""
    if stream is None:
        raise OSError("the program has no pipe")
    return stream
