"""Checks of what rewards mean: the expert earns the most, playing blindly earns little, and a record earns again what it earned."""

from __future__ import annotations

import resource
import time

from tstar_envs.bench.replay import recordings, replay
from tstar_envs.record import Episode
from tstar_envs.validation.finding import FAIL, Finding, verdict_of
from tstar_envs.validation.subject import GUESSES, IDLE, Subject, mean_reward

HIGHEST = 1.0
FLOOR_MARGIN = 0.1  # what OpenEnv's policy v1 asks for at least
REPLAYS = 3


def expert_reaches_the_maximum(subject: Subject) -> Finding:
    """The expert's reward is 1 on every task. Without an expert the check fails, as OpenEnv's does: they may have no solution."""
    mend = "write an expert (_oracle_step) that solves every task, or leave out tasks that cannot be solved"
    if not subject.expert:
        return Finding(FAIL, {}, ["there is no expert: the class does not define _oracle_step"], mend)
    problems = [
        f"task {e.task!r}: {e.error or f'reward {e.reward:g}'}"
        for e in subject.expert
        if e.ended == "error" or e.reward < HIGHEST
    ]
    figures = {
        "oracle_reward": mean_reward(subject.expert),
        "least": min(episode.reward for episode in subject.expert),
        "tasks": len(subject.expert),
        "mean_steps": sum(len(episode.steps) for episode in subject.expert) / len(subject.expert),
        "declared_tolerance": 0.0,
    }
    return verdict_of(problems, figures, mend)


def blind_play_stays_below(subject: Subject) -> Finding:
    """Playing at random, or one action again and again, earns on average much less than the expert."""
    means = {
        name: mean_reward(episodes) for name, episodes in subject.blind.items() if name not in IDLE | GUESSES
    }
    floor = max(means.values())
    problems = [
        f"{name} earns {mean:.3f} on average" for name, mean in means.items() if HIGHEST - mean < FLOOR_MARGIN
    ]
    figures = {"measured_floor": floor, "gap": HIGHEST - floor, "floor_margin": FLOOR_MARGIN, **means}
    return verdict_of(
        problems,
        figures,
        "tasks that are solved by chance teach nothing: make them longer, or the reward stricter",
    )


def canaries_earn_the_floor(subject: Subject) -> Finding:
    """Replies that play nothing earn nothing on any task, and blind guesses much less than the expert on average."""
    means = {name: mean_reward(subject.blind[name]) for name in IDLE | GUESSES}
    problems = [
        f"{name}: task {e.task!r} earns {e.reward:g}"
        for name in IDLE
        for e in subject.blind[name]
        if e.reward > 0
    ]
    problems += [
        f"{name} earns {means[name]:.3f} on average"
        for name in GUESSES
        if HIGHEST - means[name] < FLOOR_MARGIN
    ]
    return verdict_of(problems, means, "a reply that knows nothing of the task must not be rewarded")


def records_can_be_replayed(subject: Subject) -> Finding:
    """Episodes played again from their record, as it is written to a file, do not differ in any step."""
    episodes = [Episode.from_json(episode.to_json()) for episode in subject.episodes]
    problems = [
        f"task {r.recording.episode.task!r}, {r.recording.episode.agent}: {r.failed or f'step {r.step} differs in {r.changes[0].what}'}"
        for r in replay([subject.make() for _ in range(8)], subject.entry, recordings(episodes))
        if r.failed or r.step is not None
    ]
    return verdict_of(
        problems, {"episodes": len(episodes)}, "let nothing but the task and the replies decide an episode"
    )


def rewards_can_be_measured_again(subject: Subject) -> Finding:
    """The same replies earn the same reward each time they are played."""
    problems = []
    for episode in subject.played:
        rewards = {episode.reward}
        for _ in range(REPLAYS):
            env = subject.make()
            env.reset(options={"task": episode.task})
            reward = 0.0
            for step in episode.steps:
                _, reward, *_ = env.step(step.reply)
            rewards.add(float(reward))
        if len(rewards) > 1:
            problems.append(
                f"task {episode.task!r} earned {', '.join(f'{reward:g}' for reward in sorted(rewards))}"
            )
    return verdict_of(
        problems, {"times": REPLAYS, "tasks": len(subject.played)}, "compute the reward from the state alone"
    )


def episodes_are_light(subject: Subject) -> Finding:
    """Seconds and memory of the longest episode of ``Subject.played``; a figure rather than a bound, but for a timeout of an hour."""
    episode = max(subject.played, key=lambda e: len(e.steps))
    env = subject.make()
    began = time.perf_counter()
    env.reset(options={"task": episode.task})
    for step in episode.steps:
        env.step(step.reply)
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    problems = [f"an episode takes {seconds:.0f} s"] if seconds > 3600 else []
    figures = {
        "milliseconds_per_step": round(1000 * seconds / max(1, len(episode.steps)), 3),
        "peak_memory_mb": round(peak),
    }
    return verdict_of(problems, figures, "make steps faster")
