"""The forms in which Blocksworld problems are published: what is read as the same problem, and what is refused by its name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tstar_envs import BadData, MissingData, UnknownOption
from tstar_envs.envs.blocksworld import domain_pddl, plan
from tstar_envs.envs.blocksworld.env import BlocksworldEnv
from tstar_envs.envs.blocksworld.files import load_path

INIT = "(ontable a) (on b a) (on c b) (clear c) (handempty)"
PLAN = ["unstack c b", "put-down c", "unstack b a", "stack b c"]


def problem(init: str = INIT, goal: str = "(and (on b c))", objects: str = "a b c", more: str = "") -> str:
    return f"(define (problem p)\n(:domain blocksworld)\n(:objects {objects})\n(:init {init})\n(:goal {goal}){more})\n"


@pytest.mark.parametrize(
    "text",
    [
        problem(INIT.replace("ontable", "on-table")),
        problem(INIT.replace("ontable", "on_table").replace("handempty", "hand-empty")),
        problem(INIT.replace("handempty", "arm-empty")),
        problem(INIT.replace("handempty", "empty_hand")),
        problem(INIT.replace("handempty", "emptyarm")),
        problem(f"(and {INIT})"),
        problem(f"{INIT} (block a) (block b) (block c)"),
        problem(f"(is-block a) (cube b) {INIT} (object c)"),
        problem(f"{INIT} (not (clear a)) (not (holding c)) (not (on a c))"),
        problem(f"(= (total-cost) 0) {INIT}", more="(:metric minimize (total-cost))"),
        problem(f"{INIT} {INIT}"),
        problem(goal="(on b c)"),
        problem(goal="(and (and (on b c)) (and))"),
        problem(goal="(and (block b) (on b c) (thing c))"),
        problem(objects="a b - block c - (either block thing)"),
        problem(objects="a b", more="(:constants c - block)"),
        problem(more="(:length (:serial 6) (:parallel 6))"),
        problem().upper(),
        problem().replace("\n", "\r\n"),
        problem().replace(" ", "\t"),
        "\ufeff; a comment by Jos\u00e9\n;; (define (problem other))\n" + problem(),
        problem("(planet a) (craves b a) (craves c b) (province c) (harmony)", "(and (craves b c))"),
    ],
)
def test_one_problem_in_many_forms(tmp_path: Path, text: str) -> None:
    said = plan(text)
    plain = {"feast": "unstack", "succumb": "put-down", "overcome": "stack", "attack": "pick-up"}
    assert [
        " ".join([plain.get(step.split()[0], step.split()[0]), *step.split()[1:]]) for step in said
    ] == PLAN
    path = tmp_path / "p.pddl"
    path.write_bytes(text.encode("latin-1") if "\ufeff" not in text else text.encode())
    assert BlocksworldEnv(problems=path).reset()[1]["optimal_length"] == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (problem(INIT.replace("(handempty)", "")), "3-operator domain"),
        (problem(INIT.replace("(handempty)", "(handempty) (clear table)")), "(ontable x)"),
        (
            problem(INIT.replace("(ontable a)", "(on a table)"), objects="a b c table"),
            "(ontable x): only blocks are objects",
        ),
        (
            problem(objects="a b c - block t - table"),
            "of type table: only blocks are objects here, no hand, robot or table",
        ),
        (
            problem(INIT.replace("(handempty)", "(handempty r1)"), objects="a b c - block r1 - robot"),
            "several hands or robots",
        ),
        (
            problem(INIT.replace("(handempty)", "(holding r1 c)"), objects="a b c r1"),
            "several hands or robots",
        ),
        (problem(goal="(not (on a b))"), "conditions with (not ...) are not read"),
        (problem(goal="(and (on b c) (exists (?x) (on ?x a)))"), "conditions with (exists ...) are not read"),
        (problem(goal="(and (on b c) (= a b))"), "conditions with (= ...) are not read"),
        (problem(f"{INIT} (not (on b a))"), "(on b a) is denied, but follows"),
        (problem(f"{INIT} (colour a red)"), "not a fact of the domain; its predicates are clear, ontable"),
        (problem(f"{INIT} (not (not (clear a)))"), "not a fact of the domain"),
        (problem(objects="a b c table"), "(ontable x)"),
        (problem(goal="(and (on b d))"), "constants of a domain file are not read"),
        (problem(more="(:constraints (always (clear a)))"), "(:constraints ...) would be part of the task"),
        (problem(goal="(preference p1 (on b c))"), "conditions with (preference ...)"),
        (domain_pddl() + problem(), "a file of its own"),
        (problem() + problem(), "a file of its own"),
        (problem() + domain_pddl(), "a file of its own"),
        (domain_pddl(), "this is a domain, not a problem"),
        ("<!DOCTYPE html>\n<title>Not Found</title>", "not one (define ...)"),
        ('{"problem": "p"}', "not one (define ...)"),
    ],
)
def test_other_forms_are_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "p.pddl"
    path.write_text(text)
    with pytest.raises(BadData) as caught:
        BlocksworldEnv(problems=path)
    assert (
        str(caught.value).startswith(f"{path}: ")
        and said in str(caught.value)
        and "\n" not in str(caught.value)
    )


def folder_of(tmp_path: Path) -> Path:
    folder = tmp_path / "problems"
    (folder / "train").mkdir(parents=True)
    for name, text in {
        "good.pddl": problem(),
        "train/solved.pddl": problem(goal="(and (on b a))"),
        "domain.pddl": domain_pddl(),
        "both.pddl": domain_pddl() + problem(),
        "handless.pddl": problem(INIT.replace("(handempty)", "")),
        "train/large.pddl": problem(objects=" ".join(f"x{n}" for n in range(150))),
        "cut.pddl": problem()[:-9],
    }.items():
        (folder / name).write_text(text)
    return folder


def test_all_faults_at_once_and_the_rest_is_usable(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    with pytest.raises(BadData) as caught:
        BlocksworldEnv(problems=folder)
    said = str(caught.value)
    assert (
        "4 of 6 problems cannot be used; skip_bad=True leaves out what cannot be used and keeps 2 problems"
        in said
    )
    for name in ("both.pddl", "handless.pddl", "train/large.pddl", "cut.pddl"):
        assert f"\n  {folder / name}" in said
    env = BlocksworldEnv(problems=folder, skip_bad=True)
    assert (env.task_ids("test"), env.task_ids("train")) == (("good.pddl",), ("train/solved.pddl",))
    assert env.left_out.count == 4 and sum(kind.count for kind in env.left_out.kinds) == 4
    assert env.solved_at_start == ("train/solved.pddl",)
    with pytest.raises(UnknownOption, match="skip_bad must be True or False, got 'yes'"):
        BlocksworldEnv(problems=folder, skip_bad="yes")  # type: ignore[arg-type]


def test_nothing_usable_is_refused_whatever_is_skipped(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.pddl").write_text(problem(objects=f"a b c d{number}"))
    with pytest.raises(BadData, match=r"30 of 30 problems cannot be used\n") as caught:
        load_path(tmp_path, skip_bad=True)
    assert caught.value.left_out.count == 30 and len(caught.value.left_out.kinds) == 1
    assert str(caught.value).endswith("and 10 more")
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "domain.pddl").write_text(domain_pddl())
    with pytest.raises(MissingData, match="no \\*\\.pddl problem"):
        load_path(tmp_path / "only", skip_bad=True)


def test_a_problem_that_is_solved_is_played_with_one_operator(tmp_path: Path) -> None:
    env = BlocksworldEnv(problems=folder_of(tmp_path), skip_bad=True, split="train")
    _, info = env.reset()
    assert info["optimal_length"] == 0 and env.progress() == 1.0
    _, reward, terminated, _, info = env.step(env.oracle() or "")
    assert reward == 1 and terminated and info["success"] and info["step"] == 1


WORDS = st.sampled_from(
    [
        "(ontable a)",
        "(on b a)",
        "(clear b)",
        "(handempty)",
        "(block a)",
        "(not (clear a))",
        "(= (total-cost) 3)",
    ]
)


@given(st.lists(WORDS, max_size=9))
def test_what_says_nothing_new_changes_nothing(added: list[str]) -> None:
    text = problem(f"(ontable a) (on b a) {' '.join(added)} (clear b) (handempty)", "(on a b)", "a b")
    assert plan(text) == ["unstack b a", "put-down b", "pick-up a", "stack a b"]
