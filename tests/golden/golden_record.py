"""Records one golden episode: a fixed list of replies, some of them the expert's."""

from typing import Any

from tstar_envs import EnvEntry, Episode, Step, TextEnv

ORACLE = "<oracle>"  # stands for the expert's reply while recording
MISTAKE = "<mistake>"  # stands for a believable mistake


def record_episode(
    entry: EnvEntry,
    env: TextEnv[Any, Any],
    name: str,
    options: dict[str, Any],
    task: str | int,
    replies: list[str],
) -> Episode:
    """The episode of a task under the given replies, which must bring it to its end."""
    observation, info = env.reset(options={"task": task})
    episode = Episode(
        entry.id,
        env.tier,
        info["task_id"],
        info["split"],
        entry.rules_version,
        name,
        info["instruction"],
        observation,
        extra={"options": options},
    )
    for number, planned in enumerate(replies):
        reply = (
            env.oracle() or ""
            if planned == ORACLE
            else env.mistake(number)
            if planned == MISTAKE
            else planned
        )
        observation, reward, terminated, truncated, info = env.step(reply)
        episode.steps.append(Step.from_info(reply, observation, info))
        if terminated or truncated:
            episode.reward, episode.success = reward, info["success"]
            episode.ended = "terminated" if terminated else "truncated"
            return episode
    raise SystemExit(f"the episode {name!r} did not end: give it more replies")
