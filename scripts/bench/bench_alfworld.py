"""Speed of ALFWorld here beside TextWorld under ALFWorld's wrappers: the same games and commands, in turn, in CPU time of one process.

    python scripts/bench/bench_alfworld.py --games 12 --out docs/results/alfworld.md

- load: a game.tw-pddl file into a game ready to be reset. reset: the start of a loaded game. step: one command, its answer, the
  admissible commands and whether the game is won; here through the environment's public ``reset`` and ``step``, with tags and keys.
- memory: 1,000 environments in a fresh process, each in a game of its own, after 10 random steps each.
- expert: the handcoded expert of ALFWorld and ours, steps to win at most 60.

The table is written between two marks of the document, which keeps the rest. Needs the extra ``alfworld``.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from spread import spread

from tstar_envs.envs.alfworld.engine import TextWorldGame, game_data, write_scene_files
from tstar_envs.envs.alfworld.env import ALFWorldEnv
from tstar_envs.envs.alfworld.generate import fresh_scenes
from tstar_envs.envs.alfworld.published import read_game
from tstar_envs.envs.alfworld.rooms import TASK_TYPES, Scene
from tstar_envs.envs.alfworld.tasks import Task, task_set
from tstar_envs.utils import StableRandom

sys.path.append(str(Path(__file__).resolve().parents[2]))
from scripts.studies.alfworld_lockstep import memoise_original

BEGIN, END = "<!-- bench: alfworld -->", "<!-- /bench -->"
OURS_PER_THEIRS = 200  # repetitions of ours for one of theirs, so that the clock can see them
MOST_EXPERT_STEPS = 60
MEMORY = """
import random, resource
from tstar_envs.envs.alfworld.env import ALFWorldEnv
draw, envs = random.Random(0), []
for number in range(1000):
    env = ALFWorldEnv(data="mini", split="train")
    _, info = env.reset(options={"task": number})
    for _ in range(10):
        *_, terminated, _, info = env.step(draw.choice(info["admissible_actions"]))
        if terminated:
            break
    envs.append(env)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def clock(action: Callable[[], Any]) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def measure(scene: Scene, name: str, steps: int) -> dict[str, float]:
    """Seconds per load, reset and step of both sides in one game."""
    data = game_data(scene, name)
    text = json.dumps(data)
    env = ALFWorldEnv(task_set=task_set("bench", [Task(name, "test", scene.task, scene)]), horizon=1_000_000)
    ours_load = clock(lambda: [read_game(text, name) for _ in range(20)]) / 20
    games: list[TextWorldGame] = []
    theirs_load = clock(lambda: games.append(TextWorldGame(data)))
    original = games[0]
    task = {"task": name}
    resets: tuple[list[float], list[float]] = ([], [])
    for _ in range(2):
        resets[0].append(clock(original.reset))
        resets[1].append(
            clock(lambda: [env.reset(options=task) for _ in range(OURS_PER_THEIRS)]) / OURS_PER_THEIRS
        )
    rng, info = StableRandom(name), env.reset(options=task)[1]
    spent = [0.0, 0.0]
    played = 0
    for _ in range(steps):
        command = rng.choice(info["admissible_actions"])
        before = env.snapshot()
        spent[0] += clock(lambda command=command: original.step(command))

        # The same step again and again, from where it began; going back there is not counted.
        for _ in range(OURS_PER_THEIRS):
            env.restore(before)
            spent[1] += clock(lambda command=command: env.step(command)) / OURS_PER_THEIRS
        played += 1
        env.restore(before)
        *_, terminated, _, info = env.step(command)
        if terminated:
            break
    return {
        "load": theirs_load,
        "our load": ours_load,
        "reset": min(resets[0]),
        "our reset": min(resets[1]),
        "step": spent[0] / played,
        "our step": spent[1] / played,
        "things": sum(map(len, scene.contents)) + len(scene.house.receptacles),
    }


def fresh_steps(scenes: list[Scene]) -> float:
    """Seconds per step of ours where no state was seen before: random walks, each game once."""
    tasks = [Task(f"fresh-{n}", "test", scene.task, scene) for n, scene in enumerate(scenes)]
    env, rng, spent, steps = ALFWorldEnv(task_set=task_set("bench", tasks)), StableRandom("fresh"), 0.0, 0
    for task in tasks:
        info, over = env.reset(options={"task": task.id})[1], False
        while not over:
            command = rng.choice(info["admissible_actions"])
            began = time.process_time()
            *_, terminated, truncated, info = env.step(command)
            spent, steps, over = spent + time.process_time() - began, steps + 1, terminated or truncated
    return spent / steps


def experts(scenes: list[Scene], folder: Path) -> tuple[list[int | None], list[int]]:
    """Steps to win of the stock handcoded expert (None: not within the bound) and of ours."""
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredExpert, AlfredInfos
    from textworld.core import EnvInfos
    from textworld.envs.pddl import PddlEnv

    memoise_original()
    theirs: list[int | None] = []
    ours = []
    for number, scene in enumerate(scenes):
        path = write_scene_files(scene, f"expert-{number}", folder, "test")
        infos = EnvInfos(won=True, admissible_commands=True, facts=True, extras=["gamefile", "expert_plan"])
        stock: Any = AlfredExpert(
            AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False)), expert_type="handcoded"
        )
        stock.load(str(path))
        state, steps = stock.reset(), 0
        while not state["won"] and steps < MOST_EXPERT_STEPS:
            state, _, _ = stock.step(state["extra.expert_plan"][0])
            steps += 1
        theirs.append(steps if state["won"] else None)
        env = ALFWorldEnv(task_set=task_set("bench", [Task("one", "test", scene.task, scene)]))
        info = env.reset(options={"task": "one"})[1]
        while (reply := env.oracle()) is not None:
            *_, info = env.step(reply)
        ours.append(info["step"])
    return theirs, ours


def wrapped(line: str) -> str:
    """A line of the page in lines of at most 150 characters; rows of tables stay whole."""
    indent = "  " if line.startswith("- ") else ""
    whole = line.startswith("|") or not line
    return line if whole else textwrap.fill(line, 150, subsequent_indent=indent, break_on_hyphens=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--games", type=int, default=12, help="number of games (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="random steps per game (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="file to write the page to")
    arguments = parser.parse_args()
    # Before the original is loaded: Python's garbage collector would go through its objects in the time of ours.
    never_seen = fresh_steps(list(islice(fresh_scenes("bench/fresh"), 60)))
    scenes = list(islice(fresh_scenes("bench"), arguments.games))
    rows = []
    for number, scene in enumerate(scenes):
        rows.append(
            {
                "type": scene.task,
                "scene": scene.house.scene,
                **measure(scene, f"bench-{number}", arguments.steps),
            }
        )
        print(rows[-1], flush=True)
    memory = int(
        subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    )
    with tempfile.TemporaryDirectory() as folder:
        theirs, ours = experts(scenes, Path(folder))
    names = {task: name for name, task in TASK_TYPES.items()}
    lines = [
        f"Made by `python scripts/bench/bench_alfworld.py --games {arguments.games} --steps {arguments.steps} --out docs/results/alfworld.md` (Python "  # noqa: E501
        f"{platform.python_version()}, TextWorld 1.7.0, alfworld 0.4.2; x86-64 server CPU, one core). CPU time; both sides in turn in one process.",  # noqa: E501
        "",
        "| game | scene | things | load: TextWorld s, ours ms, ratio | reset: TextWorld s, ours us, ratio | step: TextWorld ms, ours us, ratio |",  # noqa: E501
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        ratios = {what: row[what] / row[f"our {what}"] for what in ("load", "reset", "step")}
        lines.append(
            f"| {names[row['type']]} | {row['scene']} | {row['things']} | {row['load']:.2f}, {1e3 * row['our load']:.2f}, {ratios['load']:,.0f} | "  # noqa: E501
            f"{row['reset']:.2f}, {1e6 * row['our reset']:.0f}, **{ratios['reset']:,.0f}** | "
            f"{1e3 * row['step']:.1f}, {1e6 * row['our step']:.1f}, **{ratios['step']:,.0f}** |"
        )
    over_games = {
        what: spread([row[what] / row[f"our {what}"] for row in rows], 0)
        for what in ("load", "reset", "step")
    }
    won = [steps for steps in theirs if steps is not None]
    slow = statistics.median(row["step"] for row in rows) / never_seen
    lines += [
        f"| median ratio (least to most) | | | {over_games['load']} | {over_games['reset']} | {over_games['step']} |",
        "",
        "- The steps above are repeated, so our states are cached. With only new states (60 random walks in a process that "
        f"holds no TextWorld) a step takes {1e6 * never_seen:.0f} us: TextWorld's median step takes **{slow:,.0f}** times as long.",
        f"- 1,000 environments in one process, each in a different game, after 10 steps each: at most **{memory} MB**.",
        f"- ALFWorld's handcoded expert wins {len(won)} of these {len(theirs)} games within {MOST_EXPERT_STEPS} steps, in "
        f"{statistics.mean(won):.1f} on average (it must search). Ours knows where things are and wins {len(ours)} in {statistics.mean(ours):.1f}.",  # noqa: E501
    ]
    before = (
        arguments.out.read_text(encoding="utf-8")
        if arguments.out.exists()
        else f"# ALFWorld\n\n{BEGIN}\n{END}\n"
    )
    head, _, rest = before.partition(BEGIN)
    arguments.out.write_text(
        head + BEGIN + "\n" + "\n".join(map(wrapped, lines)) + "\n" + END + rest.partition(END)[2],
        encoding="utf-8",
    )
    print(
        f"median: load {over_games['load']}, reset {over_games['reset']}, step {over_games['step']}; memory {memory} MB; see {arguments.out}"  # noqa: E501
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
