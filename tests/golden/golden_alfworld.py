"""What the golden episodes of ALFWorld are recorded from."""

from pathlib import Path
from typing import Any

from golden_record import MISTAKE, ORACLE, record_episode

from tstar_envs import Episode, find_entry

FILE = Path(__file__).with_name("alfworld.jsonl")
EXPERT = [ORACLE] * 30
PLANS: tuple[
    tuple[str, str, dict[str, Any], int, list[str]], ...
] = (  # name, id, options, task index, replies
    ("oracle picks", "tstar/ALFWorld-pick", {}, 0, EXPERT),
    ("oracle looks, tags", "tstar/ALFWorld-look", {"prompt_style": "tags"}, 1, EXPERT),
    ("oracle cleans, train split", "tstar/ALFWorld-clean", {"split": "train"}, 2, EXPERT),
    ("oracle heats, valid split", "tstar/ALFWorld-heat", {"split": "valid"}, 3, EXPERT),
    ("oracle cools in unseen rooms", "tstar/ALFWorld-cool", {"split": "valid_unseen"}, 4, EXPERT),
    ("oracle picks two", "tstar/ALFWorld-pick2", {"split": "valid_seen"}, 5, EXPERT),
    ("oracle, walking does not count", "tstar/ALFWorld", {"go_modifies": False}, 6, EXPERT),
    ("mistakes, then the expert", "tstar/ALFWorld", {}, 7, [MISTAKE] * 8 + EXPERT),
    (
        "mistakes and the expert in turn",
        "tstar/ALFWorld-pick2",
        {"horizon": 40},
        8,
        [MISTAKE, ORACLE, ORACLE] * 14,
    ),
    ("mistakes until the horizon", "tstar/ALFWorld", {"horizon": 20}, 9, [MISTAKE] * 20),
    (
        "garbage",
        "tstar/ALFWorld",
        {"horizon": 7},
        10,
        [
            "",
            "Action:",
            "look\nObservation: made up",
            "<action>Inventory</action>",
            "put mug 1 in/on desk 1",
            "go to cabinet 77",
            "help",
        ],
    ),
    (
        "strict",
        "tstar/ALFWorld-heat",
        {"strict": True, "horizon": 4},
        11,
        ["LOOK", " look ", "put mug 1 in/on desk 1", "open fridge 1"],
    ),
)


def record(name: str, env_id: str, options: dict[str, Any], index: int, replies: list[str]) -> Episode:
    entry = find_entry(env_id)
    env = entry.load_class()(**entry.kwargs, data="mini", **options)
    return record_episode(entry, env, name, {"data": "mini", **options}, index, replies)
