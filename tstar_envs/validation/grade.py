"""Grade of an environment: all checks in order, also in OpenEnv's form."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tstar_envs.errors import InfrastructureError, UnknownOption
from tstar_envs.evalset import task_set
from tstar_envs.registry import find_entry
from tstar_envs.validation import checks
from tstar_envs.validation.checks import FLOOR_MARGIN, HIGHEST
from tstar_envs.validation.subject import ERROR, FAIL, PASS, Finding, Subject


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        id: OpenEnv's, whose part before the dot is the level.
        title: in words.
        run: makes it.
    """

    id: str
    title: str
    run: Callable[[Subject], Finding]


CHECKS = (
    Check("static.task_distribution_pinning", "tasks are the same in every process", checks.tasks_are_pinned),
    Check("runtime.task_declaration_accuracy", "splits are filled and apart", checks.tasks_are_declared),
    Check("runtime.seed_control", "seeds choose tasks", checks.seeds_choose_tasks),
    Check("runtime.reward_well_formed", "rewards lie in [0, 1]", checks.rewards_are_well_formed),
    Check("runtime.observation_schema", "observations and info are as promised", checks.observations_fit),
    Check("runtime.state_contract", "a snapshot restores the state", checks.state_can_be_restored),
    Check(
        "runtime.episode_determinism",
        "the same replies give the same episode",
        checks.episodes_are_deterministic,
    ),
    Check("runtime.episode_isolation", "episodes do not touch each other", checks.episodes_are_isolated),
    Check("runtime.tool_declaration_accuracy", "typed tools say every action", checks.tools_say_every_action),
    Check("semantic.oracle_max", "the expert reaches the maximum", checks.expert_reaches_the_maximum),
    Check("semantic.floor_gap", "blind play stays below", checks.blind_play_stays_below),
    Check("semantic.canary_floor", "looking for a reward earns none", checks.canaries_earn_the_floor),
    Check("semantic.replayability", "records can be played again", checks.records_can_be_replayed),
    Check(
        "semantic.verifier_determinism",
        "rewards can be measured again",
        checks.rewards_can_be_measured_again,
    ),
    Check("semantic.resource_envelope", "an episode is light", checks.episodes_are_light),
)


@dataclass(frozen=True)
class Result:
    """A check with what it found.

    Attributes:
        check: which.
        finding: what it found.
        seconds: how long it took.
    """

    check: Check
    finding: Finding
    seconds: float


@dataclass(frozen=True)
class Grade:
    """What all checks found.

    Attributes:
        subject: what was graded.
        results: of the checks, in their order.
    """

    subject: Subject
    results: tuple[Result, ...]

    @property
    def verdict(self) -> str:
        """``fail`` where a check failed or could not be made, ``warn`` where one was skipped, else ``pass``: OpenEnv's words."""
        found = {result.finding.status for result in self.results}
        return "fail" if found & {FAIL, ERROR} else "pass" if found == {PASS} else "warn"

    @property
    def figures(self) -> dict[str, Any]:
        """What was measured, by check."""
        return {result.check.id: result.finding.figures for result in self.results}


def subject_of(env: str, *, split: str | None = None, tasks: int = 8, **options: Any) -> Subject:
    """What is to be graded.

    Args:
        env: id or short name; ``module:namespace/Name`` for an environment of your own.
        split: whose tasks are played; None takes test, or the first that the environment has.
        tasks: how many, spread over the split.
        options: of the environment.

    Raises:
        UnknownOption: no such environment, split or option, or no tasks.
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
    """Make all checks.

    Raises:
        InfrastructureError: see ``results_of``.
    """
    return Grade(subject, tuple(results_of(subject)))


def results_of(subject: Subject) -> Iterator[Result]:
    """The checks one by one; one that raises is an error of the environment, and the others go on.

    Raises:
        InfrastructureError: what the environment relies on failed (a search service): that is no grade.
    """
    for check in CHECKS:
        began = time.perf_counter()
        try:
            finding = check.run(subject)
        except InfrastructureError:
            raise
        except Exception as error:  # noqa: BLE001 - the grade reports whatever a user's own environment raises
            mend = "let no reply and no task raise; see the contract in the docstring of TextEnv"
            finding = Finding(ERROR, {}, [f"{type(error).__name__}: {error}"], mend)
        yield Result(check, finding, time.perf_counter() - began)


_LEVELS = {"static": 1, "runtime": 2, "semantic": 3}


def _asks_a_service(options: dict[str, Any]) -> bool:
    return any(str(value).startswith(("http://", "https://")) for value in options.values())


def openenv_report(grade: Grade) -> dict[str, Any]:
    """The report as JSON values; ``ValidationReport`` of ``openenv.validation`` reads it.

    The digest of the source is that of the tasks and rules, since there is no package.
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
