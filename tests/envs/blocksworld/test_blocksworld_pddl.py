"""PDDL in and out: what is written is read again, other people's spellings are read, faults are named."""

import re
from pathlib import Path

import pytest
from blocksworld_strategies import problems
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_envs import BadData, MissingData, SolverLimit, UnknownOption, UnknownTask
from tstar_envs.envs.blocksworld import domain_pddl, plan
from tstar_envs.envs.blocksworld.env import BlocksworldEnv
from tstar_envs.envs.blocksworld.files import read_problem, write_problem
from tstar_envs.envs.blocksworld.language import MYSTERY, PLAIN, Vocabulary
from tstar_envs.envs.blocksworld.problem import Goal, Problem, State

# Each tower covers what the other one needs: which of them is cleared first has to be searched for.
TOWERS = """(define (problem p) (:domain d) (:objects a b c d e f)
  (:init (handempty) (ontable a) (on b a) (on c b) (clear c) (ontable d) (on e d) (on f e) (clear f))
  (:goal (and (on b d) (on e a))))"""
TWO = """
; a on b, wanted the other way round
(define (problem Two) (:domain BLOCKS)
  (:objects A B - block)
  (:init (ARM-EMPTY) (on a b) (on-table b) (clear a))
  (:goal (AND (on b a))))
"""
PLAN = ["unstack a b", "put-down a", "pick-up b", "stack b a"]


@given(problems(most_blocks=6))
@pytest.mark.parametrize("vocabulary", [PLAIN, MYSTERY], ids=["plain", "mystery"])
def test_round_trip(vocabulary: Vocabulary, problem: tuple[State, Goal]) -> None:
    """Any state, a block in the hand too, and any facts as a goal."""
    state, goal = problem
    written = Problem(tuple(f"b{n}" for n in range(len(state))), state, goal)
    assert read_problem(write_problem(written, "A title; with (signs)", vocabulary), "it") == (
        written,
        vocabulary,
    )


def test_other_spellings() -> None:
    assert plan(TWO) == PLAN
    nested = TWO.replace("(AND (on b a))", "(and (and (on b a)) (and))")
    assert plan(nested) == plan(TWO.replace("(AND (on b a))", "(on b a)")) == PLAN


def test_domain_has_the_four_operators() -> None:
    assert re.findall(r"\(:action (\S+)", domain_pddl()) == ["pick-up", "put-down", "stack", "unstack"]
    assert re.findall(r"\(:action (\S+)", domain_pddl(mystery=True)) == [
        "attack",
        "succumb",
        "overcome",
        "feast",
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("(define", "(undefine", "not one (define ...)"),
        ("(on b a))))", "(on b a)))", "1 closing parentheses are missing"),
        ("(on b a))))", "(on b a)))))", "a closing parenthesis too many"),
        ("(:goal", "(:gaol", "section (:goal ...) is missing"),
        ("(:goal", "(:init) (:goal", "section :init occurs twice"),
        ("(:goal", "goal (:goal", "goal is not a section"),
        ("A B - block", "", "must name 1 to 100 blocks, not 0"),
        ("A B", "A B a", "names a twice"),
        ("A B", "A B ?x", "holds ?x, which is not a name"),
        ("A B", "A B C", "does not say where c is"),
        (
            "(on b a)",
            "(above b a)",
            "(:goal ...) holds (above b a), which is not a fact of the domain; its predicates are clear",
        ),
        ("(on b a)", "(not (on a b))", "holds (not (...)), which is not a fact"),
        ("(on b a)", "(on b)", "on takes 2 blocks, not 1"),
        ("(on b a)", "(on b c)", "c is not among the objects"),
        ("(on b a)", "(on b (a))", "(on b (...)), but (a) is not among the objects"),
        ("(on b a)", "(on b a) (ontable b)", "the goal cannot be reached: b would have to be in two places"),
        ("(AND (on b a))", "(on b a) (on a b)", "must hold one condition"),
        ("(clear a)", "", "(clear a) is missing"),
        ("(clear a)", "(clear a) (clear b)", "(clear b) contradicts"),
        ("(ARM-EMPTY)", "", "(handempty) is missing"),
        ("(ARM-EMPTY)", "(holding a)", "a is in two places"),
        ("(on a b)", "(on a b) (ontable a)", "a is in two places"),
        ("(on a b) (on-table b)", "(on a b) (on b a)", "a is in a circle"),
        ("(on a b) (on-table b)", "(on a b) (holding b)", "a is on a block that is held"),
        ("(on a b) (on-table b)", "(holding a) (holding b)", "2 blocks are held"),
    ],
)
def test_faults_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    text = TWO.replace(old, new, 1)
    assert text != TWO
    with pytest.raises(BadData) as caught:
        plan(text)
    assert str(caught.value).startswith("PDDL problem: ") and said in str(caught.value)
    path = tmp_path / "bad.pddl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadData) as caught:
        BlocksworldEnv(problems=str(path))
    assert str(caught.value).startswith(f"{path}: ") and said in str(caught.value)


def test_two_blocks_on_one() -> None:
    text = TWO.replace("A B", "A B C").replace("(on a b)", "(on a b) (on c b) (clear c)")
    with pytest.raises(BadData, match="2 blocks are on b"):
        plan(text)


@pytest.mark.parametrize("blocks", [100, 101])
def test_a_hundred_blocks_in_one_tower(tmp_path: Path, blocks: int) -> None:
    path = tmp_path / "high.pddl"
    init = f"(handempty) (ontable b0) (clear b{blocks - 1}) " + " ".join(
        f"(on b{n + 1} b{n})" for n in range(blocks - 1)
    )
    objects = " ".join(f"b{n}" for n in range(blocks))
    path.write_text(
        f"(define (problem p) (:domain d) (:objects {objects}) (:init {init}) (:goal (on b0 b{blocks - 1})))",
        encoding="utf-8",
    )
    if blocks > 100:
        with pytest.raises(BadData, match="must name 1 to 100 blocks, not 101"):
            BlocksworldEnv(problems=str(path))
        return
    env = BlocksworldEnv(problems=str(path), horizon=300)
    observation, info = env.reset()
    assert not observation.endswith("[observation cut here]") and info["optimal_length"] == 2 * blocks
    while (reply := env.oracle()) is not None:
        info = env.step(reply)[4]
    assert info["success"] and info["step"] == 2 * blocks


def test_deep_nesting_is_no_crash() -> None:
    for text in (
        "(" * 50_000,
        "(" * 50_000 + ")" * 50_000,
        TWO.replace("(on b a)", "(and " * 20_000 + "(on b a)" + ")" * 20_000),
    ):
        try:
            assert plan(text) == PLAN
        except BadData as error:
            assert len(str(error)) < 500


TOKENS = st.sampled_from("( ) (( )) and not on clear a b x :init :goal = - ; define \x00".split())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 3), st.lists(TOKENS, max_size=3)), min_size=1, max_size=3
    )
)
def test_a_text_with_faults_is_read_or_refused(faults: list[tuple[int, int, list[str]]]) -> None:
    words = TWO.replace("(", " ( ").replace(")", " ) ").split()
    for place, left_out, put_in in faults:
        words[place : place + left_out] = put_in
    try:
        assert plan(" ".join(words)) is not None
    except BadData as error:
        assert len(str(error)) < 500


def test_what_other_writers_add() -> None:
    assert plan("\ufeff" + TWO) == PLAN
    assert plan(TWO.replace("(:init", "(:init (= (total-cost) 0)")) == PLAN


def test_a_problem_file(tmp_path: Path) -> None:
    path = tmp_path / "two.pddl"
    path.write_text(TWO, encoding="utf-8")
    env = BlocksworldEnv(problems=str(path), observation="compact")
    observation, info = env.reset()
    assert (env.tier, info["task_id"], info["split"], info["optimal_length"]) == (
        "path",
        "two.pddl",
        "test",
        4,
    )
    assert observation == "goal: a b\nhand: empty | towers: b a"
    for action in PLAN:
        _, reward, terminated, _, info = env.step(action)
    assert reward == 1.0 and terminated and info["success"]
    with pytest.raises(UnknownTask, match=r"three\.pddl"):
        env.reset(options={"task": "three.pddl"})


def test_a_folder_of_problems(tmp_path: Path) -> None:
    (tmp_path / "domain.pddl").write_text(domain_pddl(), encoding="utf-8")
    for name in ("b.pddl", "a.pddl", "train/c.pddl", "valid/deeper/d.pddl", "other/e.pddl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(TWO, encoding="utf-8")
    (tmp_path / "notes.txt").write_text("no problem", encoding="utf-8")
    env = BlocksworldEnv(problems=str(tmp_path))
    assert env.task_ids("test") == ("a.pddl", "b.pddl", "other/e.pddl")
    assert (env.task_ids("train"), env.task_ids("valid")) == (("train/c.pddl",), ("valid/deeper/d.pddl",))
    assert env.reset(options={"task": "valid/deeper/d.pddl"})[1]["split"] == "valid"
    while (reply := env.oracle()) is not None:
        info = env.step(reply)[4]
    assert info["success"] and info["step"] == 4
    assert BlocksworldEnv(data=tmp_path).task_ids("test") == env.task_ids("test")
    (tmp_path / "b.pddl").unlink()
    assert BlocksworldEnv(problems=tmp_path).task_ids("test") == ("a.pddl", "other/e.pddl"), (
        "what has changed is read anew"
    )


def test_a_changed_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "p.pddl"
    path.write_text(TWO, encoding="utf-8")
    before = BlocksworldEnv(problems=path).reset()[0]
    path.write_text(TWO.replace("(on b a)", "(clear b)"), encoding="utf-8")
    after = BlocksworldEnv(problems=path).reset()[0]
    assert "b is on top" in before and after.startswith("Goal: block b is clear.")


def test_a_problem_beyond_the_planner_can_be_played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tstar_envs.envs.blocksworld.solver.MOST_NODES", 1)
    path = tmp_path / "large.pddl"
    path.write_text(TOWERS, encoding="utf-8")
    env = BlocksworldEnv(problems=str(path))
    _, info = env.reset()
    assert info["optimal_length"] is None and env.step(info["admissible_actions"][0])[4]["action_valid"]
    for ask in (env.oracle, env.progress, lambda: env.mistake(0)):
        with pytest.raises(
            SolverLimit, match="no shortest plan for these 6 blocks was found in 1 steps of the search"
        ):
            ask()
    monkeypatch.undo()
    assert env.oracle() is not None
    assert BlocksworldEnv(problems=str(path), names="letters").reset()[1]["optimal_length"] == len(
        plan(TOWERS)
    )


def test_a_block_called_table(tmp_path: Path) -> None:
    path = tmp_path / "table.pddl"
    init, goal = "(handempty) (ontable a) (on table a) (clear table)", "(on a table)"
    path.write_text(
        f"(define (problem p) (:domain d) (:objects a table) (:init {init}) (:goal {goal}))", encoding="utf-8"
    )
    with pytest.raises(UnknownOption, match="a block of this problem is called 'table'.*names='letters'"):
        BlocksworldEnv(problems=str(path), observation="compact").reset()
    assert "table" in BlocksworldEnv(problems=str(path)).reset()[0]
    assert (
        BlocksworldEnv(problems=str(path), observation="compact", names="letters").reset()[1]["blocks"] == 2
    )


def test_unusable_paths_are_named(tmp_path: Path) -> None:
    for option in ("problems", "data"):
        with pytest.raises(
            MissingData,
            match=f"^{option}='.*nowhere': there is no such file or folder; give .*a PDDL problem file",
        ):
            BlocksworldEnv(**{option: str(tmp_path / "nowhere")})
        with pytest.raises(UnknownOption, match=f"{option}='' is not a path"):
            BlocksworldEnv(**{option: ""})
    with pytest.raises(MissingData, match=r"no \*\.pddl problem"):
        BlocksworldEnv(problems=str(tmp_path))
    solved = tmp_path / "solved.pddl"
    solved.write_bytes(b"\xff\xfe(define")
    with pytest.raises(BadData, match=r"solved\.pddl: not a text file"):
        BlocksworldEnv(problems=str(tmp_path))
    solved.write_text(domain_pddl(), encoding="utf-8")
    with pytest.raises(BadData, match=r"solved\.pddl: this is a domain, not a problem"):
        BlocksworldEnv(problems=str(solved))


def test_goals_about_the_hand_and_clear_blocks(tmp_path: Path) -> None:
    """Facts that no shipped goal has: the environment ends when they hold, with a block in the hand."""
    path = tmp_path / "hand.pddl"
    path.write_text(TWO.replace("(on b a)", "(holding b) (clear a)"), encoding="utf-8")
    for names in ("own", "mystery"):
        for observation in ("natural", "compact"):
            env = BlocksworldEnv(problems=str(path), names=names, observation=observation)
            first, info = env.reset()
            assert info["instruction"] in first and info["optimal_length"] == 3
            while (reply := env.oracle()) is not None:
                info = env.step(reply)[4]
            assert info["success"] and info["step"] == 3


def test_too_many_blocks_for_the_names(tmp_path: Path) -> None:
    names = [f"b{n:02d}" for n in range(27)]
    init = " ".join(f"(ontable {name}) (clear {name})" for name in names)
    text = f"(define (problem p) (:domain d) (:objects {' '.join(names)}) (:init (handempty) {init}) (:goal (on b00 b26)))"
    path = tmp_path / "many.pddl"
    path.write_text(text, encoding="utf-8")
    for option, supply in (("colours", 12), ("letters", 26), ("mystery", 26)):
        with pytest.raises(UnknownOption, match=f"has {supply} names, but this problem has 27"):
            BlocksworldEnv(problems=str(path), names=option).reset()
    assert BlocksworldEnv(problems=str(path)).reset()[1]["blocks"] == 27


@pytest.mark.parametrize("names", ["own", "colours", "letters", "mystery"])
def test_the_current_task_as_pddl(names: str) -> None:
    """The plan of the written problem is the oracle's, word for word, whatever the names."""
    for variant in ("stack", "unstack"):
        env = BlocksworldEnv(variant=variant, names=names)
        for task in range(10):
            env.reset(options={"task": task})
            text = env.problem_text()
            env.step("Action: anything")
            assert env.problem_text() == text
            for action in plan(text):
                *_, info = env.step(action)
                assert info["action"] == action
            assert info["success"]
