"""A fixed probe that sampler and model must score alike before anything is trained on the sampler's probabilities."""

from __future__ import annotations

import torch

from tstar_envs import TStarError, UnknownOption
from tstar_train.engines.base import Engine
from tstar_train.policy.limit import attention_window
from tstar_train.policy.model import Policy

_LENGTH, _CONTEXT = 40, 24
_MOST_NATS = 1e-3  # per token; rounding gives about 1e-5 in single precision


class EngineMismatch(TStarError, RuntimeError):
    """Sampler and model disagree about the probability of the same tokens."""


@torch.no_grad()
def check_agreement(policy: Policy, engine: Engine) -> float:
    """Score a fixed text by the engine and by the model's own forward pass.

    Args:
        policy: model.
        engine: samples for it.

    Returns:
        The difference in nats per token.

    Raises:
        EngineMismatch: they differ by more than rounding.
        UnknownOption: the model looks back over a few tokens only.
    """
    window = attention_window(policy.model.config)
    if window is not None and window < _LENGTH:
        raise UnknownOption(f"{policy.name} attends to the last {window} only, which holds no episode: use another model")
    size = int(policy.model.get_output_embeddings().weight.shape[0])
    length = min(_LENGTH, engine.limit)
    context = length * _CONTEXT // _LENGTH
    ids = [(7 + 31 * position) % size for position in range(length)]
    ours = engine.score([ids[:context]], [[ids[context:]]])[0][0]
    logits = policy.model(input_ids=torch.tensor([ids], device=policy.model.device)).logits[0].float()
    logprobs = torch.log_softmax(logits, dim=-1)
    theirs = sum(float(logprobs[p - 1, ids[p]]) for p in range(context, length))
    difference = abs(ours - theirs) / (length - context)
    if not difference <= _MOST_NATS:  # not >: it may be no number
        raise EngineMismatch(
            f"the sampler and {policy.name} disagree by {difference:.3g} nats per token on a fixed probe (at most {_MOST_NATS} is "
            f"rounding): this architecture ({policy.model.config.model_type}) computes something that the local engine does not; "
            f"use another model"
        )
    return difference
