"""Playing episodes with an engine: all rows of all groups side by side, finished and failed rows leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tstar_envs import Episode, GroupEnv, Step, UnknownOption, find_entry, make_group
from tstar_train.engines.base import Engine, Sample
from tstar_train.policy.codec import Codec, thought_length
from tstar_train.policy.limit import ContextTooLong
from tstar_train.rollout.failures import failed, mark_failed
from tstar_train.rollout.transcript import Transcript
from tstar_train.rollout.types import Trajectory, Turn


@dataclass(frozen=True)
class Sampling:
    """How replies are sampled.

    Attributes:
        max_tokens: longest reply.
        temperature: 1 in training; 0 is greedy.
        context: ``concat`` (the whole transcript) or ``step`` (task, the last ``history`` turns and the current observation).
        history: turns kept by ``step``, 0 or more.
        progress: whether ``Turn.progress`` is recorded.
    """

    max_tokens: int = 64
    temperature: float = 1.0
    context: str = "concat"
    history: int = 2
    progress: bool = False


@dataclass
class EnvSpec:
    """Which environment is played, with its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def group(self, tasks: Sequence[str | int], size: int, split: str) -> GroupEnv:
        """Environments for ``size`` episodes of each task."""
        return make_group(self.name, tasks, size, split=split, **self.options)


def overlong(episode: Episode) -> bool:
    """Whether an episode ended because its context left no room for a reply."""
    return bool(episode.extra.get("overlong", False))


def mark_overlong(trajectory: Trajectory, with_progress: bool) -> None:
    """End an episode that cannot go on."""
    trajectory.episode.ended = "truncated"
    trajectory.episode.extra["overlong"] = True
    if with_progress and trajectory.turns:
        trajectory.turns[-1].progress = 0.0  # as for every other end without success


def transcript_of(episode: Episode, codec: Codec, prompt: str, sampling: Sampling) -> Transcript:
    """The transcript of an episode that has not begun."""
    return Transcript(codec, prompt, episode.instruction, episode.first_observation, sampling.context, sampling.history)


def collect(
    spec: EnvSpec,
    engine: Engine,
    codec: Codec,
    tasks: Sequence[str],
    *,
    size: int,
    split: str,
    seed: str,
    sampling: Sampling,
    agent: str = "policy",
    first_group: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[Trajectory]:
    """Play ``size`` episodes of each task.

    Args:
        spec: the environment.
        engine: samples replies.
        codec: turns to ids.
        tasks: ids.
        size: episodes per task.
        split: recorded, and where the tasks are.
        seed: the samples of a row depend on it, on the task, the member and the turn alone.
        sampling: temperature, lengths, context form.
        agent: name in the records.
        first_group: number of the first task, where the tasks are part of a larger batch.
        progress: called with the number of rows still playing, before each turn.

    Returns:
        Trajectories in order of task, then member; those whose infrastructure failed are marked so (``rollout.failures``).
    """
    group = spec.group(tasks, size, split)
    observations, infos = group.reset()
    entry = find_entry(spec.name)
    prompt = group.envs[0].prompt() if group.envs else ""
    trajectories, lines = [], []
    for row, (observation, info) in enumerate(zip(observations, infos, strict=True)):
        episode = Episode(
            env=entry.id, tier=group.envs[row].tier, task=info["task_id"], split=info["split"], rules_version=entry.rules_version,
            agent=agent, instruction=info["instruction"], first_observation=observation, sample=row % size,
            extra=Episode.facts(info),
        )  # fmt: skip
        trajectories.append(Trajectory(first_group + row // size, row % size, episode, start_key=group.envs[row].state_key()))
        lines.append(transcript_of(episode, codec, prompt, sampling))
    play_on(group, engine, codec, trajectories, lines, seed=seed, sampling=sampling, progress=progress)
    if trajectories and not any(t.turns or failed(t.episode) for t in trajectories):
        tokens = len(lines[0].context())
        raise UnknownOption(
            f"no episode can begin: the rules and first observation of {tasks[0]} have {tokens} tokens, which with replies of "
            f"--rollout.max-tokens {sampling.max_tokens} is more than the limit of {engine.limit} tokens; name a model with more "
            f"positions, or shorter replies"
        )
    return trajectories


def play_on(
    group: GroupEnv,
    engine: Engine,
    codec: Codec,
    trajectories: Sequence[Trajectory],
    lines: Sequence[Transcript],
    *,
    seed: str,
    sampling: Sampling,
    begun: Sequence[Sequence[int]] | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Play every running row to its end, writing into its trajectory and its transcript.

    A row whose infrastructure fails ends without a result: its episode is marked as failed. One whose context leaves no room for a
    reply, however many turns are left out, cannot go on: it is truncated there with a reward of 0, and marked (``overlong``).

    Args:
        group: environments, one per row.
        engine: samples replies.
        codec: turns to ids.
        trajectories: one per row.
        lines: one per row.
        seed: see ``collect``.
        sampling: temperature, lengths, context form.
        begun: per row, the ids that its first reply begins with (a thought that is given, not sampled); they are not
            counted in ``max_tokens`` and their log-probabilities are recorded as 0.
        progress: called with the number of rows still playing, before each turn.
    """
    turn = 0
    stuck: set[int] = set()
    while True:
        offered: dict[int, tuple[list[int], list[int]]] = {}
        for r in (r for r, running in enumerate(group.running) if running and r not in stuck):
            first = list(begun[r]) if begun is not None and turn == 0 else []
            try:
                offered[r] = first, lines[r].context(engine.limit - sampling.max_tokens - len(first))
            except ContextTooLong:
                stuck.add(r)
                mark_overlong(trajectories[r], sampling.progress)
        if not offered:
            return
        rows = list(offered)
        if progress is not None:
            progress(len(rows))
        given, contexts = [first for first, _ in offered.values()], [context for _, context in offered.values()]
        seeds = [f"{seed}/{trajectories[r].episode.task}/{trajectories[r].member}/{turn}" for r in rows]
        samples = engine.generate(
            [context + ids for context, ids in zip(contexts, given, strict=True)], seeds,
            max_tokens=sampling.max_tokens, temperature=sampling.temperature, keys=[(seed, r) for r in rows],
        )  # fmt: skip
        samples = [Sample(ids + s.ids, [0.0] * len(ids) + s.logprobs) for ids, s in zip(given, samples, strict=True)]
        # An environment cannot be left in the middle: a row that is stuck says nothing until the others are done, and nobody listens.
        replies: list[str | None] = ["" if r in stuck and running else None for r, running in enumerate(group.running)]
        for r, context, sample in zip(rows, contexts, samples, strict=True):
            # Kept as sampled: what is decoded here is never encoded again.
            replies[r] = codec.decode(sample.ids)
            trajectories[r].turns.append(Turn(context, sample.ids, sample.logprobs, thought_length(codec, sample.ids)))
        stepped, rewards, terminated, truncated, step_infos = group.step(replies, tolerant=True)
        for r, sample in zip(rows, samples, strict=True):
            step_info, answer, reply, error = step_infos[r], stepped[r], replies[r], group.errors[r]
            if error is not None:
                mark_failed(trajectories[r].episode, error)
                trajectories[r].turns.pop()  # it was never played
                continue
            if step_info is None or answer is None or reply is None:
                raise RuntimeError(f"row {r} was stepped but gave no result")
            episode = trajectories[r].episode
            trajectories[r].turns[-1].next_actions = step_info["admissible_actions"]
            episode.steps.append(Step.from_info(reply, answer, step_info))
            over = bool(terminated[r] or truncated[r])
            if sampling.progress:
                trajectories[r].turns[-1].progress = float(step_info["success"]) if over else group.envs[r].progress()
            if over:
                episode.ended = "terminated" if terminated[r] else "truncated"
                episode.reward = float(rewards[r] or 0.0)
                episode.success = bool(step_info["success"])
                episode.extra.update({k: step_info[k] for k in ("em", "f1", "sub_em") if k in step_info})
            else:
                trajectories[r].turns[-1].shaping = float(rewards[r] or 0.0)
                lines[r].add(sample.ids, answer)
        turn += 1
