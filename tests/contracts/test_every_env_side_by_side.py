"""Many episodes at once: GroupEnv, and Gymnasium's vector environments in all autoreset modes."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from contract_walk import FOR_EVERY_ENV, make, reply_for
from gymnasium.vector import AutoresetMode

from tstar_envs import EnvEntry, ResetNeeded, TextEnv, UnknownOption, make_group

pytestmark = FOR_EVERY_ENV
STEPS = 20


def test_group_equals_single_environments(entry: EnvEntry) -> None:
    group = make_group(entry.id, [0, 3, 5], 2, horizon=4)
    singles = [make(entry.id, horizon=4) for _ in range(len(group))]
    results = [env.reset(options={"task": group.tasks[row // 2]}) for row, env in enumerate(singles)]
    assert group.reset() == ([r[0] for r in results], [r[1] for r in results])
    running = [True] * len(group)
    turn = 0
    while any(running):
        # Rows differ, so that they end at different times: row 0 follows the expert, others wander.
        replies = [
            (env.oracle() if row == 0 else reply_for(env, turn + row)) if running[row] else None
            for row, env in enumerate(singles)
        ]
        stepped = [
            env.step(reply) if reply is not None else (None,) * 5
            for env, reply in zip(singles, replies, strict=True)
        ]
        assert [list(column) for column in group.step(replies)] == [
            list(column) for column in zip(*stepped, strict=True)
        ]
        running = [on and not (s[2] or s[3]) for on, s in zip(running, stepped, strict=True)]
        assert group.running == running
        turn += 1
    assert turn <= 4
    assert group.step([None] * len(group))[0] == [None] * len(group)


def test_replay_brings_each_row_to_the_end_of_its_prefix(entry: EnvEntry) -> None:
    group = make_group(entry.id, [0, 3], 2, horizon=5)
    singles = [make(entry.id, horizon=5) for _ in range(len(group))]
    prefixes: list[list[str]] = []
    for row, env in enumerate(singles):
        env.reset(options={"task": group.tasks[row // 2]})
        prefixes.append([reply_for(env, turn) for turn in range(row)])
        over = [env.step(reply)[2:4] for reply in prefixes[row]]
        assert not any(any(ends) for ends in over)
    group.reset([1, 2])
    group.reset([0, 3])
    group.replay(prefixes)
    assert group.running == [True] * len(group)
    replies = [env.oracle() for env in singles]
    stepped = [env.step(str(reply)) for reply, env in zip(replies, singles, strict=True)]
    assert [list(column) for column in group.step(replies)] == [
        list(column) for column in zip(*stepped, strict=True)
    ]
    with pytest.raises(UnknownOption, match="4 prefixes"):
        group.replay(prefixes[:1])
    group.replay([["x"] * 5, [], [], []])
    assert group.running == [False, True, True, True]
    with pytest.raises(ResetNeeded):
        group.replay([["x"] * 6, [], [], []])


def test_group_refuses_wrong_calls(entry: EnvEntry) -> None:
    group = make_group(entry.id, [0], 2, horizon=2)
    with pytest.raises(ResetNeeded):
        group.step(["a", "b"])
    group.reset()
    with pytest.raises(UnknownOption, match="2 replies"):
        group.step(["a"])
    with pytest.raises(ResetNeeded, match="row 1 is still running"):
        group.step(["a", None])
    group.step(["a", "b"])
    group.step(["a", "b"])
    with pytest.raises(ResetNeeded, match="row 0 has finished"):
        group.step(["a", None])
    ids = group.envs[0].task_ids()
    assert [info["task_id"] for info in group.reset([1])[1]] == [ids[1]] * 2
    with pytest.raises(UnknownOption, match="needs 1 task, as many"):
        group.reset([1, 2])
    for wrong in (0, 2.5, True, "2"):
        with pytest.raises(UnknownOption, match="group_size must be a whole number of at least 1"):
            make_group(entry.id, [0], wrong)
    for one in (0, "abc", None):
        with pytest.raises(UnknownOption, match="tasks must be several"):
            make_group(entry.id, one, 2)
    assert len(make_group(entry.id, np.arange(2), np.int64(2))) == 4
    with pytest.raises(UnknownOption, match="no_such_option"):
        make_group(entry.id, [0], 1, no_such_option=1)


def test_rows_of_a_group_share_no_state(entry: EnvEntry) -> None:
    group = make_group(entry.id, [0], 2)
    group.reset()
    first = group.envs[0].oracle()
    before = group.envs[1].state_key()
    group.step([first, "garbage"])
    assert group.envs[0].state_key() != before == group.envs[1].state_key()


class Reference:
    """What a vector environment should do, from single environments and the documented autoreset modes."""

    def __init__(self, entry: EnvEntry, count: int, mode: AutoresetMode) -> None:
        self.envs = [make(entry.id, horizon=3 + row) for row in range(count)]
        self.mode = mode
        self.over = [False] * count

    def reset(self, seeds: list[int | None]) -> tuple[str, ...]:
        return tuple(env.reset(seed=seed)[0] for env, seed in zip(self.envs, seeds, strict=True))

    def step(self, replies: list[str]) -> list[tuple[str, float, bool, bool]]:
        rows = []
        for row, (env, reply) in enumerate(zip(self.envs, replies, strict=True)):
            if self.over[row] and self.mode == AutoresetMode.NEXT_STEP:
                rows.append((env.reset()[0], 0.0, False, False))
            else:
                observation, reward, terminated, truncated, _ = env.step(reply)
                if self.mode == AutoresetMode.SAME_STEP and (terminated or truncated):
                    observation = env.reset()[0]
                rows.append((observation, reward, terminated, truncated))
            self.over[row] = rows[-1][2] or rows[-1][3]
        return rows


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("kind", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_vector_environments(entry: EnvEntry, kind: str, mode: AutoresetMode) -> None:
    seeds: list[int | None] = [7, 8]
    makers: list[Any] = [lambda horizon=horizon: gym.make(entry.id, horizon=horizon) for horizon in (3, 4)]
    vector: gym.vector.VectorEnv[Any, Any, Any]
    if kind == "sync":
        vector = gym.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    else:
        vector = gym.vector.AsyncVectorEnv(
            makers, shared_memory=mode != AutoresetMode.DISABLED, autoreset_mode=mode
        )
    reference = Reference(entry, 2, mode)
    try:
        observations, infos = vector.reset(seed=seeds)
        assert observations == reference.reset(seeds)
        assert [int(step) for step in infos["step"]] == [0, 0]
        for number in range(STEPS):
            replies = [reply_for(env, number + row) for row, env in enumerate(reference.envs)]
            expected = reference.step(replies)
            observations, rewards, terminated, truncated, infos = vector.step(tuple(replies))
            assert (
                list(
                    zip(observations, rewards.tolist(), terminated.tolist(), truncated.tolist(), strict=True)
                )
                == expected
            )
            if mode == AutoresetMode.SAME_STEP and any(reference.over):
                assert all(
                    isinstance(infos["final_obs"][row], str)
                    for row, over in enumerate(reference.over)
                    if over
                )
            if mode == AutoresetMode.DISABLED and any(reference.over):
                mask = np.array(reference.over)
                fresh, _ = vector.reset(options={"reset_mask": mask})
                for row in np.flatnonzero(mask):
                    assert fresh[row] == reference.envs[row].reset()[0]
                reference.over = [False, False]
    finally:
        vector.close()


def test_make_vec(entry: EnvEntry) -> None:
    vector = gym.make_vec(entry.id, num_envs=2, vectorization_mode="sync", split=entry.splits[0])
    single = make(entry.id, split=entry.splits[0])
    assert isinstance(single, TextEnv)
    assert vector.reset(seed=3)[0] == (single.reset(seed=3)[0], single.reset(seed=4)[0])
    vector.close()
