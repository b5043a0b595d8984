"""Measure tokens computed, CPU seconds and memory where the local engine and the loss once had cliffs, beside another checkout.

    git worktree add ../before eda0ee7
    python scripts/bench/bench_cliffs.py [--other ../before] [--rounds 3] [--cases drops waves draws loss]

- drops: 32 rows of 12 turns; the oldest turn of one row, or of all, is dropped at each turn from the seventh on.
- waves: 64 episodes of 6 turns of sokoban-easy on an engine that keeps 16 rows.
- draws: 16 replies to each of 8 contexts, as the KL estimate draws them, beside the same as plain rows.
- loss: forward and backward pass over 3,072 tokens of a vocabulary of 151,936 words, by a narrow model.

Each checkout runs a process of its own per round, in turn. Tokens are those that the model is given, padding included; seconds are CPU
seconds of one thread; GiB are the loss's peak beyond what the process had before it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Figures = dict[str, dict[str, float]]  # case -> figure -> value
NAMES = {"tokens": "tokens computed", "seconds": "CPU seconds", "gib": "peak GiB"}


class NeverEnding:
    """A codec without a token that ends a reply, so that all replies are as long as they may be."""

    def __init__(self, codec: Any) -> None:
        self._codec, self.ends = codec, frozenset({-1})

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)


@contextmanager
def measured(model: Any, figures: Figures, case: str) -> Iterator[None]:
    """Record the tokens that a model is given, and CPU seconds."""
    tokens = 0

    def count(module: Any, arguments: Any, given: dict[str, Any]) -> None:
        nonlocal tokens
        tokens += given["input_ids"].numel()

    hook = model.base_model.register_forward_pre_hook(count, with_kwargs=True)
    began = time.process_time()
    try:
        yield
    finally:
        hook.remove()
    figures[case] = {"tokens": float(tokens), "seconds": time.process_time() - began}


def ids_of(length: int, start: int) -> list[int]:
    """A fixed text."""
    return [5 + (29 * (start + n) ** 2 + 7 * n) % 300 for n in range(length)]


def policy_of() -> Any:
    """The built-in policy of Sokoban, whose replies do not end."""
    from tstar_train.policy.model import load_policy

    policy = load_policy("tiny", "sokoban")
    return replace(policy, codec=NeverEnding(policy.codec))


def drops(figures: Figures) -> None:
    """Conversations whose oldest turn is dropped."""
    from tstar_train.engines.local import LocalEngine

    policy, rows, turns = policy_of(), 32, 12
    for name, dropping in (("no row drops a turn", 0), ("one row does", 1), ("all rows do", rows)):
        engine = LocalEngine(policy, batch=rows, limit=2048)
        starts = [ids_of(60, row) for row in range(rows)]
        said: list[list[list[int]]] = [[] for _ in range(rows)]
        with measured(policy.model, figures, f"32 rows, 12 turns: {name}"):
            for turn in range(turns):
                if turn >= 6:
                    for row in range(dropping):
                        del said[row][0]
                contexts = [
                    [*start, *chain.from_iterable(pieces)] for start, pieces in zip(starts, said, strict=True)
                ]
                seeds = [f"{turn}/{row}" for row in range(rows)]
                samples = engine.generate(contexts, seeds, max_tokens=24, keys=list(range(rows)))
                for row, sample in enumerate(samples):
                    said[row].append([*sample.ids, *ids_of(40, 100 * turn + row)])


def waves(figures: Figures) -> None:
    """More episodes than the engine keeps rows."""
    from tstar_train.build import make_env
    from tstar_train.config import Config, RolloutConfig
    from tstar_train.engines.local import LocalEngine
    from tstar_train.policy.model import load_policy
    from tstar_train.rollout.collect import collect, training_spec
    from tstar_train.rollout.player import Sampling

    policy = load_policy("tiny", "sokoban")
    config = Config(env="sokoban-easy", rollout=RolloutConfig(horizon=6))
    spec, tasks = training_spec(config), make_env(config).task_ids("train")[:8]
    for batch in (64, 16):
        engine = LocalEngine(policy, batch=batch, limit=2048)
        with measured(policy.model, figures, f"64 episodes of 6 turns, {batch} rows kept"):
            collect(
                spec,
                engine,
                policy.codec,
                tasks,
                size=8,
                split="train",
                seed="0",
                sampling=Sampling(max_tokens=48),
            )


def draws(figures: Figures) -> None:
    """Replies to the same contexts."""
    from tstar_train.engines.local import LocalEngine

    policy, copies = policy_of(), 16
    contexts = [ids_of(200, 0) + ids_of(40, row) for row in range(8)]
    seeds = [f"{number}" for number in range(copies * len(contexts))]
    for length in (16, 64, 128, 256):
        for name, given, count in (
            ("as draws", contexts, copies),
            ("as plain rows", [context for context in contexts for _ in range(copies)], 1),
        ):
            engine = LocalEngine(policy, batch=256, limit=2048)
            with measured(policy.model, figures, f"16 replies of {length} tokens to 8 contexts, {name}"):
                engine.generate(given, seeds, max_tokens=length, copies=count)


def loss(figures: Figures) -> None:
    """The loss over a large vocabulary."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from tstar_train.learner.batch import MicroBatch, forward

    torch.manual_seed(0)
    words, tokens = 151_936, 3072
    sizes = dict.fromkeys(("hidden_size", "intermediate_size"), 64)
    heads = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=words, tie_word_embeddings=True, **sizes, **heads))
    ids = torch.randint(0, words, (3, tokens // 3))
    wanted = torch.ones_like(ids, dtype=torch.bool)
    wanted[:, 0] = False
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    case = "loss of 3,072 tokens over 151,936 words, 64 wide"
    with measured(model, figures, case):
        forward(model, MicroBatch(ids, wanted)).logprobs.mean().backward()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before  # KiB on Linux
    figures[case] = {"seconds": figures[case]["seconds"], "gib": peak / (1 << 20)}


CASES: dict[str, Callable[[Figures], None]] = {"drops": drops, "waves": waves, "draws": draws, "loss": loss}


def run(tree: Path, case: str) -> Figures:
    """Measure a case of a checkout, in a process of its own that starts in it."""
    variables = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--case", case]
    done = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"bench_cliffs: {case} failed in {tree}:\n{done.stderr[-3000:]}")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def tables(trees: Sequence[Path], rounds: Sequence[Sequence[Figures]]) -> Iterator[str]:
    """Format medians of the rounds, with the ratio of the other checkout to this one, as lines of one table per kind of figures.

    Args:
        trees: checkouts.
        rounds: figures of each checkout in each round.
    """
    from bench.spread import spread

    kinds: dict[tuple[str, ...], list[str]] = {}
    for case, figures in rounds[0][0].items():
        cells = [case]
        for name in figures:
            values = [[found[number][case][name] for found in rounds] for number in range(len(trees))]
            cells += [f"{median(one):,.{0 if name == 'tokens' else 2}f}" for one in values]
            if len(trees) == 2:
                cells.append(spread([old / new for new, old in zip(*values, strict=True)], 1))
        kinds.setdefault(tuple(figures), []).append(f"| {' | '.join(cells)} |")
    for names, lines in kinds.items():
        others = ["before", "ratio"] if len(trees) == 2 else []
        columns = ["", *[column for name in names for column in (NAMES[name], *others)]]
        yield f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
        yield from lines
        yield ""


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, default=None, help="another checkout, measured in turn")
    parser.add_argument("--rounds", type=int, default=3, help="(default: 3)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="(default: all)")
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.case:
        import torch

        torch.set_num_threads(1)
        figures: Figures = {}
        CASES[asked.case](figures)
        print(json.dumps(figures))
        return 0
    if asked.other is not None and not (asked.other / "tstar_train").is_dir():
        parser.error(f"--other {asked.other} is no checkout of this project: it has no folder tstar_train")
    sys.path.append(str(ROOT / "scripts"))
    trees = [ROOT, *([asked.other.resolve()] if asked.other else [])]
    rounds: list[list[Figures]] = []
    for _ in range(max(1, asked.rounds)):
        found: list[Figures] = [{} for _ in trees]
        for case in asked.cases:
            for number, tree in enumerate(trees):
                found[number] |= run(tree, case)
        rounds.append(found)
    print("\n".join(tables(trees, rounds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
