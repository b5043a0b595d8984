"""Blocksworld as it is played: texts, actions in every form, refusals, tags, thoughts and mistakes."""

import copy
import pickle
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import pytest
from blocksworld_strategies import problems, states
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_envs import ResetNeeded, UnknownOption, parse_reply
from tstar_envs.envs.blocksworld import expert, rules
from tstar_envs.envs.blocksworld.env import BlocksworldEnv
from tstar_envs.envs.blocksworld.expert import WORDINGS, tower_progress
from tstar_envs.envs.blocksworld.language import read_problem, read_words
from tstar_envs.envs.blocksworld.problem import (
    ANYWHERE,
    HAND,
    STACK,
    Fact,
    Goal,
    Problem,
    State,
    Task,
    fact_holds,
    legal_operators,
    towers,
    transition,
)
from tstar_envs.envs.blocksworld.rules import TaskView, ViewOptions, view_of
from tstar_envs.envs.blocksworld.solver import Step
from tstar_envs.envs.blocksworld.tasks import task_set
from tstar_envs.envs.blocksworld.text import picture
from tstar_envs.snapshot import hash_state, state_hasher
from tstar_envs.utils import StableRandom

# red on blue, green and gold alone; wanted: blue on red, and gold on the table
PROBLEM = read_problem("blue red / green / gold", "red blue / table gold")
STYLES = [
    (names, observation)
    for names in ("own", "colours", "letters", "mystery")
    for observation in ("natural", "compact")
]


def started(
    problem: Problem = PROBLEM, names: str = "own", observation: str = "compact", horizon: int = 40
) -> BlocksworldEnv:
    tasks = task_set("test", [Task("one", "test", problem)])
    env = BlocksworldEnv(task_set=tasks, names=names, observation=observation, horizon=horizon)
    env.reset()
    return env


def test_compact_texts() -> None:
    env = started()
    assert env.reset()[0] == "goal: red blue / table gold\nhand: empty | towers: blue red / green / gold"
    assert env.step("unstack red blue")[0] == "hand: red | towers: blue / green / gold"
    assert env.step("stack red gold")[0] == "hand: empty | towers: blue / green / gold red"


def test_natural_texts() -> None:
    env = started(observation="natural")
    assert env.reset()[0] == (
        "Goal: the blue block is on top of the red block, the gold block is on the table.\n"
        "State: the hand is empty, the red block is clear, the red block is on top of the blue block, the blue block is on the table, "
        "the green block is clear, the green block is on the table, the gold block is clear, the gold block is on the table."
    )
    assert env.step("pick-up gold")[0].startswith(
        "State: the hand is currently holding the gold block, the red block is clear,"
    )


def test_mystery_texts() -> None:
    env = started(names="mystery", observation="natural")  # blue, gold, green, red are a, b, c, d
    assert env.reset()[0] == (
        "Goal: object a craves object d, planet object b.\n"
        "State: harmony, province object d, object d craves object a, planet object a, province object c, planet object c, "
        "province object b, planet object b."
    )
    assert env.step("attack b")[0].startswith("State: pain object b, province object d,")
    compact = started(names="mystery")
    assert compact.reset()[0].startswith(
        "goal: a craves d, planet b\nstate: harmony, province d, d craves a, planet a,"
    )


def test_names() -> None:
    letters = started(names="letters", observation="natural")
    assert "block a is on top of block d" in letters.reset()[0], (
        "letters in the alphabetical order of the own names"
    )
    assert started(names="colours").reset()[0] == started().reset()[0], "colours stay"
    other = Problem(("x", "y"), (1, -1), read_problem("a b", "b a").goal)
    assert started(other, names="colours").reset()[1]["admissible_actions"] == ["unstack red blue"]
    assert "block x is on top of block y" in started(other, observation="natural").reset()[0]


ACTIONS = {
    "pick-up green": (
        "Pick-Up GREEN",
        "pick up the green block",
        "Pick up green.",
        "pickup green block",
        "(pick-up green)",
    ),
    "unstack red blue": (
        "unstack the red block from on top of the blue block",
        "UNSTACK red from blue",
        "unstack red block from the top of blue block",
        "(unstack red blue)",
        "`unstack  red \t blue`",
        "<think>hm</think><action>unstack the red block from the blue block</action>",
    ),
}
HOLDING_GREEN = {
    "put-down green": ("put down the green block", "putdown green", "PUT-DOWN green!", "(put-down GREEN)"),
    "stack green gold": (
        "stack the green block on top of the gold block",
        "Stack green on gold",
        "stack green onto gold",
        "(stack green gold)",
        "Thought: on gold it waits.\nAction: stack the green block on the gold block.",
    ),
}


@pytest.mark.parametrize("observation", ["natural", "compact"])
def test_actions_in_every_form(observation: str) -> None:
    for before, forms in (((), ACTIONS), (("pick-up green",), HOLDING_GREEN)):
        for canonical, written in forms.items():
            for form in (canonical, *written):
                env = started(observation=observation)
                for action in before:
                    env.step(action)
                *_, info = env.step(form)
                assert (info["action"], info["action_valid"], info["effect_key"]) == (
                    canonical,
                    True,
                    canonical,
                ), form
                assert env.modifies_state(
                    form.partition("<action>")[2].removesuffix("</action>") or parse_reply(form).action
                )


def test_mystery_actions() -> None:
    for forms in (
        ("attack c", "Attack object c", "attack the object c"),
        ("feast d a", "feast object d from object a", "(feast d a)"),
    ):
        for form in forms:
            env = started(names="mystery", observation="natural")
            assert env.step(form)[4]["action"] == forms[0] and env.modifies_state(form)
    env = started(names="mystery")
    env.step("attack c")
    assert env.step("overcome object c from object b")[4]["effect_key"] == "overcome c b"
    env.step("feast c b")
    assert env.step("succumb object c")[4]["effect_key"] == "succumb c"
    *_, info = env.step("pick-up c")
    assert (
        not info["action_valid"]
        and "attack X, succumb X, overcome X Y or feast X Y" in info["invalid_reason"]
    )


@given(st.data(), st.sampled_from(STYLES))
@settings(max_examples=60, deadline=None)
def test_every_operator_can_be_said_in_both_ways(data: st.DataObject, style: tuple[str, str]) -> None:
    env = started(names=style[0], observation=style[1])
    for _ in range(4):
        before = env.snapshot()
        language, state = env.task.language, env.state
        operators = {language.action(op): op for op in legal_operators(state, towers(state))}
        _, info = env.restore(before)
        assert info["admissible_actions"] == list(operators)
        chosen = data.draw(st.sampled_from(list(operators)))
        expected = env.step(chosen)
        for words in (chosen.upper(), language.act(operators[chosen])):
            env.restore(before)
            assert env.step(words) == expected
        assert (expected[4]["modifies_state"], expected[4]["effect_key"]) == (True, chosen)
        if expected[2]:
            return


@pytest.mark.parametrize(
    ("action", "canonical", "reason"),
    [
        ("pick-up blue", "pick-up blue", "pick-up blue needs: blue is clear; but red is on blue"),
        ("pick-up red", "pick-up red", "pick-up red needs: red is on the table; but red is on blue"),
        ("put-down red", "put-down red", "put-down red needs: the hand holds red; but the hand is empty"),
        (
            "stack red gold",
            "stack red gold",
            "stack red gold needs: the hand holds red; but the hand is empty",
        ),
        (
            "unstack gold blue",
            "unstack gold blue",
            "unstack gold blue needs: gold is on blue; but gold is on the table",
        ),
        ("unstack red red", "unstack red red", "unstack red red needs: red is on red; but red is on blue"),
        ("pick-up purple", "", "there is no block 'purple'; there are blue, red, green, gold"),
        ("stack red", "", "the action must be pick-up X, put-down X, stack X Y or unstack X Y"),
        ("move red to blue", "", "the action must be pick-up X, put-down X, stack X Y or unstack X Y"),
        ("pick-up red blue", "", "the action must be pick-up X, put-down X, stack X Y or unstack X Y"),
    ],
)
def test_illegal_operators_change_nothing(action: str, canonical: str, reason: str) -> None:
    env = started()
    before = env.state_key()
    observation, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["step"]) == (0.0, False, False, 1)
    assert observation == f"Invalid action: {reason}.\nhand: empty | towers: blue red / green / gold"
    assert (info["action"], info["action_valid"], info["invalid_reason"]) == (canonical, False, reason)
    assert (info["effect_key"], info["modifies_state"], env.state_key()) == ("", False, before)
    assert info["admissible_actions"] == ["unstack red blue", "pick-up green", "pick-up gold"]


def test_illegal_with_a_block_in_the_hand() -> None:
    env = started(observation="natural")
    env.step("unstack red blue")
    for action, reason in (
        ("pick-up green", "the hand is empty; but the hand is currently holding the red block"),
        ("unstack red blue", "the hand is empty; but the hand is currently holding the red block"),
        (
            "put-down green",
            "the hand is currently holding the green block; but the hand is currently holding the red block",
        ),
        ("stack red red", "the red block is clear; but the hand is currently holding the red block"),
    ):
        *_, info = env.step(action)
        assert info["invalid_reason"] == f"{action} needs: {reason}"


def test_state_key_is_the_configuration() -> None:
    one, other = started(), started(observation="natural")
    for action in ("pick-up green", "stack green gold", "unstack red blue", "put-down red"):
        one.step(action)
    for action in (
        "unstack red blue",
        "nonsense",
        "put-down red",
        "pick-up gold",
        "put-down gold",
        "pick-up green",
        "stack green gold",
    ):
        other.step(action)
    assert one.state_key() == other.state_key()
    one.step("pick-up red")
    assert one.state_key() != other.state_key()


def test_the_goal_is_partial() -> None:
    """Where green stands is nobody's business, and blue on red may stand on it."""
    env = started()
    for action in ("unstack red blue", "stack red green", "pick-up blue"):
        assert not env.step(action)[2]
    observation, reward, terminated, truncated, info = env.step("stack blue red")
    assert observation == "hand: empty | towers: green red blue / gold\nThe goal is reached."
    assert (reward, terminated, truncated, info["success"], info["score"]) == (1.0, True, False, True, 1.0)
    assert env.progress() == 1.0 and env.oracle() is None


def test_progress_is_exact() -> None:
    env = started()
    for action, left in (
        ("unstack red blue", 3),
        ("stack red gold", 2),
        ("unstack red gold", 3),
        ("put-down red", 2),
        ("pick-up gold", 3),
    ):
        env.step(action)
        assert env.progress() == pytest.approx(1 - left / 4)
    assert started().reset()[1]["optimal_length"] == 4


def test_reset_tells_size_and_length() -> None:
    _, info = BlocksworldEnv(variant="unstack").reset(options={"task": "blocksworld-unstack-mini-test-0001"})
    assert (info["blocks"], info["optimal_length"], len(info["admissible_actions"])) == (6, 14, 1)


@pytest.mark.parametrize(("names", "observation"), STYLES)
@pytest.mark.parametrize("variant", ["stack", "unstack"])
def test_the_oracle_wins_in_every_style(variant: str, names: str, observation: str) -> None:
    env = BlocksworldEnv(variant=variant, names=names, observation=observation)
    for task in range(8):
        _, info = env.reset(options={"task": task})
        expected = info["optimal_length"]
        while (reply := env.oracle(task)) is not None:
            *_, info = env.step(reply)
        assert info["success"] and info["step"] == expected


def view_for(problem: tuple[State, Goal], observation: str) -> TaskView:
    names = tuple(f"n{number}" for number in range(len(problem[0])))
    return TaskView(Task("t", "test", Problem(names, *problem)), ViewOptions("own", observation))


class Spoken(NamedTuple):
    """A reply of the expert and where it was given."""

    view: TaskView
    state: State
    step: Step
    thought: str
    action: str

    @property
    def goal(self) -> Goal:
        return self.view.task.problem.goal

    @property
    def block(self) -> int:
        """The block of the action."""
        return self.step.operator.block

    @property
    def wanted(self) -> list[Fact]:
        """Facts of the goal that the thought says."""
        wish = self.view.language.wish
        return [fact for fact in self.goal.facts if wish(fact) in self.thought.lower()]

    def says(self, *words: str) -> bool:
        return any(said in self.thought for said in words)


def on_the_way(problem: tuple[State, Goal], observation: str, paraphrase: int) -> Iterator[Spoken]:
    """What the expert says from a state to the goal."""
    view = view_for(problem, observation)
    state, goal = problem
    while (step := view.expert.first_step(state)) is not None:
        yield Spoken(view, state, step, *view.expert.next_step(state, paraphrase))
        state = transition(state, step.operator)
    assert goal.holds(state)


# Problems that lead to thoughts which are rare elsewhere: a block between two others, and one that others must be on.
RARE = [read_problem("a y z x", "a z"), read_problem("y z x", "x y")]


@pytest.fixture(scope="module")
def spoken() -> list[Spoken]:
    """What the expert says on its way to the goal from any state, in 150 problems that Hypothesis draws, and in rare ones."""
    replies = [
        reply
        for problem in RARE
        for paraphrase in range(WORDINGS)
        for reply in on_the_way((problem.start, problem.goal), "natural", paraphrase)
    ]

    @settings(max_examples=150, deadline=None)
    @given(problems(most_blocks=7), st.sampled_from(["natural", "compact"]), st.integers(0, WORDINGS - 1))
    def play(problem: tuple[State, Goal], observation: str, paraphrase: int) -> None:
        replies.extend(on_the_way(problem, observation, paraphrase))

    play()
    return replies


def test_a_thought_is_short_and_names_the_block_of_the_action(spoken: list[Spoken]) -> None:
    for reply in spoken:
        assert len(reply.thought) <= 500 and reply.action.split()[1] in reply.thought, reply.thought


def test_what_a_thought_calls_wanted_is_a_fact_of_the_goal(spoken: list[Spoken]) -> None:
    for reply in spoken:
        assert len(reply.wanted) == reply.thought.count(" must "), reply.thought
    assert any(reply.wanted for reply in spoken)


def test_a_block_that_is_said_to_be_in_the_way_stands_over_one_that_is_wanted_elsewhere(
    spoken: list[Spoken],
) -> None:
    said = [reply for reply in spoken if reply.says("in the way, ") and not reply.says("nothing")]
    for reply in said:
        under, below = reply.state[reply.block], set()
        while under >= 0:
            below.add(under)
            under = reply.state[under]
        assert any(below & {fact.block, fact.under} and fact.block != reply.block for fact in reply.wanted), (
            reply.thought
        )
    assert said


def test_a_block_that_is_said_to_stand_between_does(spoken: list[Spoken]) -> None:
    said = [reply for reply in spoken if reply.says("between ")]
    for reply in said:
        fact = next(fact for fact in reply.wanted if fact.block == reply.block)
        under = reply.state[fact.block]
        assert reply.view.language.block(under) in reply.thought.lower() and under != fact.under
    assert said


def test_a_block_that_is_said_to_need_no_place_has_none_in_the_goal(spoken: list[Spoken]) -> None:
    said = [
        reply
        for reply in spoken
        if reply.says("may be anywhere", "needs no place", "goes aside", "only in the way")
    ]
    for reply in said:
        assert reply.goal.below[reply.block] == ANYWHERE and reply.goal.held != reply.block, reply.thought
        assert reply.block not in reply.goal.below or "must" in reply.thought, (
            "what others must be on is not only in the way"
        )
    assert said


def test_a_block_that_is_said_to_bear_what_the_goal_builds_does(spoken: list[Spoken]) -> None:
    said = [
        reply
        for reply in spoken
        if reply.says("comes first, because", "bears what the goal", "Something of the goal begins")
    ]
    for reply in said:
        assert reply.goal.below[reply.block] == ANYWHERE and reply.block in reply.goal.below, reply.thought
    assert said


BLOCKS = re.compile(
    r"\b(place|way|between|free|ready|off|top|towers?|stack\w*|hand|table|clear|anywhere|aside|blocks?|elsewhere|under|above)\b"
)


@pytest.mark.parametrize("variant", ["stack", "unstack"])
def test_mystery_words_give_no_blocks_away(variant: str) -> None:
    env = BlocksworldEnv(variant=variant, names="mystery")
    texts = [env.prompt(), *env.demonstrations(3)]
    for task in range(40):
        texts.append(env.reset(options={"task": task})[0])
        while env.oracle() is not None:
            texts += [env.oracle(paraphrase) or "" for paraphrase in range(WORDINGS)] + [env.mistake(task)]
            assert len({parse_reply(thought).thought for thought in texts[-WORDINGS - 1 : -1]}) == WORDINGS
            texts.append(env.step(texts[-2])[0])
        texts.append(env.step("unstack a b")[0] if not env.over else "")
    found = {match[0] for text in texts for match in BLOCKS.finditer(text.lower())}
    assert not found, found


@settings(max_examples=150, deadline=None)
@given(problems(most_blocks=7))
def test_the_progress_of_towers_is_true_and_decides(problem: tuple[State, Goal]) -> None:
    """Every fact holds; what is in place is as the goal wants it, bottom first, and a block is stacked on one in place."""
    view = view_for(problem, "compact")
    state, goal = problem
    while (step := view.expert.first_step(state)) is not None:
        looks = list(tower_progress(goal, state, step.operator.block))
        for look in looks:
            if isinstance(look, list):
                assert all(
                    goal.below[block] in (ANYWHERE, state[block]) and state[block] != HAND for block in look
                )
                assert all(goal.below[block] == under == state[block] for under, block in pairwise(look))
            else:
                assert fact_holds(state, look)
        ready = [look for look in looks if isinstance(look, list) and look[-1] == step.operator.under]
        assert step.operator.verb != STACK or ready, "what is stacked on stands"
        state = transition(state, step.operator)


def test_wordings_differ_in_words_only() -> None:
    env = BlocksworldEnv(variant="unstack", observation="compact")
    for task in range(20):
        env.reset(options={"task": task})
        while env.oracle() is not None:
            replies = [parse_reply(env.oracle(paraphrase) or "") for paraphrase in range(WORDINGS + 1)]
            assert len({reply.action for reply in replies}) == 1
            assert len({reply.thought for reply in replies}) == WORDINGS and replies[0] == replies[WORDINGS]
            env.step(replies[0].action)


@settings(max_examples=100, deadline=None)
@given(problems(most_blocks=7), st.integers(0, 5))
def test_mistakes_lead_away(problem: tuple[State, Goal], seed: int) -> None:
    view = view_for(problem, "compact")
    state = problem[0]
    thought, action = view.expert.mistake(state, StableRandom(seed))
    assert thought and read_words(action, view.language.vocabulary) is not None
    outcome = rules.apply(view, state, action)
    ways = [transition(state, operator) for operator in legal_operators(state, towers(state))]
    if outcome.invalid_reason:
        assert all(view.expert.distance(after) < view.expert.distance(state) for after in ways), (
            "only where every legal operator leads nearer"
        )
    else:
        assert view.expert.distance(outcome.state) >= view.expert.distance(state)


def test_what_is_kept_is_bounded_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def play() -> list[object]:
        view_of.cache_clear()
        env = BlocksworldEnv(observation="natural", horizon=10_000)
        seen: list[object] = []
        for task in range(3):
            _, info = env.reset(options={"task": task})
            draw = StableRandom(task)
            for _ in range(200):
                seen.append((env.oracle(), env.progress()))
                step = env.step(draw.choice(info["admissible_actions"]))
                seen.append(step)
                info = step[4]
                if step[2]:
                    break
        assert len(env.task.expert.known) <= expert.MOST_KNOWN
        return seen

    expected = play()
    monkeypatch.setattr(expert, "MOST_KNOWN", 40)
    assert play() == expected


def test_threads_do_not_disturb_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(seed: int) -> list[object]:
        env, draw, seen = BlocksworldEnv(), StableRandom(seed), []
        for task in range(6):
            _, info = env.reset(options={"task": 10 * (seed % 4) + task})
            over = False
            while not over:
                step = env.step(draw.choice(info["admissible_actions"]))
                seen.append((step, env.oracle()))
                over, info = step[2] or step[3], step[4]
        return seen

    monkeypatch.setattr(expert, "MOST_KNOWN", 40)
    expected = [play(seed) for seed in range(8)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(play, range(8))) == expected
    finally:
        sys.setswitchinterval(interval)


@given(st.integers(1, 13).flatmap(states))
def test_fingerprint_is_the_state_as_python_writes_it(state: State) -> None:
    view = view_for((state, Goal((), len(state))), "compact")
    assert view.fingerprint(state) == str(state)
    assert view.key(state) == hash_state(state_hasher(view.task.id), str(state).encode())


def test_views_are_shared_and_travel() -> None:
    one, other = BlocksworldEnv(), BlocksworldEnv()
    one.reset(options={"task": 3}), other.reset(options={"task": 3})
    assert one.task is other.task and copy.deepcopy(one).task is one.task
    assert pickle.loads(pickle.dumps(one.task)) is one.task, "in the same process"
    assert len(pickle.dumps(one.task)) < 2_000, "what was worked out stays at home"


def test_forms_of_an_action() -> None:
    env = BlocksworldEnv()
    _, info = env.reset(options={"task": 8})
    action = next(a for a in info["admissible_actions"] if a.startswith("unstack"))
    verb, block, under = action.split()
    for form in (
        f"{verb.title()}({block}, {under})",
        f"({action})",
        f"{verb} ({block}) ({under})",
        f"<answer>{action.upper()}</answer>",
    ):
        env.reset(options={"task": 8})
        assert env.step(form)[4]["action"] == action, form
    assert env.step(f"<search>put-down {block}</search>")[4]["action"] == ""


def test_options() -> None:
    for option, value in (("variant", "both"), ("observation", "image"), ("names", "numbers")):
        with pytest.raises(UnknownOption, match=option):
            BlocksworldEnv(**{option: value})
    for wrong in ({"data": "full"}, {"data": "here", "problems": "there"}, {"problems": 3}):
        with pytest.raises(UnknownOption, match="data|problems"):
            BlocksworldEnv(**wrong)
    with pytest.raises(UnknownOption, match="variant"):
        BlocksworldEnv.practice(seed=0, variant="both")
    with pytest.raises(ResetNeeded):
        BlocksworldEnv().problem_text()


@pytest.mark.parametrize(("names", "observation"), STYLES)
def test_prompts_name_the_actions(names: str, observation: str) -> None:
    env = BlocksworldEnv(names=names, observation=observation, horizon=17)
    verbs = (
        ("attack X", "succumb X", "overcome X Y", "feast X Y")
        if names == "mystery"
        else ("pick-up X", "put-down X", "stack X Y", "unstack X Y")
    )
    for style in ("react", "tags"):
        prompt = env.prompt(style)
        assert all(verb in prompt for verb in verbs) and "17 turns" in prompt
        assert ("block" in prompt) == (names != "mystery") and ("red blue / green" in prompt) == (
            names != "mystery" and observation == "compact"
        )


def test_a_picture_of_the_towers() -> None:
    problem = read_problem("orange silver / green yellow / magenta / red", "green yellow red")
    env = BlocksworldEnv(task_set=task_set("t", [Task("t", "test", problem)]))
    env.reset()
    assert (
        env.picture()
        == "silver  yellow\norange  green   magenta  red\n----------------------------\nhand: empty"
    )
    env.step("unstack yellow green")
    env.step("put-down yellow")
    env.step("pick-up red")
    assert (
        env.picture() == "silver\norange  green  yellow  magenta\n------------------------------\nhand: red"
    )
    assert picture((HAND,), ["a"]).split() == ["hand:", "a"]
    mystery = BlocksworldEnv(names="mystery")
    mystery.reset(seed=0)
    assert mystery.picture() == "", "it would show what the words hide"
