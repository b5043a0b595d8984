"""Measure how long training waits for a checkpoint: written beside it, in place, and in place by another checkout.

    git worktree add ../before 9d4d966
    python scripts/bench/bench_checkpoint.py [--other ../before] [--hidden 512 1024] [--rounds 3]

A random bfloat16 model with float32 masters, moments and moving average: 18 bytes per weight. Each side runs a process of its own per
round, in turn. Seconds are those of the clock, medians over the rounds: until training goes on, and until the checkpoint is whole.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def child(hidden: int, side: str) -> dict[str, float]:
    """Save two checkpoints of one model; return the figures of the second, whose files take the place of nothing."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from scripts.studies.small_tokenizers import shaped
    from tstar_envs import find_entry
    from tstar_train.build import trainer_of
    from tstar_train.checkpoint import Progress
    from tstar_train.config import Config, OptimConfig
    from tstar_train.distributed import SingleProcess
    from tstar_train.learner.batch import MicroBatch
    from tstar_train.policy.chat import ChatCodec
    from tstar_train.policy.model import Policy

    torch.set_num_threads(1)
    tokenizer = shaped("qwen2")
    described = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=8,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(described).to(torch.bfloat16).eval()
    config = Config(env=find_entry("sokoban-easy").id, model="small", optim=OptimConfig(dtype="bfloat16"))
    trainer = trainer_of(config, Policy(model, ChatCodec(tokenizer), tokenizer, "small"), SingleProcess())
    ids = torch.randint(5, 200, (1, 16))
    micro = MicroBatch(ids, torch.ones_like(ids, dtype=torch.bool) & (torch.arange(16) > 0))
    trainer.learner.backward(-trainer.learner.forward(micro).logprobs.mean())
    trainer.learner.end_part("base")
    trainer.learner.add_part("base")
    trainer.learner.apply(1.0)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        for number in (1, 2):
            began = time.perf_counter()
            held = _save(Path(folder), trainer, Progress(number), side)
            whole = time.perf_counter() - began
            held = whole if held is None else held
        size = sum(f.stat().st_size for f in (Path(folder) / "checkpoints/000002").iterdir())
        size -= (Path(folder) / "checkpoints/000002/policy.safetensors").stat().st_size  # a link
    return {"held": held, "whole": whole, "gib": size / 2**30, "weights": model.num_parameters()}


def _save(folder: Path, trainer: Any, progress: Any, side: str) -> float | None:
    if side != "beside":
        from tstar_train.checkpoint import save_checkpoint

        save_checkpoint(folder, trainer, progress, 9)
        return None
    from tstar_train.checkpoint import CheckpointWriter

    writer = CheckpointWriter(folder, 9, lambda iteration: ())
    began = time.perf_counter()
    writer.save(trainer, progress)
    held = time.perf_counter() - began
    writer.wait()
    return held


def main() -> None:
    """Print one table row per model and side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, help="another checkout to measure beside this one")
    parser.add_argument("--hidden", type=int, nargs="+", default=[512, 1024], help="widths of the models")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        hidden, side = arguments.child.split(",")
        print(json.dumps(child(int(hidden), side)))
        return
    sides = {"before": arguments.other} if arguments.other else {}
    sides |= {"beside": ROOT, "in place": ROOT}
    shown = {
        "before": "before",
        "beside": "now, beside the training",
        "in place": "now, `--no-checkpoint-beside`",
    }
    print("| weights | GiB | way | training waits, s | whole after, s |\n|---|---|---|---|---|")
    for hidden in arguments.hidden:
        found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for _ in range(arguments.rounds):
            for side, root in sides.items():
                paths = os.pathsep.join([str(root.resolve()), str(ROOT)])
                done = subprocess.run(
                    [sys.executable, __file__, "--child", f"{hidden},{side}"],
                    env={**os.environ, "PYTHONPATH": paths},
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    raise SystemExit(done.stderr)
                found[side].append(json.loads(done.stdout.splitlines()[-1]))
        for side, figures in found.items():
            waits, whole = (statistics.median(f[name] for f in figures) for name in ("held", "whole"))
            print(
                f"| {figures[0]['weights'] / 1e6:.0f}M | {figures[0]['gib']:.2f} | {shown[side]} | {waits:.2f} | {whole:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
