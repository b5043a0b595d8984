"""vLLM servers: the process, the HTTP client, and the ways of weights to it."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import urllib3
from torch import Tensor

from tstar_envs import UnknownOption
from tstar_envs.redaction import printable, redacted
from tstar_train.config import Config

KEY = "VLLM_API_KEY"  # variable with the server's key, as vLLM reads it
BY_DISK = ("disk", "adapters")  # ways of weights through the run's folder
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # values that vLLM's --max-lora-rank takes
RUNTIME_LORA = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"  # variable that opens vLLM's routes of adapters
_LOG_LINES = 15  # of a server that did not start, in the message
_RESTARTS = 3  # of the run's own server
_CONNECT_SECONDS, _END_SECONDS = 10.0, 15.0


class NoAnswerError(Exception):
    """No answer, or an error of the server itself; it may come back."""


class RefusedError(Exception):
    """Answer that refuses a request.

    Attributes:
        status: HTTP status.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """HTTP client of one server, for many threads.

    Args:
        url: of the server, without a path.
        seconds: time limit of a request.
        connections: maximum number of requests at the same time.
    """

    def __init__(self, url: str, seconds: float, connections: int) -> None:
        self.url = url.rstrip("/")
        key = os.environ.get(KEY, "").strip()
        self._pool = urllib3.PoolManager(
            maxsize=connections,
            block=True,
            retries=False,
            timeout=urllib3.Timeout(connect=_CONNECT_SECONDS, read=seconds),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    def ask(self, method: str, path: str, body: Any = None, *, parse: bool = True) -> Any:
        """Send a request and parse its JSON answer; None for an empty one.

        Args:
            method: GET or POST.
            path: of the request.
            body: sent as JSON.
            parse: False for an answer that is plain text, which is not returned.

        Raises:
            NoAnswerError: the server cannot be reached, takes too long, or answers 5xx.
            RefusedError: any other status than 200.
        """
        try:
            answer = self._pool.request(method, self.url + path, json=body)
            content = answer.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            said = redacted(" ".join(str(error).split()))
            raise NoAnswerError(f"{path} got no answer ({type(error).__name__}: {said:.200})") from None
        said = printable(content[:2_000].decode("utf-8", "replace"))
        if answer.status >= 500:
            raise NoAnswerError(f"{path} answered {answer.status}: {said:.300}")
        if answer.status != 200:
            raise RefusedError(f"{path} answered {answer.status}: {said:.300}", answer.status)
        try:
            return json.loads(content) if content and parse else None
        except ValueError as error:
            raise RefusedError(f"{path} answered no JSON: {said:.300}", 200) from error


class ServerProcess:
    """vLLM server as a child process, started again when it dies once it has served.

    Args:
        command: makes the command line; asked again at each start, since the newest weights have another path.
        environment: its variables.
        log: file that its output is appended to.

    Attributes:
        served: set to True once it has answered; a server that dies before is not started again.
        failure: how it ended for good; None while it runs.
    """

    def __init__(self, command: Callable[[], list[str]], environment: dict[str, str], log: Path) -> None:
        self._command, self._environment, self.log = command, environment, log
        self._lock = threading.Lock()
        self._starts, self._ended = 0, False
        self.served = False
        self.failure: str | None = None
        self._process = self._start()
        atexit.register(self.end)
        threading.Thread(target=self._watch, name="tstar watches vLLM", daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts += 1
        with self.log.open("ab") as log:
            # In a session of its own: Ctrl-C in the terminal is for the trainer, which ends its iteration first.
            return subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def _watch(self) -> None:
        while True:
            code = self._process.wait()
            with self._lock:
                if self._ended:
                    return
                self._kill_group()  # its workers may outlive it and hold its memory
                if not self.served or self._starts > _RESTARTS:
                    self.failure = f"ended with exit code {code}" + self._often()
                    return
                self._process = self._start()

    def _often(self) -> str:
        return f" after {self._starts} starts" if self._starts > 1 else ""

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def last_lines(self) -> str:
        """Return the last lines of its log, without secrets."""
        lines = self.log.read_bytes()[-20_000:].decode("utf-8", "replace").splitlines()
        return printable("\n".join([line for line in lines if line.strip()][-_LOG_LINES:]))

    def end(self) -> None:
        """End the server and its workers; further calls do nothing."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
        atexit.unregister(self.end)
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self._kill_group()
        self._process.wait()


def transfer_of(config: Config, device: str) -> str:
    """Choose how weights go to the server: disk, adapters, ipc or nccl; see ``ServerConfig.transfer``.

    Args:
        config: of the run.
        device: of the policy, as torch names it.

    Raises:
        UnknownOption: the way asked for needs GPUs, or other ones, or adapters that vLLM takes.
    """
    asked, own = config.server.transfer, config.server.url is None
    rank, cuda = config.lora.rank, device.startswith("cuda")
    if asked == "auto":
        if cuda and own:
            return "nccl" if config.server.devices else "ipc"
        return "adapters" if 0 < rank <= LORA_RANKS[-1] else "disk"
    if asked == "adapters" and not 0 < rank <= LORA_RANKS[-1]:
        found = f"vLLM takes a rank of at most {LORA_RANKS[-1]}, got" if rank else "the policy has none:"
        raise UnknownOption(
            f"--engine.transfer adapters hands over adapters, and {found} --lora.rank {rank}: give another rank, or "
            f"--engine.transfer disk"
        )
    if asked not in BY_DISK and not cuda:
        raise UnknownOption(
            f"--engine.transfer {asked} copies weights between GPUs, and the policy is on {device}: give --engine.transfer disk"
        )
    if own and cuda and asked == ("ipc" if config.server.devices else "nccl"):
        where = "on GPUs of its own" if config.server.devices else "on the trainer's GPU"
        fits = "nccl" if config.server.devices else "ipc"
        raise UnknownOption(
            f"--engine.transfer {asked} does not reach a server {where}: give --engine.transfer {fits}, or disk"
        )
    return asked


def server_line(config: Config, device: str) -> str:
    """Describe the sampling server of a run and the way of the weights to it, for the plan."""
    server = config.server
    if server.url is not None:
        where = f"the vLLM server at {redacted(server.url)}"
    elif server.devices is not None:
        where = f"a vLLM server of the run's own on GPU {server.devices}"
    else:
        share = f" with {config.vllm.memory:.0%} of its memory" if device.startswith("cuda") else ""
        where = f"a vLLM server of the run's own on {device}{share}"
    way = transfer_of(config, device)
    ways = {
        "disk": "by a checkpoint in the run's folder",
        "adapters": "as adapters in the run's folder, after a checkpoint of the frozen weights",
        "ipc": "within the GPU (ipc)",
        "nccl": "from GPU to GPU (nccl)",
    }
    return f"sampling: {where}; new weights go there {ways[way]}"


def open_sender(kind: str, url: str, seconds: float, rank: int, weights: list[tuple[str, Tensor]]) -> Any:
    """Open vLLM's weight transfer from the trainer's side; each rank calls it, on its GPU.

    Args:
        kind: ``ipc``, to workers on the ranks' own GPUs, or ``nccl``, to workers on others.
        url: of the server.
        seconds: time limit of each of its requests.
        rank: of this process; the first one sends.
        weights: (name, tensor); the list is read again at each ``send_weights()`` of the result.
    """
    from vllm.distributed.weight_transfer import (
        HTTPVLLMWeightSyncClient,
        ParamMeta,
        WeightSource,
        WeightTransferTrainerFactory,
    )
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    class Pairs(WeightSource):  # type: ignore[misc]
        """The present weights, tensor by tensor."""

        def metadata(self) -> list[Any]:
            return [ParamMeta(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(weights)

    info: Any = IPCTrainerInitInfo(rank=rank, packed=True)
    if kind == "nccl":
        parts = urlsplit(url)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
            towards.connect((parts.hostname or "", parts.port or 80))  # sends nothing
            own = towards.getsockname()[0]
        with socket.socket() as probe:
            probe.bind((own, 0))
            port = probe.getsockname()[1]
        workers = Client(url, seconds, 1).ask("GET", "/get_world_size")["world_size"]
        info = NCCLTrainerInitInfo(master_address=own, master_port=port, world_size=1 + workers, rank=rank)
    client = HTTPVLLMWeightSyncClient(url, timeout=seconds)
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=Pairs())
