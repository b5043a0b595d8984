"""Measure the quality of grafted thoughts by rules and by playing on, and print real cases (docs/results/grafting.md).

    python scripts/studies/measure_grafts.py --tasks 160
    python scripts/studies/measure_grafts.py --env hotpotqa webshop alfworld sokoban-easy --tasks 48 --kinds branch written
    python scripts/studies/measure_grafts.py --env webshop --tasks 24 --cases 1

Groups are played by the built-in policy and the paper's trees built (nodes by depth). At the same divergences three kinds of grafts are
made: the successful branch's own thought (``branch``, what the built-in presets train on), one written by the policy at temperature 1
(``written``, the paper's way) and its likeliest one (``likeliest``). Each graft is played on: the failed branch's state is restored, the
policy goes on after the thought, several times. Every play is judged in the three columns of the paper's table:

- valid: the thought is about this state, and the action that follows is admissible there (``graft_rules.py`` has the rules);
- error: that action is another than the failed branch's, and the thought decides something else;
- success: the episode succeeds. Beside it: the failed branch's own thought played on from the same states, as often.

The paper counted 100 instances a benchmark by hand; rules read words, so the columns are comparable in kind, not in figures. Intervals
are 95 % bootstrap intervals over tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import tyro

from tstar_envs import UnknownOption, cluster_bootstrap, find_entry
from tstar_envs.utils import counted
from tstar_train.grafting import graft
from tstar_train.tree import Divergence
from tstar_train.types import Branch, Graft, Group, Trajectory, failed

try:
    from scripts.studies.graft_rules import RULES, Situation, admissible, names_mistake, problem
    from scripts.studies.played_groups import FAMILIES, Played, play
except ModuleNotFoundError:  # run as a script of this folder
    from graft_rules import RULES, Situation, admissible, names_mistake, problem
    from played_groups import FAMILIES, Played, play

# Options of ``grafting.graft`` by kind, and the kind's name in the table.
KINDS = {
    "branch": ("successful branch's own", {"fallback": "z_plus_only"}),
    "written": ("written at temperature 1", {"temperature": 1.0, "fallback": "none"}),
    "likeliest": ("written at temperature 0", {"temperature": 0.0, "fallback": "none"}),
}
# The paper's hand counts in percent: valid, error, success.
PAPER = {
    "alfworld": (91, 83, 72),
    "webshop": (88, 79, 68),
    "search_qa": (85, 76, 65),
    "sokoban": (82, 71, 58),
}
HEADER = (
    "| environment | graft | grafts | valid | error | success | failed thought's success | gain | paper: valid, error, success |\n"
    "|---|---|---|---|---|---|---|---|---|"
)
LONGEST = 160  # characters of a text in a case


@dataclass(frozen=True)
class Options:
    """Measure grafts."""

    env: tuple[str, ...] = ("hotpotqa",)
    """Environment ids or short names, with a built-in policy: a question set, webshop, alfworld, a Sokoban."""
    model: str = "tiny"
    """tiny (the built-in policy), or a checkpoint of it."""
    tasks: int = 48
    """Training tasks of each environment."""
    plays: int = 4
    """New episodes from each graft."""
    kinds: tuple[str, ...] = tuple(KINDS)
    """Kinds of grafts: branch, written, likeliest."""
    cases: int = 0
    """Print so many cases of each environment: the greatest spread, and of equals the one with most episodes on both sides."""


Found = tuple[Group, Divergence]
Step = tuple[int, int, int]  # number of a group, member, turn


@dataclass
class Judged:
    """One graft, and its verdicts: one for each play.

    Attributes:
        task: its task.
        valid: see the module.
        error: see the module.
        success: see the module.
        own: success of the plays of the failed branch's own thought.
    """

    task: str
    valid: list[float] = field(default_factory=list)
    error: list[float] = field(default_factory=list)
    success: list[float] = field(default_factory=list)
    own: Sequence[float] = ()


def family_of(env: str) -> str:
    """The family of an environment that has rules.

    Raises:
        UnknownOption: it has none.
    """
    family = find_entry(env).family
    if family not in RULES:
        raise UnknownOption(f"there are no rules for grafts of {env}; there are for: {', '.join(RULES)}")
    return family


def divergences(study: Played) -> list[Found]:
    """The divergences of the groups' trees, as a run finds them."""
    for group, tree in zip(
        study.groups, study.trees([g.members for g in study.groups], "depth"), strict=True
    ):
        group.tree = tree
    tstar = study.tstar("depth")
    return [(group, d) for group in study.groups for d in tstar.divergences(group.tree)]


def make_grafts(study: Played, found: Sequence[Found], kind: str) -> list[Graft]:
    """Grafts of a kind at some divergences, without those that a run would drop."""
    how = KINDS[kind][1]
    return graft(
        study.engine,
        study.policy.codec,
        [(group.members, d) for group, d in found],
        seed="measure",
        max_tokens=study.config.rollout.max_tokens,
        **how,
    ).kept


def situation(trajectory: Trajectory, turn: int) -> Situation:
    """Facts that were known before a turn of an episode."""
    episode = trajectory.episode
    observations = [episode.first_observation, *(step.observation for step in trajectory.steps[:turn])]
    actions = trajectory.turns[turn - 1].next_actions if turn else trajectory.start_actions
    return Situation(observations[-1], "\n".join([episode.instruction, *observations]), actions)


def play_thoughts(
    study: Played, grafts: Sequence[Graft], thoughts: Sequence[Sequence[int]], plays: int, name: str
) -> list[list[Trajectory]]:
    """Episodes played on from the failed branches' states after given thoughts, without those whose environment failed.

    Args:
        study: what was played.
        grafts: name the states.
        thoughts: ids of one for each graft.
        plays: new episodes from each.
        name: part of the samples' seed.
    """
    points = [(failed_one(study, g), g.worst_step[1]) for g in grafts for _ in range(plays)]
    begun = [ids for ids in thoughts for _ in range(plays)]
    ends = study.play_on(points, f"measure/{name}", begun)
    return [
        [end for end in ends[n * plays : (n + 1) * plays] if not failed(end.episode)]
        for n in range(len(grafts))
    ]


def failed_one(study: Played, one: Graft) -> Trajectory:
    """The episode whose thought a graft replaces."""
    group = next(g for g in study.groups if g.trajectories[0].group == one.group)
    return group.members[one.worst_step[0]]


def judge(
    study: Played, grafts: Sequence[Graft], plays: int, name: str, own: Mapping[Step, Sequence[float]]
) -> list[Judged]:
    """Play grafts on and judge each play.

    Args:
        study: what was played.
        grafts: to judge.
        plays: new episodes from each.
        name: part of the samples' seed.
        own: success of the failed thoughts' plays; see ``own_success``.
    """
    family = family_of(study.config.env)
    played = play_thoughts(study, grafts, [g.rectified for g in grafts], plays, name)
    found = []
    for one, ends in zip(grafts, played, strict=True):
        judged, turn = Judged(one.task, own=own[place(one)]), one.worst_step[1]
        here = situation(failed_one(study, one), turn)
        about = not problem(family, one.thought, here)
        for end in ends:
            step = end.steps[turn] if len(end.steps) > turn else None
            action = "" if step is None else step.action
            judged.valid.append(about and step is not None and admissible(step, here.actions))
            judged.error.append(
                names_mistake(family, one.thought, action, one.failed.thought, one.failed.action)
            )
            judged.success.append(end.episode.success)
        if judged.success and judged.own:
            found.append(judged)
    return found


def place(one: Graft) -> Step:
    """The step whose thought a graft replaces."""
    return one.group, *one.worst_step


def own_success(study: Played, grafts: Iterable[Graft], plays: int) -> dict[Step, list[float]]:
    """Success of the plays of the failed branches' own thoughts, by step; each step is played on once for all kinds of grafts."""
    steps = {place(one): one for one in grafts}
    played = play_thoughts(study, list(steps.values()), [g.rejected for g in steps.values()], plays, "failed")
    return {
        step: [float(end.episode.success) for end in ends] for step, ends in zip(steps, played, strict=True)
    }


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def share(judged: Sequence[Judged], column: str) -> str:
    """A cell: the mean over grafts of a column, with its interval over tasks; gain is the difference of success and own."""
    by_task: defaultdict[str, list[float]] = defaultdict(list)
    for one in judged:
        gained = column == "gain"
        value = mean(one.success) - mean(one.own) if gained else mean(getattr(one, column))
        by_task[one.task].append(100 * value)
    low, high = cluster_bootstrap(list(by_task.values()))
    middle, sign = mean([v for values in by_task.values() for v in values]), "+" if column == "gain" else ""
    return f"{middle:{sign}.0f} ({low:{sign}.0f} to {high:{sign}.0f})"


def row(env: str, kind: str, judged: Sequence[Judged]) -> str:
    """A row of the table, in percent."""
    cells = [share(judged, name) if judged else "" for name in ("valid", "error", "success", "own", "gain")]
    paper = ", ".join(map(str, PAPER[family_of(env)]))
    number = f"{len(judged)} of {len({one.task for one in judged})} tasks"
    return f"| {env} | {KINDS[kind][0]} | {number} | {' | '.join(cells)} | {paper} |"


def shown(text: str, longest: int = LONGEST) -> str:
    """A text in one line, cut at a number of characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[:longest].rsplit(' ', 1)[0]} ..."


def chosen_cases(found: Sequence[Found], grafts: Sequence[Graft], number: int) -> list[tuple[Found, Graft]]:
    """Choose cases by a rule: the greatest spread, then the most trajectories in the smaller branch, then the first.

    Candidates lie below the start, so that there is a shared prefix, and have a graft and a thought in both branches.

    Args:
        found: the divergences.
        grafts: of some of them.
        number: of cases, each of another task.
    """
    made = {(g.group, g.worst_step, g.depth): g for g in grafts}
    candidates = []
    for group, d in found:
        key = group.trajectories[0].group, d.worst_step, d.node.depth
        if d.node.depth and key in made and made[key].failed.thought and made[key].succeeded.thought:
            candidates.append(((group, d), made[key]))
    candidates.sort(
        key=lambda case: (-case[0][1].spread, -min(case[0][1].best_count, case[0][1].worst_count))
    )
    first: dict[int, tuple[Found, Graft]] = {}
    for case in candidates:
        first.setdefault(case[1].group, case)
    return list(first.values())[:number]


PARTS = (
    "task",
    "shared prefix (merged nodes)",
    "divergence",
    "successful branch",
    "failed branch",
    "graft, written at temperature 1",
)


def case_cells(case: tuple[Found, Graft]) -> list[str]:
    """A case in the paper's form: its ``PARTS``."""
    (group, d), one = case
    (worst, turn), (best, best_turn) = d.worst_step, d.best_step
    lost, won = group.members[worst], group.members[best]
    here = len(d.node.trajectories)
    prefix = [f"{n}. `{shown(step.action) or '(no action)'}`" for n, step in enumerate(lost.steps[:turn], 1)]
    fault = problem(family_of(lost.episode.env), one.thought, situation(lost, turn))
    verdict = f"not valid by the rules: {fault}" if fault else "valid by the rules"
    return [
        f"{one.task}: {shown(lost.episode.instruction)}",
        f"{', '.join(prefix)}; {here} of {len(group.members)} episodes pass here",
        f"spread of values {d.spread:.2f}",
        f"{branch_text(one.succeeded)}; {ending(won, best_turn)}; {d.best_count} of {here} episodes",
        f"{branch_text(one.failed)}; {ending(lost, turn)}; {d.worst_count} of {here} episodes",
        f"*{one.thought}* ({verdict})",
    ]


def cases_table(cases: Sequence[tuple[str, tuple[Found, Graft]]]) -> str:
    """Cases side by side, as Markdown; each with the name of its environment."""
    columns = [(name, [cell.replace("|", "\\|") for cell in case_cells(case)]) for name, case in cases]
    lines = [f"| | {' | '.join(name for name, _ in columns)} |", "|---" * (1 + len(columns)) + "|"]
    for n, part in enumerate(PARTS):
        lines.append(f"| {part} | {' | '.join(cells[n] for _, cells in columns)} |")
    return "\n".join(lines)


def branch_text(branch: Branch) -> str:
    """Thought, action and observation of a branch."""
    return f"*{branch.thought}* `{branch.action or '(no valid action)'}`: {shown(branch.observation)}"


def ending(trajectory: Trajectory, turn: int) -> str:
    """Rest of an episode after a turn."""
    more = len(trajectory.steps) - turn - 1
    return f"R = {trajectory.earned:.2f}" + (f" after {counted(more, 'more step')}" if more else " at once")


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    for kind in options.kinds:
        if kind not in KINDS:
            raise UnknownOption(f"no kind of graft {kind!r}; there are: {', '.join(KINDS)}")
    for env in options.env:
        family_of(env)
    print("Shares in percent.\n\n" + HEADER, flush=True)
    cases: list[tuple[str, tuple[Found, Graft]]] = []
    for env in options.env:
        study = play(env, options.tasks, model=options.model)
        found = divergences(study)
        made = {kind: make_grafts(study, found, kind) for kind in options.kinds}
        own = own_success(study, (one for grafts in made.values() for one in grafts), options.plays)
        for kind, grafts in made.items():
            print(row(env, kind, judge(study, grafts, options.plays, kind, own)), flush=True)
        if options.cases:
            written = made["written"] if "written" in made else make_grafts(study, found, "written")
            name = FAMILIES[family_of(env)]
            cases += [(name, case) for case in chosen_cases(found, written, options.cases)]
    if cases:
        print(f"\n{cases_table(cases)}")


if __name__ == "__main__":
    main()
