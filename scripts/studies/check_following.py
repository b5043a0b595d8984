"""See whether the check of a sampling engine (``engines/check.py``) tells one that follows the trainer's weights from one that does not.

    python scripts/studies/check_following.py [--shapes 0.5B 3B] [--device cuda] [--steps 400]

Random models of Qwen2.5's shapes in bfloat16, and the smallest in single precision. The engine is a copy that computes attention otherwise
(``eager`` beside PyTorch's own), so it rounds otherwise, as another program would. Printed for each: the difference in nats per token of an
engine that follows, seconds of the check, whether the weights are put back bit for bit; whether an engine that takes the first weights
alone is found before training; and after how many steps of 5e-5 on every weight one that stops following later is found.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from tstar_train.engines.check import EngineMismatch, require_following, sync_engine

# Layers, hidden size, heads, heads of keys and values, intermediate size.
SHAPES = {"0.5B": (24, 896, 14, 2, 4864), "3B": (36, 2048, 16, 2, 11008), "tiny": (2, 64, 2, 2, 128)}
STEP = 5e-5


class Copied:
    """An engine with a copy of the weights, which takes over the first ``most`` hand-overs."""

    exact, limit = False, 2048

    def __init__(self, policy: Any, most: float = float("inf")) -> None:
        self._model = copy.deepcopy(policy.model)
        self._model.set_attn_implementation("eager")
        self._left = most

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See ``Engine``."""
        if self._left > 0:
            self._model.load_state_dict(dict(weights), strict=False)
        self._left -= 1

    @torch.no_grad()
    def logprobs(
        self, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[float]]:
        """See ``Engine``."""
        return [
            [self._score(list(context), list(tail)) for tail in tails]
            for context, tails in zip(contexts, continuations, strict=True)
        ]

    def _score(self, context: list[int], tail: list[int]) -> float:
        ids = torch.tensor([context + tail], device=self._model.device)
        logits = self._model(input_ids=ids).logits[0, len(context) - 1 : -1].float()
        return float(torch.log_softmax(logits, dim=-1).gather(-1, ids[0, len(context) :, None]).sum())


def random_policy(shape: str, dtype: torch.dtype, device: str) -> Any:
    """A random model of a shape, with what the check asks of a policy."""
    layers, hidden, heads, pairs, wide = SHAPES[shape]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=hidden,
        intermediate_size=wide,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=pairs,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    return SimpleNamespace(model=Qwen2ForCausalLM(config).to(device, dtype).eval(), name=f"random {shape}")


def stops_later(policy: Any, steps: int) -> str:
    """After how many steps an engine is found that takes the first weights alone, where nobody asked at the start."""
    engine: Any = Copied(policy, most=1)
    sync_engine(policy, engine, policy.model.state_dict().items())
    for step in range(1, steps + 1):
        with torch.no_grad():
            for parameter in policy.model.parameters():
                if parameter.dim() > 1:
                    parameter.add_(torch.sign(torch.randn_like(parameter)) * STEP)
        try:
            sync_engine(policy, engine, policy.model.state_dict().items())
        except EngineMismatch:
            return f"found after {step} steps"
    return f"not found in {steps} steps"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.5B", "3B"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=400)
    given = parser.parse_args()
    print(
        torch.cuda.get_device_name(0) if given.device.startswith("cuda") else given.device, torch.__version__
    )
    cases = [(shape, torch.bfloat16) for shape in given.shapes] + [(given.shapes[0], torch.float32)]
    for shape, dtype in cases:
        policy = random_policy(shape, dtype, given.device)
        before = [parameter.clone() for parameter in policy.model.parameters()]
        began = time.perf_counter()
        require_following(policy, Copied(policy), policy.model.state_dict().items)  # type: ignore[arg-type]
        took = time.perf_counter() - began
        same = all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
        try:
            require_following(policy, Copied(policy, most=1), policy.model.state_dict().items)  # type: ignore[arg-type]
            found = "NOT FOUND at the start"
        except EngineMismatch:
            found = "found at the start"
        print(
            f"{shape} {dtype}: one that follows passes in {took:.1f} s, weights put back {same}; one that takes the first weights alone is "
            f"{found}; one that stops later is {stops_later(policy, given.steps)}"
        )


if __name__ == "__main__":
    main()
