"""The part ``server`` of ``check_gpu.py``: ``--engine vllm-server`` by each way of the weights (extra vllm).

``ipc`` and ``disk`` need one GPU, which trainer and server share; ``nccl`` needs a second one, and is left out where there is none.
"""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.util import find_spec

import torch
from gpu_parts import ONE, bench_of, options
from gpu_runs import Bench, figures, phases, seconds, training
from gpu_vllm import LOGGED, by_trainer, held, tokens, weights_of

from tstar_envs import find_entry
from tstar_train.config import ServerConfig
from tstar_train.distributed import SingleProcess
from tstar_train.engines.check import require_following, sync_engine
from tstar_train.engines.vllm_server import VLLMServerEngine
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny
from tstar_train.recipes.recipe import policy_name

LIMIT, ROWS, REPLY = 512, 16, 64


def by_way(bench: Bench, way: str, devices: str | None) -> None:
    """One server: started, checked to follow, given changed weights twice, asked, ended."""
    entry = find_entry("sokoban-easy")
    policy = load_policy("tiny", policy_name(entry), bench.device)
    config = replace(tiny(entry), engine="vllm-server", server=ServerConfig(devices=devices, transfer=way))
    rollout = replace(config.rollout, context_tokens=LIMIT, max_sequences=ROWS)
    engine = VLLMServerEngine(policy, replace(config, rollout=rollout), SingleProcess(), None)
    try:
        began = time.perf_counter()
        require_following(policy, engine, lambda: weights_of(policy))
        started, spent = time.perf_counter() - began, []
        for _ in range(2):
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.mul_(1.02)
            began = time.perf_counter()
            sync_engine(policy, engine, weights_of(policy))
            spent.append(time.perf_counter() - began)
        contexts = [tokens(20 + 9 * n, 7 * n, policy) for n in range(ROWS)]
        began = time.perf_counter()
        samples = engine.generate(contexts, [f"{n}" for n in range(ROWS)], max_tokens=REPLY)
        took = time.perf_counter() - began
        gaps = [
            float((torch.tensor(s.logprobs) - by_trainer(policy, context, s.ids)).abs().max())
            for context, s in zip(contexts, samples, strict=True)
        ]
        bench.say(
            "a server of the run's own",
            way=way,
            devices=devices or "the trainer's",
            started_and_followed_seconds=started,
            sync_with_probe_seconds=spent,
            sampled_token_max_difference=max(gaps),
            tokens_per_second=sum(len(s.ids) for s in samples) / took,
            taken_of_gpu=held(bench.device),
        )
    except Exception as error:  # noqa: BLE001  # written down, and the next way is tried
        bench.say("a way that failed", way=way, error=f"{type(error).__name__}: {error}"[:1500])
    finally:
        engine.close()


def by_command_line(bench: Bench, until: float) -> None:
    """Two iterations of training with the built-in policy."""
    run = bench.folder / "run-server"
    given = [*options("sokoban-easy", bench, 2), *ONE, "--device", bench.device, "--engine", "vllm-server"]
    done = training(bench, run, *given).done(until - time.monotonic())
    logged = figures(run, *LOGGED)
    bench.say(
        "two iterations of training", result=done.said, **logged, seconds=seconds(run), phases=phases(run)
    )


def main(bench: Bench, until: float) -> None:
    """See the module."""
    if find_spec("vllm") is None:
        bench.say("cases", case="all", result="vLLM is not installed: nothing was checked", seconds=0.0)
        return
    ways: list[tuple[str, str | None]] = [("disk", None)]
    if bench.device != "cpu":
        ways.insert(0, ("ipc", None))
        if torch.cuda.device_count() > 1:
            ways.insert(0, ("nccl", "1"))
    for way, devices in ways:
        if until - time.monotonic() > 60:
            by_way(bench, way, devices)
        else:
            bench.say("cases", case=way, result="no time was left for it", seconds=0.0)
    if until - time.monotonic() > 40:
        by_command_line(bench, until)


if __name__ == "__main__":
    main(*bench_of(["server"]))
