"""How many tokens a model may be fed: its positions, what its attention reaches, and what a run asks for, as one number."""

from __future__ import annotations

from typing import Any

from tstar_envs import TStarError

_BOUNDLESS = 1 << 30  # of a model that names no bound


class ContextTooLong(TStarError, ValueError):
    """A context leaves no room for a reply, or text does not fit behind it."""


def attention_window(config: Any) -> int | None:
    """How far back the model's attention looks where that is not everywhere, in tokens."""
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
    window = getattr(config, "sliding_window", None) if "sliding_attention" in kinds else None
    return int(window) if window else None


def position_limit(config: Any) -> int:
    """The most tokens that a model of this configuration computes as it was made to: fed more, it fails or makes things up.

    A model with local attention counts as one of that window, since the local engine shows every token all before it.
    """
    bounds = [getattr(config, "max_position_embeddings", None), attention_window(config)]
    return min([int(bound) for bound in bounds if bound], default=_BOUNDLESS)


def context_limit(config: Any, wanted: int | None) -> int:
    """Tokens of a context and its reply together: what the model takes, or less if a run wants that."""
    return position_limit(config) if wanted is None else min(wanted, position_limit(config))
