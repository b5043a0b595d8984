"""scripts/studies/measure_grafts.py: rules checked by hand, and the table and case of a real group."""

from __future__ import annotations

import re
import sys
from itertools import pairwise

import pytest

from scripts.studies import graft_rules as rules
from scripts.studies import measure_grafts as script
from tstar_envs import Step, UnknownOption, find_entry


def here(env, task=0, replies=()):
    """The situation after some replies in a real environment, and the environment."""
    made = find_entry(env).make(split="train", **({"observation": "grid_coords"} if "sokoban" in env else {}))
    observation, info = made.reset(options={"task": task})
    seen = [info["instruction"], observation]
    for reply in replies:
        observation, _, _, _, info = made.step(reply)
        seen.append(observation)
    return rules.Situation(observation, "\n".join(seen), info["admissible_actions"]), made


def test_what_the_experts_think_is_about_the_state_they_are_in():
    """All four wordings of every thought of an expert's whole episode, and its actions, pass the rules."""
    for env, family in (
        ("hotpotqa", "search_qa"),
        ("webshop", "webshop"),
        ("alfworld", "alfworld"),
        ("sokoban-easy", "sokoban"),
    ):
        replies = []
        for _ in range(8):
            situation, made = here(env, 3, replies)
            for wording in range(4):
                said = made.read_reply(made.oracle(paraphrase=wording))
                if family == "search_qa" and not said.thought:
                    continue
                assert rules.problem(family, said.thought, situation) == "", (env, said.thought)
            _, _, ended, _, info = made.step(made.oracle())
            assert rules.admissible(Step.from_info("", "", info), situation.actions), (env, info["action"])
            replies.append(made_reply(info))
            if ended:
                break


def made_reply(info):
    return f"Thought: .\nAction: {info['action']}"


def test_a_thought_about_what_is_not_there_is_not_valid():
    question, _ = here("hotpotqa", 0)
    name = re.search(r"[A-Z]\w+ [A-Z]\w+", question.observation.removeprefix("Question: In"))[0]
    other = f"{name.split()[0]} Nobody"
    assert rules.problem("search_qa", f"I need to find {name} first.", question) == ""
    assert "Nobody" in rules.problem("search_qa", f"I need to find {other} first.", question)
    assert "1875" in rules.problem("search_qa", f"1875 is the birth year of {name}.", question)

    house, _ = here("alfworld", 0)
    assert rules.problem("alfworld", "I look for a kettle: none here. I try the fridge 1 next.", house) == ""
    assert "fridge 7" in rules.problem("alfworld", "To get a kettle I go to the fridge 7.", house)
    assert "spoon" in rules.problem("alfworld", "I need a spoon and see none.", house)

    shop, env = here("webshop", 0)
    words = "daily moisture shampoo bar"
    assert rules.problem("webshop", f"I search for {words}.", shop) == ""
    assert "loafers" in rules.problem("webshop", f"I search for {words} loafers.", shop)
    results, env = here("webshop", 0, [f"Thought: .\nAction: search[{words}]"])
    product = re.search(r"^(b0\w+):", results.observation, re.MULTILINE)[1]
    assert rules.problem("webshop", f"{product} is a candidate for daily moisture.", results) == ""
    assert "b0nothing" in rules.problem("webshop", "b0nothing is a candidate for daily moisture.", results)
    assert product in rules.problem("webshop", f"I open {product}.", shop)
    other = re.findall(r"^(b0\w+):", results.observation, re.MULTILINE)[1]
    opened, _ = here("webshop", 0, [f"Action: search[{words}]", f"Action: click[{product}]"])
    assert other in opened.seen and other in rules.problem("webshop", f"I open {other}.", opened)

    # ######  The box (2, 3) is to the right of the target (2, 1); the player stands at (1, 2).
    # #_P__#
    # #O_X_#
    level, _ = here("sokoban-easy", 0)
    right = "The box at (2, 3) belongs on (2, 1). It has to go left, so I need to stand at (2, 4). From (1, 2) I go right."
    assert rules.problem("sokoban", right, level) == ""
    behind = "To get the box at (2, 3) onto (2, 1) I push it left next. I am at (1, 2), right behind it."
    assert rules.problem("sokoban", behind, level) == ""
    away = "Next I push the box at (2, 3) left, though that is away from (2, 1). I have to get from (1, 2) to (2, 4), so I go right."
    assert rules.problem("sokoban", away, level) == ""
    for wrong, reason in (
        (right.replace("(2, 3)", "(3, 3)"), "boxes"),
        (right.replace("(2, 1)", "(2, 2)"), "targets"),
        (right.replace("(1, 2)", "(1, 3)"), "player"),
        (right.replace("(2, 4)", "(2, 5)"), "wall"),
        (right.replace("I go right", "I go up"), "Up is not possible"),
    ):
        assert reason in rules.problem("sokoban", wrong, level), wrong
    plain, _ = here("sokoban-easy", 0)
    with pytest.raises(UnknownOption, match="observation=grid_coords"):
        rules.problem("sokoban", right, rules.Situation(plain.observation.split("Targets")[0], ""))

    for family in rules.RULES:
        assert rules.problem(family, " ", level) == "it is empty"
        assert rules.problem(family, "It has to go, go I\ufffd to.", level) == "it is not whole"


def test_an_action_that_the_state_does_not_offer_is_not_admissible():
    house, env = here("alfworld", 0)
    for action, wanted in (("go to fridge 1", True), ("take kettle 1 from fridge 1", False)):
        info = env.step(f"Thought: .\nAction: {action}")[-1]
        assert rules.admissible(Step.from_info("", "", info), house.actions) is wanted
    question, env = here("hotpotqa", 0)
    for action, wanted in (("search[river]", True), ("dance", False)):  # an open set
        info = env.step(f"Thought: .\nAction: {action}")[-1]
        assert question.actions is None and rules.admissible(Step.from_info("", "", info), None) is wanted
    level, env = here("sokoban-easy", 0)
    info = env.step("Thought: .\nAction: Up")[-1]  # a wall: the environment takes it as a step
    assert not rules.admissible(Step.from_info("", "", info), level.actions)


@pytest.mark.parametrize(
    ("family", "graft", "failed"),
    [
        (
            "search_qa",
            ("1886 is the birth year of Ann Bo, which is the answer.", "finish[1886]"),
            ("1875 is the birth year of Ann Bo, which is the answer.", "finish[1875]"),
        ),
        (
            "search_qa",
            ("Ann Bo made Echo, so I look that up next.", "search[Ann Bo]"),
            ("Ann Bo made Echo, which is the answer.", "finish[Ann Bo]"),
        ),
        (
            "webshop",
            ("I need green, I click it.", "click[green]"),
            ("Everything fits, I buy it.", "click[buy now]"),
        ),
        (
            "webshop",
            ("The next page may have it.", "click[next >]"),
            ("This is it. I buy it.", "click[buy now]"),
        ),
        (
            "alfworld",
            ("I look for a pot: the cabinet 1 is closed, so I open it.", "open cabinet 1"),
            ("I look for a pot: none here. I try the cabinet 1 next.", "go to cabinet 1"),
        ),
        (
            "sokoban",
            ("The box at (2, 3) belongs on (2, 1). From (1, 2) I go right.", "Right"),
            ("The box at (2, 3) belongs on (2, 1). From (1, 2) I go left.", "Left"),
        ),
    ],
)
def test_a_graft_names_the_mistake_if_it_decides_and_does_something_else(family, graft, failed):
    assert rules.names_mistake(family, *graft, *failed)
    assert not rules.names_mistake(family, *failed, *failed)  # repeats the failed action
    assert not rules.names_mistake(family, graft[0], failed[1], *failed)  # decides otherwise, does the same
    assert not rules.names_mistake(
        family, failed[0], graft[1], *failed
    )  # the same decision, by chance another action
    assert not rules.names_mistake(family, graft[0], "", *failed)  # no action follows


def test_an_announced_move_counts_beside_the_one_that_follows():
    failed = "From (1, 2) I go left.", "Left"
    assert rules.names_mistake("sokoban", "From (1, 3) I step right.", "Right", *failed)
    assert not rules.names_mistake("sokoban", "From (1, 3) I step left.", "Right", *failed)
    behind = "I push the box at (2, 3) left next. I am at (2, 4), right behind it."
    assert rules.RULES["sokoban"].announced(behind) == "Left"


def test_the_table_and_the_case_of_real_groups(monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["x", "--tasks", "3", "--plays", "2", "--kinds", "branch", "--cases", "1"]
    )
    script.main()
    text = capsys.readouterr().out
    _, name, kind, grafts, valid, error, success, own, gain, paper, _ = (
        cell.strip() for cell in next(x for x in text.splitlines() if x.startswith("| hotpotqa")).split("|")
    )
    assert (name, kind, paper) == ("hotpotqa", "successful branch's own", "85, 76, 65")
    assert int(grafts.split()[0]) > 0 and all(
        0 <= float(cell.split()[0]) <= 100 for cell in (valid, error, success, own)
    )
    middle = [float(cell.split()[0]) for cell in (success, own, gain)]
    assert middle[0] - middle[1] == pytest.approx(middle[2], abs=1.1)  # each is rounded
    case = text[text.index("| task |") :].splitlines()
    assert [line.split("|")[1].strip() for line in case] == list(script.PARTS)
    assert "hotpotqa-mini-train-" in case[0] and "episodes pass here" in case[1] and "R = 1.00" in case[3]
    assert "R = 0.00" in case[4] and "valid by the rules" in case[5]


def test_cases_are_chosen_by_spread_and_are_of_different_tasks():
    study = script.play("hotpotqa", 4)
    found = script.divergences(study)
    grafts = script.make_grafts(study, found, "written")
    cases = script.chosen_cases(found, grafts, 9)
    assert cases and len({one.task for _, one in cases}) == len(cases)
    assert all(a[0][1].spread >= b[0][1].spread for a, b in pairwise(cases))
    assert all(d.node.depth > 0 and one.worst_step == d.worst_step for (_, d), one in cases)
    # The gain is that of the same states: the failed thought is played on from where each graft is.
    own = script.own_success(study, grafts, 2)
    assert set(own) == {script.place(one) for one in grafts} and all(len(row) == 2 for row in own.values())


def test_what_has_no_rules_is_refused():
    with pytest.raises(UnknownOption, match="no rules for grafts of blocksworld-stack"):
        script.family_of("blocksworld-stack")
