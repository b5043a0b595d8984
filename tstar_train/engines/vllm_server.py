"""Engine that samples from a vLLM server over HTTP: one that the run starts and ends, or one given by its URL."""

from __future__ import annotations

import fcntl
import json
import math
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from tstar_envs import UnknownOption
from tstar_envs.redaction import redacted
from tstar_train.config import Config
from tstar_train.distributed import Communicator, raise_on_any_rank
from tstar_train.engines.base import EngineFailed
from tstar_train.engines.check import EngineMismatch
from tstar_train.engines.vllm import BLOCK, WITHOUT_WEIGHTS, Answer, VLLMRequests, cpu_settings
from tstar_train.engines.vllm_serving import (
    BY_DISK,
    KEY,
    LORA_RANKS,
    RUNTIME_LORA,
    Client,
    NoAnswerError,
    RefusedError,
    ServerProcess,
    open_sender,
    transfer_of,
)
from tstar_train.finite import NotFinite
from tstar_train.learner.base import tied
from tstar_train.policy.lora import adapted_weights, base_weights, save_adapters
from tstar_train.policy.model import Policy, config_with_class_name, renamed
from tstar_train.progress import progress

T = TypeVar("T")

FOLDER = "server"  # of the run's folder: the server's log and the weights on their way to it
_TRIES = 4  # of one request, each after the server was found well
_POLL_SECONDS = 0.25
# Shares of --timeout-minutes: the other processes of the run wait no longer than that for one that waits for the server.
_START_SHARE, _RETURN_SHARE = 0.8, 0.4
_NO_NUMBER = "not JSON compliant"
_UNKNOWN_NAME = 404  # status of a server that was started again, and does not know the adapters
_CLAMPED = -9999.0  # what vLLM's server writes for a log-probability that is NaN or minus infinity
# Variables of torchrun, which vLLM would take for its own.
_OF_RANKS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class VLLMServerEngine(VLLMRequests):
    """See ``Engine``. All ranks ask one server; the first rank starts it, at the first ``sync``, and hands over the weights.

    Each answer names the version of the weights that sampled it. After a restart the server has another one: the weights are handed over
    again (from the disk, by whichever rank sees it first) and the request is repeated, so the run goes on as if nothing had been.
    Adapters have the version as their name in vLLM, so that its prefix cache never mixes two of them.

    Args:
        policy: model and codec; the weights come by ``sync``.
        config: of the run.
        world: communicator of the ranks.
        out: folder of the run, on the first rank: log and weights go to ``server`` there. None: a temporary folder.

    Raises:
        UnknownOption: the options do not fit the policy, its device or the ranks' hosts.
    """

    def __init__(self, policy: Policy, config: Config, world: Communicator, out: Path | None) -> None:
        super().__init__(policy, config.rollout.context_tokens)
        self._policy, self._config, self._world = policy, config, world
        self._device = policy.model.device
        self._transfer = transfer_of(config, self._device.type)
        self._adapts = self._transfer == "adapters"
        if self._adapts and renamed(
            policy.model, ((name, tensor.shape) for name, tensor in adapted_weights(policy.model))
        ):
            raise UnknownOption(
                f"the files of {policy.name} use other names for weights with adapters, so that vLLM would not find them: give "
                f"--engine.transfer disk"
            )
        if config.server.url is None and int(os.environ.get("LOCAL_WORLD_SIZE", world.size)) != world.size:
            raise UnknownOption(
                "--engine vllm-server starts a server that only this host reaches, and the run has processes on others: start one "
                "yourself (docs/llm.md), and give --engine.url"
            )
        self._seconds = 60 * config.timeout_minutes
        self._out = out
        self._process: ServerProcess | None = None
        self._client: Client | None = None
        self._root, self._written, self._run = Path(), Path(), ""
        self._number, self._version = 0, ""
        self._fresh = self._served = False
        self._sender: Any = None
        self._sent: list[tuple[str, Tensor]] = []
        self._failure: EngineFailed | None = None
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(config.rollout.max_sequences, "tstar asks vLLM")

    # ------------------------------------------------------------------ weights

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See ``Engine``; all ranks call it.

        Raises:
            EngineFailed: the server does not start, does not come back, or is not one for this run.
            EngineMismatch: it fails to load the weights.
        """
        world = self._world
        with raise_on_any_rank(world):  # until here another rank may still ask for the old weights
            pass
        self._number += 1
        self._failure = None
        with raise_on_any_rank(world):
            try:
                if world.rank == 0:
                    self._prepare(weights)
            except BaseException:
                if not self._served:
                    self.close()
                raise
        if not self._version:
            url, self._run, root = world.broadcast((self._url, self._run, str(self._root)))
            self._root = Path(root)
            self._client = self._client or Client(url, self._seconds, self._config.rollout.max_sequences)
        self._version = f"{self._run}/{self._number}"
        if self._transfer not in BY_DISK:
            self._send(weights)
        with raise_on_any_rank(world):
            if world.rank == 0:
                self._patiently("", self._load if self._transfer in BY_DISK else self._name_version)
                for old in self._root.glob("weights-*"):
                    if old != self._weights():
                        shutil.rmtree(old)
        self._served = True

    def _prepare(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Write the weights, and start the server if it is the first time; on the first rank."""
        if not self._run:
            self._run = f"tstar-{secrets.token_hex(4)}"
            self._root = (
                Path(tempfile.mkdtemp(prefix="tstar-vllm-")) if self._out is None else self._out / FOLDER
            )
            self._fresh = self._out is None or not self._root.exists()
            self._root.mkdir(parents=True, exist_ok=True)
            self._clear_weights()  # of a run that was killed
        self._write(weights)
        if self._client is None:
            url = self._config.server.url or self._started()
            self._client = Client(url, self._seconds, self._config.rollout.max_sequences)
            if self._process is not None:
                self._await_start(self._process)
            try:
                self._held()
            except NoAnswerError as error:
                raise EngineFailed(
                    f"{self._shown} does not answer ({error}): start it (docs/llm.md), and wait until it has loaded its model"
                ) from error

    def _weights(self) -> Path:
        """Return the folder of the present weights: another one each time, so that no file system serves an old file."""
        return self._root / f"weights-{self._number:06d}"

    @property
    def _base(self) -> Path:
        """Return the folder of the frozen weights under the adapters."""
        return self._root / "base"

    def _write(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Write what vLLM reads: a checkpoint, without weights if these go from GPU to GPU, or adapters and once what is under them."""
        if not self._adapts:
            self._written = self._weights()
            self._put(self._written, lambda folder: self._checkpoint(weights, folder))
            return
        model = self._policy.model
        if not self._base.exists():
            self._written = self._base
            frozen = ((name, tensor) for name, tensor in base_weights(model) if not tied(model, name))
            self._put(self._base, lambda folder: self._checkpoint(frozen, folder))
        self._put(self._weights(), lambda folder: save_adapters(model, folder))

    def _checkpoint(self, weights: Iterable[tuple[str, Tensor]], folder: Path) -> None:
        config_with_class_name(self._policy.model).save_pretrained(folder)
        if self._transfer in BY_DISK:
            state = {
                name: tensor.detach().cpu().contiguous() for name, tensor in self.named_for_vllm(weights)
            }
            save_file(state, folder / "model.safetensors", metadata={"format": "pt"})

    def _put(self, target: Path, save: Callable[[Path], None]) -> None:
        """Make a folder with what ``save`` writes into it, whole or not at all."""
        partial = self._root / ".partial"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            save(partial)
            partial.rename(target)
        except (OSError, SafetensorError) as error:
            raise EngineFailed(
                f"the weights for the sampling server could not be written to {self._root} ({error}): make room there, or choose "
                f"another --out"
            ) from error

    def _send(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Send the weights from GPU to GPU by vLLM's own transfer; all ranks take part."""
        world = self._world
        with raise_on_any_rank(world):
            if world.rank == 0 and not self._patiently("", self._held).startswith(self._run):
                self._sender = None  # a server that this run has not spoken to
                self._patiently("", self._require_fit)
        if world.broadcast(self._sender is None):
            self._sender = None
        handing = world.external_collectives("handing weights to the sampling server")
        with raise_on_any_rank(world), handing, torch.cuda.device(self._device):
            self._sent[:] = self.named_for_vllm(weights)
            try:
                if self._sender is None:
                    url = self._asked.url
                    self._sender = open_sender(self._transfer, url, self._seconds, world.rank, self._sent)
                self._sender.send_weights()
            except (OSError, NoAnswerError, RefusedError) as error:  # requests' errors are OSErrors
                raise EngineFailed(
                    f"{self._shown} did not take the weights ({redacted(str(error)):.300}); no step was taken"
                ) from error
            finally:
                self._sent.clear()

    def _held(self) -> str:
        """Ask for the version of the server's weights."""
        try:
            return str(self._asked.ask("GET", "/weight_info")["weight_version"])
        except (RefusedError, KeyError, TypeError) as error:
            raise self._unfit(
                f"does not say which weights it has ({error}): vLLM 0.30 or newer with VLLM_SERVER_DEV_MODE=1 does"
            ) from error

    def _patiently(self, reason: str, attempt: Callable[[], T]) -> T:
        """Repeat an attempt until the server answers, for the time of a restart.

        Args:
            reason: why the server seems unwell, for the message.
            attempt: what to do; it raises ``NoAnswerError`` as long as the server does not answer.

        Raises:
            EngineFailed: it does not come back.
        """
        patience = _RETURN_SHARE * self._seconds
        deadline = time.monotonic() + patience
        while True:
            try:
                return attempt()
            except NoAnswerError as error:
                reason = str(error)
            except RefusedError as error:
                raise self._unfit(f"refuses what the run needs: {error}") from error
            if self._process is not None and self._process.failure is not None:
                raise EngineFailed(
                    f"the sampling server {self._process.failure} ({reason}). {self._advice}, which ends with:\n"
                    f"{self._process.last_lines()}"
                )
            if self._failure is not None:  # the run has ended meanwhile
                raise self._failure
            if time.monotonic() > deadline:
                raise EngineFailed(
                    f"{self._shown}: {reason}, and it was not well again within {patience:.0f} s (part of --timeout-minutes). "
                    f"{self._advice}"
                )
            time.sleep(_POLL_SECONDS)

    @contextmanager
    def _one_loader(self) -> Iterator[None]:
        """Let one rank at a time load weights: several may find the server without them."""
        with (self._root / ".loading").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _load(self) -> None:
        """Let the server load the present weights from the disk, unless it has them."""
        if self._held() == self._version:
            return
        with self._one_loader():
            held = self._held()
            if held == self._version:
                return
            if self._transfer not in BY_DISK:
                raise EngineFailed(
                    f"{self._shown} was started again and lost its weights, which --engine.transfer {self._transfer} hands over between "
                    f"iterations only"
                )
            new = not held.startswith(self._run)  # a server that this run has not spoken to
            if new:
                self._require_fit()
            if new or not self._adapts:
                whole = self._base if self._adapts else self._weights()
                body = {"method": "reload_weights", "kwargs": {"weights_path": str(whole)}}
                self._hand("/collective_rpc", body, f"weights of {self.name} from {whole}")
            if self._adapts:
                self._load_adapters()
            self._name_version()

    def _load_adapters(self) -> None:
        """Let the server load the present adapters, and forget the ones before."""
        known = [model["id"] for model in self._asked.ask("GET", "/v1/models")["data"]]
        if self._version not in known:
            body = {"lora_name": self._version, "lora_path": str(self._weights())}
            self._hand("/v1/load_lora_adapter", body, f"adapters of {self.name} from {self._weights()}")
        for old in known:
            if old.startswith(f"{self._run}/") and old != self._version:
                self._asked.ask("POST", "/v1/unload_lora_adapter", {"lora_name": old}, parse=False)

    def _hand(self, path: str, body: Any, what: str) -> None:
        """Ask the server to load something from the disk.

        Raises:
            EngineMismatch: it is well, and fails to.
        """
        try:
            self._asked.ask("POST", path, body, parse=False)
        except NoAnswerError as error:
            self._asked.ask("GET", "/health")  # it raises if the server is unwell
            raise EngineMismatch(
                f"{self._shown} failed to load the {what}: it serves another model, or does not see that folder ({error}); no step was "
                f"taken"
            ) from error

    def _name_version(self) -> None:
        """Drop the server's caches of the old weights, and name the version that its answers bear from now on."""
        if not self._asked.ask("POST", "/reset_prefix_cache?reset_running_requests=true")["success"]:
            raise NoAnswerError("/reset_prefix_cache: it still holds keys and values of old weights")
        self._asked.ask("POST", "/update_weight_version", {"new_version": self._version})

    # ------------------------------------------------------------------ the server

    def _started(self) -> str:
        """Start a server of the run's own; return its URL."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        rollout, server = self._config.rollout, self._config.server
        environment = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
        given = {**cpu_settings(self._policy, self._limit, rollout.max_sequences, rollout.cache_gib)}
        environment = {**given, "VLLM_LOGGING_LEVEL": "INFO", **environment}
        environment |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if self._adapts:
            environment[RUNTIME_LORA] = "True"
        environment.pop(KEY, None)  # it listens on this machine only
        if self._transfer == "ipc":  # the handles go pickled over HTTP, from this process alone
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        if server.devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = server.devices
        elif self._device.type == "cuda":
            seen = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
            index = self._device.index or 0
            environment["CUDA_VISIBLE_DEVICES"] = seen[index] if seen != [""] else str(index)
        self._process = ServerProcess(lambda: self._command(port), environment, self._root / "log.txt")
        return f"http://127.0.0.1:{port}"

    def _command(self, port: int) -> list[str]:
        config, server = self._config, self._config.server
        options: dict[str, Any] = {
            "--host": "127.0.0.1",
            "--port": port,
            "--dtype": self._dtype,
            "--max-model-len": self._limit + 1,
            "--max-num-seqs": config.rollout.max_sequences,
            "--block-size": BLOCK,
            "--logprobs-mode": "processed_logprobs",
            "--generation-config": "vllm",
            "--seed": 0,
            "--tensor-parallel-size": server.tensor_parallel or len((server.devices or "0").split(",")),
        }
        switches = ["--skip-tokenizer-init", "--enable-scale-out", "--enable-prompt-tokens-details"]
        switches += ["--enable-prefix-caching", "--disable-uvicorn-access-log"]
        if self._adapts:
            switches.append("--enable-lora")
            options["--max-lora-rank"] = self._lora_rank
        if self._transfer not in BY_DISK:
            options["--load-format"] = "dummy"
            options["--weight-transfer-config"] = json.dumps({"backend": self._transfer})
        if self._device.type == "cpu":
            switches.append("--enforce-eager")
        elif server.devices is None:
            options["--gpu-memory-utilization"] = config.vllm.memory
        pairs = [str(word) for pair in options.items() for word in pair]
        serve = [sys.executable, "-m", "tstar_train.engines.serve_vllm", f"--parent={os.getpid()}"]
        return [*serve, str(self._written), *pairs, *switches]

    def _await_start(self, process: ServerProcess) -> None:
        """Wait until the run's own server answers for the first time.

        Raises:
            EngineFailed: it ends, or takes too long; the message has the last lines of its log.
        """
        patience = _START_SHARE * self._seconds
        deadline = time.monotonic() + patience
        while process.failure is None and time.monotonic() < deadline:
            with suppress(NoAnswerError):
                self._asked.ask("GET", "/health")
                process.served = True
                return
            time.sleep(_POLL_SECONDS)
        how = process.failure or f"did not answer within {patience:.0f} s (part of --timeout-minutes)"
        whole = " (if vLLM has no LoRA for it: --engine.transfer disk)" if self._adapts else ""
        raise EngineFailed(
            f"--engine vllm-server cannot serve {self.name} here{whole}: the server {how}, its log ends with:\n{process.last_lines()}"
        )

    def _require_fit(self) -> None:
        """Check that a server fits this run, before its weights are replaced.

        Raises:
            EngineFailed: it serves another model, or was started with other options than docs/llm.md says.
        """
        ask, size = self._asked.ask, int(self._policy.model.config.vocab_size)
        probe = {"max_tokens": 1, "logprobs": 0, "detokenize": False}

        def samples(token: int) -> Any:
            body = {"token_ids": [0], "sampling_params": {**probe, "allowed_token_ids": [token]}}
            return ask("POST", "/inference/v1/generate", body)

        try:
            model = ask("GET", "/v1/models")["data"][0]
            info = ask("GET", "/server_info?config_format=json")
            known = info["vllm_config"]
            options, transfer = known["model_config"], known["weight_transfer_config"] or {}
            wanted = {
                "--max-model-len": (model["max_model_len"], self._limit + 1),
                "--dtype": (options["dtype"].removeprefix("torch."), self._dtype),
                "--logprobs-mode": (options["logprobs_mode"], "processed_logprobs"),
            }
            for option, (found, needed) in wanted.items():
                if found != needed and not (option == "--max-model-len" and found > needed):
                    raise self._unfit(f"was started with {option} {found}, and this run needs {needed}")
            if self._transfer in BY_DISK and known["load_config"]["load_format"] == "dummy":
                raise self._unfit(
                    "was started with --load-format dummy, so that it cannot load weights: leave that out"
                )
            if self._adapts and not (
                (known["lora_config"] or {"max_lora_rank": 0})["max_lora_rank"] >= self._config.lora.rank
                and info["vllm_env"].get(RUNTIME_LORA)
            ):
                raise self._unfit(
                    f"does not take adapters of rank {self._config.lora.rank}: it wants {RUNTIME_LORA}=True and --enable-lora "
                    f"--max-lora-rank {self._lora_rank} or more (or give the run --engine.transfer disk)"
                )
            if self._transfer not in BY_DISK and transfer.get("backend") != self._transfer:
                raise self._unfit(f'lacks --weight-transfer-config \'{{"backend": "{self._transfer}"}}\'')
            # A token that a server does not know would end it, so ask by the mask of allowed tokens, which it checks.
            answer = samples(size - 1)
            if not answer["choices"][0]["weight_versions"] or not answer["usage"].get(
                "prompt_tokens_details"
            ):
                raise self._unfit(
                    "does not name the weights of its answers, or not how much of a prompt was cached: vLLM 0.30 or newer with "
                    "--enable-prompt-tokens-details does"
                )
        except RefusedError as error:
            if "allowed_token_ids" in str(error):
                raise self._unfit(
                    f"serves a smaller vocabulary than {self.name}, which has {size:,} tokens"
                ) from error
            raise self._unfit(
                f"refuses what the run needs ({error}): it wants VLLM_SERVER_DEV_MODE=1 and --enable-scale-out"
            ) from error
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise self._unfit(
                f"answers in an unknown format ({error!r}): vLLM 0.30 or newer is needed"
            ) from error
        try:
            samples(size)
        except RefusedError:
            return
        raise self._unfit(f"serves a larger vocabulary than {self.name}, which has {size:,} tokens")

    def _unfit(self, how: str) -> EngineFailed:
        return EngineFailed(
            f"{self._shown} {how}. Start the server as docs/llm.md says, with this run's model"
        )

    @property
    def _asked(self) -> Client:
        if self._client is None:
            raise RuntimeError(WITHOUT_WEIGHTS)
        return self._client

    @property
    def _url(self) -> str:
        return self._asked.url if self._world.rank == 0 else ""

    @property
    def _shown(self) -> str:
        return f"the sampling server at {redacted(self._asked.url)}"

    @property
    def _lora_rank(self) -> int:
        """Return the smallest --max-lora-rank of vLLM that holds the adapters."""
        return next(rank for rank in LORA_RANKS if rank >= self._config.lora.rank)

    @property
    def _dtype(self) -> str:
        return str(self._policy.model.dtype).removeprefix("torch.")

    @property
    def _advice(self) -> str:
        if self._config.server.url is not None:
            return "Start it again"
        return f"See its log, {self._root / 'log.txt'}"

    # ------------------------------------------------------------------ requests

    def ask(
        self, prompts: list[list[int]], params: list[dict[str, Any]], starts: Sequence[int]
    ) -> list[Answer]:
        """See ``VLLMRequests``; the requests are sent side by side.

        Raises:
            EngineFailed: the server refuses one, or dies and does not come back.
        """
        if not self._version:
            raise RuntimeError(WITHOUT_WEIGHTS)
        return list(self._threads.map(self._answer, prompts, params, starts))

    def _answer(self, prompt: list[int], params: dict[str, Any], start: int) -> Answer:
        body, reason = {"token_ids": prompt, "sampling_params": params}, ""
        if self._adapts:
            body["model"] = self._version
        for _ in range(_TRIES):
            try:
                said = self._asked.ask("POST", "/inference/v1/generate", body)
                [choice] = said["choices"]
                versions = {span["version"] for span in choice["weight_versions"] or [{"version": "unknown"}]}
                progress.advance()
                if versions == {self._version} and choice["finish_reason"] != "abort":
                    return _read(said, choice, prompt, start)
                reason = (
                    f"it answered with the weights {', '.join(sorted(versions))} in place of {self._version}"
                )
            except NoAnswerError as error:
                reason = str(error)
            except RefusedError as error:
                # For cached tokens of a scored prompt vLLM sends what memory holds; if that is no number, its answer fails as a whole.
                if _NO_NUMBER in str(error):
                    if params.get("skip_reading_prefix_cache", True):
                        raise NotFinite(
                            "the policy's log-probabilities are NaN or infinite: its weights are broken"
                        ) from error
                    return Answer([], [], len(prompt), [])
                if not (self._adapts and error.status == _UNKNOWN_NAME):
                    raise EngineFailed(
                        f"{self._shown} refuses a request of {len(prompt)} tokens: {error}"
                    ) from error
                reason = str(error)
            except (KeyError, TypeError, ValueError) as error:
                raise self._unfit(f"answers in an unknown format ({error!r})") from error
            self._recover(reason)
        raise EngineFailed(
            f"{self._shown} is well, but {_TRIES} times a request failed: {reason}. {self._advice}"
        )

    def _recover(self, reason: str) -> None:
        """Wait for the server after a request has failed; the threads take turns, and what one finds holds for all."""
        with self._lock:
            if self._failure is None:
                try:
                    self._patiently(reason, self._load)
                except (EngineFailed, EngineMismatch) as error:
                    self._failure = EngineFailed(str(error))
            if self._failure is not None:
                raise self._failure

    def clear_cache(self) -> None:
        """See ``Engine``."""
        if self._version:
            with suppress(NoAnswerError):  # a server that is gone has no cache
                self._asked.ask("POST", "/reset_prefix_cache")

    def release(self) -> None:
        """See ``Engine``; the server keeps its memory, but answers belong to the weights that come next."""

    def close(self) -> None:
        """End the run's own server and remove the weights written for it; the log stays if the server ever served."""
        self._failure = self._failure or EngineFailed("the run has ended")
        if self._process is not None:
            self._process.end()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._world.rank == 0 and self._run:
            self._clear_weights()
            if self._out is None or (self._fresh and not self._served):
                shutil.rmtree(self._root, ignore_errors=True)

    def _clear_weights(self) -> None:
        for old in [*self._root.glob("weights-*"), self._base, self._root / ".partial"]:
            shutil.rmtree(old, ignore_errors=True)


def _read(said: Any, choice: Any, prompt: list[int], start: int) -> Answer:
    """Read an answer of ``/inference/v1/generate``."""
    ids, logprobs, scored = choice["token_ids"], [], []
    if choice["logprobs"] is not None:
        content = choice["logprobs"]["content"]
        if [entry["token_id"] for entry in content] != ids:
            raise ValueError("the log-probabilities are not those of the tokens")
        logprobs = [_unclamped(entry["logprob"]) for entry in content]
    cached = said["usage"]["prompt_tokens_details"]["cached_tokens"] or 0
    if said["prompt_logprobs"] is not None and cached < start:
        rows = zip(said["prompt_logprobs"][start:], prompt[start:], strict=True)
        scored = [_unclamped(row[str(token)]["logprob"]) for row, token in rows]
    return Answer(ids, logprobs, cached, scored)


def _unclamped(logprob: float) -> float:
    return float(logprob) if logprob > _CLAMPED else -math.inf
