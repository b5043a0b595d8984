"""Paged engine: the trainer's own model behind the continuous batching of transformers.

Keys and values are in pages that contexts with the same beginning share, between turns too. On a GPU, FlashAttention reads the pages and
a decoding step is one CUDA graph; the local engine starts each of its operations from Python.
"""

from __future__ import annotations

import gc
import importlib.util
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tstar_envs import UnknownOption
from tstar_train.engines.base import Sample, inverse_cdf, rooms, uniform_noise
from tstar_train.engines.local import LocalEngine
from tstar_train.finite import require_finite
from tstar_train.policy.kv import cache_bytes_per_token, context_limit
from tstar_train.policy.model import Policy
from tstar_train.progress import progress

TESTED = "5.23"  # release of transformers whose continuous batching was tested
_SCORED_SHARE = 0.25  # share of the key-value memory for scoring, which the local engine does
_PAGE = 16  # tokens a page; beginnings are shared in whole pages
_FLASH_PAGE = 256  # FlashAttention 2 reads pages of a multiple of 256 tokens
_STEP = 256  # maximum number of tokens a forward pass on a CPU, whose mask over all pages costs memory
_FLASH_STEP = 8192


class _Sampler:
    """Sampling in place of the continuous batching's own: by the engine's seeded noise, with a temperature per row.

    It stands where transformers has its list of logits processors, since their arguments are kept in memory that CUDA graphs may read.
    A row has three numbers: the temperature, and its noise for the next token as the sum of two float32.
    """

    do_processing = True
    tensors_required = 3

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Accept a request; called by transformers."""

    def fill_defaults(self, storage: Tensor) -> None:
        """Fill the numbers of rows that pad a batch."""
        storage.zero_()

    def prepare_tensor_args(self, requests_in_batch: Sequence[Any], arg_storage: Tensor) -> Tensor:
        """Write the numbers of each row that gets a token."""
        states = [request.state for request in requests_in_batch if request.has_new_token]
        rows = [state.logit_processor_kwargs for state in states]
        # A request that made room for others comes back with its reply in its context. One that has just ended may be in one batch more.
        noise = [
            float(row["noise"][min(state.position_offset - row["start"], len(row["noise"]) - 1)])
            for row, state in zip(rows, states, strict=True)
        ]
        exact = torch.tensor(noise, dtype=torch.float64)
        numbers = torch.stack(
            [
                torch.tensor([row["temperature"] for row in rows]),
                exact.float(),
                exact - exact.float().double(),
            ]
        )
        arg_storage[:, : len(states)] = numbers.float().view(torch.int32).to(arg_storage.device)
        return arg_storage

    def __call__(self, input_ids: Tensor, scores: Tensor, logits_processor_args: Tensor) -> Tensor:
        """Take the rows' numbers, and leave the logits as they are."""
        self._numbers = logits_processor_args.view(torch.float32)
        return scores

    def sample(self, scores: Tensor, output_ids: Tensor) -> None:
        """Sample a token per row, and write it with its log-probability where transformers reads both.

        Args:
            scores: logits, shape (1, rows, vocabulary).
            output_ids: int32, shape (2, at least rows); log-probabilities are stored as the bits of a float32.
        """
        temperature, high, low = self._numbers
        greedy = temperature == 0
        scaled = torch.log_softmax(scores[0] / torch.where(greedy, 1.0, temperature)[:, None], dim=-1)
        drawn = inverse_cdf(scaled, (high.double() + low.double())[:, None])
        tokens = torch.where(greedy[:, None], scaled.argmax(dim=-1, keepdim=True), drawn)
        rows = len(tokens)
        output_ids[0, :rows].copy_(tokens[:, 0])
        output_ids[1, :rows].copy_(scaled.gather(1, tokens)[:, 0].contiguous().view(torch.int32))


class PagedEngine:
    """See ``Engine``. Beginnings of contexts are found by their tokens, in whole pages; ``keys`` are unused.

    Args:
        policy: model and codec; the model is used in place.
        batch: maximum number of rows decoded side by side.
        limit: maximum number of tokens of a context and its reply together; at most the model's positions, which None stands for.
        gib: maximum memory for keys and values, in GiB; fewer rows are decoded side by side if ``batch`` rows do not fit. On a CPU the
            attention mask over all pages is part of it. A quarter is for scoring.

    Attributes:
        batch: maximum number of rows decoded side by side, within ``gib``.
        pages: number of pages.

    Raises:
        UnknownOption: the model is in single precision on a GPU; see also ``require_paged``.
    """

    def __init__(self, policy: Policy, batch: int = 256, limit: int | None = None, gib: float = 8.0) -> None:
        model = policy.model
        require_paged(model.device.type)
        if model.device.type != "cpu" and model.dtype == torch.float32:
            raise UnknownOption(
                f"--engine paged needs half precision on a GPU, which FlashAttention computes in, and {policy.name} is in float32: add "
                f"--optim.dtype bfloat16, or leave out --engine paged"
            )
        self._name, self._model, self._ends = policy.name, model, policy.codec.ends
        self._limit = context_limit(model.config, limit)
        self._scorer = LocalEngine(policy, batch, limit, _SCORED_SHARE * gib)
        flash = model.device.type != "cpu"
        self._attention = _paged_attention(model.config._attn_implementation, flash)
        self.page = _FLASH_PAGE if flash else _PAGE
        self.batch, tokens = paged_rows(model.config, model.dtype.itemsize, self._limit, batch, gib, flash)
        self.pages = tokens // self.page
        self._step = max(_FLASH_STEP if flash else _STEP, self.batch)
        self._manager: Any = None

    @property
    def limit(self) -> int:
        """See ``Engine``."""
        return self._limit

    @property
    def rows_at_once(self) -> int | None:
        """See ``Engine``."""
        return self.batch

    @property
    def shares_weights(self) -> bool:
        """See ``Engine``."""
        return True

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Drop caches of the old weights; the weights themselves are shared with the trainer."""
        self.clear_cache()

    def clear_cache(self) -> None:
        """See ``Engine``."""
        self._scorer.clear_cache()
        if self._manager is not None:
            self._manager.batch_processor.cache.reset()

    def release(self) -> None:
        """See ``Engine``; the pages and CUDA graphs are made anew by the next call."""
        self._scorer.release()
        if self._manager is not None:
            self._manager = None
            gc.collect()  # its parts refer to each other
            if self._model.device.type == "cuda":
                torch.cuda.empty_cache()

    def logprobs(
        self, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[float]]:
        """See ``Engine``; computed as the local engine does, since continuous batching only samples."""
        return self._scorer.logprobs(contexts, continuations)

    @torch.no_grad()
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
        room = rooms(contexts, seeds, copies, max_tokens, self._limit)
        if not contexts:
            return []
        last = sorted({*self._ends, *ends})
        rows = [tuple(context) for context in contexts for _ in range(copies)]
        # Pages are shared once they are full: a context that several rows of this call have is computed before them. transformers keeps
        # no page of a request that ends with its first token.
        several = [row for row, count in Counter(rows).items() if count > 1 and len(row) > self.page]
        if several:
            greedy = {"temperature": 0.0, "noise": [0.0, 0.0]}
            self._run([(row, 2, {**greedy, "start": len(row)}) for row in several], [])
        outputs = self._run(
            [
                (
                    row,
                    room[number // copies],
                    {
                        "temperature": temperature,
                        "noise": uniform_noise(seeds[number], room[number // copies]),
                        "start": len(row),
                    },
                )
                for number, row in enumerate(rows)
            ],
            last,
        )
        said = [Sample(output.generated_tokens, output.logprobs) for output in outputs]
        require_finite(
            torch.tensor([p for sample in said for p in sample.logprobs]),
            "the log-probabilities of sampled tokens",
        )
        return said

    def _run(
        self, requests: Sequence[tuple[Sequence[int], int, dict[str, Any]]], ends: Sequence[int]
    ) -> list[Any]:
        """Sample for (context, maximum length, the row's numbers), and return the outputs in order.

        The loop of transformers' background thread runs in this one: an error ends the call, and nothing goes on without it.
        """
        with self._switched():
            manager = self._made()
            status = manager.background_thread_status
            status.clear()
            names = [
                manager.add_request(list(ids), max_new_tokens=most, eos_token_id=list(ends), **numbers)
                for ids, most, numbers in requests
            ]
            status.request_stop(status.FLUSH_AND_STOP, manager.distributed_helper.global_rank)
            manager._run_generation_loop()
        found: dict[str, Any] = {}
        queue = manager.output_router.output_queue
        while not queue.empty():
            output = queue.get()
            found[output.request_id] = output
            progress.advance()
        if status.fatal_error is not None:
            self.release()
            raise status.fatal_error
        for name in names:
            if found[name].error is not None:
                raise RuntimeError(f"--engine paged failed for {self._name}: {found[name].error}")
        return [found[name] for name in names]

    @contextmanager
    def _switched(self) -> Iterator[None]:
        """Let the model attend to pages; the trainer's own passes attend as before."""
        own = self._model.config._attn_implementation
        if own == self._attention:
            yield
            return
        self._model.set_attn_implementation(self._attention)
        try:
            yield
        finally:
            self._model.set_attn_implementation(own)

    def _made(self) -> Any:
        """Return the manager, with its pages.

        Raises:
            UnknownOption: the pages do not fit into memory, or transformers does not support the model.
        """
        if self._manager is not None:
            return self._manager
        from transformers import ContinuousBatchingConfig, GenerationConfig

        flash = self._attention.startswith("flash")
        options = ContinuousBatchingConfig(
            page_size=self.page,
            num_blocks=self.pages,
            max_batch_tokens=self._step,
            max_requests_per_batch=self.batch,
            max_blocks_per_request=2 * math.ceil((self._limit + 1) / self.page / 2) if flash else 0,
            safety_margin=0.0,
            return_logprobs=True,
            auto_switch_to_flash=False,
        )
        try:
            model: Any = self._model  # its generation mixins have no types
            manager = model.init_continuous_batching(
                generation_config=GenerationConfig(do_sample=False, eos_token_id=-1),
                continuous_batching_config=options,
            )
            sampler = _Sampler()
            manager.logit_processor = sampler
            manager.batch_processor = manager._create_batch_processor()
            manager.batch_processor.model_runner._sample = sampler.sample
        except (MemoryError, RuntimeError, ValueError, AttributeError, TypeError) as error:
            raise UnknownOption(
                f"--engine paged cannot serve {self._name} here ({type(error).__name__}: {' '.join(str(error).split()):.300}): lower "
                f"--rollout.cache-gib or --rollout.max-sequences if memory is short, or leave it out"
            ) from error
        self._manager = manager
        return manager


def paged_rows(
    config: Any, itemsize: int, limit: int, batch: int, gib: float, flash: bool = True
) -> tuple[int, int]:
    """Compute the number of rows decoded side by side, and the number of tokens that all pages hold.

    Args:
        config: configuration of the model.
        itemsize: bytes of a key's or value's number.
        limit: maximum number of tokens of a context and its reply together.
        batch: maximum number of rows.
        gib: maximum memory of all keys and values, in GiB.
        flash: True if FlashAttention reads the pages, which needs no mask over them.
    """
    page, mask = (_FLASH_PAGE, 0) if flash else (_PAGE, itemsize * _STEP)
    row = page * math.ceil((limit + 1) / page)  # a request's last token takes a place too
    bytes_per_row = row * (cache_bytes_per_token(config, itemsize) + mask)
    rows = max(1, min(batch, int((1 - _SCORED_SHARE) * gib * (1 << 30)) // bytes_per_row))
    return rows, rows * row


def _paged_attention(own: str, flash: bool) -> str:
    """Choose the attention over pages: as the model's own on a CPU, FlashAttention on a GPU."""
    if flash:
        return own if own.startswith("flash") else "flash_attention_2"
    return "paged|eager" if own == "eager" else own


def require_paged(device: str) -> None:
    """Check that the installed packages can sample from pages.

    Args:
        device: the policy's device type.

    Raises:
        UnknownOption: a package is missing, or too old.
    """
    try:
        from transformers.generation.continuous_batching.model_runner import ModelRunner

        known = hasattr(ModelRunner, "_sample")
    except ImportError:
        known = False
    if not known:
        import transformers

        raise UnknownOption(
            f"--engine paged needs the continuous batching of transformers {TESTED}, and {transformers.__version__} is installed: install "
            f"that release, or leave it out"
        )
    needed = "psutil" if device == "cpu" else "flash_attn"
    if importlib.util.find_spec(needed) is None:
        raise UnknownOption(
            f"--engine paged on {'a CPU' if device == 'cpu' else 'a GPU'} needs {needed.replace('_', '-')}: install it, or leave out "
            f"--engine paged"
        )
