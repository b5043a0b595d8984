"""Task sets and their hash."""

import dataclasses
import random
import sys

import pytest

from tstar_envs import PanelMismatch, UnknownOption, UnknownTask, find_entry, panel, task_set
from tstar_envs.evalset import hash_of

ENVS = ("tstar/Sokoban-easy", "tstar/Blocksworld-stack", "tstar/HotpotQA", "tstar/WebShop", "tstar/ALFWorld")


@pytest.mark.parametrize("env", ENVS)
def test_a_panels_tasks_have_its_hash_and_a_part_of_them_another(env):
    part = panel("v1")[env]
    whole = task_set(env, panel="v1")
    assert (whole.ids, whole.hash, whole.split, whole.panel) == (part.tasks, part.hash, "test", "v1")
    few = task_set(find_entry(env).name, panel="v1", limit=3)
    assert few.ids == part.tasks[:3] and few.env == env and few.hash != whole.hash


@pytest.mark.parametrize("env", ENVS)
def test_the_hash_is_over_what_the_tasks_hold_and_not_over_how_they_are_shown(env):
    tasks = task_set(env, limit=5)
    made = tasks.make()
    digests = {task: made.task_digest(task) for task in tasks.ids}
    assert tasks.hash == hash_of(tasks.env, "test", tasks.rules_version, made.world_digest(), digests)
    changed = {**digests, tasks.ids[2]: "0" * 32}
    shuffled = dict(random.Random(1).sample(list(digests.items()), 5))
    hashes = {
        hash_of(tasks.env, *rest)
        for rest in [
            ("test", tasks.rules_version, made.world_digest(), changed),
            ("train", tasks.rules_version, made.world_digest(), digests),
            ("test", "other", made.world_digest(), digests),
            ("test", tasks.rules_version, "other", digests),
            ("test", tasks.rules_version, made.world_digest(), shuffled),
        ]
    }
    assert tasks.hash not in hashes and len(hashes) == 5


def test_options_reach_the_environment_and_are_no_part_of_the_hash():
    plain, other = (
        task_set("sokoban-easy", limit=2),
        task_set("sokoban-easy", limit=2, observation="grid_coords"),
    )
    assert plain.hash == other.hash
    texts = {tasks.make().reset(options={"task": tasks.ids[0]})[0] for tasks in (plain, other)}
    assert len(texts) == 2


def test_what_there_is_not_is_refused_in_a_sentence():
    with pytest.raises(UnknownOption, match="limit"):
        task_set("sokoban-easy", limit=0)
    with pytest.raises(UnknownOption, match="v1"):
        task_set("sokoban-easy", panel="v9")
    with pytest.raises(UnknownOption, match="train"):
        task_set("sokoban-easy", split="practice")
    with pytest.raises(UnknownOption, match="has 3 here"):
        task_set("sokoban-easy", limit=3).id_at(3)
    with pytest.raises(UnknownOption, match="no task -1"):
        task_set("sokoban-easy", limit=3).id_at(-1)
    with pytest.raises(UnknownTask):
        task_set("sokoban-easy", limit=3).make().reset(options={"task": "nowhere"})


def test_another_panel_than_the_data_is_refused(monkeypatch):
    other = dataclasses.replace(panel("v1")["sokoban-easy"], rules_version="0")
    changed = dataclasses.replace(panel("v1"), entries={**panel("v1").entries, other.env: other})
    monkeypatch.setattr(sys.modules[task_set.__module__], "panel_of", {"v1": changed}.__getitem__)
    with pytest.raises(PanelMismatch, match="rules"):
        task_set("sokoban-easy", panel="v1")
