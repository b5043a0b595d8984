"""An environment that goes wrong in the middle of a run; imported by the run's process alone, since it registers itself."""

import os

from lamps_environment import Lamps

from tstar_envs import EnvEntry, register

MEASURED, ITERATION = 24, 12  # steps: two held-out tasks of 12, and four episodes of 3
DONE = {"steps": 0}


def wrong(way: str) -> bool:
    """Whether it is time to go wrong in this way: in the second iteration."""
    return os.environ.get("WAY") == way and DONE["steps"] > MEASURED + ITERATION + 2


class GoesWrong(Lamps):
    def _apply(self, task, state, action):
        DONE["steps"] += 1
        if wrong("folder"):
            os.chdir(os.environ["ELSEWHERE"])
        return super()._apply(task, state, action)

    def task_ids(self, split=None):
        return super().task_ids(split)[: 1 if wrong("fewer tasks") else None]

    def progress(self):
        if wrong("progress exits"):
            raise SystemExit(0)
        return "far" if wrong("progress in words") else super().progress()


register(
    EnvEntry(
        id="mine/GoesWrong",
        family="lamps",
        entry_point=f"{__name__}:GoesWrong",
        horizon=12,
        rules_version="1",
        extra="",
        summary="turn all lamps on",
    )
)
