"""An engine in a process of its own, with a copy of the weights, for sampling beside the update.

python -m tstar_train.engines.process FILE_DESCRIPTOR      # what the trainer starts
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Hashable, Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from tstar_train.config import Config
from tstar_train.distributed import SingleProcess, portable
from tstar_train.engines.base import EngineFailed, Sample
from tstar_train.policy.model import Policy
from tstar_train.progress import progress
from tstar_train.stopping import unheard_by_children

_END_SECONDS = 10.0  # for the process to end by itself
_TELL_SECONDS = 1.0  # between two messages that the process makes progress


class EngineProcess:
    """Engine in a process of its own; see ``Engine``.

    It is the run's engine, made by ``make_engine`` around a copy of the policy. A sync writes the weights into memory that both processes
    share, so nothing is sent. The process ends with this one, however that ends.

    Args:
        config: the run's options.
        policy: policy whose weights are synced; adapters are merged into the copy.
    """

    def __init__(self, config: Config, policy: Policy) -> None:
        mine, theirs = socket.socketpair()
        path = os.pathsep.join(filter(None, sys.path))  # an engine may be a module of the user's
        environment = {**os.environ, "PYTHONPATH": path}
        # Apart from terminal and scheduler, which signal all processes: it must outlive that until the iteration is saved.
        with unheard_by_children():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tstar_train.engines.process", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=environment,
            )
        theirs.close()
        self._connection = Connection(mine.detach())
        self._shared: dict[str, Tensor] = {}
        self._asked = False  # True while it has not answered
        dtype = str(policy.model.dtype).removeprefix("torch.")
        model = copy.deepcopy(policy.model.config), dtype, str(policy.model.device)
        self._send((config, model, (policy.codec, policy.tokenizer, policy.name), torch.get_num_threads()))
        self._limit: int
        self._rows: int | None
        try:
            self._limit, self._rows = self._answer()
        except BaseException:
            self.close()
            raise

    @property
    def limit(self) -> int:
        """See ``Engine``."""
        return self._limit

    @property
    def rows_at_once(self) -> int | None:
        """See ``Engine``."""
        return self._rows

    @property
    def shares_weights(self) -> bool:
        """See ``Engine``: the process has a copy."""
        return False

    def generate(
        self,
        contexts: Sequence[Sequence[int]],
        seeds: Sequence[str],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        keys: Sequence[Hashable] | None = None,
        copies: int = 1,
        ends: Collection[int] = (),
    ) -> list[Sample]:
        """See ``Engine``."""
        options = {
            "max_tokens": max_tokens,
            "temperature": temperature,
            "keys": keys,
            "copies": copies,
            "ends": ends,
        }
        found: list[Sample] = self._ask("generate", contexts, seeds, **options)
        return found

    def logprobs(
        self, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[float]]:
        """See ``Engine``."""
        found: list[list[float]] = self._ask("logprobs", contexts, continuations)
        return found

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See ``Engine``."""
        if self._shared:
            for name, tensor in weights:
                self._shared[name].copy_(tensor)
        else:
            self._share(dict(weights))
        self._ask("sync", ())

    def clear_cache(self) -> None:
        """See ``Engine``."""
        self._ask("clear_cache")

    def release(self) -> None:
        """See ``Engine``."""
        self._ask("release")

    def close(self) -> None:
        """End the process; at once if it still samples for another thread."""
        if self._asked:
            self._process.kill()  # it would hear of the end only once it has answered
        self._connection.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _share(self, weights: dict[str, Tensor]) -> None:
        """Put the weights into a file that both processes map; it has no name any more once they have."""
        layout = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}
        with tempfile.TemporaryDirectory(prefix="tstar-weights-") as folder:
            for number, (name, tensor) in enumerate(weights.items()):
                path = Path(folder) / str(number)
                _reserve(path, tensor.nbytes)
                self._shared[name] = mapped(path, *layout[name])
                self._shared[name].copy_(tensor)
            self._ask("share", folder, layout)

    def _ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        self._asked = True
        self._send((name, arguments, options))
        return self._answer()

    def _send(self, message: Any) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._died() from error

    def _answer(self) -> Any:
        try:
            while (received := self._connection.recv()) is None:
                progress.advance()  # the process still computes
            done, value = received
        except (EOFError, OSError) as error:
            raise self._died() from error
        self._asked = False
        if not done:
            raise value
        return value

    def _died(self) -> EngineFailed:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return EngineFailed("the process that samples ahead (--rollout.ahead) closed its connection")
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        why = " (is the memory full?)" if code == -signal.SIGKILL else ""
        return EngineFailed(
            f"the process that samples ahead {how}{why}: --rollout.ahead 0 samples without one"
        )


def _reserve(path: Path, size: int) -> None:
    """Make a file whose place is taken: a write to mapped memory without one would end the process by a bus error.

    Raises:
        EngineFailed: there is no room.
    """
    try:
        with path.open("wb") as file:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        raise EngineFailed(
            f"the weights for the process that samples ahead could not be written to {tempfile.gettempdir()} ({error.strerror}): make room "
            f"there, set TMPDIR to another folder, or give --rollout.ahead 0"
        ) from error


def mapped(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Map a tensor on a file, which is made if it is not there."""
    return torch.from_file(str(path), shared=True, size=math.prod(shape), dtype=dtype).view(shape)


class _Served:
    """The engine within its process, and the weights that it shares with the trainer."""

    def __init__(self, config: Config, policy: Policy) -> None:
        from tstar_train.engines import make_engine  # which imports this module

        self._model: PreTrainedModel = policy.model
        self.engine = make_engine(config, policy, SingleProcess())
        self._shared: dict[str, Tensor] = {}

    @torch.no_grad()
    def share(self, folder: str, layout: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """Compute with the weights that the trainer writes into a file; on a GPU they are copied from there."""
        own = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        for number, (name, kind) in enumerate(layout.items()):
            tensor = mapped(Path(folder) / str(number), *kind)
            if own[name].device.type == "cpu":
                own[name].data = tensor
            else:
                self._shared[name] = tensor

    @torch.no_grad()
    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        own = self._model.state_dict()
        for name, tensor in self._shared.items():
            own[name].copy_(tensor)
        self.engine.sync(weights)


def serve(connection: Connection) -> None:
    """Answer until the trainer closes the connection.

    Raises:
        EOFError: it has.
    """
    config, (model_config, dtype, device), (codec, tokenizer, name), threads = connection.recv()
    torch.set_num_threads(threads)
    try:
        model = AutoModelForCausalLM.from_config(model_config, dtype=getattr(torch, dtype)).to(device).eval()
        served = _Served(config, Policy(model.requires_grad_(False), codec, tokenizer, name))
    except Exception as error:  # noqa: BLE001  # handed over whole, and raised by the trainer
        connection.send((False, portable(error)))
        return
    connection.send((True, (served.engine.limit, getattr(served.engine, "rows_at_once", None))))
    sending = threading.Lock()
    threading.Thread(target=_tell, args=(connection, sending), daemon=True, name="tstar tells").start()
    while True:
        name, arguments, options = connection.recv()
        try:
            method = getattr(served, name, None) or getattr(served.engine, name)
            answer = True, method(*arguments, **options)
        except Exception as error:  # noqa: BLE001  # as above
            answer = False, portable(error)
        with sending:
            connection.send(answer)


def _tell(connection: Connection, sending: threading.Lock) -> None:
    """Send None, which is no answer, whenever work was finished (``progress``), so that the trainer's watchdog hears of it."""
    said = progress.count
    with contextlib.suppress(OSError):
        while True:
            time.sleep(_TELL_SECONDS)
            if progress.count != said:
                said = progress.count
                with sending:
                    connection.send(None)


if __name__ == "__main__":
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        serve(Connection(int(sys.argv[1])))
