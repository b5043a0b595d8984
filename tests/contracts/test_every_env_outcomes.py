"""What the rules of the suite's families say passes the check that an environment of one's own has in every step."""

from dataclasses import replace

import pytest
from contract_walk import FOR_EVERY_ENV, make, reply_for

from tstar_envs import EnvEntry, TextEnv, UnknownOption
from tstar_envs.foreign import check_attributes, reset_result, stepped, task_ids_of
from tstar_envs.outcome import checked, is_plain
from tstar_envs.record import Step
from tstar_envs.utils import without_actions

pytestmark = FOR_EVERY_ENV


def test_what_its_rules_say_is_what_the_fields_name(entry: EnvEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    env = make(entry.id)
    assert env._foreign != entry.id.startswith("tstar/") and TextEnv._foreign
    monkeypatch.setattr(type(env), "_foreign", True)
    apply, seen = env._apply, []
    monkeypatch.setattr(env, "_apply", lambda *asked: seen.append(apply(*asked)) or seen[-1])
    check_attributes(env)
    for task in task_ids_of(env, env.split)[:3]:
        reset_result(env, task)
        for number in range(6):
            reply = reply_for(env, number)
            observation, _, terminated, truncated, info = stepped(env, reply)
            Step.from_info(reply, observation, info)
            if terminated or truncated:
                break
    assert len(seen) > 6
    for outcome in seen:
        listed = None if outcome.admissible is None else list(outcome.admissible)
        plain = replace(outcome, admissible=listed)
        assert is_plain(outcome) or checked(outcome) == plain, "nothing is made otherwise by the check"


def test_admissible_actions_are_listed_where_that_is_asked_for(entry: EnvEntry) -> None:
    plain = make(entry.id)
    observation, info = plain.reset(options={"task": 0})
    if info["admissible_actions"] is None:
        with pytest.raises(UnknownOption, match="has no list of admissible actions: leave out list_actions"):
            make(entry.id, list_actions=True)
        return
    listing = make(entry.id, list_actions=True)
    shown, _ = listing.reset(options={"task": 0})
    for number in range(6):
        actions = info["admissible_actions"]
        assert shown == (
            f"{observation}\nAdmissible actions: {'; '.join(actions)}" if actions else observation
        )
        assert without_actions(shown) == observation
        assert listing.restore(listing.snapshot())[0] == shown
        reply = reply_for(plain, number)
        observation, _, terminated, truncated, info = plain.step(reply)
        shown, *_, told = listing.step(reply)
        assert told == info
        if terminated or truncated:
            assert shown == observation, "nothing may follow"
            break


def test_a_long_observation_is_cut_before_the_list(entry: EnvEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    if entry.family not in ("sokoban", "alfworld"):
        return
    monkeypatch.setattr(type(make(entry.id)), "longest_observation", 900)
    env = make(entry.id, list_actions=True)
    monkeypatch.setattr(env, "_start", lambda task, start=env._start: (start(task)[0], "word " * 1000))
    observation, info = env.reset(options={"task": 0})
    listed = f"Admissible actions: {'; '.join(info['admissible_actions'])}"
    assert observation.endswith(f"[observation cut here]\n{listed}") and observation in env.observation_space
    assert len(observation) == 900
