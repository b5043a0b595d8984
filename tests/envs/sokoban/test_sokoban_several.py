"""The expert of Sokoban where a turn has several moves: it walks to a box and pushes it along a line in one turn."""

import re

import pytest

from tstar_envs import parse_reply
from tstar_envs.envs.sokoban.env import SokobanEnv
from tstar_envs.envs.sokoban.level import MOST_MOVES
from tstar_envs.envs.sokoban.tasks import DIFFICULTIES

STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
CELL = r"\((\d+), (\d+)\)"


def cells_in(text: str) -> list[tuple[int, int]]:
    return [(int(row), int(column)) for row, column in re.findall(CELL, text)]


def one_turn(env: SokobanEnv, paraphrase: int) -> int:
    """Play the expert's reply, check what its thought says against what happens, and give the number of its moves."""
    _, cell = env.state
    width = env.level_text().index("\n")
    reply = parse_reply(env.oracle(paraphrase=paraphrase) or "")
    words = [word.lower() for word in reply.action.split(" || ")]
    assert 1 <= len(words) <= MOST_MOVES
    here, walked = divmod(cell, width), []
    info = env.step(reply.action)[4]
    pushes = [key for key in info["effect_key"].split(";") if key]
    for word in words[: len(words) - len(pushes)]:
        here = (here[0] + STEPS[word][0], here[1] + STEPS[word][1])
        walked.append(here)
    said = re.search(rf" to ({CELL}(?:, {CELL})*)(?:\.| next\.)$", reply.thought)
    box = cells_in(re.search(rf"box at {CELL}", reply.thought).group())[0]
    if walked:
        assert cells_in(said.group(1)) == walked, reply.thought
    if not pushes:
        assert len(words) == MOST_MOVES, "only a long walk ends without a push"
        return len(words)
    (way,) = set(words[-len(pushes) :])
    step = STEPS[way]
    line = [(box[0] + i * step[0], box[1] + i * step[1]) for i in range(len(pushes) + 1)]
    assert pushes == [f"push:{row},{column}:{way.capitalize()}" for row, column in line[:-1]], (
        "one box, one direction"
    )
    assert f"{way} to {line[-1]}" in reply.thought
    assert here == (box[0] - step[0], box[1] - step[1])
    # With the next move of an optimal plan in the same direction the line would not have ended here.
    following = parse_reply(env.oracle() or "").action if not env.over else ""
    assert len(words) == MOST_MOVES or following.split(" || ")[0].lower() != way
    return len(words)


@pytest.mark.parametrize("difficulty", list(DIFFICULTIES))
def test_a_turn_is_a_walk_and_a_line_of_pushes(difficulty: str) -> None:
    env = SokobanEnv(difficulty=difficulty, multi_action=True, split="train")
    turns = moves = 0
    for task in range(40):
        optimum = env.reset(options={"task": task})[1]["optimal_length"]
        played = 0
        for turn in range(20):
            assert len({parse_reply(env.oracle(w) or "").action for w in range(4)}) == 1
            played += one_turn(env, paraphrase=task + turn)
            turns += 1
            if env.over:
                break
        assert env.snapshot().success and played == optimum, "still a shortest solution"
        moves += played
    assert moves > 3 * turns


def test_a_walk_longer_than_a_turn_goes_on_in_the_next(tmp_path) -> None:
    corridor = "#" * 17 + "\n#@            $.#\n" + "#" * 17 + "\n"
    (tmp_path / "level.txt").write_text(corridor)
    env = SokobanEnv(levels=tmp_path / "level.txt", multi_action=True)
    env.reset(options={"task": 0})
    first = env.oracle() or ""
    assert one_turn(env, 0) == MOST_MOVES
    second = env.oracle() or ""
    assert one_turn(env, 0) == 3 and env.snapshot().success
    assert (
        "has to go right, so I need to stand at (1, 13). From (1, 1) I go to (1, 2), " in first
        and first.count("||") == MOST_MOVES - 1
    )
    assert (
        "has to go right to (1, 15), so I need to stand at (1, 13). From (1, 11) I go to (1, 12), (1, 13)."
        in second
    )
