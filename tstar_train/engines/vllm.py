"""vLLM engine inside the trainer's process, and the requests that it shares with vLLM's server."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tstar_envs import MissingExtra, UnknownOption
from tstar_train.engines.base import Sample, require_room, rooms
from tstar_train.engines.check import EngineMismatch
from tstar_train.finite import NotFinite
from tstar_train.policy.kv import cache_bytes_per_token, context_limit, position_limit
from tstar_train.policy.model import Policy, by_file_names, config_with_class_name, renamed
from tstar_train.progress import progress


def keep_weights_plain() -> None:
    """Let vLLM's CPU build compute with the weights as they are loaded; called before an ``LLM`` is made.

    By default it packs the weights of linear layers for oneDNN at the first load and computes with the packed copy. Weights loaded later
    then have no effect, and some loading calls report no error.
    """
    from vllm import _custom_ops

    _custom_ops._supports_onednn = False


def look_through_any_object() -> None:
    """Let vLLM's CPU build start in a process with other libraries; called before an ``LLM`` is made.

    Without Triton, vLLM searches the objects of all loaded modules for its kernels, and assumes that the ``__dict__`` of each is a mapping.
    It is not for an object that forwards every attribute, such as llvmlite's library (bm25s loads numba, which loads llvmlite).
    """
    try:
        from vllm.triton_utils import dispatcher
    except ImportError:  # this version (for example 0.24.0) does not search
        return

    def namespace(value: Any) -> Mapping[str, Any]:
        found = vars(value)
        return found if isinstance(found, Mapping) else {}

    dispatcher.vars = namespace  # replaces the builtin in that module only


def keep_class_callable(model: torch.nn.Module) -> None:
    """Keep the trainer's model callable after an ``LLM`` of its architecture was made.

    If vLLM has no class for an architecture (SmolLM3, GPT-NeoX), it patches transformers' class in place. Calls then need an attribute
    that only objects made by vLLM have.
    """
    for kind in {type(module) for module in model.modules()}:
        if kind.__call__.__module__.startswith("vllm."):
            setattr(kind, "do_not_compile", True)  # noqa: B010  # default for our objects; vLLM's objects set their own


BLOCK = 32  # block size of the prefix cache in tokens; the CPU build's default of 128 finds nothing in short contexts
_SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the weights are synced inside this process
    "VLLM_NO_USAGE_STATS": "1",
}
_DEFAULTS = {"VLLM_LOGGING_LEVEL": "ERROR"}
WITHOUT_WEIGHTS = "the engine has no weights: call sync before generate and logprobs, and again after release"
# Errors that vLLM raises for an unsupported model, machine or option; pydantic's errors are ValueErrors.
_REFUSALS = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    LookupError,
    OSError,
    ImportError,
)


class Answer(NamedTuple):
    """Answer of vLLM to one request.

    Attributes:
        ids: sampled tokens.
        logprobs: log-probability of each, in nats.
        cached: number of the prompt's tokens that were read from the prefix cache.
        prompt: log-probabilities of the prompt's tokens from the requested position on; empty if the cache reaches up to that position,
            since vLLM returns none of tokens read from it.
    """

    ids: list[int]
    logprobs: list[float]
    cached: int
    prompt: list[float]


class VLLMRequests(ABC):
    """Sampling and scoring by requests to a vLLM, wherever it runs; see ``Engine``.

    Args:
        policy: model and codec; only the model's configuration and the names of its weights are used.
        limit: maximum number of tokens of a context and its reply together. None is one less than the model's positions, since vLLM needs
            one more position when it scores.

    Attributes:
        name: name of the policy.
    """

    def __init__(self, policy: Policy, limit: int | None) -> None:
        config = policy.model.config
        self.name = policy.name
        # None if vLLM uses the names that the weights have in memory.
        shapes = [(name, tensor.shape) for name, tensor in policy.model.state_dict().items()]
        self._renamed = policy.model if renamed(policy.model, shapes) else None
        self._limit = min(context_limit(config, limit), position_limit(config) - 1)
        self._ends = policy.codec.ends

    @property
    def limit(self) -> int:
        """See ``Engine``."""
        return self._limit

    @property
    def shares_weights(self) -> bool:
        """See ``Engine``."""
        return False

    @abstractmethod
    def ask(
        self, prompts: list[list[int]], params: list[dict[str, Any]], starts: Sequence[int]
    ) -> list[Answer]:
        """Send requests and wait for all answers.

        Args:
            prompts: token ids.
            params: of vLLM's ``SamplingParams``, by name.
            starts: position in each prompt from which on log-probabilities are read, if the parameters ask for them.

        Raises:
            RuntimeError: there are no weights yet.
        """

    def named_for_vllm(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Return weights under the names that vLLM reads, those of the model's files."""
        return iter(weights) if self._renamed is None else by_file_names(self._renamed, weights)

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
        """See ``Engine``; ``keys`` are unused, since the prefix cache is keyed by tokens. Equal seeds give equal samples up to rounding."""
        room = rooms(contexts, seeds, copies, max_tokens, self._limit)
        last = sorted({*self._ends, *ends})
        params = [
            {
                "temperature": temperature,
                "top_p": 1.0,
                "top_k": -1,
                "max_tokens": room[number // copies],
                "logprobs": 0,
                "detokenize": False,
                "stop_token_ids": last,
                "ignore_eos": True,
                "seed": seed_number(seed) if temperature else None,
            }
            for number, seed in enumerate(seeds)
        ]
        prompts = [list(context) for context in contexts for _ in range(copies)]
        answers = self.ask(prompts, params, [len(prompt) for prompt in prompts])
        if not all(math.isfinite(logprob) for answer in answers for logprob in answer.logprobs):
            raise NotFinite(
                "the log-probabilities of sampled tokens are NaN or infinite: the policy's weights are broken"
            )
        return [Sample(answer.ids, answer.logprobs) for answer in answers]

    def logprobs(
        self, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[float]]:
        """See ``Engine``; contexts are read from the prefix cache if they are in it."""
        require_room(contexts, continuations, self._limit)
        pairs = [
            (list(c), list(tail)) for c, group in zip(contexts, continuations, strict=True) for tail in group
        ]
        totals = [0.0 if not tail else math.nan for _, tail in pairs]
        # vLLM returns no log-probabilities of tokens read from the cache. A context needs none. But if the cache also holds a part of the
        # continuation (sampled or scored before), the row is computed again without the cache.
        waiting = [number for number, (_, tail) in enumerate(pairs) if tail]
        for whole in (False, True):
            params = {
                "temperature": 0.0,
                "max_tokens": 1,
                "prompt_logprobs": 0,
                "detokenize": False,
                "skip_reading_prefix_cache": whole,
            }
            starts = [len(pairs[n][0]) for n in waiting]
            answers = self.ask([pairs[n][0] + pairs[n][1] for n in waiting], [params] * len(waiting), starts)
            again = []
            for number, start, answer in zip(waiting, starts, answers, strict=True):
                if answer.cached >= start:
                    again.append(number)
                else:
                    totals[number] = sum(answer.prompt)
            waiting = again
        if any(map(math.isnan, totals)):
            raise NotFinite(
                "the policy's log-probabilities of given continuations are NaN: its weights are broken"
            )
        sums = iter(totals)
        return [[next(sums) for _ in group] for group in continuations]


class VLLMEngine(VLLMRequests):
    """See ``Engine``. Before the first ``sync`` it has no weights; after ``release`` it has none until the next.

    Args:
        policy: model and codec; only the model's configuration is used, the weights come by ``sync``.
        batch: maximum number of rows decoded side by side.
        limit: maximum number of tokens of a context and its reply together. None is one less than the model's positions, since vLLM needs
            one more position when it scores.
        gib: maximum memory for keys and values on a CPU, in GiB; on a GPU see ``memory``.
        memory: share of the GPU's memory for weights, keys and values.
        rank: rank of this process.
        ranks: number of ranks; each has its own engine.

    Attributes:
        llm: vLLM's ``LLM`` that serves the model.

    Raises:
        MissingExtra: vLLM is not installed.
        UnknownOption: vLLM cannot serve this model here, or its device type is not the policy's.
    """

    def __init__(
        self,
        policy: Policy,
        batch: int = 256,
        limit: int | None = None,
        gib: float = 8.0,
        memory: float = 0.3,
        rank: int = 0,
        ranks: int = 1,
    ) -> None:
        super().__init__(policy, limit)
        device = policy.model.device
        self._sleeps = device.type == "cuda"
        self._asleep = self._ready = False
        os.environ.update(_SETTINGS)
        for name, value in {**_DEFAULTS, **cpu_settings(policy, self._limit, batch, gib)}.items():
            os.environ.setdefault(name, value)
        try:
            from vllm import LLM, SamplingParams, TokensPrompt
            from vllm.platforms import current_platform
        except ModuleNotFoundError as error:
            raise missing_vllm(device.type, error.name) from error
        require_device(policy.name, device.type, current_platform.device_type)
        self._params, self._prompt = SamplingParams, TokensPrompt
        if device.type == "cpu":
            keep_weights_plain()
            look_through_any_object()
        options: dict[str, Any] = (
            {"gpu_memory_utilization": memory, "enable_sleep_mode": True}
            if self._sleeps
            else {"enforce_eager": True}
        )
        # The ranks' process group exists already; each rank's engine has world size 1.
        if ranks > 1:
            os.environ.setdefault("RANK", str(rank))
            os.environ.setdefault("LOCAL_RANK", str(rank))
            options["distributed_executor_backend"] = "external_launcher"
        try:
            with tempfile.TemporaryDirectory(prefix="tstar-vllm-") as folder:
                config_with_class_name(policy.model).save_pretrained(folder)
                self.llm = LLM(
                    model=folder,
                    load_format="dummy",
                    skip_tokenizer_init=True,
                    generation_config="vllm",
                    dtype=str(policy.model.dtype).removeprefix("torch."),
                    max_model_len=self._limit + 1,
                    max_num_seqs=batch,
                    block_size=BLOCK,
                    enable_prefix_caching=True,
                    logprobs_mode="processed_logprobs",
                    seed=0,
                    **options,
                )
        except _REFUSALS as error:
            raise UnknownOption(
                f"--engine vllm cannot serve {policy.name} here ({one_line(error)}): leave it out, or use another model"
            ) from error
        keep_class_callable(policy.model)

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See ``Engine``.

        On a GPU the order matters: memory for the weights is allocated again before they are loaded, and the prefix cache of the old
        weights is dropped after.

        Raises:
            EngineMismatch: vLLM fails to load the weights.
        """
        if self._asleep:
            torch.cuda.empty_cache()
            self.llm.wake_up(tags=["weights"])
        try:
            self.load_weights(self.named_for_vllm(weights))
        except _REFUSALS as error:
            raise EngineMismatch(
                f"vLLM failed to load the weights of {self.name} ({one_line(error)}); no step was taken"
            ) from error
        self.llm.reset_prefix_cache()
        if self._asleep:
            self.llm.wake_up(tags=["kv_cache"])
        self._asleep, self._ready = False, True

    def load_weights(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Load weights into vLLM's model by checkpoint names; it raises an error for an unknown name."""
        with torch.no_grad():
            self.llm.apply_model(lambda model: model.load_weights(weights))

    def clear_cache(self) -> None:
        """See ``Engine``."""
        if self._ready:
            self.llm.reset_prefix_cache()

    def release(self) -> None:
        """See ``Engine``; on a GPU vLLM sleeps and frees weights, keys and values."""
        if self._sleeps and not self._asleep:
            self.llm.sleep(level=2)
            self._asleep = True
        self.clear_cache()
        self._ready = False

    def ask(
        self, prompts: list[list[int]], params: list[dict[str, Any]], starts: Sequence[int]
    ) -> list[Answer]:
        """See ``VLLMRequests``."""
        if not self._ready:
            raise RuntimeError(WITHOUT_WEIGHTS)
        if not prompts:
            return []
        outputs = self.llm.generate(
            [self._prompt(prompt_token_ids=ids) for ids in prompts],
            [self._params(**given) for given in params],
            use_tqdm=False,
        )
        return [self._answer(*given) for given in zip(outputs, prompts, starts, strict=True)]

    def _answer(self, output: Any, prompt: list[int], start: int) -> Answer:
        progress.advance()
        said, cached = output.outputs[0], output.num_cached_tokens
        ids, logprobs, scored = [int(token) for token in said.token_ids], [], []
        if said.logprobs is not None:
            logprobs = [float(row[token].logprob) for row, token in zip(said.logprobs, ids, strict=True)]
        if output.prompt_logprobs is not None and cached < start:
            rows = zip(output.prompt_logprobs[start:], prompt[start:], strict=True)
            scored = [row[token].logprob for row, token in rows]
        return Answer(ids, logprobs, cached, scored)


def cpu_settings(policy: Policy, limit: int, batch: int, gib: float) -> dict[str, str]:
    """Return vLLM's environment variables of its CPU build: the cache's size in whole GiB, and no binding to cores.

    Args:
        policy: whose keys and values are cached.
        limit: maximum number of tokens of a row.
        batch: maximum number of rows.
        gib: maximum memory for keys and values, in GiB.
    """
    token = cache_bytes_per_token(policy.model.config, policy.model.dtype.itemsize)
    needed = token * (limit + BLOCK) * batch / (1 << 30)
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, math.ceil(min(gib, needed)))),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }


def one_line(error: Exception) -> str:
    """Format an error of vLLM as one line with type and message."""
    return f"{type(error).__name__}: {' '.join(str(error).split()):.300}"


def seed_number(seed: str) -> int:
    """Derive the seed of one vLLM request: 63 bits of the seed's hash."""
    return int.from_bytes(hashlib.blake2b(seed.encode(), digest_size=8).digest(), "little") >> 1


def require_device(name: str, device: str, vllms: str) -> None:
    """Check that vLLM samples on the policy's device type; memory is freed and allocated by that type.

    Args:
        name: name of the policy.
        device: the policy's device type, as torch names it.
        vllms: device type of the installed vLLM, ``current_platform.device_type``: "cuda" for ROCm too, as in torch; "" for none.

    Raises:
        UnknownOption: they differ.
    """
    if device == vllms:
        return
    if not vllms:
        found, way = "finds no device to sample on", ""
    else:
        found = f"samples on {vllms}"
        way = "leave out --device cpu, or " if device == "cpu" else f"give --device {vllms}, or "
    raise UnknownOption(
        f"--engine vllm cannot serve {name} here: the installed vLLM {found}, and the policy is on {device}; {way}leave out --engine vllm"
    )


def missing_vllm(device: str, package: str | None = None, option: str = "--engine vllm") -> MissingExtra:
    """Format the error with the install command for an engine that needs vLLM."""
    own = (
        " on a CPU (scripts/test_vllm.sh makes an environment with vLLM's CPU build)"
        if device == "cpu"
        else ""
    )
    return MissingExtra(f"{option}{own}", package or "vllm", "vllm")
