"""The second expert: it uses nothing that was not shown, looks in vain now and then, and wins all the same."""

from __future__ import annotations

import gymnasium as gym
import pytest
from alfworld_small_games import kitchen
from hypothesis import given, settings
from hypothesis import strategies as st
from test_alfworld_data import LOOK, PICK

from tstar_envs import UnknownOption, parse_reply
from tstar_envs.envs.alfworld import expert
from tstar_envs.envs.alfworld.commands import seen_after, situation, transition
from tstar_envs.envs.alfworld.game import NOTHING_SEEN, Facts, Game, Goal, Wording, build_game
from tstar_envs.envs.alfworld.text import render

GOALS = (
    PICK,
    LOOK,
    Goal("mug", "table", "", 2),
    Goal("egg", "table", "", 1, frozenset({"ishot"})),
    Goal("mug", "fridge", "", 1, frozenset({"isclean"})),
)


def game_of(facts: Facts, goal: Goal) -> Game:
    return build_game(facts, goal, "Your task is to: win.", Wording())


def commands(game: Game, paraphrase: int = 0, most: int = 60) -> tuple[list[str], bool, list[str]]:
    """The commands of the expert, whether it wins, and the answers it got."""
    state, seen, played, answers = game.start, NOTHING_SEEN, [], []
    while (step := expert.next_search_step(game, state, seen, paraphrase)) is not None and len(played) < most:
        command = situation(game, state).commands[step[1]]
        state = transition(game, state, command)
        seen = seen_after(game, state, command, seen)
        played.append(step[1])
        answers.append(render(game, state, command))
    return played, game.won(state), answers


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(GOALS), st.integers(0, 10_000), st.booleans(), st.integers(0, 3))
def test_it_wins_and_takes_only_what_it_was_shown(
    goal: Goal, seed: int, shared: bool, paraphrase: int
) -> None:
    game = game_of(kitchen(goal, seed, shared=shared), goal)
    played, won, answers = commands(game, paraphrase)
    assert won
    for number, text in enumerate(played):
        if text.startswith(("take", "use")):
            thing = text.split(" from ")[0].split(" ", 1)[1]
            assert any(f"a {thing}" in answer for answer in answers[:number]), (played, answers)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(GOALS), st.integers(0, 10_000), st.integers(0, 10_000))
def test_what_lies_where_it_has_not_looked_changes_nothing(goal: Goal, seed: int, other: int) -> None:
    """Two rooms that differ only in things not shown yet are played alike until one of them is."""
    rooms = [game_of(kitchen(goal, number), goal) for number in (seed, other)]
    (first, _, answers), (second, _, also) = (commands(game) for game in rooms)
    for step, (mine, yours) in enumerate(zip(first, second, strict=False)):
        assert mine == yours, (first, second)
        if answers[step] != also[step]:
            break


def test_it_looks_in_vain_on_the_shipped_tasks_where_the_other_expert_never_does() -> None:
    env = gym.make("tstar/ALFWorld").unwrapped
    vain = {"expert": 0, "search": 0}
    won = dict.fromkeys(vain, 0)
    for kind in vain:
        for task in env.task_ids("test"):
            _, info = env.reset(options={"task": task})
            looks = 0
            while (reply := env.oracle(kind=kind)) is not None:
                *_, info = env.step(reply)
                looks += (
                    parse_reply(reply).action.startswith(("go to", "open"))
                    and "need" in parse_reply(reply).thought
                )
            won[kind] += info["success"]
            vain[kind] += looks > 2
    assert vain["search"] > 80 and won["expert"] == 140 and won["search"] >= 130


def test_demonstrations_search_and_progress_knows() -> None:
    env = gym.make("tstar/ALFWorld").unwrapped
    shown = env.demonstrations(12)
    longest = max(text.count("Action:") for text in shown)
    env.reset(options={"task": 0})
    before = env.progress()
    snapshot = env.snapshot()
    answers = [env.oracle(kind="search"), env.oracle()]
    env.step("look")
    env.restore(snapshot)
    assert [env.oracle(kind="search"), env.oracle()] == answers and env.progress() == before == 0
    assert longest > 8, "some of them look in several places"


def test_families_without_a_second_expert_say_so() -> None:
    for name in ("tstar/Sokoban-easy", "tstar/WebShop", "tstar/HotpotQA"):
        env = gym.make(name).unwrapped
        env.reset(seed=0)
        assert env.oracle() == env.oracle(kind="expert")
        with pytest.raises(UnknownOption, match="kind must be"):
            env.oracle(kind="search")
    with pytest.raises(UnknownOption, match="'expert', 'search'"):
        env = gym.make("tstar/ALFWorld").unwrapped
        env.reset(seed=0)
        env.oracle(kind="planner")


def test_all_that_was_seen_and_no_way_to_win_is_an_end() -> None:
    facts = kitchen(PICK, 3, objects=("egg", "knife"))  # no mug anywhere
    game = game_of(facts, PICK)
    played, won, _ = commands(game)
    assert (
        not won
        and expert.next_search_step(game, game.start, frozenset(game.reachable)) is None
        and len(played) <= 10
    )
    assert expert.next_step(game, game.start) is None
