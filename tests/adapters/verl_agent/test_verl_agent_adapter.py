"""The verl-agent managers, driven by a loop of the form of its rollout loop: all rows are stepped until the last is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from scripted import ENVS, scripts, tasks

from tstar_envs import RetrieverError, UnknownOption, UnknownTask, parse_reply, render_reply
from tstar_envs.adapters.verl_agent import EnvironmentManager, Envs, make_envs, projection

MEMBERS = 3


class Rollout(NamedTuple):
    """What the loop collected, one entry for each row."""

    rewards: np.ndarray
    lengths: np.ndarray
    success: dict[str, np.ndarray]
    infos: list[list[dict[str, Any]]]
    anchors: list[list[str]]
    prompts: list[list[str]]


def roll_out(
    envs: EnvironmentManager,
    policy: Callable[[int, int], str],
    rows: int,
    max_steps: int,
    kwargs: Sequence[dict[str, Any]] | None = None,
) -> Rollout:
    """One batch of episodes, with the calls that verl-agent's loop makes and what it relies on in their answers."""
    obs, infos = envs.reset(kwargs=kwargs)
    assert len(obs["text"]) == rows and obs["image"] is None and len(infos) == rows
    done, rewards, lengths = np.zeros(rows, bool), np.zeros(rows, np.float32), np.zeros(rows, np.float32)
    batches: list[list[dict[str, Any]]] = [[] for _ in range(rows)]
    kept: list[list[dict[str, Any]]] = [[] for _ in range(rows)]
    for step in range(max_steps):
        active = np.logical_not(done)
        seen = [(obs["text"][row], obs["anchor"][row]) for row in range(rows)]
        obs, step_rewards, dones, infos = envs.step([policy(row, step) for row in range(rows)])
        assert step_rewards.shape == dones.shape == (rows,)
        rewards[active] += step_rewards[active]
        lengths[active] += 1
        for row in range(rows):
            prompt, anchor = seen[row]
            valid = np.array(infos[row]["is_action_valid"], dtype=bool)
            batches[row].append(
                {"active_masks": active[row], "prompt": prompt, "anchor": anchor, "valid": valid}
            )
            kept[row].append(infos[row])
        done = np.logical_or(done, dones)
        if done.all():
            break
    success = envs.success_evaluator(
        total_infos=kept, total_batch_list=batches, episode_rewards=rewards, episode_lengths=lengths
    )
    played = [[item for item in batch if item["active_masks"]] for batch in batches]
    return Rollout(
        rewards,
        lengths,
        success,
        [infos[: len(items)] for infos, items in zip(kept, played, strict=True)],
        [[item["anchor"] for item in items] for items in played],
        [[item["prompt"] for item in items] for items in played],
    )


def config(
    env: str, groups: int = 2, members: int = MEMBERS, max_steps: int = 20, history: int = 2, **own: Any
) -> SimpleNamespace:
    """The part of verl-agent's configuration that is read."""
    section = SimpleNamespace(
        env_name=env,
        seed=0,
        max_steps=max_steps,
        history_length=history,
        rollout=SimpleNamespace(n=members),
        tstar=own,
    )
    return SimpleNamespace(env=section, data=SimpleNamespace(train_batch_size=groups, val_batch_size=groups))


def in_tags(reply: str) -> str:
    """A ReAct reply in verl-agent's form."""
    thought, action, _ = parse_reply(reply)
    return render_reply(thought, action, "tags")


@pytest.mark.parametrize("replies", ["tags", "react"])
@pytest.mark.parametrize("env", ENVS)
def test_scripted_replies_give_the_rewards_that_eval_gives(env: str, replies: str) -> None:
    played = scripts(env)
    horizon = tasks(env).make().horizon
    manager, _ = make_envs(
        config(env, groups=len(played), members=2, max_steps=horizon, replies=replies, train_split="test")
    )
    said = [
        [in_tags(reply) if replies == "tags" else reply for reply in script.replies]
        for script in played
        for _ in range(2)
    ]
    rollout = roll_out(
        manager,
        lambda row, step: said[row][step] if step < len(said[row]) else "",
        len(said),
        horizon,
        [{"task": script.task, "data_source": "tstar"} for script in played for _ in range(2)],
    )
    expected = [script for script in played for _ in range(2)]
    assert rollout.rewards.tolist() == pytest.approx([script.reward for script in expected])
    assert rollout.success["success_rate"].tolist() == [float(script.success) for script in expected]
    assert rollout.success["score"].tolist() == pytest.approx([script.reward for script in expected])
    assert rollout.lengths.tolist() == [len(script.replies) for script in expected]
    assert [infos[-1]["won"] for infos in rollout.infos] == [script.success for script in expected]
    assert {script.reward for script in expected} >= {0.0, 1.0}


def test_members_of_a_group_play_the_same_task_and_each_batch_other_ones() -> None:
    manager, _ = make_envs(config("tstar/Sokoban-easy", groups=4))
    batches = [[info["task_id"] for info in manager.reset()[1]] for _ in range(3)]
    for batch in batches:
        groups = [batch[start : start + MEMBERS] for start in range(0, len(batch), MEMBERS)]
        assert all(len(set(group)) == 1 for group in groups) and len(set(batch)) == 4
    assert len({task for batch in batches for task in batch}) == 12
    again, _ = make_envs(config("tstar/Sokoban-easy", groups=4))
    assert [[info["task_id"] for info in again.reset()[1]] for _ in range(3)] == batches


def test_every_task_of_the_split_comes_before_one_comes_again() -> None:
    envs = Envs("tstar/Blocksworld-stack", 10, 1, split="valid")
    ids = envs.rows[0].task_ids("valid")
    rounds = [[info["task_id"] for _ in range(len(ids) // 10) for info in envs.reset()[1]] for _ in range(2)]
    assert all(sorted(tasks) == sorted(ids) for tasks in rounds) and rounds[0] != rounds[1]


def test_validation_plays_the_same_tasks_each_time() -> None:
    _, manager = make_envs(config("tstar/Sokoban-easy", groups=5))
    played = [[info["task_id"] for info in manager.reset(kwargs=None)[1]] for _ in range(2)]
    assert played[0] == played[1] == list(manager.envs.rows[0].task_ids("valid")[:5])


def test_anchors_are_equal_exactly_for_equal_states() -> None:
    moves = ["Left", "Right", "Up"]
    manager, _ = make_envs(config("tstar/Sokoban-easy", groups=1))
    rollout = roll_out(
        manager,
        lambda row, step: (
            f"<think>t</think><action>{'nonsense' if row == 2 else moves[(row + step) % 3]}</action>"
        ),
        3,
        6,
        [{"task": "sokoban-easy-mini-train-1564"}] * 3,
    )
    env = manager.envs.rows[0]
    for row, (anchors, infos) in enumerate(zip(rollout.anchors, rollout.infos, strict=True)):
        env.reset(options={"task": "sokoban-easy-mini-train-1564"})
        keys = [env.state_key()]
        for info in infos:
            env.step(info["action"] or "nonsense")
            keys.append(env.state_key())
        assert anchors == keys[:-1], row
    assert len(set(rollout.anchors[2])) == 1, "what is no action changes no state"
    assert rollout.anchors[0][0] == rollout.anchors[1][0] == rollout.anchors[2][0]


def test_rows_that_are_over_are_stepped_on_without_effect() -> None:
    script = scripts("tstar/Sokoban-easy")[0]
    manager, _ = make_envs(config("tstar/Sokoban-easy", groups=1, members=2, train_split="test"))
    manager.reset([{"task": script.task}] * 2)
    for reply in script.replies:
        obs, rewards, dones, infos = manager.step([in_tags(reply), "<think>no</think><action>wait</action>"])
    assert rewards.tolist() == [1.0, 0.0] and dones.tolist() == [True, False] and infos[0]["won"]
    after, rewards, dones, later = manager.step(["<think>t</think><action>Up</action>"] * 2)
    assert rewards[0] == 0 and dones[0] and later[0] == infos[0]
    assert (after["text"][0], after["anchor"][0]) == (obs["text"][0], obs["anchor"][0])
    assert later[1]["step"] == infos[1]["step"] + 1


@pytest.mark.parametrize(
    ("reply", "replies", "played", "valid"),
    [
        ("<think>Go.</think><action>Up</action>", "tags", True, True),
        ("Go.</think>\n<action>Up</action>", "tags", True, True),  # the chat template opened the thought
        ("<action>Up</action>", "tags", True, False),
        ("<think>Go.</think> Up", "tags", False, False),
        ("Thought: Go.\nAction: Up", "tags", False, False),
        ("<think>Who?</think><search>Ann</search>", "tags", True, True),
        ("Thought: Go.\nAction: Up", "react", True, True),
        ("Action: Up", "react", True, False),
        ("<think>Go.</think><action>Up</action>", "react", False, False),
        ("", "tags", False, False),
    ],
)
def test_the_form_of_replies(reply: str, replies: str, played: bool, valid: bool) -> None:
    assert projection([reply], replies) == ([reply if played else ""], [valid])


def test_an_action_is_valid_if_it_has_the_form_and_can_be_read() -> None:
    manager, _ = make_envs(config("tstar/Sokoban-easy", groups=1, members=4))
    manager.reset()
    said = [
        "<think>t</think><action>Up</action>",
        "<action>Up</action>",
        "<think>t</think><action>fly</action>",
        "Up",
    ]
    _, _, _, infos = manager.step(said)
    assert [info["is_action_valid"] for info in infos] == [True, False, False, False]
    assert [info["action"] for info in infos] == ["Up", "Up", "", ""]


def test_a_prompt_says_all_that_a_policy_must_know() -> None:
    script = scripts("tstar/HotpotQA")[0]
    manager, _ = make_envs(
        config("tstar/HotpotQA", groups=1, members=1, history=1, max_steps=6, train_split="test")
    )
    obs, infos = manager.reset([{"task": script.task}])
    rules = manager.envs.rows[0].prompt("tags")
    assert obs["text"] == [f"{rules}\n\nQuestion: {infos[0]['question']}"]
    assert "<search>" in rules and "You have 6 turns." in rules
    answers = []
    for reply in (
        "<think>a</think><search>Torwick Hesbel</search>",
        "<think>b</think><search>anything else</search>",
    ):
        obs, *_ = manager.step([reply])
        answers.append(manager.envs.rows[0].snapshot().observation)
    assert obs["text"] == [
        f"{rules}\n\nQuestion: {infos[0]['question']}\n\nTurns taken so far: 2.\n\nTurn 2: search[anything else]\n{answers[1]}"
    ]
    bare, _ = make_envs(
        config("tstar/HotpotQA", groups=1, members=1, history=0, max_steps=6, train_split="test")
    )
    bare.reset([{"task": script.task}])
    obs, *_ = bare.step(["<think>a</think><search>Torwick Hesbel</search>"])
    assert obs["text"] == [
        f"{rules}\n\nQuestion: {infos[0]['question']}\n\nTurns taken so far: 1.\n\nYou see now:\n{answers[0]}"
    ]


def test_a_prompt_lists_the_actions_that_are_admissible_now_and_no_earlier_ones() -> None:
    def prompts(listed: bool) -> tuple[list[str], list[list[str]]]:
        asked = config("tstar/ALFWorld", groups=1, members=1, options={"list_actions": listed})
        manager, _ = make_envs(asked)
        obs, infos = manager.reset([{"task": 0}])
        found, lists = [obs["text"][0]], [infos[0]["admissible_actions"]]
        for number in range(3):
            obs, *_, infos = manager.step([f"<think>t</think><action>{lists[-1][number]}</action>"])
            found.append(obs["text"][0])
            lists.append(infos[0]["admissible_actions"])
        return found, lists

    bare, lists = prompts(False)
    assert prompts(True) == (
        [
            f"{prompt}\nAdmissible actions: {'; '.join(actions)}"
            for prompt, actions in zip(bare, lists, strict=True)
        ],
        lists,
    )


def test_a_failed_search_is_raised_and_the_step_can_be_taken_again() -> None:
    options = {"retriever": "http://127.0.0.1:9/retrieve"}
    manager, _ = make_envs(config("tstar/HotpotQA", groups=1, members=2, max_steps=6, options=options))
    manager.reset()
    with pytest.raises(RetrieverError):
        manager.step(["<think>a</think><search>Ann</search>"] * 2)
    _, rewards, _, infos = manager.step(["<think>a</think><answer>Ann</answer>"] * 2)
    assert [info["step"] for info in infos] == [1, 1] and not infos[0]["won"]


def test_fewer_rows_than_environments_may_be_named() -> None:
    manager, _ = make_envs(config("tstar/Sokoban-easy", groups=4, members=2))
    _, infos = manager.reset([{"task": 5}, {"task": 5}])
    assert [info["task_id"] for info in infos] == [manager.envs.rows[0].task_ids("train")[5]] * 2
    _, rewards, dones, infos = manager.step(["<think>t</think><action>Up</action>"] * 2)
    assert len(rewards) == len(dones) == len(infos) == 2
    assert len(manager.reset()[1]) == 8


@pytest.mark.parametrize(
    ("rows", "error", "said"),
    [
        ([{"task": 1}, {"task": 2}], UnknownOption, "members of group 0 must name the same task"),
        ([{"task": 1}, {}], UnknownOption, "members of group 0 must name the same task"),
        ([{"task": 1}] * 3, UnknownOption, "3 rows of env_kwargs do not fit 4 environments in groups of 2"),
        ([{"task": 1}] * 6, UnknownOption, "6 rows of env_kwargs do not fit"),
        ([{"task": "none"}] * 2, UnknownTask, "none"),
    ],
)
def test_rows_that_name_no_proper_groups_are_refused(
    rows: list[dict[str, Any]], error: type[Exception], said: str
) -> None:
    manager, _ = make_envs(config("tstar/Sokoban-easy", groups=2, members=2))
    with pytest.raises(error, match=said):
        manager.reset(rows)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"reply": "tags"}, "no setting 'reply'"),
        ({"replies": "json"}, "replies"),
        ({"options": {"colour": 1}}, "colour"),
        ({"options": None}, "options must map"),
        ({"history": None}, "history_length must be a whole number"),
    ],
)
def test_wrong_settings_are_refused(own: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownOption, match=said):
        make_envs(config("tstar/Sokoban-easy", **own))


def test_the_horizon_is_the_loops_unless_an_option_names_another() -> None:
    manager, validation = make_envs(config("tstar/Sokoban-easy", max_steps=7))
    assert [manager.reset()[1][0]["horizon"], validation.reset()[1][0]["horizon"]] == [7, 7]
    manager, _ = make_envs(config("tstar/Sokoban-easy", max_steps=7, options={"horizon": "optimal*2"}))
    assert manager.reset()[1][0]["horizon"] > 7
    manager.close()


def test_success_is_that_of_the_last_step_that_a_row_played() -> None:
    manager, _ = make_envs(config("tstar/Sokoban-easy"))
    lost, won = {"won": False, "score": 0.25}, {"won": True, "score": 1.0}
    batch = [
        [{"active_masks": active} for active in row] for row in ([True, False], [True, True], [True, False])
    ]
    said = manager.success_evaluator(
        total_infos=[[lost, won], [lost, won], [won, lost]], total_batch_list=batch
    )
    assert said["success_rate"].tolist() == [0.0, 1.0, 1.0] and said["score"].tolist() == [0.25, 1.0, 1.0]


def test_a_loop_that_branches_gets_the_parents_state_and_history() -> None:
    """As SPARK's: only active rows are stepped, and children take over what their parents are and were told."""
    manager = EnvironmentManager(
        Envs("sokoban-easy", 1, 4, fixed=True),
        projection,
        SimpleNamespace(env=SimpleNamespace(history_length=5)),
    )
    observations, _ = manager.reset()
    up = "<think>up</think><action>Up</action>"
    seen, rewards, dones, infos = manager.step_with_mask([up, up], [0, 2])
    assert len(seen["text"]) == len(seen["anchor"]) == len(rewards) == len(dones) == len(infos) == 2
    assert "Turns taken so far: 1." in seen["text"][0] and infos[0]["is_action_valid"]
    assert manager.build_text_obs()[1] == observations["text"][1], "row 1 waited"
    manager.sync_branch_states({0: [1], 2: [3]})
    texts = manager.build_text_obs()
    assert texts[1] == texts[0] and texts[3] == texts[2]
    alike, _, _, after = manager.step_with_mask([up, up], np.array([0, 1]))
    assert alike["text"][0] == alike["text"][1] and after[0]["state_key"] == after[1]["state_key"]
    manager.step_with_mask(["<think>d</think><action>Down</action>"], [1])
    assert manager.build_text_obs()[0] == alike["text"][0], "siblings go on by themselves"
    for wrong in ({0: [0]}, {0: [7]}, {0: [1], 2: [1]}):
        with pytest.raises(UnknownOption):
            manager.sync_branch_states(wrong)
    with pytest.raises(UnknownOption, match="one action for each row"):
        manager.step_with_mask([up], [0, 1])
    with pytest.raises(UnknownOption, match="there is no row 9"):
        manager.step_with_mask([up], [9])
