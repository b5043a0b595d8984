"""The recipes of the built-in policies, and which of them plays an environment."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tstar_envs import BadData, EnvEntry, find_entry
from tstar_train.recipes.reading import policy_names, read_recipe
from tstar_train.recipes.recipe import Recipe

FOLDER = Path(__file__).parent


@cache
def load_recipe(policy: str) -> Recipe:
    """The recipe of a built-in policy.

    Raises:
        MissingData: there is none of this name; the message lists the valid ones.
        BadData: its file cannot be used.
    """
    return read_recipe(FOLDER / f"{policy}.toml")


def policy_name(entry: EnvEntry) -> str:
    """Which built-in policy plays an environment; one that no recipe names would have its family's, and may find no such policy."""
    return _players().get(entry.name, entry.family)


def recipe_of(entry: EnvEntry) -> Recipe:
    """The recipe of the policy that plays an environment.

    Raises:
        MissingData: there is none.
    """
    return load_recipe(policy_name(entry))


@cache
def _players() -> dict[str, str]:
    """The policy of each environment, by short name."""
    found: dict[str, str] = {}
    for policy in policy_names(FOLDER):
        for env in load_recipe(policy).env.plays:
            name = find_entry(env).name
            if name in found:
                raise BadData(
                    f"{FOLDER}: {found[name]}.toml and {policy}.toml both play {name}: take it from one of their plays"
                )
            found[name] = policy
    return found
