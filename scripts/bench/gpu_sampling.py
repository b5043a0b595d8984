"""The parts ``decode``, ``paged`` and ``loss`` of ``check_gpu.py``: random models of the shapes of Qwen2.5, each part under four minutes.

- decode: waits of the local engine for the GPU per sampled token (``torch.cuda.set_sync_debug_mode``), and tokens per second, where it
  looks at each token which rows have ended, and where it does every few tokens.
- paged: ``--engine paged`` beside the local engine and a plain forward pass (needs flash-attn).
- loss: peak memory of the loss over the vocabulary at 3B's width, in chunks and in one piece.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from gpu_models import make, qwen
from gpu_parts import bench_of
from gpu_runs import Bench
from transformers import Qwen2ForCausalLM

from tstar_train.engines.base import Engine, Sample
from tstar_train.engines.local import LocalEngine
from tstar_train.engines.paged import PagedEngine
from tstar_train.learner import batch as loss_of
from tstar_train.policy.model import Policy, load_policy

GIB = 1 << 30
ROWS, TURNS, REPLY, NEW = 32, 4, 128, 200  # rows side by side, turns, tokens of a reply and of an observation
LOSS_TOKENS = 3072


def policy_of(bench: Bench, size: str) -> Policy:
    """Load a random model; on a CPU the smallest, in single precision."""
    size = "tiny" if bench.tiny else size
    folder = bench.folder / size
    make(size, folder, bench.device)
    dtype = torch.float32 if bench.tiny else torch.bfloat16
    return load_policy(str(folder), "search_qa", bench.device, dtype)


def waited(bench: Bench) -> None:
    """Let the GPU finish."""
    if bench.device != "cpu":
        torch.cuda.synchronize()


def held(bench: Bench) -> float:
    """GiB of tensors."""
    gc.collect()
    return torch.cuda.memory_allocated() / GIB if bench.device != "cpu" else 0.0


def turns_of(
    bench: Bench, engine: Engine, policy: Policy, tag: str
) -> tuple[list[tuple[list[int], Sample]], int, float]:
    """Play turns of growing contexts.

    Returns:
        Contexts and samples of the last turn, sampled tokens of all, and seconds.
    """
    rows, reply = (4, 12) if bench.tiny else (ROWS, REPLY)
    size = int(policy.model.config.vocab_size)
    contexts = [[(7 + 31 * (row + 3 * n)) % size for n in range(NEW)] for row in range(rows)]
    tokens, began = 0, time.perf_counter()
    for turn in range(TURNS):
        seeds = [f"{tag}/{turn}/{row}" for row in range(rows)]
        samples = engine.generate(contexts, seeds, max_tokens=reply, keys=list(range(rows)))
        tokens += sum(len(sample.ids) for sample in samples)
        last = list(zip(contexts, samples, strict=True))
        contexts = [
            [*context, *sample.ids, *[(11 + 17 * (turn + n)) % size for n in range(NEW)]]
            for context, sample in last
        ]
    waited(bench)
    return last, tokens, time.perf_counter() - began


@torch.no_grad()
def difference(policy: Policy, played: Sequence[tuple[list[int], Sample]]) -> dict[str, float]:
    """Compare log-probabilities of sampled tokens with a plain forward pass, in nats: maximum and mean."""
    found = []
    for context, sample in played[:8]:
        ids = torch.tensor([[*context, *sample.ids]], device=policy.model.device)
        logits = policy.model(ids).logits[0, len(context) - 1 : -1].float()
        chosen = torch.tensor(sample.ids, device=logits.device)[:, None]
        plain = torch.log_softmax(logits, dim=-1).gather(-1, chosen)[:, 0].cpu()
        found.append((torch.tensor(sample.logprobs) - plain).abs())
    whole = torch.cat(found)
    return {"difference_max": float(whole.max()), "difference_mean": float(whole.mean())}


def decode(bench: Bench, until: float) -> None:
    """Waits and speed of the local engine, by the number of tokens between two looks at which rows have ended."""
    for size in ("0.5B", "3B"):
        if until - time.monotonic() < 40 and not bench.tiny:
            bench.say("decode", size=size, result="no time was left for it")
            continue
        policy = policy_of(bench, size)
        for looks in (1, 8):
            engine = LocalEngine(policy, ROWS, 4096)
            engine.steps_between_looks = looks
            turns_of(bench, engine, policy, "warm")
            engine.clear_cache()
            _, tokens, seconds = turns_of(bench, engine, policy, "timed")
            engine.clear_cache()
            bench.say(
                "decode",
                size=size,
                tokens_between_looks=looks,
                tokens_per_second=tokens / seconds,
                waits_per_step=waits(bench, engine),
            )
        del policy, engine
        held(bench)


def waits(bench: Bench, engine: LocalEngine) -> float | str:
    """Count how often a decoding step waits for the GPU: what a longer reply adds to a shorter one."""
    if bench.device == "cpu":
        return "no GPU"
    counts = []
    for tokens in (32, 96):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                engine.generate([[5] * 64] * 4, ["a", "b", "c", "d"], max_tokens=tokens)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(one.message) for one in caught))
    return (counts[1] - counts[0]) / 64


def paged(bench: Bench, until: float) -> None:
    """The paged engine: agreement, speed, new weights, and memory given back."""
    if bench.device != "cpu" and find_spec("flash_attn") is None:
        bench.say("paged", result="flash-attn is not installed: nothing was checked")
        return
    for size in ("0.5B", "3B"):
        if until - time.monotonic() < 60 and not bench.tiny:
            bench.say("paged", size=size, result="no time was left for it")
            continue
        policy = policy_of(bench, size)
        before = held(bench)
        limit, gib = (1500, 0.2) if bench.tiny else (4096, 8.0)
        local = LocalEngine(policy, ROWS, limit, gib)
        ours = PagedEngine(policy, ROWS, limit, gib)
        engines: dict[str, Engine] = {"local": local, "paged": ours}
        for name, engine in engines.items():
            began = time.perf_counter()
            turns_of(bench, engine, policy, "warm")
            first = time.perf_counter() - began
            engine.clear_cache()
            played, tokens, seconds = turns_of(bench, engine, policy, "timed")
            row: dict[str, Any] = {
                "size": size,
                "engine": name,
                "first_call_seconds": first,
                "tokens_per_second": tokens / seconds,
                **difference(policy, played),
                "held_gib": held(bench) - before,
            }
            engine.release()
            bench.say("paged", **row, held_after_release_gib=held(bench) - before)
        with torch.no_grad():
            for parameter in policy.model.parameters():
                parameter.mul_(1.02)
        ours.sync(())
        played, _, _ = turns_of(bench, ours, policy, "timed")
        bench.say("paged, after the weights changed in place", size=size, **difference(policy, played))
        ours.release()
        del policy, local, ours, engines, engine
        held(bench)


def loss(bench: Bench, until: float) -> None:
    """Memory of the loss at 3B's width and vocabulary, with one layer, forward and backward."""
    config = qwen("tiny" if bench.tiny else "3B")
    config.num_hidden_layers = 1
    with torch.device(bench.device):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    model = model if bench.tiny else model.bfloat16()
    count = 256 if bench.tiny else LOSS_TOKENS
    kept = loss_of.MOST_LOSS_BYTES
    try:
        for name, most in (("in chunks", kept), ("in one piece", 1 << 50)):
            loss_of.MOST_LOSS_BYTES = most
            hidden = torch.randn(count, config.hidden_size, device=bench.device, dtype=model.dtype)
            hidden.requires_grad_()
            ids = torch.arange(count, device=bench.device)
            model.zero_grad(set_to_none=True)
            row: dict[str, Any] = {"size": "tiny" if bench.tiny else "3B", "how": name, "tokens": count}
            for _ in range(2):  # the first has the time of the kernels' loading
                before = held(bench)
                if bench.device != "cpu":
                    torch.cuda.reset_peak_memory_stats()
                waited(bench)
                began = time.perf_counter()
                logprobs, _ = loss_of.token_logprobs(model, hidden, ids, 1.0)
                logprobs.mean().backward()
                waited(bench)
                row["seconds"] = time.perf_counter() - began
                if bench.device != "cpu":
                    row["peak_gib"] = torch.cuda.max_memory_allocated() / GIB - before
            bench.say("loss", **row, gradient=float(hidden.grad.float().norm()))  # type: ignore[union-attr]
    finally:
        loss_of.MOST_LOSS_BYTES = kept


PARTS: dict[str, Callable[[Bench, float], None]] = {"decode": decode, "paged": paged, "loss": loss}


if __name__ == "__main__":
    bench, until = bench_of(PARTS)
    PARTS[bench.part](bench, until)
