"""ALFWorld: household tasks in text, on rules of this project that answer word for word as ALFWorld's own engine does."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tstar_envs.envs.alfworld.generate import practice_set

__all__ = ["practice_set"]


def __getattr__(name: str) -> Any:
    """Load the generator when it is first asked for: playing needs none."""
    if name == "practice_set":
        from tstar_envs.envs.alfworld.generate import practice_set

        return practice_set
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
