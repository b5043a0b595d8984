"""What is recorded of TriviaQA and PopQA: the expert on both back ends, aliases as answers, repeated queries, garbage."""

from pathlib import Path
from typing import Any

from golden_record import ORACLE, record_episode

from tstar_envs import Episode
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.registry import find_entry

FILE = Path(__file__).with_name("clues_and_tail.jsonl")
PLANS: tuple[tuple[str, dict[str, Any], int, list[str]], ...] = (  # name, options, task index, replies
    ("triviaqa: oracle", {"dataset": "triviaqa"}, 0, [ORACLE] * 4),
    ("triviaqa: oracle, BM25", {"dataset": "triviaqa", "retriever": "bm25", "topk": 1}, 1, [ORACLE] * 4),
    (
        "triviaqa: oracle, train split, tags",
        {"dataset": "triviaqa", "split": "train", "prompt_style": "tags"},
        2,
        [ORACLE] * 4,
    ),
    ("triviaqa: oracle, valid split", {"dataset": "triviaqa", "split": "valid", "topk": 1}, 3, [ORACLE] * 4),
    (
        "triviaqa: its normaliser",
        {"dataset": "triviaqa", "normalizer": "triviaqa"},
        4,
        [ORACLE, "finish[Nobody-at-all]"],
    ),
    (
        "triviaqa: repeated queries",
        {"dataset": "triviaqa", "topk": 1},
        5,
        ["search[novel]", "search[Novel?]"] * 2,
    ),
    ("popqa: oracle", {"dataset": "popqa"}, 0, [ORACLE] * 4),
    ("popqa: oracle, BM25", {"dataset": "popqa", "retriever": "bm25", "topk": 1}, 1, [ORACLE] * 4),
    ("popqa: wrong answer", {"dataset": "popqa"}, 2, ["finish[nobody]"]),
    ("popqa: garbage, then the expert", {"dataset": "popqa"}, 3, ["Action:", "go north", ORACLE, ORACLE]),
)


def record(name: str, options: dict[str, Any], index: int, replies: list[str]) -> Episode:
    """One episode of a plan."""
    return record_episode(
        find_entry(options["dataset"]), SearchQAEnv(**options), name, options, index, replies
    )
