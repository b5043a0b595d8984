"""What the golden episodes of Blocksworld are recorded from."""

from pathlib import Path
from typing import Any

from golden_record import MISTAKE, ORACLE, record_episode

from tstar_envs import Episode, find_entry
from tstar_envs.envs.blocksworld.env import BlocksworldEnv

FILE = Path(__file__).with_name("blocksworld.jsonl")
EXPERT = [ORACLE] * 40
PLANS: tuple[
    tuple[str, str, dict[str, Any], int, list[str]], ...
] = (  # name, variant, options, task index, replies
    ("oracle stacks", "stack", {}, 0, EXPERT),
    ("oracle unstacks", "unstack", {}, 0, EXPERT),
    ("oracle stacks, compact", "stack", {"observation": "compact"}, 1, EXPERT),
    (
        "oracle unstacks, compact, tags",
        "unstack",
        {"observation": "compact", "prompt_style": "tags"},
        1,
        EXPERT,
    ),
    ("oracle on letters, train split", "stack", {"names": "letters", "split": "train"}, 2, EXPERT),
    ("oracle on mystery names, valid split", "unstack", {"names": "mystery", "split": "valid"}, 2, EXPERT),
    ("oracle on compact mystery names", "stack", {"names": "mystery", "observation": "compact"}, 3, EXPERT),
    ("mistakes, then the expert", "stack", {}, 4, [MISTAKE, MISTAKE, MISTAKE, *EXPERT]),
    (
        "mistakes, then the expert, one tower",
        "unstack",
        {"observation": "compact"},
        5,
        [MISTAKE, ORACLE, MISTAKE, MISTAKE, *EXPERT],
    ),
    (
        "natural and illegal actions",
        "stack",
        {"horizon": 6},
        6,
        [
            "",
            "go north",
            "pick up the purple block",
            "stack red red",
            "**Thought 1:** hm\n**Action 1:** put down the RED block.",
            "unstack",
        ],
    ),
    (
        "other forms",
        "stack",
        {"horizon": 6},
        8,
        [
            "<answer>unstack black white</answer>",
            "(put-down black)",
            "Unstack(magenta, green)",
            "Stack(magenta,,silver)",
            "pick-up (BLACK)",
            "stack(black green",
        ],
    ),
    (
        "to and fro until the horizon",
        "unstack",
        {"horizon": 5, "observation": "compact"},
        7,
        [ORACLE, MISTAKE, ORACLE, MISTAKE, ORACLE],
    ),
)


def record(name: str, variant: str, options: dict[str, Any], index: int, replies: list[str]) -> Episode:
    env = BlocksworldEnv(variant=variant, **options)
    return record_episode(find_entry(f"blocksworld-{variant}"), env, name, options, index, replies)
