"""Writes the golden episodes, one file per family: run ``python tests/golden/golden_regenerate.py`` after a change of rules.

Changed goldens mean that results are no longer comparable: the rules version of the environment must change with them.
"""

from pathlib import Path
from typing import Any

import golden_alfworld
import golden_blocksworld
import golden_chains
import golden_clues_and_tail
import golden_nq
import golden_sokoban
import golden_webshop
from golden_record import ORACLE, record_episode

from tstar_envs import Episode, append_episode
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.registry import find_entry

FILE = Path(__file__).with_name("search_qa.jsonl")
HOTPOTQA = find_entry("hotpotqa")
PLANS: tuple[tuple[str, dict[str, Any], int, list[str]], ...] = (  # name, options, task index, replies
    ("oracle, one passage", {"topk": 1}, 0, [ORACLE] * 6),
    ("oracle, three passages", {}, 1, [ORACLE] * 6),
    ("oracle on BM25", {"retriever": "bm25"}, 2, [ORACLE] * 6),
    ("oracle, tags", {"prompt_style": "tags", "topk": 2}, 3, [ORACLE] * 6),
    ("oracle, train split", {"split": "train", "topk": 1}, 7, [ORACLE] * 6),
    ("oracle, valid split", {"split": "valid"}, 5, [ORACLE] * 6),
    ("second query needed", {"topk": 1}, -1, [ORACLE] * 6),
    ("repeated queries until the horizon", {"topk": 1}, 4, ["search[Lantern]", "search[lantern?]"] * 3),
    ("garbage", {"horizon": 4}, 6, ["", "Action:", "go north", "search[\udfff"]),
    ("wrong answer", {}, 8, ["<think>a guess</think><answer>the Ebsel of Bredra</answer>"]),
    (
        "mistakes, then the expert",
        {"topk": 1},
        9,
        ["Thought: hm\nAction: Search [ Velros  Springs ].", "finish[]", ORACLE, ORACLE, ORACLE],
    ),
    (
        "yes and no",
        {"topk": 1},
        -2,
        ["**Thought 1:** I look.\n**Action 1:** search[city]\nObservation: made up", "finish[Yes!]"],
    ),
)


def find_task(env: SearchQAEnv, index: int) -> str:
    """A task by index; from number 20 on, -1: the first of more than three steps, -2: the first yes/no question."""
    for task in env.task_ids()[20:]:
        info = env.reset(options={"task": task})[1]
        if index == -2 and info["kind"].startswith("same-"):
            return task
        if index == -1:
            steps = 0
            while (reply := env.oracle()) is not None:
                env.step(reply)
                steps += 1
            if steps > 3:
                return task
    return env.task_ids()[index]


def record(name: str, options: dict[str, Any], index: int, replies: list[str]) -> Episode:
    env = SearchQAEnv(**options)
    return record_episode(
        HOTPOTQA, env, name, options, find_task(env, index) if index < 0 else index, replies
    )


# file -> how its episodes are recorded, and what they are recorded from
FILES = {
    FILE: (record, PLANS),
    golden_blocksworld.FILE: (golden_blocksworld.record, golden_blocksworld.PLANS),
    golden_sokoban.FILE: (golden_sokoban.record, golden_sokoban.PLANS),
    golden_alfworld.FILE: (golden_alfworld.record, golden_alfworld.PLANS),
    golden_webshop.FILE: (golden_webshop.record, golden_webshop.PLANS),
    golden_nq.FILE: (golden_nq.record, golden_nq.PLANS),
    golden_chains.FILE: (golden_chains.record, golden_chains.PLANS),
    golden_clues_and_tail.FILE: (golden_clues_and_tail.record, golden_clues_and_tail.PLANS),
}

if __name__ == "__main__":
    for file, (recorder, plans) in FILES.items():
        file.unlink(missing_ok=True)
        for plan in plans:
            append_episode(file, recorder(*plan))
        print(f"{len(plans)} episodes in {file}")
