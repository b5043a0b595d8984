"""What is recorded of 2WikiMultihopQA, MuSiQue and Bamboogle: every type of question, joins, retries, a lost way, garbage."""

from pathlib import Path
from typing import Any

from golden_record import ORACLE, record_episode

from tstar_envs import Episode
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.registry import find_entry

FILE = Path(__file__).with_name("chains.jsonl")
WHOLE = [ORACLE] * 8
PLANS: tuple[
    tuple[str, str, dict[str, Any], str, list[str]], ...
] = (  # set, name, options, kind of question, replies
    ("2wikimultihopqa", "oracle, compositional", {}, "compositional", WHOLE),
    ("2wikimultihopqa", "oracle, inference, one passage", {"topk": 1}, "inference", WHOLE),
    ("2wikimultihopqa", "oracle, comparison, BM25", {"retriever": "bm25"}, "comparison", WHOLE),
    (
        "2wikimultihopqa",
        "oracle, bridge comparison, train split",
        {"split": "train", "topk": 1},
        "bridge_comparison",
        WHOLE,
    ),
    ("2wikimultihopqa", "wrong answer", {"split": "valid"}, "comparison", ["finish[both]"]),
    ("musique", "oracle, two hops", {}, "2hop", WHOLE),
    ("musique", "oracle, three in a row", {"topk": 1}, "3hop1", WHOLE),
    ("musique", "oracle, two joined", {"topk": 1, "prompt_style": "tags"}, "3hop2", WHOLE),
    (
        "musique",
        "oracle, four in a row, BM25",
        {"retriever": "bm25", "topk": 1, "split": "train"},
        "4hop1",
        WHOLE,
    ),
    ("musique", "oracle, joined and on, valid split", {"split": "valid", "topk": 1}, "4hop3", WHOLE),
    (
        "musique",
        "the same search until the horizon",
        {"topk": 1},
        "4hop2",
        ["search[Lantern]", "search[lantern!]"] * 4,
    ),
    ("bamboogle", "oracle", {"topk": 1}, "2hop", [ORACLE] * 6),
    (
        "bamboogle",
        "garbage, then the expert",
        {"retriever": "bm25"},
        "2hop",
        ["Action:", "go north", ORACLE, ORACLE, ORACLE],
    ),
)


def record(dataset: str, name: str, options: dict[str, Any], kind: str, replies: list[str]) -> Episode:
    """One episode of a plan; the plan's place among those of its kind says which task."""
    env = SearchQAEnv(dataset=dataset, **options)
    same = [plan for plan in PLANS if (plan[0], plan[3]) == (dataset, kind)]
    number = [plan[1] for plan in same].index(name)
    tasks = [task for task in env.task_ids() if env.reset(options={"task": task})[1]["kind"] == kind]
    return record_episode(find_entry(dataset), env, name, options, tasks[number], replies)
