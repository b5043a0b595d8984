"""What the golden episodes of WebShop are recorded from."""

from pathlib import Path
from typing import Any

from golden_record import MISTAKE, ORACLE, record_episode

from tstar_envs import Episode, find_entry
from tstar_envs.envs.webshop.env import WebShopEnv

FILE = Path(__file__).with_name("webshop.jsonl")
EXPERT = [ORACLE] * 15
PLANS: tuple[tuple[str, dict[str, Any], int, list[str]], ...] = (  # name, options, task index, replies
    ("oracle", {}, 0, EXPERT),
    ("oracle, the original's text", {"observation": "text"}, 31, EXPERT),
    ("oracle, marked buttons", {"observation": "text_rich"}, 62, EXPERT),
    ("oracle, tags, train split", {"split": "train", "prompt_style": "tags"}, 93, EXPERT),
    ("oracle, valid split, three products a page", {"split": "valid", "page_size": 3}, 20, EXPERT),
    ("mistakes, then the expert", {"horizon": 30}, 3, [MISTAKE] * 8 + EXPERT),
    (
        "mistakes and the expert in turn, marked buttons",
        {"horizon": 30, "observation": "text_rich"},
        44,
        [MISTAKE, ORACLE, ORACLE] * 10,
    ),
    ("mistakes until the horizon", {}, 55, [MISTAKE] * 15),
    ("bought too early", {}, 66, [ORACLE, ORACLE, "click[buy now]"]),
    (
        "the last page, and beyond it",
        {"horizon": 9, "observation": "text"},
        77,
        [
            "search[gift for friends]",
            *["click[next >]"] * 5,
            "click[< prev]",
            "Search[again]",
            "click[search]",
        ],
    ),
    (
        "garbage",
        {"horizon": 6},
        18,
        ["", "Action:", "search[]", "click[no such button]", "search[\udfff]", "buy now"],
    ),
    (
        "reply forms",
        {"horizon": 4},
        9,
        [
            "**Thought 1:** I look.\n**Action 1:** search[the LAMPS]\nObservation: made up",
            "<think>back</think><action>click[Back to Search]</action>",
            "Thought: hm Action: search[lamp] and more",
            "click[next >]",
        ],
    ),
)


def record(name: str, options: dict[str, Any], index: int, replies: list[str]) -> Episode:
    options = {"data": "mini", **options}
    return record_episode(find_entry("webshop"), WebShopEnv(**options), name, options, index, replies)
