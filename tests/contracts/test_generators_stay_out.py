"""Playing loads no generator: make, reset, step and oracle of every family in a fresh process; ``practice`` loads it when called."""

import importlib.util
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
    ours = {name: module for name, module in sys.modules.items() if name.startswith("tstar_envs.envs.")}
    # A family whose generator is still one module is left alone.
    return sorted(n for n, m in ours.items() if ".generate." in n or (n.endswith(".generate") and hasattr(m, "__path__")))

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
if sys.argv[2] == "package":
    env.unwrapped.practice(0, **{**options, "split": "train"})
    assert generators(), "practice loaded nothing, so this test would not see a generator"
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_playing_loads_no_generator(family: str) -> None:
    found = importlib.util.find_spec(f"tstar_envs.envs.{family}.generate")
    kind = "package" if found is not None and found.submodule_search_locations else "module"
    done = subprocess.run(
        [sys.executable, "-c", PLAY, family, kind], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
