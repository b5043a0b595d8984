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


def unscaled_positions(config: Any) -> int | None:
    """Up to which length the rotary embedding is one and the same, where beyond it depends on the length of the whole text.

    LongRoPE (Phi-4-mini) and dynamic NTK turn every position otherwise once a text is longer than what the model was first trained
    on: keys that were kept from a shorter text are then wrong, and so is the probability of everything sampled before.
    """
    parameters = getattr(config, "rope_parameters", None) or {}
    # One for each kind of layer, or one for all.
    kinds = [v for v in parameters.values() if isinstance(v, dict)] or [parameters]
    changing = [kind for kind in kinds if kind.get("rope_type") in ("longrope", "dynamic")]
    own = getattr(config, "original_max_position_embeddings", None) or getattr(
        config, "max_position_embeddings", None
    )
    bounds = [kind.get("original_max_position_embeddings") or own for kind in changing]
    return min((int(bound) for bound in bounds if bound), default=None)


def position_limit(config: Any) -> int:
    """The most tokens that a model of this configuration computes as it was made to: fed more, it fails or makes things up.

    A model with local attention counts as one of that window, since the local engine shows every token all before it; one whose
    rotary embedding changes with the length as one of the length at which it begins to.
    """
    bounds = [
        getattr(config, "max_position_embeddings", None),
        attention_window(config),
        unscaled_positions(config),
    ]
    return min([int(bound) for bound in bounds if bound], default=_BOUNDLESS)


def context_limit(config: Any, wanted: int | None) -> int:
    """Tokens of a context and its reply together: what the model takes, or less if a run wants that."""
    return position_limit(config) if wanted is None else min(wanted, position_limit(config))
