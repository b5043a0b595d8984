"""WebShop: find, configure and buy the requested product, scored exactly like the original."""

from typing import TYPE_CHECKING, Any

from tstar_envs.envs.webshop.reward import Reward, score

if TYPE_CHECKING:
    from tstar_envs.envs.webshop.generate import practice_shop

__all__ = ["Reward", "practice_shop", "score"]


def __getattr__(name: str) -> Any:
    """Import the generator lazily: episodes do not need it."""
    if name == "practice_shop":
        from tstar_envs.envs.webshop.generate import practice_shop

        return practice_shop
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
