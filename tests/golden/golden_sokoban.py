"""What the golden episodes of Sokoban are recorded from."""

from pathlib import Path
from typing import Any

from golden_record import MISTAKE, ORACLE, record_episode

from tstar_envs import Episode, find_entry

FILE = Path(__file__).with_name("sokoban.jsonl")
WORDS = ["Up", "Left", "Down", "Right"]
PLANS: tuple[
    tuple[str, str, dict[str, Any], int, list[str]], ...
] = (  # name, id, options, task index, replies
    ("oracle", "tstar/Sokoban-easy", {}, 0, [ORACLE] * 20),
    (
        "oracle, tags",
        "tstar/Sokoban-easy",
        {"prompt_style": "tags", "observation": "grid_coords"},
        1,
        [ORACLE] * 20,
    ),
    (
        "oracle, coordinates, train split",
        "tstar/Sokoban-medium",
        {"split": "train", "observation": "coords"},
        2,
        [ORACLE] * 40,
    ),
    ("oracle, valid split", "tstar/Sokoban-medium", {"split": "valid", "show_dead": True}, 3, [ORACLE] * 40),
    ("oracle, three boxes", "tstar/Sokoban-hard", {}, 4, [ORACLE] * 60),
    ("oracle, shaped", "tstar/Sokoban-hard", {"reward": "shaped", "split": "train"}, 5, [ORACLE] * 60),
    ("mistakes, then the expert", "tstar/Sokoban-medium", {}, 6, [MISTAKE, ORACLE] * 3 + [ORACLE] * 34),
    (
        "only mistakes, region keys",
        "tstar/Sokoban-easy",
        {"state_key": "region", "horizon": 12},
        7,
        [MISTAKE] * 12,
    ),
    ("words until the horizon", "tstar/Sokoban-hard", {"horizon": 16, "show_dead": True}, 8, WORDS * 4),
    (
        "garbage",
        "tstar/Sokoban-easy",
        {"horizon": 5},
        9,
        ["", "Action:", "go north", "Up || Up", "<action>lEFT</action>"],
    ),
    (
        "answers",
        "tstar/Sokoban-medium",
        {"multi_action": True, "horizon": 3},
        13,
        [
            "<think>as RAGEN's agents write</think><answer>Up || Down</answer>",
            "<answer>left</answer>",
            "<answer>finish[left]</answer>",
        ],
    ),
    (
        "several moves a turn",
        "tstar/Sokoban-easy",
        {"multi_action": True, "horizon": 4},
        10,
        [
            "up||Left, down",
            "Right || jump",
            ORACLE,
            "Down",
        ],
    ),
    (
        "oracle, several moves a turn",
        "tstar/Sokoban-hard",
        {"multi_action": True, "observation": "grid_coords"},
        12,
        [ORACLE] * 20,
    ),
    (
        "reply forms",
        "tstar/Sokoban-easy",
        {"horizon": 4},
        11,
        [
            "**Thought 1:** I walk.\n**Action 1:** UP\nObservation: made up",
            "left",
            "right",
            "Thought: hm Action: Down",
        ],
    ),
)


def record(name: str, env_id: str, options: dict[str, Any], index: int, replies: list[str]) -> Episode:
    entry = find_entry(env_id)
    env = entry.load_class()(**entry.kwargs, **options)
    return record_episode(entry, env, name, options, index, replies)
