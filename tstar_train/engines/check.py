"""Agreement check of sampler and trainer: both score fixed texts, and must differ by rounding only."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from tstar_envs import TStarError, UnknownOption
from tstar_train.engines.base import Engine
from tstar_train.policy.kv import attention_window, output_logits, unscaled_positions
from tstar_train.policy.model import Policy

# Rows of several lengths in one batch reveal a model whose output depends on the row's index in the batch.
_LENGTHS = (40, 24, 96)
_TAIL = 16  # number of tokens compared at the end of each row
_SINGLE, _HALF = 1e-3, 0.25  # nats per token: rounding gives about 1e-5 in float32 and .05 in bfloat16
_TENSOR_CORES = 5e-3  # float32 with other kernels on a GPU: .003 with vLLM on an H200 (docs/results/gpu.md)


class EngineMismatch(TStarError, RuntimeError):
    """Log-probabilities of sampler and model differ for the same tokens."""


def max_logprob_difference(policy: Policy, asked: float | None) -> float:
    """Return the largest allowed log-probability difference in nats: the option, else the rounding of the dtype."""
    return asked if asked is not None else (0.05 if policy.model.dtype == torch.float32 else 2.0)


def require_agreement(difference: float, most: float) -> None:
    """Refuse to train on tokens whose log-probabilities differ too much between sampler and trainer.

    Args:
        difference: largest |log pi(sampler) - log pi(trainer)| of a sampled token, in nats.
        most: maximum allowed difference, see ``max_logprob_difference``.

    Raises:
        EngineMismatch: the difference exceeds ``most``.
    """
    if difference > most:
        raise EngineMismatch(
            f"sampler and trainer differ by up to {difference:.3g} nats about a sampled token, and {most:g} is the maximum "
            f"(--optim.max-logprob-difference): the sampler has other weights, or computes this model differently; no step was taken"
        )


def check_agreement(policy: Policy, engine: Engine) -> float:
    """Compare log-probabilities of engine and model on fixed texts of several lengths, up to the longest where length matters.

    Returns:
        The largest difference in nats per token.

    Raises:
        EngineMismatch: they differ by more than rounding, or the engine cannot compute this architecture.
        UnknownOption: the model's attention window is too short for an episode.
    """
    config = policy.model.config
    window = attention_window(config)
    if window is not None and window < _LENGTHS[0]:
        raise UnknownOption(
            f"{policy.name} attends to the last {window} tokens only, too few for an episode: use another model"
        )
    try:
        worst = _largest_difference(policy, engine)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
    ) as error:  # errors that the code of an unsupported architecture raises
        if isinstance(error, TStarError):
            raise
        raise EngineMismatch(
            f"the local engine cannot compute {policy.name} ({config.model_type}; {type(error).__name__}: "
            f"{' '.join(str(error).split()):.200}): use a model whose attention keeps keys and values as Llama's does"
        ) from error
    if not worst <= _rounding(policy):  # not ">": it may be NaN
        raise EngineMismatch(
            f"the sampler and {policy.name} disagree by {worst:.3g} nats per token on a fixed probe (at most {_rounding(policy)} is "
            f"rounding): the engine does not support this architecture ({config.model_type}); use another model"
        )
    return worst


def sync_engine(policy: Policy, engine: Engine, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Sync an engine with the trainer's weights, and check on fixed texts that it uses them.

    An engine may silently keep old weights: packed copies, a stale prefix cache, freed memory. The check compares engine and model, and
    also their changes since the first sync, in which constant rounding differences cancel. An engine that shares the weights needs no
    check.

    Args:
        policy: policy with the trainer's model.
        engine: engine that receives the weights.
        weights: (name, tensor) of the model's weights.

    Raises:
        EngineMismatch: they differ by more than rounding, or the engine did not change as the model did.
    """
    engine.sync(weights)
    if engine.shares_weights:
        return
    scores = _probe_scores(policy, engine)
    worst, most = (
        _worst(abs(ours - theirs) for ours, theirs in scores),
        _rounding(policy, engine.shares_weights),
    )
    if not worst <= most:
        raise EngineMismatch(
            f"after the weights were synced, the sampling engine and {policy.name} still differ by up to {worst:.3g} nats per token "
            f"on a fixed probe (at most {most} is rounding): the engine has other weights, or computes "
            f"{policy.model.config.model_type} differently; no step was taken"
        )
    first = _FIRST.setdefault(engine, scores)
    moved, behind = _moved(first, scores)
    if behind > max(most, moved) / 2:
        raise EngineMismatch(
            f"{policy.name} has moved by {moved:.3g} nats per token on a fixed probe since the first sync of its weights, and the "
            f"sampling engine differs from that by {behind:.3g}: it does not follow the trainer's weights; no step was taken"
        )


def require_following(
    policy: Policy, engine: Engine, weights: Callable[[], Iterable[tuple[str, Tensor]]]
) -> None:
    """Check once, before sampling, that an engine with a copy of the weights follows their changes.

    In bfloat16 rounding hides the small steps of training. So the last trained weights are changed by a large amount, synced, and restored
    bit for bit; then an output matrix tied to the embeddings, which an engine may keep twice. The run's random generators are not used.

    Args:
        policy: policy with the trainer's model.
        engine: engine that receives the weights.
        weights: returns (name, tensor) of the model's current weights.

    Raises:
        EngineMismatch: the engine does not follow the model, or differs from it by more than rounding.
    """
    sync_engine(policy, engine, weights())
    if engine.shares_weights:
        return
    for parts in filter(None, (_last_trained(policy), _tied_output(policy))):
        _require_following(policy, engine, weights, parts)


def _require_following(
    policy: Policy,
    engine: Engine,
    weights: Callable[[], Iterable[tuple[str, Tensor]]],
    parts: list[Tensor],
) -> None:
    """Do what ``require_following`` does, with these parts of the weights."""
    before, most = _probe_scores(policy, engine), _rounding(policy, engine.shares_weights)
    kept = [(part, part.clone()) for part in parts]
    try:
        moved = 0.0
        for size in _SIZES:
            _displace(kept, size)
            moved = _worst(
                abs(ours - score)
                for (ours, _), score in zip(before, _own_scores(policy, engine), strict=True)
            )
            if not moved < 4 * most:  # an output that is almost uniform may never move so far
                break
        engine.sync(weights())
        moved, behind = _moved(before, _probe_scores(policy, engine))
    finally:
        for part, value in kept:
            part.copy_(value)
    sync_engine(policy, engine, weights())
    # If no change moves the model beyond the rounding difference, this check cannot decide; ``sync_engine`` still bounds the difference.
    noise = _worst(abs(ours - theirs) for ours, theirs in before)
    if behind > moved / 2 and moved >= 4 * noise:
        raise EngineMismatch(
            f"weights that moved {policy.name} by {moved:.3g} nats per token on a fixed probe were synced, and the sampling engine "
            f"differs from that by {behind:.3g}: it does not follow the trainer's weights; nothing was trained"
        )


# Scores of the fixed probe at an engine's first sync.
_FIRST: WeakKeyDictionary[Engine, list[tuple[float, float]]] = WeakKeyDictionary()
_SIZES = (1.0, 4.0, 16.0, 64.0, 256.0)  # in standard deviations of a weight
_MOST_MOVED = 1 << 22  # maximum number of entries changed in one weight


@torch.no_grad()
def _last_trained(policy: Policy) -> list[Tensor]:
    """Return the last trained weights of the model, up to and including a matrix (its first part if large)."""
    found: list[Tensor] = []
    for parameter in reversed([p for p in policy.model.parameters() if p.requires_grad]):
        found.append(parameter.detach().view(-1)[:_MOST_MOVED])
        if parameter.dim() > 1:
            break
    return found


@torch.no_grad()
def _tied_output(policy: Policy) -> list[Tensor]:
    """Return the output matrix (its first part if large) if it is trained and tied to the input embeddings."""
    model: Any = policy.model
    output = model.get_output_embeddings().weight
    tied = output is model.get_input_embeddings().weight and output.requires_grad
    return [output.detach().view(-1)[:_MOST_MOVED]] if tied else []


@torch.no_grad()
def _displace(kept: list[tuple[Tensor, Tensor]], size: float) -> None:
    """Add fixed noise of ``size`` standard deviations to the original weights, in place."""
    generator = torch.Generator().manual_seed(0)
    for part, value in kept:
        noise = torch.randn(len(value), generator=generator).to(value.device)
        spread = float(value.float().std()) if len(value) > 1 else 0.0
        part.copy_((value.float() + size * (spread or 0.02) * noise).to(part.dtype))


def _moved(before: list[tuple[float, float]], now: list[tuple[float, float]]) -> tuple[float, float]:
    """Measure how far the model moved and how much the engine's move differs, in nats per token."""
    changes = [(o - o0, t - t0) for (o0, t0), (o, t) in zip(before, now, strict=True)]
    return _worst(abs(ours) for ours, _ in changes), _worst(abs(ours - theirs) for ours, theirs in changes)


def _worst(numbers: Iterable[float]) -> float:
    """Return the largest value; NaN counts as the largest."""
    return max(numbers, key=lambda d: d if d == d else float("inf"))


def _rounding(policy: Policy, exact: bool = True) -> float:
    if policy.model.dtype != torch.float32:
        return _HALF
    return _SINGLE if exact or policy.model.device.type == "cpu" else _TENSOR_CORES


def _largest_difference(policy: Policy, engine: Engine) -> float:
    """Return the largest difference on the fixed texts in nats per token; NaN if one side has a NaN."""
    return _worst(abs(ours - theirs) for ours, theirs in _probe_scores(policy, engine))


def _probe_scores(policy: Policy, engine: Engine) -> list[tuple[float, float]]:
    """Compute log-probabilities of the end of each fixed text by the model and by the engine, in nats per token."""
    rows, ends = _probe(policy, engine)
    cut = [(row[:-end], [row[-end:]]) for row, end in zip(rows, ends, strict=True)]
    theirs = engine.logprobs([context for context, _ in cut], [tails for _, tails in cut])
    ours = _own_scores(policy, engine)
    return [(mine, said[0] / end) for mine, said, end in zip(ours, theirs, ends, strict=True)]


@torch.no_grad()
def _own_scores(policy: Policy, engine: Engine) -> list[float]:
    return [_plain(policy, row, end) / end for row, end in zip(*_probe(policy, engine), strict=True)]


def _probe(policy: Policy, engine: Engine) -> tuple[list[list[int]], list[int]]:
    """Return the fixed texts, with the number of compared tokens at the end of each."""
    config = policy.model.config
    lengths = [min(length, engine.limit) for length in _LENGTHS]
    if attention_window(config) is not None or unscaled_positions(config) is not None:
        lengths.append(engine.limit)
    rows = [_text(length, number, policy) for number, length in enumerate(lengths)]
    return rows, [min(_TAIL, len(row) // 2) for row in rows]


def _text(length: int, number: int, policy: Policy) -> list[int]:
    size = int(policy.model.get_output_embeddings().weight.shape[0])
    return [(7 + 31 * (position + 5 * number)) % size for position in range(length)]


def _plain(policy: Policy, ids: list[int], end: int) -> float:
    """Compute the log-probability of the last ids by the model's own forward pass, in nats.

    Long texts compute logits of these positions only, because a large vocabulary takes much memory. Short texts run the model's own
    output head, which checks ``output_logits``.
    """
    model = policy.model
    given = torch.tensor([ids], device=model.device)
    if len(ids) <= max(_LENGTHS):
        logits = model(input_ids=given).logits[0, -end - 1 : -1].float()
    else:
        logits = output_logits(
            model, model.base_model(input_ids=given, use_cache=False).last_hidden_state[0, -end - 1 : -1]
        )
    logprobs = torch.log_softmax(logits, dim=-1)
    return float(logprobs.gather(-1, given[0, -end:, None]).sum())
