"""WebShop: find, configure and buy the product an instruction asks for, scored exactly like the original."""

from tstar_envs.envs.webshop.reward import Reward, score

__all__ = ["Reward", "score"]
