"""Report: one self-contained HTML page about evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from tstar_envs.data.files import write_whole
from tstar_envs.errors import BadData, MissingExtra, WriteFailed
from tstar_envs.evaluation.cost import PriceTable, money
from tstar_envs.evaluation.report import loading
from tstar_envs.evaluation.report.boards import Board, agent_names, make_boards, notices
from tstar_envs.evaluation.report.browse import MOST_STEPS, browsable
from tstar_envs.evaluation.report.loading import Evaluation, find_evaluations, read_evaluation
from tstar_envs.evaluation.report.paper import SOURCE
from tstar_envs.evaluation.report.tables import (
    CostRow,
    cost_rows,
    figure_groups,
    histograms,
    leaderboard,
    paired,
    paper_views,
)
from tstar_envs.redaction import encodable, redacted
from tstar_envs.utils import content_policy, counted, script_json

if TYPE_CHECKING:
    from jinja2 import Environment


__all__ = ["EPISODES", "write_report"]


EPISODES = 20  # per file, for the side-by-side view of two agents


@dataclass(frozen=True)
class Written:
    """Summary of a written report.

    Attributes:
        path: path of the page.
        files: number of evaluations on it.
        passed_over: other ``.jsonl`` files in the given folders.
        empty: files without an episode, which are left out.
        size: size in bytes.
    """

    path: Path
    files: int
    passed_over: int
    empty: list[Path]
    size: int


def write_report(
    given: Sequence[Path], out: Path, prices: PriceTable, *, episodes: int = EPISODES, title: str = ""
) -> Written:
    """Write a self-contained HTML page about evaluations.

    Args:
        given: files written by ``eval --out``, and folders of them.
        out: path of the page; an existing file is replaced atomically.
        prices: price table.
        episodes: maximum number of episodes per file that the page holds step by step.
        title: title of the page.

    Raises:
        MissingExtra: jinja2 is not installed.
        MissingData: a file does not exist.
        BadData: not a file of episodes, or no file has an episode with a result.
        UnknownOption: a folder holds no evaluation.
        WriteFailed: the page cannot be written.
    """
    environment = _environment()
    paths, passed_over = find_evaluations(given)
    evaluations, empty = [], []
    for path in paths:
        evaluation = read_evaluation(path, prices)
        if evaluation is None:
            empty.append(path)
        else:
            evaluations.append(evaluation)
    if not any(evaluation.recorded.tasks for evaluation in evaluations):
        errors = sum(evaluation.summary.errors for evaluation in evaluations)
        kind = f"only episodes that ended in an error ({errors:,})" if errors else "no episode"
        shown = ", ".join(map(str, paths[:3])) + (", ..." if len(paths) > 3 else "")
        raise BadData(
            f"there is nothing to report: {shown} hold{'s' * (len(paths) == 1)} {kind}; run `python -m tstar_envs eval` (again)"
        )
    page = redacted(render(environment, evaluations, episodes=episodes, title=title))
    content = encodable(page).encode("utf-8")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, content)
    except OSError as error:
        raise WriteFailed(f"{out} cannot be written: {error.strerror or error}") from error
    return Written(out, len(evaluations), passed_over, empty, len(content))


def render(environment: Environment, evaluations: Sequence[Evaluation], *, episodes: int, title: str) -> str:
    """Render the page as HTML."""
    boards = make_boards(evaluations, agent_names(evaluations))
    comparisons, not_compared = paired(boards)
    sums, costs_by_board = cost_rows(boards)
    found = browsable(boards, episodes)
    style, script = _source("report.css"), _source("report.js")
    return environment.get_template("report.html.j2").render(
        title=loading.clean(title, 200) or "Evaluation of agents",
        facts=_facts(boards, evaluations),
        boards=boards,
        notices=notices(boards),
        board=leaderboard(boards),
        groups=figure_groups(boards),
        papers=paper_views(boards),
        source=SOURCE,
        progress=histograms(boards),
        comparisons=comparisons,
        not_compared=not_compared,
        sums=sums,
        costs_by_board=costs_by_board,
        prices=_prices(sums),
        data=script_json(found.data),
        kept=found.kept,
        episodes=found.episodes,
        over=found.over,
        most=episodes,
        most_text=loading.MOST_TEXT,
        most_steps=MOST_STEPS,
        style=style,
        script=script,
        policy=content_policy(script, style),
    )


def _facts(boards: Sequence[Board], evaluations: Sequence[Evaluation]) -> str:
    """Summarize the contents of the page in one line."""
    agents = len({player.name for board in boards for player in board.players})
    environments = len({board.env for board in boards})
    episodes = sum(evaluation.summary.episodes + evaluation.summary.errors for evaluation in evaluations)
    counts = (
        (agents, "agent"),
        (environments, "environment"),
        (episodes, "episode"),
        (len(evaluations), "file"),
    )
    return ", ".join(counted(count, noun) for count, noun in counts)


def _prices(sums: Sequence[CostRow]) -> str:
    """Describe the source of the prices; "" if no cost is known."""
    known = [row.costs for row in sums if row.costs.cost is not None]
    if not known:
        return ""
    return loading.clean(
        f"a table of prices{f' of {known[0].as_of}' if known[0].as_of else ''} in {known[0].currency}", 200
    )


def _environment() -> Environment:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ModuleNotFoundError as error:
        raise MissingExtra("the page of results", error.name or "jinja2", "bench") from error
    environment = Environment(
        loader=PackageLoader("tstar_envs.evaluation.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    chosen = (
        loading.percent,
        loading.spread,
        loading.number,
        loading.seconds,
        loading.points,
        counted,
        loading.short_id,
        money,
    )
    environment.filters |= {function.__name__: function for function in chosen}
    return environment


def _source(name: str) -> str:
    """Read one of our own files, to be inlined in the page."""
    return (
        resources.files("tstar_envs.evaluation.report")
        .joinpath("templates", name)
        .read_text(encoding="utf-8")
    )
