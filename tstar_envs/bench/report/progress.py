"""How far episodes came, against whether they solved their task: counts by tenths of the way, laid out for a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tstar_envs.bench.report.boards import Board, BoardEntry

TENTHS = 10
WIDTH, HEIGHT, FOOT = 330, 110, 18  # of a drawing; the foot holds the scale


@dataclass(frozen=True)
class Bin:
    """Episodes that came so far: ``name`` says how far; places are those of the drawing."""

    name: str
    solved: int
    unsolved: int
    x: float
    width: float
    solved_y: float
    solved_height: float
    unsolved_y: float
    unsolved_height: float

    @property
    def episodes(self) -> int:
        """The number of episodes in the bin."""
        return self.solved + self.unsolved


@dataclass(frozen=True)
class Histogram:
    """An agent on a board.

    Attributes:
        board: where.
        player: who.
        bins: ten tenths, and the whole way.
        mean: of the progress.
        failed_mean: of the progress of episodes that did not solve their task, None without any.
        unknown: episodes whose progress could not be determined.
        most: episodes of the fullest bin, which has the drawing's height.
    """

    board: Board
    player: BoardEntry
    bins: list[Bin]
    mean: float
    failed_mean: float | None
    unknown: int
    most: int


def histograms(boards: Sequence[Board]) -> list[Histogram]:
    """Histograms of all agents whose progress was measured."""
    return [
        _histogram(board, player)
        for board in boards
        for player in board.players
        if player.evaluation.progress
    ]


def counts(progress: Sequence[tuple[float, bool]]) -> list[tuple[int, int]]:
    """Solved and unsolved episodes in each tenth of the way (0 counts as the first), and, last, at its end."""
    found = [[0, 0] for _ in range(TENTHS + 1)]
    for value, solved in progress:
        # Values are shares of whole numbers: .3 must not fall below three tenths by rounding.
        place = TENTHS if value >= 1 else max(0, min(TENTHS - 1, int(value * TENTHS + 1e-9)))
        found[place][0 if solved else 1] += 1
    return [(solved, unsolved) for solved, unsolved in found]


def _histogram(board: Board, player: BoardEntry) -> Histogram:
    progress = player.evaluation.progress
    found = counts(progress)
    most = max(sum(pair) for pair in found)
    step, room = WIDTH / len(found), HEIGHT - FOOT - 12
    bins = []
    for place, (solved, unsolved) in enumerate(found):
        tall, low = room * solved / most, room * unsolved / most
        name = (
            "the whole way"
            if place == TENTHS
            else f"{100 * place // TENTHS} to {100 * (place + 1) // TENTHS} %"
        )
        bins.append(
            Bin(
                name,
                solved,
                unsolved,
                x=round(place * step + 2, 1),
                width=round(step - 4, 1),
                solved_y=round(HEIGHT - FOOT - low - tall, 1),
                solved_height=round(tall, 1),
                unsolved_y=round(HEIGHT - FOOT - low, 1),
                unsolved_height=round(low, 1),
            )
        )
    failed = [value for value, solved in progress if not solved]
    return Histogram(
        board,
        player,
        bins,
        sum(value for value, _ in progress) / len(progress),
        sum(failed) / len(failed) if failed else None,
        player.evaluation.summary.progress_unknown,
        most,
    )
