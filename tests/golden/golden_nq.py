"""What is recorded of NQ: the expert on both back ends and all splits, a wrong answer, repeated queries, garbage."""

from pathlib import Path
from typing import Any

from golden_record import ORACLE, record_episode

from tstar_envs import Episode
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.registry import find_entry

FILE = Path(__file__).with_name("nq.jsonl")
PLANS: tuple[tuple[str, dict[str, Any], int, list[str]], ...] = (  # name, options, task index, replies
    ("oracle", {}, 0, [ORACLE] * 4),
    ("oracle, BM25", {"retriever": "bm25", "topk": 1}, 1, [ORACLE] * 4),
    ("oracle, train split, tags", {"split": "train", "prompt_style": "tags"}, 2, [ORACLE] * 4),
    ("oracle, valid split", {"split": "valid", "topk": 1}, 3, [ORACLE] * 4),
    ("wrong answer", {}, 4, ["finish[nobody]"]),
    ("repeated queries until the horizon", {"topk": 1}, 5, ["search[lantern]", "search[Lantern?]"] * 2),
    ("garbage, then the expert", {}, 6, ["Action:", "go north", ORACLE, ORACLE]),
)


def record(name: str, options: dict[str, Any], index: int, replies: list[str]) -> Episode:
    """One episode of a plan."""
    return record_episode(
        find_entry("nq"), SearchQAEnv(dataset="nq", **options), name, options, index, replies
    )
