"""See whether the trainer does on this machine's GPU what it does on a CPU, and what that takes (docs/llm.md).

    python scripts/check_gpu.py [--parts parity,plan] [--out FILE.md] [--minutes 12]

- parity: two built-in policies trained on the CPU and on the GPU from the same seed, in single and in half precision, and resumed.
- plan: a random model of the shape of Qwen2.5-3B, trained with adapters, whole, and whole with ZeRO-2: the memory that ``--dry-run``
  plans beside what PyTorch measures, and seconds by phase. Needs a GPU of 80 GB.
- plan-small: the same of Qwen2.5-0.5B, and a run with checkpoint and resume.
- zero: plain torch beside ``--learner deepspeed``, one process (extra deepspeed).
- ranks: what two processes on one GPU do, and say.
- vllm: ``--engine vllm`` beside ``--engine local`` (extra vllm): scores, new weights, sleep, seconds.
- server: ``--engine vllm-server`` with the weights handed over by ipc, by disk, and by nccl where there is a second GPU (extra vllm).
- decode: how often the local engine waits for the GPU, and its tokens per second, at 0.5B and 3B.
- paged: ``--engine paged`` beside the local engine and a plain forward pass (flash-attn).
- loss: memory of the loss over the vocabulary at 3B's width.
- correction: the importance corrections with vLLM in bfloat16, at 0.5B (extra vllm).
- vllm-3b: two iterations of 3B with adapters behind vLLM, to the end (extra vllm).
- zero-3b: ZeRO-2 of 3B, alone (extra deepspeed).
- tests: tests/train with the GPU in sight; those that fail are run again without it.

Each part is a process of its own with a limit; a part that fails leaves the others alone. Findings are appended to FILE.jsonl as they come,
and FILE.md is written after each part. The exit status is 2 where there is no CUDA device, 1 where a part did not end well.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from bench.gpu_runs import Bench, Program, shown

PARTS_FOLDER = Path(__file__).parent / "bench"
# Part -> (its program, the most seconds it may take).
PARTS = {
    "parity": ("gpu_parts.py", 150),
    "plan": ("gpu_plan.py", 330),
    "plan-small": ("gpu_plan.py", 200),
    "zero": ("gpu_parts.py", 90),
    "ranks": ("gpu_parts.py", 120),
    "vllm": ("gpu_vllm.py", 300),
    "server": ("gpu_server.py", 230),
    "decode": ("gpu_sampling.py", 150),
    "paged": ("gpu_sampling.py", 200),
    "loss": ("gpu_sampling.py", 60),
    "correction": ("gpu_vllm.py", 235),
    "vllm-3b": ("gpu_vllm.py", 235),
    "zero-3b": ("gpu_plan.py", 200),
    "tests": ("gpu_parts.py", 240),
}


def machine(device: str) -> str:
    """What the findings were made on, in a line."""
    gpu = "no GPU (a trial of the parts at tiny sizes)"
    if device != "cpu":
        properties = torch.cuda.get_device_properties(0)
        gpu = f"{properties.name}, {properties.total_memory / (1 << 30):.1f} GiB"
    return f"{gpu}; Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"


def markdown(where: str, lines: Iterable[dict[str, Any]]) -> str:
    """All findings as tables, in order of their coming."""
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        tables.setdefault((line["part"], line["table"]), []).append(line["row"])
    text, last = [f"# The trainer on a GPU\n\n{where}\n"], ""
    for (part, table), rows in tables.items():
        if part != last:
            text.append(f"## {part}\n")
        last, columns = part, list(dict.fromkeys(key for row in rows for key in row))
        body = ["| " + " | ".join(shown(row.get(key, "")) for key in columns) + " |" for row in rows]
        head = "| " + " | ".join(columns) + " |\n|" + "---|" * len(columns)
        text.append(f"{table}:\n\n{head}\n" + "\n".join(body) + "\n")
    return "\n".join(text)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--parts", default=",".join(PARTS), help=f"which, with commas, of {', '.join(PARTS)} (default: all)"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("check_gpu.md"), help="where the tables go (default: check_gpu.md)"
    )
    parser.add_argument("--minutes", type=float, default=50.0, help="for all parts together (default: 50)")
    parser.add_argument(
        "--folder", type=Path, default=None, help="for models and runs, up to 8 GB (default: a temporary one)"
    )
    parser.add_argument(
        "--device",
        choices=("cuda", "cpu"),
        default="cuda",
        help="cpu tries the parts themselves, at tiny sizes",
    )
    asked = parser.parse_args()
    parts = asked.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    if asked.device == "cuda" and not torch.cuda.is_available():
        print(
            "check_gpu: PyTorch sees no CUDA device on this machine, so there is nothing to check",
            file=sys.stderr,
        )
        return 2
    lines, end = asked.out.with_suffix(".jsonl"), time.monotonic() + 60 * asked.minutes
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    lines.write_text("")
    where, failed = machine(asked.device), []
    print(where, flush=True)
    with tempfile.TemporaryDirectory(prefix="check-gpu-") as temporary:
        folder = asked.folder or Path(temporary)
        for part in parts:
            program, limit = PARTS[part]
            limit = min(limit, int(end - time.monotonic()))
            bench = Bench(asked.device, folder, lines, part)
            if limit < 10:
                bench.say("how it ended", part=part, result="no time was left for it", seconds=0.0)
                failed.append(part)
                continue
            options = ["--device", asked.device, "--folder", folder, "--lines", lines, "--limit", limit]
            done = Program(
                [sys.executable, PARTS_FOLDER / program, part, *options], folder / f"{part}.log"
            ).done(limit)
            print(done.printed, end="", flush=True)
            if done.code:
                print(done.errors[-3000:], file=sys.stderr, flush=True)
            bench.say("how it ended", part=part, result=done.said, seconds=done.seconds)
            failed += [part] if done.code != 0 else []
            found = [json.loads(line) for line in lines.read_text().splitlines()]
            asked.out.write_text(markdown(where, found), encoding="utf-8")
    print(f"tables: {asked.out}" + (f"; did not end well: {', '.join(failed)}" if failed else ""))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
