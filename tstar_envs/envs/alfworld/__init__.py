"""ALFWorld: household tasks in text, with this project's own rules, word for word like ALFWorld's engine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tstar_envs.envs.alfworld.generate import practice_set

__all__ = ["practice_set"]


def __getattr__(name: str) -> Any:
    """Import the generator lazily: episodes do not need it."""
    if name == "practice_set":
        from tstar_envs.envs.alfworld.generate import practice_set

        return practice_set
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
