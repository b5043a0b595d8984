"""Multi-turn text environments for LLM agents under Gymnasium ids, with tools for evaluating agents.

>>> import gymnasium as gym, tstar_envs
>>> env = gym.make("tstar/Sokoban-easy")
>>> observation, info = env.reset(options={"task": 0})
>>> observation, reward, terminated, truncated, info = env.step(env.unwrapped.oracle())
>>> info["action_valid"], info["step"]
(True, 1)
"""

from typing import TYPE_CHECKING, Any

from tstar_envs.core import TextEnv
from tstar_envs.data.files import file_kind, parse_json, read_json, regular_file, write_whole
from tstar_envs.data.lock import only_writer
from tstar_envs.errors import (
    BadData,
    EnvironmentFailed,
    InfrastructureError,
    InUse,
    MissingData,
    MissingExtra,
    PanelMismatch,
    ResetNeeded,
    RetrieverError,
    SolverLimit,
    TStarError,
    UnknownOption,
    UnknownTask,
    WriteFailed,
    import_extra,
)
from tstar_envs.evalset import Panel, TaskSet, panel, task_set
from tstar_envs.evaluation.stats import cluster_bootstrap
from tstar_envs.foreign import StepResult, called, progress_of, prompt_of, task_ids_of
from tstar_envs.react import Reply, parse_reply, render_reply
from tstar_envs.record import Episode, Step
from tstar_envs.record_files import append_episode, read_episodes
from tstar_envs.registry import (
    EnvEntry,
    find_entry,
    list_envs,
    parse_options,
    refuse_repeats,
    register,
    register_all,
)
from tstar_envs.rollout import GroupEnv, clone, make_group, new_episode, play_group
from tstar_envs.snapshot import Snapshot
from tstar_envs.spaces import Unicode
from tstar_envs.utils import StableRandom

if TYPE_CHECKING:
    from tstar_envs.evaluation.episode_log import EpisodeLog
    from tstar_envs.evaluation.evaluate import evaluate

__version__ = "0.1.0"

__all__ = [
    "BadData",
    "EnvEntry",
    "EnvironmentFailed",
    "Episode",
    "EpisodeLog",
    "GroupEnv",
    "InUse",
    "InfrastructureError",
    "MissingData",
    "MissingExtra",
    "Panel",
    "PanelMismatch",
    "Reply",
    "ResetNeeded",
    "RetrieverError",
    "Snapshot",
    "SolverLimit",
    "StableRandom",
    "Step",
    "StepResult",
    "TStarError",
    "TaskSet",
    "TextEnv",
    "Unicode",
    "UnknownOption",
    "UnknownTask",
    "WriteFailed",
    "append_episode",
    "called",
    "clone",
    "cluster_bootstrap",
    "evaluate",
    "file_kind",
    "find_entry",
    "import_extra",
    "list_envs",
    "make_group",
    "new_episode",
    "only_writer",
    "panel",
    "parse_json",
    "parse_options",
    "parse_reply",
    "play_group",
    "progress_of",
    "prompt_of",
    "read_episodes",
    "read_json",
    "refuse_repeats",
    "register",
    "register_all",
    "regular_file",
    "render_reply",
    "task_ids_of",
    "task_set",
    "write_whole",
]


def __getattr__(name: str) -> Any:
    """Load the evaluation when it is first asked for: environments alone do not need it."""
    if name == "evaluate":
        from tstar_envs.evaluation.evaluate import evaluate

        return evaluate
    if name == "EpisodeLog":
        from tstar_envs.evaluation.episode_log import EpisodeLog

        return EpisodeLog
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_all()
