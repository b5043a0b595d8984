"""Search-R1's conversation: what one of its checkpoints saw in training, token for token, is what the agent shows it."""

from __future__ import annotations

import copy

import pytest
from policies import random_policy, tokenizer

from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.text import INVALID, PROMPT
from tstar_train.agent import PolicyAgent
from tstar_train.policy.chat import ChatCodec, SearchR1Codec
from tstar_train.recipes.recipe import EnvRecipe
from tstar_train.rollout.player import Transcript

QWEN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def with_template():
    chosen = copy.deepcopy(tokenizer())
    chosen.chat_template = QWEN
    return chosen


def agent_of(codec_of, max_tokens=12):
    policy = random_policy()
    policy.tokenizer = with_template()
    policy.codec = codec_of(policy.tokenizer)
    return PolicyAgent(policy, "", 0, 1.0, max_tokens, EnvRecipe())


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (
            "<think>a</think><search>b c</search>\n<information>made up</information>",
            "<think>a</think><search>b c</search>",
        ),
        ("<answer>b</answer> and more", "<answer>b</answer>"),
        ("<search>b</search> <search>c</search>", "<search>b</search>"),
        (
            "<answer>a</answer><search>b</search> c",
            "<answer>a</answer><search>b</search>",
        ),  # a search comes first, as in its code
        ("<think>neither", "<think>neither"),
    ],
)
def test_a_reply_ends_behind_its_tag(said, kept):
    codec = SearchR1Codec(tokenizer(), [tokenizer().eos_token_id])
    for end in ([], [codec.end]):
        assert codec.decode(codec.closed([*codec.text(said), *end])) == kept
        assert codec.end not in codec.closed([*codec.text(said), *end])
    assert codec.closed(codec.closed(codec.text(said))) == codec.closed(codec.text(said))


@pytest.mark.parametrize("chat", [True, False])
def test_all_is_one_turn_behind_one_message(chat):
    chosen = with_template() if chat else tokenizer()
    codec = SearchR1Codec(chosen, [chosen.eos_token_id])
    env = SearchQAEnv(prompt_style="search_r1", topk=1)
    first, info = env.reset(options={"task": 0})
    line = Transcript(codec, env.prompt(), info["instruction"], first)
    message = f"{PROMPT}Question: {info['question']}\n"
    shown = (
        f"<|im_start|>user\n{message}\n<|im_start|>assistant\n" if chat else message
    )  # the end of the turn is no text
    for _ in range(2):
        assert codec.decode(line.context()) == shown
        reply = codec.text(f"{env.oracle()} and what it believes to find")
        observation = env.step(codec.decode(codec.closed(reply)))[0]
        assert observation.startswith("\n\n<information>Doc 1(Title: ") and observation.endswith(
            "</information>\n\n"
        )
        line.add(reply, observation)
        shown += codec.decode(codec.closed(reply)) + observation
    assert codec.decode(line.context()) == shown


def test_the_agent_speaks_as_its_environment_does(monkeypatch):
    agent = agent_of(ChatCodec)
    env = SearchQAEnv(prompt_style="search_r1", horizon=3)
    agent.bind(env)
    contexts = []
    generate = agent.engine.generate
    monkeypatch.setattr(
        agent.engine,
        "generate",
        lambda given, *a, **k: contexts.append(given[0]) or generate(given, *a, **k),
    )
    observation, info = env.reset(options={"task": 1})
    agent.reset(observation, info)
    shown, over = f"<|im_start|>user\n{PROMPT}{observation}<|end|>\n<|im_start|>assistant\n", False
    while not over:
        reply = agent.act(observation, info)
        assert tokenizer().decode(contexts[-1]) == shown
        observation, _, _, over, info = env.step(reply)
        assert observation == INVALID  # the policy is random
        shown += reply + observation
    assert len(contexts) == 3
    # Back among those who speak in messages of their own; the rules name the horizon of this environment.
    env = SearchQAEnv(horizon=5)
    agent.bind(env)
    observation, info = env.reset(options={"task": 1})
    agent.reset(observation, info)
    agent.act(observation, info)
    assert "5" in env.prompt() and env.prompt() != SearchQAEnv().prompt()
    expected = f"<|im_start|>system\n{env.prompt()}<|end|>\n<|im_start|>user\n{observation}<|end|>\n<|im_start|>assistant\n"
    assert tokenizer().decode(contexts[-1]) == expected
