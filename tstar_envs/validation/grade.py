"""Grade of an environment: its checks, in order, and the report in OpenEnv's format."""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tstar_envs.errors import EnvironmentFailed, InfrastructureError, UnknownOption
from tstar_envs.evalset import task_set
from tstar_envs.evaluation.replay import recordings, replay
from tstar_envs.record import Episode
from tstar_envs.registry import find_entry
from tstar_envs.tools import action_of, call_of
from tstar_envs.validation.subject import (
    ERROR,
    FAIL,
    GUESSES,
    IDLE,
    PASS,
    SKIP,
    Finding,
    Subject,
    mean_reward,
    verdict_of,
)

SEEDS = 20
_INFO = {
    "task_id": str,
    "split": str,
    "instruction": str,
    "step": int,
    "horizon": int,
    "success": bool,
    "score": float,
}
_ANEW = """
import json, sys
from tstar_envs import task_set
asked = json.load(sys.stdin)
print(task_set(asked["env"], split=asked["split"], **asked["options"]).hash)
"""


def tasks_are_pinned(subject: Subject) -> Finding:
    """Check that another process, with other string hashes, computes the same hash of the split's tasks."""
    here = task_set(subject.entry.id, split=subject.split, **subject.options)
    asked = json.dumps({"env": subject.entry.id, "split": subject.split, "options": subject.options})
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"}
    other = subprocess.run(
        [sys.executable, "-c", _ANEW], input=asked, capture_output=True, text=True, env=settings, check=False
    )
    if other.returncode:
        return Finding(
            ERROR,
            {},
            [f"another process could not make the tasks: {other.stderr.strip().splitlines()[-1]:.300}"],
        )
    there = other.stdout.strip()
    problems = (
        [] if there == here.hash else [f"another process made tasks with hash {there}, this one {here.hash}"]
    )
    figures = {"tasks": len(here.ids), "hash": here.hash, "rules_version": here.rules_version}
    return verdict_of(
        problems,
        figures,
        "make tasks independent of the process: no order of a set, no clock, no unseeded draw",
    )


def tasks_are_declared(subject: Subject) -> Finding:
    """Check that splits are filled and disjoint, and horizon and rules version match the registry."""
    env = subject.make()
    ids = {split: list(env.task_ids(split)) for split in subject.entry.splits}
    problems = [f"split {split!r} has no tasks" for split, tasks in ids.items() if not tasks]
    problems += [
        f"split {split!r} lists a task twice" for split, tasks in ids.items() if len(set(tasks)) < len(tasks)
    ]
    names = list(ids)
    for place, split in enumerate(names):
        for other in names[place + 1 :]:
            if both := set(ids[split]) & set(ids[other]):
                problems.append(f"task {min(both)!r} is in {split!r} and in {other!r}")
    steps = env.horizon if subject.options.get("horizon") is None else env.default_horizon
    for what, declared, found in (
        ("horizon", subject.entry.horizon, steps),
        ("rules version", subject.entry.rules_version, env.metadata["rules_version"]),
    ):
        if declared != found:
            problems.append(f"the table says {what} {declared}, the environment {found}")
    return verdict_of(
        problems,
        {split: len(tasks) for split, tasks in ids.items()},
        "give each split its own ids, and leave horizon and rules version to the registry's entry",
    )


def observations_fit(subject: Subject) -> Finding:
    """Check that prompt and observations are in the observation space, and ``info`` has the promised entries."""
    env = subject.make()
    problems = [] if env.prompt().strip() else ["prompt() is empty"]
    for episode in subject.episodes:
        texts = [episode.first_observation, *(step.observation for step in episode.steps)]
        if (
            at := next((n for n, text in enumerate(texts) if text not in env.observation_space), None)
        ) is not None:
            problems.append(
                f"task {episode.task!r}, {episode.agent}: the observation after step {at} is not in the observation space"
            )
    for task in subject.tasks:
        try:
            _, info = env.reset(options={"task": task})
        except EnvironmentFailed as error:
            problems.append(f"task {task!r}: {error}")
            continue
        wrong = [name for name, kind in _INFO.items() if not isinstance(info.get(name), kind)]
        problems += [f"task {task!r}: info[{name!r}] is not a {_INFO[name].__name__}" for name in wrong]
    steps = sum(len(episode.steps) for episode in subject.episodes)
    return verdict_of(
        problems,
        {"episodes": len(subject.episodes), "steps": steps},
        "see the contract in the docstring of TextEnv",
    )


def rewards_are_well_formed(subject: Subject) -> Finding:
    """Check that rewards are finite numbers in [0, 1], and above 0 for a success."""
    problems = []
    for episode in subject.episodes:
        if episode.ended == "error":
            problems.append(f"task {episode.task!r}, {episode.agent}: {episode.error}")
        elif not math.isfinite(episode.reward) or not 0 <= episode.reward <= 1:
            problems.append(f"task {episode.task!r}, {episode.agent}: reward {episode.reward}")
        elif episode.success and episode.reward <= 0:
            problems.append(
                f"task {episode.task!r}, {episode.agent}: solved with a reward of {episode.reward}"
            )
    rewards = [episode.reward for episode in subject.episodes]
    return verdict_of(
        problems,
        {"least": min(rewards), "most": max(rewards)},
        "return rewards in [0, 1], more than 0 for a success",
    )


def state_can_be_restored(subject: Subject) -> Finding:
    """Check that an episode continues unchanged after ``restore(snapshot())``, with the same state key."""
    problems = []
    for task, replies in subject.mixed:
        env = subject.make()
        env.reset(options={"task": task})
        for number, reply in enumerate(replies):
            saved, key = env.snapshot(), env.state_key()
            first = env.step(reply)
            env.restore(saved)
            if env.state_key() != key:
                problems.append(
                    f"task {task!r}: another state key after restoring the snapshot before step {number + 1}"
                )
            if env.step(reply) != first:
                problems.append(
                    f"task {task!r}: step {number + 1} has another result after its snapshot was restored"
                )
            if problems or first[2] or first[3]:
                break
    return verdict_of(
        problems, {"tasks": len(subject.tasks)}, "keep all that changes in the state that _apply returns"
    )


def seeds_choose_tasks(subject: Subject) -> Finding:
    """Check that equal seeds give the same task and observation, and different seeds different tasks."""
    env, other = subject.make(), subject.make()
    drawn, problems = [], []
    for seed in range(SEEDS):
        (text, info), (again, info_again) = env.reset(seed=seed), other.reset(seed=seed)
        drawn.append(info["task_id"])
        if (text, info["task_id"]) != (again, info_again["task_id"]):
            problems.append(
                f"seed {seed} gave task {info['task_id']!r} and then {info_again['task_id']!r}, or another observation of it"
            )
    if len(set(drawn)) < 2 and len(env.task_ids(subject.split)) > 1:
        problems.append(f"seeds 0 to {SEEDS - 1} all give task {drawn[0]!r}")
    return verdict_of(
        problems, {"seeds": SEEDS, "different_tasks": len(set(drawn))}, "draw with self.np_random alone"
    )


def episodes_are_deterministic(subject: Subject) -> Finding:
    """Check that equal replies give equal episodes, with and without calls of the expert."""
    problems = []
    for task, replies in subject.mixed:
        first, second = (_transcript(subject, task, replies, asking=asking) for asking in (False, True))
        if first != second:
            problems.append(f"task {task!r}: {_difference(first, second)}")
    return verdict_of(
        problems,
        {"tasks": len(subject.tasks), "times": 2},
        "let the state and the reply alone decide what a step gives",
    )


def episodes_are_isolated(subject: Subject) -> Finding:
    """Check that interleaved episodes, and one after an abandoned episode, do not influence each other."""
    problems = []
    for (task, replies), (other_task, other_replies) in pairwise([*subject.mixed, subject.mixed[0]]):
        alone = _transcript(subject, task, replies), _transcript(subject, other_task, other_replies)
        envs = subject.make(), subject.make()
        together: list[list[tuple[object, ...]]] = [
            [envs[0].reset(options={"task": task})],
            [envs[1].reset(options={"task": other_task})],
        ]
        for turn in range(max(len(replies), len(other_replies))):
            for side, said in enumerate((replies, other_replies)):
                if turn < len(said) and not _over(together[side]):
                    together[side].append(envs[side].step(said[turn]))
        for side, name in enumerate((task, other_task)):
            if together[side] != alone[side]:
                problems.append(f"task {name!r} beside another: {_difference(alone[side], together[side])}")
        left = envs[0]
        left.reset(options={"task": other_task})
        left.step(other_replies[0])
        begun = left.reset(options={"task": task})
        if begun != alone[0][0]:
            problems.append(f"task {task!r} begins otherwise after an episode that was left in its middle")
    return verdict_of(
        problems, {"pairs": len(subject.mixed)}, "keep nothing of an episode in the class or in the module"
    )


def tools_say_every_action(subject: Subject) -> Finding:
    """Check that typed tools can express the expert's actions and give them back; skipped without an expert."""
    env, problems, calls = subject.make(), [], 0
    for episode in subject.expert:
        for step in episode.steps:
            call = call_of(env.tools, step.action)
            if call is None:
                problems.append(f"task {episode.task!r}: no tool says {step.action!r}")
                continue
            calls += 1
            env.reset(options={"task": episode.task})
            said = action_of(env.tools, call[0], json.dumps(call[1]))
            if said.casefold() != step.action.casefold():
                problems.append(f"task {episode.task!r}: {call[0]} says {said!r} for {step.action!r}")
    if not any(episode.steps for episode in subject.expert):
        return Finding(SKIP, {}, ["there is no expert whose actions tools could express, or it has no step"])
    figures = {"tools": [tool.name for tool in env.tools], "calls": calls}
    return verdict_of(problems, figures, "describe every kind of action in TextEnv.tools")


def _transcript(
    subject: Subject, task: str, replies: list[str], asking: bool = False
) -> list[tuple[object, ...]]:
    """Record the results of the reset and of each step; ``asking`` calls the expert before each step."""
    env = subject.make()
    results: list[tuple[object, ...]] = [env.reset(options={"task": task})]
    for reply in replies:
        if _over(results):
            break
        if asking and subject.expert:
            env.oracle()
        results.append(env.step(reply))
    return results


def _over(results: list[tuple[object, ...]]) -> bool:
    return len(results) > 1 and bool(results[-1][2] or results[-1][3])


def _difference(first: list[tuple[object, ...]], second: list[tuple[object, ...]]) -> str:
    at = next(
        (n for n, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]),
        min(len(first), len(second)),
    )
    return f"step {at} has another result" if at else "the reset has another result"


HIGHEST = 1.0
FLOOR_MARGIN = 0.1  # minimum in OpenEnv's policy v1
REPLAYS = 3


def expert_reaches_the_maximum(subject: Subject) -> Finding:
    """Check that the expert's reward is 1 on every task; fails without an expert, as OpenEnv's."""
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
    """Check that random play, and one repeated action, earn much less than the expert on average."""
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
    """Check that replies without an action earn nothing, and blind guesses much less than the expert."""
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
    """Check that episodes replayed from their written records do not differ in any step."""
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
    """Check that the same replies earn the same reward each time."""
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
    """Measure time and memory of the longest episode of ``Subject.played``; fails only above an hour."""
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


@dataclass(frozen=True)
class Check:
    """One check.

    id: OpenEnv's id; the part before the dot is the level.
        title: description in words.
        run: function that makes the check.
        run: makes it.
    """

    id: str
    title: str
    run: Callable[[Subject], Finding]


CHECKS = (
    Check("static.task_distribution_pinning", "tasks are the same in every process", tasks_are_pinned),
    Check("runtime.task_declaration_accuracy", "splits are filled and apart", tasks_are_declared),
    Check("runtime.seed_control", "seeds choose tasks", seeds_choose_tasks),
    Check("runtime.reward_well_formed", "rewards lie in [0, 1]", rewards_are_well_formed),
    Check("runtime.observation_schema", "observations and info are as promised", observations_fit),
    Check("runtime.state_contract", "a snapshot restores the state", state_can_be_restored),
    Check(
        "runtime.episode_determinism",
        "the same replies give the same episode",
        episodes_are_deterministic,
    ),
    Check("runtime.episode_isolation", "episodes do not touch each other", episodes_are_isolated),
    Check("runtime.tool_declaration_accuracy", "typed tools say every action", tools_say_every_action),
    Check("semantic.oracle_max", "the expert reaches the maximum", expert_reaches_the_maximum),
    Check("semantic.floor_gap", "blind play stays below", blind_play_stays_below),
    Check("semantic.canary_floor", "looking for a reward earns none", canaries_earn_the_floor),
    Check("semantic.replayability", "records can be played again", records_can_be_replayed),
    Check(
        "semantic.verifier_determinism",
        "rewards can be measured again",
        rewards_can_be_measured_again,
    ),
    Check("semantic.resource_envelope", "an episode is light", episodes_are_light),
)


@dataclass(frozen=True)
class Result:
    """A check with its finding.

    Attributes:
        check: the check.
        finding: its finding.
        seconds: its duration.
    """

    check: Check
    finding: Finding
    seconds: float


@dataclass(frozen=True)
class Grade:
    """Findings of all checks.

    Attributes:
        subject: subject of the grade.
        results: results of the checks, in order.
    """

    subject: Subject
    results: tuple[Result, ...]

    @property
    def verdict(self) -> str:
        """OpenEnv's verdict: ``fail`` if a check failed or raised, ``warn`` if one was skipped, else ``pass``."""
        found = {result.finding.status for result in self.results}
        return "fail" if found & {FAIL, ERROR} else "pass" if found == {PASS} else "warn"

    @property
    def figures(self) -> dict[str, Any]:
        """Measured figures by check."""
        return {result.check.id: result.finding.figures for result in self.results}


def subject_of(env: str, *, split: str | None = None, tasks: int = 8, **options: Any) -> Subject:
    """Select the environment and the tasks to grade.

    Args:
        env: environment id or short name; ``module:namespace/Name`` for a custom environment.
        split: split of the tasks; None takes test, or the environment's first split.
        tasks: number of tasks, spread over the split.

    Raises:
        UnknownOption: unknown environment, split or option, or no tasks.
    """
    entry = find_entry(env)
    chosen = split or ("test" if "test" in entry.splits else entry.splits[0])
    if tasks < 1:
        raise UnknownOption(f"tasks must be 1 or more, got {tasks}")
    subject = Subject(entry, chosen, options)
    ids = list(subject.make().task_ids(chosen))
    if not ids:
        raise UnknownOption(f"split {chosen!r} of {entry.id} has no tasks to grade it on")
    count = min(tasks, len(ids))
    subject.tasks = tuple(ids[n * len(ids) // count] for n in range(count))
    return subject


def grade(subject: Subject) -> Grade:
    """Run all checks.

    Raises:
        InfrastructureError: see ``results_of``.
    """
    return Grade(subject, tuple(results_of(subject)))


def results_of(subject: Subject) -> Iterator[Result]:
    """Run the checks one by one; one that raises is recorded as the environment's error.

    Raises:
        InfrastructureError: a service that the environment needs failed (search); there is no grade.
    """
    for check in CHECKS:
        began = time.perf_counter()
        try:
            finding = check.run(subject)
        except InfrastructureError:
            raise
        except Exception as error:  # noqa: BLE001 - the grade reports any exception of a user's environment
            mend = "let no reply and no task raise; see the contract in the docstring of TextEnv"
            finding = Finding(ERROR, {}, [f"{type(error).__name__}: {error}"], mend)
        yield Result(check, finding, time.perf_counter() - began)


_LEVELS = {"static": 1, "runtime": 2, "semantic": 3}


def _asks_a_service(options: dict[str, Any]) -> bool:
    return any(str(value).startswith(("http://", "https://")) for value in options.values())


def openenv_report(grade: Grade) -> dict[str, Any]:
    """Convert the grade to JSON values for ``ValidationReport`` of ``openenv.validation``.

    The source digest is that of the tasks and rules, since there is no package.
    """
    subject = grade.subject
    tasks = task_set(subject.entry.id, split=subject.split, **subject.options)
    env = subject.make()
    counts = {split: len(env.task_ids(split)) for split in subject.entry.splits}
    memory = grade.figures["semantic.resource_envelope"].get("peak_memory_mb", 1024)
    return {
        "report_schema_version": "1",
        "target": subject.entry.id,
        "source_digest": tasks.hash,
        "signature": "openenv.yaml",
        "manifest": {
            "manifest_schema_version": "1",
            "name": subject.entry.id,
            "version": subject.entry.rules_version,
            "signature": "openenv.yaml",
            "reward": {"range": [0.0, HIGHEST], "oracle_tolerance": 0.0, "floor_margin": FLOOR_MARGIN},
            "resources": {"cpu": 1.0, "memory_mb": memory, "disk_mb": 1024, "episode_timeout_s": 3600.0},
            "task_distribution": {"dataset_version": tasks.hash},
            "network": {"mode": "public" if _asks_a_service(subject.options) else "no-network"},
            "capabilities": {
                "verifier": {"kind": "reward_channel"},
                "task_api": True,
                "declared_tools": [tool.name for tool in env.tools],
                "declared_task_count": counts,
            },
            "types": {"tags": [subject.entry.family or "text"]},
        },
        "policy_version": "v1",
        "lane": "local",
        "levels_run": sorted({_LEVELS[result.check.id.partition(".")[0]] for result in grade.results}),
        "results": [
            {
                "check_id": result.check.id,
                "status": result.finding.status,
                "measured": result.finding.figures,
                "evidence": result.finding.evidence,
                "remediation": result.finding.mend or None,
                "duration_s": round(result.seconds, 3),
            }
            for result in grade.results
        ],
        "verdict": grade.verdict,
    }
