"""Reads the files ``game.tw-pddl`` of the published games."""

from __future__ import annotations

from tstar_envs.data.files import parse_json
from tstar_envs.envs.alfworld.game.building import build_game
from tstar_envs.envs.alfworld.game.facts import TOOLS
from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.published.domain import read_tools
from tstar_envs.envs.alfworld.published.grammar import read_grammar
from tstar_envs.envs.alfworld.published.problem import read_problem
from tstar_envs.errors import BadData


def read_game(text: str, where: str) -> Game:
    """A game from the text of a ``game.tw-pddl`` file.

    Args:
        text: of the file.
        where: how errors call it.

    Raises:
        BadData: not such a file, or a game that the rules do not cover; the message says what was found.
    """
    data = parse_json(text, where)
    for name in ("pddl_problem", "grammar", *(["pddl_domain"] if "pddl_domain" in data else [])):
        if not isinstance(data.get(name), str):
            raise BadData(
                f"{where}: field {name!r} must be a string; expected a game.tw-pddl file of ALFWorld"
            )
    # A file without one leaves open what the game's actions do, and nothing differs.
    tools = read_tools(data["pddl_domain"], where) if data.get("pddl_domain") else TOOLS
    facts, goal = read_problem(data["pddl_problem"], where)
    task, wording = read_grammar(data["grammar"], where)
    return build_game(facts, goal, task, wording, tools)
