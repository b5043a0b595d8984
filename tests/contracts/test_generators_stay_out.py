"""Playing loads no generator: make, reset, step and oracle of every family in a fresh process; ``practice`` loads it when called."""

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
