"""A grade in the form of OpenEnv's validation reports (RFC 008, schema version 1, policy v1 of openenv 0.10).

What those check of a package's container (its build, its image, its network) is not in it: an environment in a process has none.
"""

from __future__ import annotations

from typing import Any

from tstar_envs.task_set import task_set
from tstar_envs.validation.grade import Grade
from tstar_envs.validation.meaning import FLOOR_MARGIN, HIGHEST

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
