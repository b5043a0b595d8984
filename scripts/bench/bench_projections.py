"""Measure how much of a pass over one token a built-in policy would save if matrices with the same input were one.

    python scripts/bench/bench_projections.py [--env hotpotqa] [--rows 16 64 128]

Queries, keys and values are one product in place of three, gate and up one in place of two; outputs are compared bit for bit. The pass
has no keys and values of earlier tokens to read, so of a step of sampling the share is smaller. The sides take turns in one process.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from spread import spread
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import linear

from tstar_envs import find_entry
from tstar_train.policy.model import load_policy
from tstar_train.recipes.recipe import policy_name

REPEATS = 200


def as_one(parts: list[Linear], given: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """The product of an input with several matrices as one."""
    weight = torch.cat([part.weight for part in parts])
    bias = None if parts[0].bias is None else torch.cat([part.bias for part in parts])
    sizes = [part.out_features for part in parts]
    return lambda: linear(given, weight, bias).split(sizes, dim=-1)


def microseconds(action: Callable[[], object], repeats: int) -> float:
    """CPU microseconds of an action."""
    began = time.process_time()
    for _ in range(repeats):
        action()
    return (time.process_time() - began) / repeats * 1e6


@torch.inference_mode()
def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--env",
        default="hotpotqa",
        help="environment whose built-in policy is measured (default: %(default)s)",
    )
    parser.add_argument(
        "--rows", type=int, nargs="+", default=[16, 64, 128], help="rows of a pass (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds", type=int, default=7, help="measurements of each side (default: %(default)s)"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model = load_policy("tiny", policy_name(find_entry(asked.env))).model
    attention, mlp = model.model.layers[0].self_attn, model.model.layers[0].mlp
    groups = [[attention.q_proj, attention.k_proj, attention.v_proj], [mlp.gate_proj, mlp.up_proj]]
    print(
        "| rows | apart, us a layer | as one, us a layer | saved of a pass | equal bits |\n"
        + "|---" * 5
        + "|"
    )
    for rows in asked.rows:
        given = torch.randn(rows, 1, model.config.hidden_size)
        fused = [as_one(parts, given) for parts in groups]
        apart: list[Callable[[], tuple[Tensor, ...]]] = [
            lambda parts=parts, given=given: tuple(part(given) for part in parts) for parts in groups
        ]
        equal = all(
            torch.equal(x, y)
            for a, b in zip(apart, fused, strict=True)
            for x, y in zip(a(), b(), strict=True)
        )
        ids = torch.zeros(rows, 1, dtype=torch.long)
        spent: list[tuple[float, float, float]] = []
        for _ in range(asked.rounds):
            whole = microseconds(lambda ids=ids: model.model(input_ids=ids, use_cache=False), REPEATS // 10)
            spent.append(
                (
                    sum(microseconds(a, REPEATS) for a in apart),
                    sum(microseconds(b, REPEATS) for b in fused),
                    whole,
                )
            )
        layers = model.config.num_hidden_layers
        saved = spread([layers * (a - b) / whole for a, b, whole in spent], 3)
        one, two = (statistics.median(side) for side in list(zip(*spent, strict=True))[:2])
        print(f"| {rows} | {one:.0f} | {two:.0f} | {saved} | {'yes' if equal else 'no'} |", flush=True)


if __name__ == "__main__":
    main()
