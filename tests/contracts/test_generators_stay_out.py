"""What is loaded only when it is needed: generators by ``practice``, solvers by the expert, readers of foreign files by such files.

Each in a fresh process for every family.
"""

import subprocess
import sys

import pytest

from tstar_envs import list_envs

FAMILIES = sorted({entry.family for entry in list_envs()})
PLAY = """
import sys
import gymnasium as gym
import tstar_envs

def generators():
    return sorted(name for name in sys.modules if name.startswith("tstar_envs.envs.") and ".generate" in name)

for entry in tstar_envs.list_envs():
    if entry.family == sys.argv[1]:
        options = dict(entry.kwargs)
        env = gym.make(entry.id, disable_env_checker=True)
        env.reset(seed=0)
        env.step("not an action of any family")
        while not env.unwrapped.snapshot().over:
            env.step(env.unwrapped.oracle())
        assert env.unwrapped.snapshot().success, entry.id
assert not generators(), generators()
env.unwrapped.practice(0, **{**options, "split": "train"})
assert generators(), "practice loaded nothing, so this test would not see a generator"
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_playing_loads_no_generator(family: str) -> None:
    done = subprocess.run([sys.executable, "-c", PLAY, family], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


LATE = {
    "sokoban": {"solver", "expert", "level_files", "practice"},
    "blocksworld": {"solver", "expert", "files", "practice"},
    "alfworld": {"expert", "published", "engine", "practice"},
    "webshop": {"original", "practice"},
    "search_qa": {"service", "practice"},
}
MADE = """
import sys
import gymnasium as gym
import tstar_envs

for entry in tstar_envs.list_envs():
    if entry.family == sys.argv[1]:
        env = gym.make(entry.id, disable_env_checker=True)
        env.reset(seed=0)
        env.step("not an action of any family")
        actions = env.unwrapped.reset(seed=1)[1]["admissible_actions"]
        env.step(actions[0] if actions else "search[a]")
print(*(name.split(".", 3)[-1] for name in sys.modules if name.startswith(f"tstar_envs.envs.{sys.argv[1]}.")))
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_making_and_stepping_loads_neither_solver_nor_readers_of_foreign_files(family: str) -> None:
    done = subprocess.run([sys.executable, "-c", MADE, family], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert {"env", "rules", "text", "tasks"} <= loaded
    assert not LATE[family] & loaded
