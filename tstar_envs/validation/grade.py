"""All checks of an environment, in an order that begins with what the later ones rely on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tstar_envs.errors import InfrastructureError, UnknownOption
from tstar_envs.registry import find_entry
from tstar_envs.validation import contract, meaning
from tstar_envs.validation.finding import ERROR, FAIL, PASS, Finding
from tstar_envs.validation.subject import Subject


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
    Check(
        "static.task_distribution_pinning", "tasks are the same in every process", contract.tasks_are_pinned
    ),
    Check("runtime.task_declaration_accuracy", "splits are filled and apart", contract.tasks_are_declared),
    Check("runtime.seed_control", "seeds choose tasks", contract.seeds_choose_tasks),
    Check("runtime.reward_well_formed", "rewards lie in [0, 1]", contract.rewards_are_well_formed),
    Check("runtime.observation_schema", "observations and info are as promised", contract.observations_fit),
    Check("runtime.state_contract", "a snapshot restores the state", contract.state_can_be_restored),
    Check(
        "runtime.episode_determinism",
        "the same replies give the same episode",
        contract.episodes_are_deterministic,
    ),
    Check("runtime.episode_isolation", "episodes do not touch each other", contract.episodes_are_isolated),
    Check(
        "runtime.tool_declaration_accuracy", "typed tools say every action", contract.tools_say_every_action
    ),
    Check("semantic.oracle_max", "the expert reaches the maximum", meaning.expert_reaches_the_maximum),
    Check("semantic.floor_gap", "blind play stays below", meaning.blind_play_stays_below),
    Check("semantic.canary_floor", "looking for a reward earns none", meaning.canaries_earn_the_floor),
    Check("semantic.replayability", "records can be played again", meaning.records_can_be_replayed),
    Check(
        "semantic.verifier_determinism",
        "rewards can be measured again",
        meaning.rewards_can_be_measured_again,
    ),
    Check("semantic.resource_envelope", "an episode is light", meaning.episodes_are_light),
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
