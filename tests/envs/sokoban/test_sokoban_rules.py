"""Rules as properties over random walks, and what the environment shows of them under each option."""

import re
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_envs import ResetNeeded, UnknownOption, parse_reply
from tstar_envs.envs.sokoban import parse_level, print_level, solve
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_envs.envs.sokoban.generate import generate_level, practice_set, room_key
from tstar_envs.envs.sokoban.level import (
    DIRECTIONS,
    Room,
    admissible_moves,
    cells,
    level_rows,
    read_command,
    region,
    transition,
)
from tstar_envs.envs.sokoban.tasks import DIFFICULTIES, load_shipped

WALKS = st.lists(st.integers(0, 3), max_size=60)
LEVELS = st.tuples(st.sampled_from(list(DIFFICULTIES)), st.integers(0, 300))
# One box, a target two cells to its right; worked out by hand.
CORRIDOR = "#######\n#     #\n# @$ .#\n#     #\n#######\n"


@settings(max_examples=150, deadline=None)
@given(LEVELS, WALKS)
def test_moves(chosen: tuple[str, int], walk: list[int]) -> None:
    levels = load_shipped(chosen[0])
    level = levels.task(levels.by_split["test"][chosen[1]])
    room, state = level.room, level.start
    bare = str.maketrans("$@*+", "  ..")
    walls = [row.translate(bare) for row in level_rows(room, state)]
    for direction in walk:
        after, pushed = transition(room, state, direction)
        (boxes, player), (boxes_after, player_after) = state, after
        row, column = divmod(player, room.width)
        ahead = (
            (row + (direction == 1) - (direction == 0)) * room.width
            + column
            + (direction == 3)
            - (direction == 2)
        )
        step = ahead - player
        # The grid of characters, by the rules as they are written on a wall.
        open_floor = lambda cell: room.floor >> cell & 1 and not boxes >> cell & 1  # noqa: E731, B023
        if boxes >> ahead & 1:
            expected = (
                ({*cells(boxes)} - {ahead} | {ahead + step}, ahead) if open_floor(ahead + step) else None
            )
        else:
            expected = ({*cells(boxes)}, ahead) if open_floor(ahead) else None
        assert (direction in admissible_moves(room, state)) == (expected is not None) == (after is not state)
        if expected is not None:
            assert ({*cells(boxes_after)}, player_after) == expected
            assert pushed == (ahead if boxes_after != boxes else -1)
            if pushed < 0:  # a walk can be undone, by the opposite move
                assert transition(room, after, direction ^ 1) == (state, -1)
                assert region(room, after) == region(room, state)
            else:  # one box, one cell
                assert (boxes_after ^ boxes).bit_count() == 2
        else:
            assert (after, pushed) == (state, -1)
        assert boxes_after.bit_count() == level.start[0].bit_count()
        assert (
            not boxes_after & ~room.floor
            and room.floor >> player_after & 1
            and not boxes_after >> player_after & 1
        )
        assert [row.translate(bare) for row in level_rows(room, after)] == walls
        state = after


def corridor(tmp_path, **options) -> SokobanEnv:
    path = tmp_path / "corridor.txt"
    path.write_text(CORRIDOR)
    env = SokobanEnv(levels=path, **options)
    env.reset(options={"task": 0})
    return env


def first_text(tmp_path, **options) -> str:
    return corridor(tmp_path, **options).reset(options={"task": 0})[0]


def test_texts(tmp_path) -> None:
    grid = "#######\n#_____#\n#_PX_O#\n#_____#\n#######"
    assert first_text(tmp_path) == grid
    lists = "Targets: (2, 5)\nBoxes: (2, 3)\nPlayer: (2, 2)"
    assert first_text(tmp_path, observation="grid_coords") == f"{grid}\n{lists}"
    floor = "Size: 5 rows, 7 columns\nFloor: row 1: 1-5; row 2: 1-5; row 3: 1-5"
    assert first_text(tmp_path, observation="coords") == f"{floor}\n{lists}"
    env = corridor(tmp_path)
    for action in ("Up", "Right", "Right", "Right", "Down"):
        observation = env.step(action)[0]
    assert observation == "#######\n#_____#\n#__X_S#\n#_____#\n#######"
    env = corridor(tmp_path)
    env.step("right")
    assert env.step("RIGHT")[0] == "#######\n#_____#\n#___P√#\n#_____#\n#######"


def test_a_bump_is_valid_changes_nothing_and_is_not_offered(tmp_path) -> None:
    env = corridor(tmp_path)
    env.step("Left")
    key = env.state_key()
    info = env.step("Left")[4]
    assert info["action_valid"] and not info["modifies_state"] and info["effect_key"] == ""
    assert env.state_key() == key
    assert info["admissible_actions"] == ["Up", "Down", "Right"]


@pytest.mark.parametrize("word", ["Left.", '"Left"', "[left]", "`Left`", "**LEFT**", "left!"])
def test_a_move_is_read_whatever_marks_stand_around_it(tmp_path, word: str) -> None:
    env = corridor(tmp_path)
    assert env.modifies_state(word)
    assert env.step(word)[4]["action"] == "Left"


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Action: [left]", "Left"),
        ("<think>as RAGEN's agents write</think><answer>Left</answer>", "Left"),
        ("<search>Left</search>", ""),
    ],
)
def test_a_move_is_read_after_its_cue_and_in_the_tag_of_an_answer(tmp_path, reply: str, action: str) -> None:
    assert corridor(tmp_path).step(reply)[4]["action"] == action


def test_an_invalid_action_is_answered_with_the_four_moves_and_the_room(tmp_path) -> None:
    env = corridor(tmp_path)
    before = env.step("Left")[0]
    observation, *_, info = env.step("Action: north")
    assert not info["action_valid"] and "Up, Down, Left or Right" in info["invalid_reason"]
    assert observation.endswith(before)
    observation, *_, info = env.step("Up || Left")
    assert info["invalid_reason"] == "a turn takes one move, got 2; the option multi_action allows several"
    # An agent has no options, so its texts mention none.
    assert observation.startswith("Invalid action: the action must be Up, Down, Left or Right.\n")


def test_a_push_has_an_effect_and_a_walk_has_none(tmp_path) -> None:
    env = corridor(tmp_path)
    walked = env.step("up")[4]
    assert (walked["action"], walked["effect_key"], walked["action_valid"]) == ("Up", "", True)
    env.step("Down")
    pushed = env.step("Thought: now\nAction: rIGHT")[4]
    assert (pushed["action"], pushed["effect_key"]) == ("Right", "push:2,3:Right")
    assert all(env.modifies_state(a) for a in ("up", "LEFT")) and not env.modifies_state("wait")


def test_state_keys(tmp_path) -> None:
    keys = {}
    for state_key in ("player", "region"):
        env = corridor(tmp_path, state_key=state_key)
        start = env.state_key()
        env.step("Up")
        walked = env.state_key()
        env.step("Down")
        assert env.state_key() == start
        env.step("Right")
        assert env.state_key() != start
        keys[state_key] = (start, walked)
    assert keys["player"][0] != keys["player"][1]
    assert keys["region"][0] == keys["region"][1]


def test_the_moves_of_a_turn_are_played_until_the_game_is_won(tmp_path) -> None:
    env = corridor(tmp_path, multi_action=True)
    _, reward, terminated, _, info = env.step("Up || down, RIGHT || Right || Left || Left")
    assert (reward, terminated, info["step"]) == (1.0, True, 1)
    assert info["action"] == "Up || Down || Right || Right", "the game stops at success"
    assert info["effect_key"] == "push:2,3:Right;push:2,4:Right"


def test_several_moves_a_turn_are_all_valid_or_none_is_played(tmp_path) -> None:
    env = corridor(tmp_path, multi_action=True)
    assert env.step("up, down,")[4]["action"] == "Up || Down", "a separator at the end is passed over"
    assert env.step("|| Up ||")[4]["action_valid"] and env.step("Down")[4]["action_valid"]
    for wrong in ("Up || jump", "Up || || Down", "||", "||".join(["Up"] * 11)):
        before = env.state_key()
        assert not env.step(wrong)[4]["action_valid"] and env.state_key() == before


def test_several_moves_a_turn_are_an_option_that_the_prompt_tells(tmp_path) -> None:
    assert not corridor(tmp_path).step("Up || Up")[4]["action_valid"]
    assert "||" not in corridor(tmp_path).prompt()
    assert "||" in corridor(tmp_path, multi_action=True).prompt()


def test_moves_are_separated_by_bars_commas_semicolons_or_spaces() -> None:
    for several in ("Up||Up", "[up] || [up].", "up up", "Up;up", "Up , Up,", "|| up | UP"):
        assert read_command(several, True).moves == (0, 0), several
        assert (
            read_command(several).reason
            == "a turn takes one move, got 2; the option multi_action allows several"
        )
    for nothing in ("", "||", " , ", "Up,, Up", "up jump", "I go up", "u"):
        assert read_command(nothing).problem and read_command(nothing, True).problem, nothing


def test_a_turn_takes_at_most_ten_moves() -> None:
    assert read_command("up " * 10, True).moves == (0,) * 10
    assert read_command("up " * 11, True).problem == "a turn takes at most 10 moves, got 11"


def test_shaped_reward(tmp_path) -> None:
    path = tmp_path / "two.txt"
    path.write_text("########\n#      #\n#.$@$ .#\n#      #\n########\n")
    for reward, expected in (("success", [0.0, 0.0, 0.0, 1.0]), ("shaped", [0.5, 0.0, 0.0, 1.0])):
        env = SokobanEnv(levels=path, reward=reward)
        env.reset(options={"task": 0})
        assert [env.step(action)[1] for action in ("Left", "Right", "Right", "Right")] == expected
    env = SokobanEnv(levels=path, reward="shaped", horizon=2)
    env.reset(options={"task": 0})
    assert [env.step("Left")[1], env.step("Up")[1]] == [0.5, 0.0]
    env = SokobanEnv(levels=path, reward="shaped")
    env.reset(options={"task": 0})
    moves = ("Left", "Up", "Left", "Left", "Down", "Right")  # on the target, around, and off again
    assert [env.step(action)[1] for action in moves] == [0.5, 0.0, 0.0, 0.0, -0.5, 0.0]


def test_lost_states(tmp_path) -> None:
    path = tmp_path / "lost.txt"
    path.write_text("#######\n#     #\n#   . #\n# $   #\n# @   #\n#######\n")
    env = SokobanEnv(levels=path, show_dead=True)
    assert env.reset(options={"task": 0})[1]["dead"] is False
    assert [env.step("Up")[4]["dead"] for _ in range(2)] == [False, True], (
        "against the upper wall it never comes down"
    )
    assert env.oracle() is None and env.progress() == 0.0
    assert parse_reply(env.mistake(0)).action in DIRECTIONS
    assert "dead" not in SokobanEnv(levels=path).reset(options={"task": 0})[1]
    ending = SokobanEnv(levels=path, end_when_lost=True, reward="shaped")
    ending.reset(options={"task": 0})
    assert ending.step("Up")[1:4] == (0.0, False, False)
    _, reward, terminated, truncated, info = ending.step("Up")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)


@settings(max_examples=60, deadline=None)
@given(LEVELS, WALKS)
def test_an_episode_ends_with_the_push_that_loses(chosen: tuple[str, int], walk: list[int]) -> None:
    """In lock-step with the plain environment: the same until that one is dead, which a push that is not undone made it."""
    difficulty, number = chosen
    plain, ending = (
        SokobanEnv(difficulty=difficulty, horizon=60, **o)
        for o in ({"show_dead": True}, {"end_when_lost": True})
    )
    for env in (plain, ending):
        env.reset(options={"task": load_shipped(difficulty).by_split["test"][number]})
    for direction in walk[:60]:
        (text, reward, terminated, truncated, info), other = (
            env.step(DIRECTIONS[direction]) for env in (plain, ending)
        )
        assert (
            other[:2] == (text, reward) and other[4]["success"] == info["success"] and "dead" not in other[4]
        )
        assert other[2] == (terminated or info["dead"])
        if other[2] or truncated:
            break


def moves_left(env: SokobanEnv) -> int | None:
    """Of a shortest solution from here, None if the level is lost."""
    moves = env.task.expert.plan(env.state)
    return None if moves is None else len(moves)


@pytest.mark.parametrize("difficulty", list(DIFFICULTIES))
def test_mistakes_are_not_optimal_and_avoid_losing(difficulty: str) -> None:
    env = SokobanEnv(difficulty=difficulty)
    for task in range(15):
        env.reset(options={"task": task})
        for turn in range(6):
            here = env.snapshot()
            left = moves_left(env)
            assert left is not None
            reply = parse_reply(env.mistake(turn))
            assert reply.action in DIRECTIONS and reply.thought
            _, *_, info = env.step(reply.action)
            after = moves_left(env)
            wrong = []
            for action in info["admissible_actions"] or ():
                assert action in DIRECTIONS
            if after is None:  # losing is the last resort
                for action in env.restore(here)[1]["admissible_actions"]:
                    env.restore(here)
                    env.step(action)
                    wrong.append(moves_left(env))
                assert all(distance is None or distance == left - 1 for distance in wrong)
            else:
                assert after >= left
            env.restore(here)
            env.step(env.oracle() or "")
            if env.over:
                break


def lone_pushes(room: Room, box: tuple[int, int], target: tuple[int, int]) -> int:
    """Pushes that a box needs if it were alone and the player could jump to any cell."""
    floor = {divmod(cell, room.width) for cell in range(room.width * room.height) if room.floor >> cell & 1}
    reached, layer, pushes = {box}, {box}, 0
    while target not in reached:
        steps = ((r, c, dr, dc) for r, c in layer for dr, dc in ((0, 1), (1, 0), (0, -1), (-1, 0)))
        layer = {
            (r + dr, c + dc) for r, c, dr, dc in steps if {(r + dr, c + dc), (r - dr, c - dc)} <= floor
        } - reached
        reached |= layer
        pushes += 1
    return pushes


Cell = tuple[int, int]
STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


class Spoken(NamedTuple):
    """A reply of the expert, where it was given, and what its move did."""

    room: Room
    boxes: list[Cell]
    player: Cell
    thought: str
    actions: set[str]  # of the replies in all wordings
    effect: str

    @property
    def box(self) -> Cell:
        """The box that the thought is about."""
        row, column = re.search(r"box at \((\d+), (\d+)\)", self.thought).groups()
        return int(row), int(column)

    @property
    def named(self) -> Cell | None:
        """The target that the thought names, None where the box stands on its own, leaves it and comes back."""
        found = re.search(
            r"(?:belongs on|onto|on its way to|goes to|away from) \((\d+), (\d+)\)", self.thought
        )
        return found and (int(found[1]), int(found[2]))

    @property
    def way(self) -> str:
        """Where the box is pushed next."""
        return re.search(
            r"\b(?:has to go|push it|push the box at \S+ \S+|first|but now) (up|down|left|right)",
            self.thought,
        ).group(1)

    @property
    def moved(self) -> Cell:
        """Where the box is after that push."""
        return self.box[0] + STEPS[self.way][0], self.box[1] + STEPS[self.way][1]


def spoken_along_the_way(env: SokobanEnv, task: int) -> Iterator[Spoken]:
    """The expert's replies of one episode, each worded another way, until it has none."""
    env.reset(options={"task": task})
    room, _ = parse_level(env.level_text())
    info = {"step": 0}
    while (reply := env.oracle(paraphrase=info["step"])) is not None:
        boxes, player = env.state
        actions = {parse_reply(env.oracle(paraphrase) or "").action for paraphrase in range(4)}
        assert parse_reply(reply).action in actions
        info = env.step(reply)[4]
        yield Spoken(
            room,
            [divmod(cell, room.width) for cell in cells(boxes)],
            divmod(player, room.width),
            parse_reply(reply).thought,
            actions,
            info["effect_key"],
        )
    assert info["success"]


@pytest.fixture(scope="module", params=list(DIFFICULTIES))
def spoken_episodes(request: pytest.FixtureRequest) -> tuple[str, list[list[Spoken]]]:
    """A difficulty, and what the expert says in forty episodes of it."""
    env = SokobanEnv(difficulty=request.param, split="train")
    return request.param, [[*spoken_along_the_way(env, task)] for task in range(40)]


def test_the_wording_of_a_thought_changes_no_move(spoken_episodes) -> None:
    assert all(len(reply.actions) == 1 for episode in spoken_episodes[1] for reply in episode)


def test_a_thought_knows_where_its_box_and_the_player_are(spoken_episodes) -> None:
    for reply in chain(*spoken_episodes[1]):
        assert reply.box in reply.boxes
        assert str(reply.player) in reply.thought or "right behind" in reply.thought


def test_the_target_of_a_thought_is_one_and_not_where_the_box_stands(spoken_episodes) -> None:
    """Without a target the box is on one now, and the thought says that it comes back."""
    difficulty, episodes = spoken_episodes
    returning = 0
    for reply in chain(*episodes):
        row, column = reply.named or reply.box
        assert reply.room.targets >> row * reply.room.width + column & 1 and reply.named != reply.box
        assert reply.named or re.search(
            r"leave its target for now|off its target|back (?:onto|to) its target later", reply.thought
        )
        returning += reply.named is None
    assert bool(returning) == (difficulty != "easy"), "one box has no reason to come back"


def test_a_thought_says_so_exactly_where_the_push_leads_away_from_the_target(spoken_episodes) -> None:
    around = 0
    for reply in chain(*spoken_episodes[1]):
        if reply.named:
            away = lone_pushes(reply.room, reply.moved, reply.named) > lone_pushes(
                reply.room, reply.box, reply.named
            )
            said = re.search(
                "goes round| later I push|though that is away|in the end, but now", reply.thought
            )
            assert away == bool(said), reply.thought
            around += away
    assert around


def test_the_push_that_a_thought_names_comes_next_and_until_then_the_plan_stays(spoken_episodes) -> None:
    for episode in spoken_episodes[1]:
        plans = set()
        for reply in episode:
            plans.add((reply.box, reply.way))
            if reply.effect:
                assert plans == {(reply.box, reply.way)}
                assert reply.effect == f"push:{reply.box[0]},{reply.box[1]}:{reply.way.capitalize()}"
                plans = set()


def test_every_box_that_was_spoken_of_ends_where_the_thoughts_say(spoken_episodes) -> None:
    for episode in spoken_episodes[1]:
        promised: list[tuple[Cell, Cell]] = []
        for reply in episode:
            if reply.effect:
                promised = [
                    (reply.moved if cell == reply.box else cell, goal)
                    for cell, goal in [*promised, (reply.box, reply.named or reply.box)]
                ]
        assert promised and all(cell == goal for cell, goal in promised)


def test_solver_and_level_text() -> None:
    env = SokobanEnv(difficulty="medium")
    with pytest.raises(ResetNeeded):
        env.level_text()
    env.reset(options={"task": 3})
    text = env.level_text()
    env.step("Up"), env.step("Down")
    assert env.level_text() == text
    env.reset(options={"task": 3})
    for action in solve(text) or ():
        info = env.step(action)[4]
    assert info["success"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"difficulty": "extreme"},
        {"observation": "image"},
        {"reward": "dense"},
        {"state_key": "boxes"},
        {"multi_action": 1},
        {"show_dead": "no"},
        {"end_when_lost": 1},
    ],
)
def test_wrong_options(wrong: dict) -> None:
    with pytest.raises(UnknownOption, match=next(iter(wrong))):
        SokobanEnv(**wrong)


def test_every_practice_level_of_a_set_has_a_room_of_its_own() -> None:
    levels = SokobanEnv.practice("a/1", difficulty="easy")
    assert len(levels.task_ids()) == 64
    rooms = set()
    for task in levels.task_ids():
        levels.reset(options={"task": task})
        rooms.add(room_key(parse_level(levels.level_text())[0]))
    assert len(rooms) == 64
    drawn = {room_key(generate_level(f"practice/a/1/{number}", "easy", "train").room) for number in range(64)}
    assert len(drawn) < 64  # as they are drawn, some would be in the same room


def test_practice_is_fresh_and_in_train_rooms() -> None:
    env = SokobanEnv.practice("a/1", difficulty="medium", observation="grid_coords")
    assert (env.tier, env.split, env.horizon) == ("practice", "train", 40) and len(env.task_ids()) == 64
    texts = set()
    for task in env.task_ids():
        env.reset(options={"task": task})
        texts.add(env.level_text())
        assert env.oracle() is not None
    assert len(texts) == 64
    other = SokobanEnv.practice("a/2", difficulty="medium")
    other.reset(options={"task": 0})
    assert other.level_text() not in texts
    last = practice_set("a/1", "medium").task(env.task_ids()[-1])
    assert print_level(last.room, last.start) == env.level_text()
