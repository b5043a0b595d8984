"""Rules, reader, names, refusals and planner of ALFWorld, on small games."""

import json

import pytest
from alfworld_small_games import breadth_first, game_text, kitchen, small_game

from tstar_envs.envs.alfworld import expert
from tstar_envs.envs.alfworld.commands import can_change, parse_command, situation, transition
from tstar_envs.envs.alfworld.game import Game, Goal, Household, demangle
from tstar_envs.envs.alfworld.published import read_game
from tstar_envs.envs.alfworld.text import intro, render
from tstar_envs.errors import BadData
from tstar_envs.utils import StableRandom

PICK = Goal("mug", "cabinet")
GOALS = (
    PICK,
    Goal("egg", "table"),
    Goal("mug", "", "desklamp"),
    Goal("mug", "cabinet", "", 2),
    Goal("mug", "fridge", marks=frozenset({"isclean"})),
    Goal("egg", "table", marks=frozenset({"ishot"})),
    Goal("mug", "microwave", marks=frozenset({"iscool"})),
)


def play(game: Game, *texts: str, state: Household | None = None) -> tuple[Household, list[str]]:
    state = state or game.start
    answers = []
    for text in texts:
        command = situation(game, state).commands[text]
        state = transition(game, state, command)
        answers.append(render(game, state, command))
    return state, answers


def laid(goal: Goal = PICK) -> Game:
    """Mugs on the table, the egg in the fridge, the knife in the basin."""
    facts = kitchen(goal)
    places = {
        "mug_bar_0": "table_bar_1",
        "mug_bar_1": "table_bar_1",
        "egg_bar_2": "fridge_bar_1",
        "knife_bar_3": "sink_bar_1_bar_sinkbasin",
    }
    facts.inside = {*places.items(), *((o, "table_bar_1") for o in facts.object_types if o not in places)}
    facts.object_locations = {(o, facts.receptacle_location[r]) for o, r in facts.inside}
    return read_game(game_text(facts, goal), "laid")


def test_names_run_downwards_and_basins_are_called_so() -> None:
    names = demangle(["mug_bar_1", "mug_bar_2", "sink_bar_1_bar_sinkbasin", "loc_bar_3", "agent1"])
    assert names == {
        "mug_bar_1": "mug 2",
        "mug_bar_2": "mug 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
        "loc_bar_3": "loc 1",
        "agent1": "agent1 ",
    }
    assert demangle(["sinkbasin_bar_1"]) == {"sinkbasin_bar_1": "sinkbasinbasin 1"}


def test_a_walk_through_the_kitchen() -> None:
    game = laid()
    assert intro(game) == (
        "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a cabinet 1, "
        "a fridge 1, "
        "a microwave 1, a sinkbasin 1, and a table 1.\n\nYour task is to: win."
    )
    state, answers = play(
        game,
        "look",
        "inventory",
        "help",
        "go to table 1",
        "look",
        "take mug 2 from table 1",
        "inventory",
        "examine mug 2",
        "move mug 2 to table 1",
        "go to sinkbasin 1",
        "take knife 1 from sinkbasin 1",
        "go to fridge 1",
        "examine fridge 1",
        "slice egg 1 with knife 1",
        "open fridge 1",
        "go to microwave 1",
        "heat knife 1 with microwave 1",
        "examine knife 1",
        "go to fridge 1",
        "cool knife 1 with fridge 1",
        "examine knife 1",
        "close fridge 1",
        "go to sinkbasin 1",
        "clean knife 1 with sinkbasin 1",
        "examine knife 1",
        "move knife 1 to sinkbasin 1",
    )
    assert answers == [
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "You are not carrying anything.",
        "Ask\n  somebody\n",
        "You arrive at table 1. On the table 1, you see a mug 2, and a mug 1.",
        "You are facing the table 1. Next to it, you see nothing.",
        "You pick up the mug 2 from the table 1.",
        "You are carrying: a mug 2.",
        "This is a normal mug 2. In it, you see nothing.",
        "You move the mug 2 to the table 1.",
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see a knife 1.",
        "You pick up the knife 1 from the sinkbasin 1.",
        "You arrive at fridge 1. The fridge 1 is closed.",
        "The fridge 1 is closed.",
        "You sliced the egg 1 with the knife 1.",
        "You open the fridge 1. The fridge 1 is open. In it, you see a egg 1.",
        "You arrive at microwave 1. The microwave 1 is closed.",
        "You heat the knife 1 using the microwave 1.",
        "This is a hot knife 1.",
        "You arrive at fridge 1. The fridge 1 is open. In it, you see a egg 1.",
        "You cool the knife 1 using the fridge 1.",
        "This is a cold knife 1.",
        "You close the fridge 1.",
        "You arrive at sinkbasin 1. On the sinkbasin 1, you see nothing.",
        "You clean the knife 1 using the sinkbasin 1.",
        "This is a cool and clean knife 1.",
        "You move the knife 1 to the sinkbasin 1.",
    ]
    assert state.sliced and state.held == -1


def test_repeats_that_change_nothing_keep_the_state() -> None:
    game = laid(Goal("mug", "", "desklamp"))
    once, _ = play(
        game,
        "go to table 1",
        "use desklamp 1",
        "take mug 1 from table 1",
        "go to sinkbasin 1",
        "clean mug 1 with sinkbasin 1",
    )
    for text in (
        "clean mug 1 with sinkbasin 1",
        "look",
        "inventory",
        "help",
        "examine mug 1",
        "examine sinkbasin 1",
    ):
        assert play(game, text, state=once)[0] is once
    again, answers = play(game, "go to table 1", "use desklamp 1", state=once)
    assert (
        answers[1] == "You turn on the desklamp 1."
        and again == once._replace(location=again.location)
        and game.won(again)
    )
    back, _ = play(game, "go to table 1", "take mug 1 from table 1", "move mug 1 to table 1")
    assert back == game.start._replace(location=back.location), "put back where it was"


def test_what_was_taken_here_lies_next_to_it() -> None:
    facts = kitchen(PICK, shared=True)  # table and cabinet are seen from one place
    facts.inside = {(thing, "table_bar_1") for thing in facts.object_types}
    facts.object_locations = {(thing, "loc_bar_0") for thing in facts.object_types}
    game = read_game(game_text(facts, Goal("egg", "fridge")), "shared")
    _, answers = play(
        game, "go to table 1", "open cabinet 1", "take mug 1 from table 1", "move mug 1 to cabinet 1", "look"
    )
    assert answers[-1] == "You are facing the cabinet 1, and table 1. Next to it, you see a mug 1."
    assert "go to cabinet 1" not in situation(game, play(game, "go to table 1")[0]).commands


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.task_type}-{goal.object_kind}")
def test_the_planner_is_as_short_as_breadth_first_search(goal: Goal) -> None:
    for seed in range(3):
        game = small_game(
            goal,
            seed,
            shared=seed % 2 == 1,
            objects=("mug", "mug", "egg") if goal.count == 1 else ("mug", "mug"),
        )
        state, draw = game.start, StableRandom(seed)
        for _ in range(3):
            expected = breadth_first(game, state, 10)
            if expected is not None:
                assert expert.distance(game, state) == expected, (seed, state)
            for _ in range(4):
                commands = situation(game, state).commands
                state = transition(game, state, commands[draw.choice(sorted(commands))])


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.task_type}-{goal.object_kind}")
def test_the_expert_wins_from_anywhere_in_all_wordings(goal: Goal) -> None:
    for seed in range(10):
        game, draw = small_game(goal, seed, shared=seed % 2 == 1), StableRandom(seed)
        state = game.start
        for _ in range(12):
            thought, text = expert.mistake(game, state, draw)
            assert thought
            before = expert.distance(game, state)
            command = situation(game, state).commands.get(text)
            if command is None:
                assert text.startswith("take ")  # what is imagined is not to be had
                continue
            state = transition(game, state, command)
            assert (expert.distance(game, state) or 0) >= (before or 0)
        while not game.won(state):
            steps = [expert.next_step(game, state, paraphrase) for paraphrase in range(expert.WORDINGS)]
            assert (
                len({step[0] for step in steps if step}) == expert.WORDINGS
                and len({step[1] for step in steps if step}) == 1
            )
            step = steps[0]
            assert step is not None
            before = expert.distance(game, state)
            state = transition(game, state, situation(game, state).commands[step[1]])
            assert expert.distance(game, state) == (before or 0) - 1
        assert expert.next_step(game, state) is None


def test_goals_are_read_as_written() -> None:
    for goal in GOALS:
        game = read_game(game_text(kitchen(goal), goal), "written")
        assert game.goal == goal and game.goal.task_type == goal.task_type
        assert not game.won(game.start)


def test_reasons() -> None:
    game = laid()
    at_table, _ = play(game, "go to table 1")
    holding, _ = play(game, "take mug 1 from table 1", state=at_table)
    for state, typed, reason in (
        (game.start, "dance", "is no command"),
        (game.start, "take mug 1", "is no command"),
        (game.start, "open cup 3", "there is no 'cup 3'"),
        (game.start, "open fridge 1", "go there first"),
        (at_table, "go to table 1", "already"),
        (at_table, "open table 1", "cannot be opened"),
        (at_table, "take egg 1 from table 1", "not in or on"),
        (holding, "take mug 2 from table 1", "holds mug 1"),
        (at_table, "examine mug 1", "only while you hold"),
        (at_table, "use mug 1", "no switch"),
        (at_table, "open mug 1", "not a receptacle"),
        (at_table, "take table 1 from table 1", "not an object"),
        (at_table, "move egg 1 to table 1", "do not hold"),
        (holding, "heat mug 1 with table 1", "microwave"),
        (holding, "slice egg 1 with mug 1", "no knife"),
        (holding, "slice egg 1 with knife 1", "hold"),
        (play(game, "go to cabinet 1", state=holding)[0], "move mug 1 to cabinet 1", "closed; open it first"),
        (play(game, "go to cabinet 1")[0], "close cabinet 1", "closed already"),
        (play(game, "go to fridge 1")[0], "take egg 1 from fridge 1", "closed"),
    ):
        reading = parse_command(game, state, typed)
        assert reading.command is None and reason in reading.invalid_reason, (typed, reading)


def test_other_forms_of_a_command() -> None:
    game = laid()
    holding, _ = play(game, "go to table 1", "take mug 1 from table 1")
    for typed in (
        "put mug 1 in/on table 1",
        "Put  mug 1 on TABLE 1",
        "move mug 1 to table 1",
        "put mug 1 in table 1",
    ):
        assert parse_command(game, holding, typed).text == "move mug 1 to table 1"
    for typed in ("put mug 1 in/on table 1", "Move mug 1 to table 1"):
        strict = parse_command(game, holding, typed, strict=True)
        assert strict.command is None and "exactly" in strict.invalid_reason
    assert parse_command(game, holding, " move mug 1 to table 1\n", strict=True).command is not None, (
        "the original strips, too"
    )
    old = read_game(game_text(kitchen(PICK), PICK, move="put"), "old")
    assert old.wording.move.fill({"o": "mug 1", "r": "table 1"}) == "put mug 1 to table 1"
    assert (
        can_change("put x in y")
        and can_change("GO TO x")
        and not can_change("look")
        and not can_change("examine x")
        and not can_change("jump")
    )


def test_release_wording_is_read() -> None:
    assert laid().wording.help == "Ask\n  somebody\n", "the original drops white space in front"
    assert "help" not in situation(laid(), laid().start).admissible


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: "[1]", "an object"),
        (lambda d: "{", "not JSON"),
        (lambda d: json.dumps({**d, "grammar": 3}), "grammar"),
        (lambda d: json.dumps({**d, "grammar": "nothing"}), "no rule 'task'"),
        (lambda d: json.dumps({**d, "pddl_problem": "(define (:init"}), "bracket"),
        (lambda d: json.dumps({**d, "pddl_problem": "(define))"}), "bracket"),
        (lambda d: json.dumps({**d, "pddl_problem": d["pddl_problem"].replace("(:goal", "(:gaol")}), ":goal"),
        (
            lambda d: json.dumps(
                {**d, "pddl_problem": d["pddl_problem"].replace("(atLocation agent1", "(wasAt agent1")}
            ),
            "atLocation",
        ),
        (
            lambda d: json.dumps(
                {
                    **d,
                    "pddl_problem": d["pddl_problem"].replace(
                        "(inReceptacle ?o ?r)", "(forall (?o) (inReceptacle ?o ?r))"
                    ),
                }
            ),
            "forall",
        ),
        (
            lambda d: json.dumps(
                {**d, "pddl_problem": d["pddl_problem"].replace("(inReceptacle ?o ?r)", "")}
            ),
            "six kinds",
        ),
    ],
)
def test_bad_files_are_reported(change, match) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadData, match=match):
        read_game(change(json.loads(game_text(kitchen(PICK), PICK))), "some file")
