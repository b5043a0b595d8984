"""Print case studies from the trees that a training run saved (docs/results/case_studies.md).

    python scripts/reproduce.py tables --runs FOLDER --groups musique alfworld-32
    python scripts/studies/run_cases.py FOLDER/musique-tstar-grpo-0 FOLDER/alfworld-32-tstar-grpo-0

A case is a divergence below the start whose failed branch has a graft. Of each run the rule takes the greatest spread of values, of equals
the most episodes in the smaller branch, of equals the latest iteration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from tstar_envs import BadData, MissingData, TStarError
from tstar_envs.utils import counted

try:
    from scripts.studies.measure_grafts import shown as one_line
except ModuleNotFoundError:  # run as a script of this folder
    from measure_grafts import shown as one_line

LONGEST = 220  # characters of a text that is quoted


@dataclass(frozen=True)
class Options:
    """Print case studies from training runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders of runs with the paper's tree (--tree.nodes depth)."""
    cases: int = 1
    """Cases of each run, each of another task."""


@dataclass(frozen=True)
class Case:
    """A divergence with a graft.

    Attributes:
        iteration: of training.
        group: a saved tree with its task and grafts.
        divergence: one of the tree's.
        graft: made at it.
    """

    iteration: int
    group: Mapping[str, Any]
    divergence: Mapping[str, Any]
    graft: Mapping[str, Any]

    @property
    def rank(self) -> tuple[float, int, int]:
        """What the rule compares; the case with the largest is taken."""
        counts = self.divergence["best_count"], self.divergence["worst_count"]
        return self.divergence["spread"], min(counts), self.iteration


def cases_of(run: Path) -> Iterator[Case]:
    """Find the cases of a run.

    Raises:
        MissingData: the run has no trees.
        BadData: a file of trees cannot be read.
    """
    files = sorted((run / "trees").glob("*.json"))
    if not files:
        raise MissingData(f"{run} has no trees: name the folder of a run with --tree.nodes depth")
    for file in files:
        try:
            saved = json.loads(file.read_text("utf-8"))
        except ValueError as error:
            raise BadData(f"{file} is not JSON: {error}") from error
        for group in saved["trees"]:
            grafts = {tuple(graft["worst_step"]): graft for graft in group["grafts"]}
            for divergence in group["tree"]["divergences"]:
                graft = grafts.get(tuple(divergence["worst_step"]))
                if graft and graft["depth"] and graft["failed"]["thought"] and graft["succeeded"]["thought"]:
                    yield Case(saved["iteration"], group, divergence, graft)


def chosen(run: Path, number: int) -> list[Case]:
    """Choose a run's cases by the rule, each of another task."""
    first: dict[str, Case] = {}
    for case in sorted(cases_of(run), key=lambda case: case.rank, reverse=True):
        first.setdefault(case.group["task"], case)
    return list(first.values())[:number]


def quoted(text: str) -> str:
    """A text in one line without ALFWorld's list of actions, cut at ``LONGEST`` characters."""
    return one_line(text.partition("\nAdmissible actions:")[0], LONGEST)


def branch(name: str, side: Mapping[str, Any], value: float, count: int) -> str:
    """A line about a branch: its thought, action, observation and what its episodes came to."""
    return (
        f"- **{name}** ({counted(count, 'episode')}, value {value:.2f}): *{side['thought']}* `{side['action'] or 'no valid action'}`. "
        f"It sees: {quoted(side['observation'])}"
    )


def shown(run: Path, case: Case) -> str:
    """A case as Markdown."""
    tree, divergence = case.group["tree"], case.divergence
    nodes = {node["id"]: node for node in tree["nodes"]}
    member, turn = divergence["worst_step"]
    actions = {
        step: node["action"] or "no valid action"
        for node in nodes.values()
        for who, step in node["members"]
        if who == member and 0 <= step < turn
    }
    here = nodes[divergence["node"]]
    shared = [f"`{actions[step]}`" for step in sorted(actions)]
    lines = [
        f"### {case.group['task']}, iteration {case.iteration} of {run.name}",
        f"**Task.** {quoted(case.group['instruction'])}",
        "",
        f"**Shared steps.** {', '.join(shared)}. {len(here['members'])} of {len(tree['rewards'])} episodes pass here; "
        f"value {here['value']:.2f}. It sees: {quoted(here['observation'])}",
        "",
        branch(
            "Success", case.graft["succeeded"], nodes[divergence["best"]]["value"], divergence["best_count"]
        ),
        branch(
            "Failure", case.graft["failed"], nodes[divergence["worst"]]["value"], divergence["worst_count"]
        ),
        f"- **Graft**, in place of the failed thought: *{case.graft['thought']}*",
    ]
    return "\n".join(lines)


def main() -> None:
    """Print the cases of the runs."""
    options = tyro.cli(Options, description=__doc__)
    try:
        print("\n\n".join(shown(run, case) for run in options.runs for case in chosen(run, options.cases)))
    except TStarError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
