"""What --agent may name, the built-in agents, and how an episode is played and recorded."""

from typing import Any

import gymnasium as gym
import pytest

from tstar_envs import Episode, MissingExtra, TextEnv, UnknownOption, find_entry
from tstar_envs.agents import Agent, load_agent
from tstar_envs.evaluation.runner import BrokenRun, Setting, Worker, agent_seed, play_episode, play_missing

ENTRY = find_entry("hotpotqa")


def load(spec: str) -> Any:
    return load_agent(spec, env_id=ENTRY.id, seed=5)


def make_env(**options: Any) -> TextEnv[Any, Any]:
    env = gym.make(ENTRY.id, **options).unwrapped
    assert isinstance(env, TextEnv)
    return env


def play(agent: Agent, env: TextEnv[Any, Any] | None = None, **kwargs: Any) -> Episode:
    env = env or make_env()
    return play_episode(env, ENTRY, agent, name="n", task=env.task_ids()[3], **kwargs)


@pytest.mark.parametrize(
    ("name", "ended"),
    [
        ("function", "truncated"),  # it searches until its turns are used up; the others answer at once
        ("OnlyAct", "terminated"),
        ("Full", "terminated"),
        ("seeded", "terminated"),
        ("instance", "terminated"),
    ],
)
def test_own_agents_play(name: str, ended: str) -> None:
    episode = play(load(f"own_agents:{name}"))
    assert episode.ended == ended and not episode.error


def test_factories_get_what_they_ask_for() -> None:
    agent = load("own_agents:seeded")
    assert agent.made_with == (5, ENTRY.id)
    agent = load("own_agents:Full")
    assert agent.made_with == (5, ENTRY.id), "optional parameters of these names are filled in too"
    play(agent, seed=5, sample=2)
    assert agent.resets[0]["sample"] == 2
    assert agent.resets[0]["agent_seed"] == agent_seed(5, agent.resets[0]["task_id"], 2)
    assert load("own_agents:OnlyAct").env_options == {"topk": 1}


def test_a_temperature_goes_to_who_takes_one() -> None:
    made = [
        load_agent("own_agents:sampling", env_id=ENTRY.id, seed=5, temperature=t) for t in (None, 0.0, 0.5)
    ]
    assert [agent.temperature for agent in made] == [0.7, 0.0, 0.5]
    for spec in ("random", "oracle", "own_agents:Full", "own_agents:instance", "own_agents:function"):
        with pytest.raises(
            UnknownOption, match=f"agent '{spec}' takes no temperature, got 0.5: leave it out"
        ):
            load_agent(spec, env_id=ENTRY.id, seed=5, temperature=0.5)
    with pytest.raises(UnknownOption, match="0 or more, got inf"):
        load_agent("own_agents:sampling", env_id=ENTRY.id, seed=5, temperature=float("inf"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nobody", "unknown agent 'nobody'"),
        ("", "unknown agent"),
        (":x", "unknown agent"),
        ("own_agents:", "unknown agent"),
        ("no_such_module:x", "no module 'no_such_module'"),
        ("own_agents.deeper:x", "own_agents"),
        ("own_agents:nope", "has no 'nope'"),
        ("own_agents:wrong", "needs other arguments"),
        ("own_agents:broken", "RuntimeError: no licence"),
        ("own_agents:__doc__", "is a str"),
        ("own_agents:BadOptions", "env_options"),
        ("own_agents:no_agent", "made a int without act"),
    ],
)
def test_bad_specs_give_one_clear_error(spec: str, message: str) -> None:
    with pytest.raises(UnknownOption) as caught:
        load(spec)
    assert message in str(caught.value)
    if "own_agents:b" not in spec and "deeper" not in spec and "BadOptions" not in spec:
        assert "random, oracle, oracle:KIND, tiny, tiny:PATH (a trained policy), or module:object" in str(
            caught.value
        )


def test_tiny_needs_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        __import__("sys").modules, "tstar_train.agent", None
    )  # as Python does for what cannot be imported
    with pytest.raises(MissingExtra, match=r"pip install -c constraints.txt -e '.\[train\]'"):
        load("tiny")


def test_oracle_solves_and_random_does_not() -> None:
    env, oracle, random = make_env(topk=1), load("oracle"), load("random")
    oracle.bind(env)
    keys = [(task, 0) for task in env.task_ids()[:30]]
    assert all(e.success for e in play_missing([Worker(env, oracle)], Setting(ENTRY, "n"), keys, {}))
    played = list(play_missing([Worker(env, random)], Setting(ENTRY, "n"), keys, {}))
    assert sum(e.success for e in played) <= 3
    steps = [s for e in played for s in e.steps]
    assert sum(s.action_valid for s in steps) > 0.9 * len(steps)
    assert {s.action.partition("[")[0] for s in steps if s.action} == {"search", "finish"}
    with pytest.raises(RuntimeError, match="bind"):
        load("oracle").act("", {})


def test_random_depends_on_seed_task_and_sample_alone() -> None:
    agent = load("random")
    first = play(agent, seed=1)
    assert play(agent, seed=1) == first == play(load("random"), seed=1)
    assert play(agent, seed=2).steps != first.steps != play(agent, seed=1, sample=1).steps


def test_random_draws_admissible_actions() -> None:
    agent = load("random")
    agent.reset("", {"instruction": "", "agent_seed": 3})
    info = {"instruction": "", "step": 0, "admissible_actions": ["up", "down"]}
    assert {agent.act("", info) for _ in range(40)} == {"up", "down"}
    assert agent.act("", info | {"admissible_actions": [], "instruction": ""}).startswith("search[")


def test_record_holds_the_episode() -> None:
    env = make_env(topk=1, split="valid")
    agent = load("oracle")
    agent.bind(env)
    episode = play(agent, env, seed=4, sample=1)
    assert (episode.env, episode.tier, episode.split, episode.rules_version) == (
        ENTRY.id,
        "mini",
        "valid",
        ENTRY.rules_version,
    )
    assert (episode.agent, episode.seed, episode.sample, episode.ended) == ("n", 4, 1, "terminated")
    assert (
        episode.first_observation == f"Question: {episode.instruction}"
        and episode.success
        and episode.reward == 1.0
    )
    assert episode.extra["em"] == episode.extra["f1"] == 1.0 and episode.extra["kind"]
    assert Episode.from_json(episode.to_json()) == episode


def test_a_score_of_webshop_names_its_tagger() -> None:
    entry = find_entry("webshop")
    env = gym.make(entry.id, data="mini").unwrapped
    assert isinstance(env, TextEnv)
    agent = load_agent("oracle", env_id=entry.id, seed=0)
    agent.bind(env)
    episode = play_episode(env, entry, agent, name="n", task=env.task_ids()[0])
    assert episode.reward == 1.0 and episode.extra["tagger"] == "lexicon-1"


@pytest.mark.parametrize(
    ("agent", "options", "error"),
    [
        ("own_agents:Crashing", {}, "TimeoutError: the model did not answer ("),
        ("own_agents:nothing", {}, "must return a str, returned NoneType"),
        ("random", {"retriever": "http://127.0.0.1:9"}, "RetrieverError: no search service"),
    ],
)
def test_failures_of_the_infrastructure_are_errors(agent: str, options: dict[str, Any], error: str) -> None:
    episode = play(load(agent), make_env(**options))
    assert episode.ended == "error" and error in episode.error and not episode.success


def test_a_broken_run_stops_early() -> None:
    env = make_env()
    keys, seen = [(task, 0) for task in env.task_ids()], []
    with pytest.raises(BrokenRun, match="5 episodes in a row"):
        for episode in play_missing(
            [Worker(env, load("own_agents:Crashing"))], Setting(ENTRY, "n"), keys, {}
        ):
            seen.append(episode)
    assert len(seen) == 5 and all(e.ended == "error" for e in seen)


def test_done_is_not_played_again_but_errors_are() -> None:
    env = make_env()
    keys = [(task, 0) for task in env.task_ids()[:4]]
    done = {
        (e.task, e.sample): e
        for e in play_missing([Worker(env, load("random"))], Setting(ENTRY, "n"), keys[:3], {})
    }
    done[keys[1]].ended = "error"
    again = list(play_missing([Worker(env, load("random"))], Setting(ENTRY, "n"), keys, done))
    assert [(e.task, e.sample) for e in again] == [keys[1], keys[3]]
