"""Search-R1's form: what one of its checkpoints reads and writes, from the first message to the answer."""

from __future__ import annotations

import re

import pytest

from tstar_envs import UnknownOption, parse_reply
from tstar_envs.envs.search_qa import text
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.tasks import Passage


def test_an_episode_in_search_r1s_form() -> None:
    env = SearchQAEnv(prompt_style="search_r1")
    observation, info = env.reset(options={"task": 3})
    message = env.prompt() + observation
    assert message.startswith("Answer the given question. You must conduct reasoning inside <think>")
    assert info["instruction"][-1] == "?"
    assert message.endswith(f"For example, <answer> Beijing </answer>. Question: {info['instruction']}\n")
    observation, *_, info = env.step("<think>hm</think> I look.")
    assert not info["action_valid"]
    assert observation.startswith("\nMy previous action is invalid.") and observation.endswith(
        "Let me try again.\n"
    )
    ended = False
    while not ended:
        reply = env.oracle()
        assert reply is not None and re.fullmatch(r"<think>.+</think><(search|answer)>.+</\1>", reply)
        observation, reward, ended, _, info = env.step(reply)
        if not ended:
            assert re.fullmatch(
                r'\n\n<information>Doc 1\(Title: "[^"]+"\) .+\nDoc 3\(Title: .+</information>\n\n',
                observation,
                re.DOTALL,
            )
    assert reward == info["em"] == info["sub_em"] == 1.0


def test_other_styles_see_the_same_world() -> None:
    one, other = SearchQAEnv(prompt_style="search_r1"), SearchQAEnv()
    for env in (one, other):
        env.reset(options={"task": 5})
    for _ in range(2):
        ours, theirs = one.oracle(), other.oracle()
        assert ours and theirs and parse_reply(ours)[:2] == parse_reply(theirs)[:2]
        assert one.step(ours)[4]["state_key"] == other.step(theirs)[4]["state_key"]


@pytest.mark.parametrize("limit", [1, 40, 10**6])
def test_a_limit_never_cuts_the_closing_tag(limit: int) -> None:
    passages = [Passage("1", "A", "first " * 20), Passage("2", "B", "second " * 20)]
    shown = text.search_r1_render(passages, limit)
    inside = re.fullmatch(r"\n\n<information>(.*)</information>\n\n", shown, re.DOTALL)
    assert inside is not None and len(inside[1]) <= limit
    assert text.search_r1_render(passages, None).find(inside[1]) >= 0
    assert text.search_r1_render([], limit) == "\n\n<information></information>\n\n"


def test_question_mark_and_limits() -> None:
    assert text.search_r1_question("who wrote it ") == "Question: who wrote it?\n"
    for wrong in (0, -3, True, 2.5):
        with pytest.raises(UnknownOption, match="observation_limit"):
            SearchQAEnv(observation_limit=wrong)
    with pytest.raises(UnknownOption, match="normalizer"):
        SearchQAEnv(normalizer="bleu")
    env = SearchQAEnv(observation_limit=30)
    env.reset(options={"task": 0})
    assert len(env.step("search[anything of this world]")[0]) == 30
