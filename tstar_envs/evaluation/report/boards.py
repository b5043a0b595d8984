"""Boards: evaluations that may stand side by side, and names of agents."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tstar_envs.errors import UnknownOption
from tstar_envs.evalset import panel
from tstar_envs.evaluation.cost import usage_notes
from tstar_envs.evaluation.log import SAME
from tstar_envs.evaluation.report.loading import Evaluation, clean, short_id
from tstar_envs.registry import ENTRIES
from tstar_envs.utils import counted

MOST_NAME = 120
_APART = (
    "temperature",
    "seed",
    "max_tokens",
    "context_tokens",
    "tools",
    "request",
    "split",
    "tier",
    "rules_version",
)


def agent_names(evaluations: Sequence[Evaluation]) -> list[str]:
    """A name for each file's agent, such that no environment has two files of one name.

    Files of one agent and model share a name. Where an environment has several, what differs in their settings is added to the name
    of all of them; where nothing does, the folder, then the file.
    """
    plain = [clean(e.recorded.agent, MOST_NAME) for e in evaluations]
    names = list(plain)
    for name in dict.fromkeys(plain):
        places = [place for place, own in enumerate(plain) if own == name]
        for add in (_settings([evaluations[place] for place in places]), _folder, _file):
            if not _clash([evaluations[place] for place in places], [names[place] for place in places]):
                break
            for place in places:
                message = add(evaluations[place])
                names[place] = f"{plain[place]} ({clean(message, MOST_NAME)})" if message else plain[place]
    if _clash(evaluations, names):  # two folders with files of one name
        names = [
            f"{name} ({clean(str(e.path), MOST_NAME)})" for name, e in zip(plain, evaluations, strict=True)
        ]
    return names


def _clash(evaluations: Sequence[Evaluation], names: Sequence[str]) -> bool:
    return any(times > 1 for times in Counter(zip((e.env for e in evaluations), names, strict=True)).values())


def _settings(evaluations: Sequence[Evaluation]) -> Callable[[Evaluation], str]:
    """A function that names the settings in which several files of one agent and environment differ."""

    def flat(evaluation: Evaluation) -> dict[str, str]:
        chosen = evaluation.settings.get("agent_settings")
        facts = {
            **evaluation.settings,
            **(chosen if isinstance(chosen, dict) else {}),
            **evaluation.recorded.played_on,
        }
        return {name: json.dumps(facts.get(name)) for name in _APART}

    differ = [name for name in _APART if len({flat(evaluation)[name] for evaluation in evaluations}) > 1]
    return lambda evaluation: ", ".join(
        f"{name.replace('_', ' ')} {flat(evaluation)[name].strip(chr(34))}" for name in differ
    )


def _folder(evaluation: Evaluation) -> str:
    return evaluation.path.resolve().parent.name


def _file(evaluation: Evaluation) -> str:
    return evaluation.path.name.removesuffix(".jsonl")


@dataclass(frozen=True)
class BoardEntry:
    """An agent on a board: its name on the page, and its file."""

    name: str
    evaluation: Evaluation

    @property
    def options(self) -> str:
        """The environment's options as text."""
        if self.evaluation.recorded.options is None:
            return "not recorded"
        return (
            ", ".join(
                f"{name}={clean(str(value), 100)}" for name, value in self.evaluation.recorded.options.items()
            )
            or "defaults"
        )


@dataclass
class Board:
    """A set of tasks, and who played it.

    Attributes:
        env: Gymnasium id.
        tier: of the data.
        rules: version of the rules.
        split: of the tasks.
        tasks: how many.
        of: what they are: a panel with its hash, all or some of it, or no panel.
        whole: whether they are all tasks of a panel.
        players: in the order given.
        letter: distinguishes several boards of one environment, "" where there is only one.
    """

    env: str
    tier: str
    rules: str
    split: str
    tasks: int
    of: str
    whole: bool
    players: list[BoardEntry] = field(default_factory=list)
    letter: str = ""

    @property
    def title(self) -> str:
        """Short id, with the letter where there is one."""
        return f"{short_id(self.env)} [{self.letter}]" if self.letter else short_id(self.env)

    @property
    def described(self) -> str:
        """How many tasks of what."""
        return self.of if " tasks of " in self.of else f"{counted(self.tasks, 'task')}, {self.of}"

    @property
    def options_differ(self) -> bool:
        """Whether its players met the environment under different options."""
        return len({player.options for player in self.players}) > 1


def make_boards(evaluations: Sequence[Evaluation], names: Sequence[str]) -> list[Board]:
    """Put every file on a board, in the order of the table of environments.

    Two files share a board when environment, rules version, tier, split and tasks are the same, and nothing says that the tasks hold
    something else: not their panels' hashes, and, under equal options, not what was shown first.
    """
    boards: list[Board] = []
    for evaluation, name in zip(evaluations, names, strict=True):
        player = BoardEntry(name, evaluation)
        board = next(
            (board for board in boards if all(_together(player, other) for other in board.players)), None
        )
        if board is None:
            on = {fact: clean(evaluation.recorded.played_on[fact], 100) for fact in SAME}
            board = Board(
                on["env"],
                on["tier"],
                on["rules_version"],
                on["split"],
                len(evaluation.played),
                *_tasks_of(evaluation),
            )
            boards.append(board)
        board.players.append(player)
    known = {entry.id: place for place, entry in enumerate(ENTRIES)}
    boards.sort(key=lambda board: (known.get(board.env, len(known)), board.env))
    for env in dict.fromkeys(board.env for board in boards):
        those = [board for board in boards if board.env == env]
        for place, board in enumerate(those if len(those) > 1 else []):
            board.letter = _letter(place)
    return boards


def notices(boards: Sequence[Board]) -> list[str]:
    """What a reader must know before figures are set side by side."""
    message = []
    for env in dict.fromkeys(board.env for board in boards):
        those = [board for board in boards if board.env == env]
        if len(those) > 1:
            parts = "; ".join(f"[{b.letter}] {differing(b, those)}: {_names(b)}" for b in those)
            message.append(
                f"{short_id(env)} was not played on the same tasks by all. {parts}. Each has its own row: compare within a row."
            )
        for board in those:
            if board.options_differ:
                parts = "; ".join(f"{player.name}: {player.options}" for player in board.players)
                message.append(
                    f"{board.title} was played under different options of the environment ({parts}): not the same conditions."
                )
            for player in board.players:
                if player.evaluation.summary.errors:
                    lost = f"{counted(player.evaluation.summary.errors, 'episode')} of {player.name} on {board.title}"
                    message.append(
                        f"{lost} ended in an error and are in no rate; the same eval again repeats them."
                    )
                for note in usage_notes(player.evaluation.accounts.usage, player.evaluation.max_tokens):
                    message.append(f"{player.name} on {board.title}: {note}.")
    return message


def differing(board: Board, others: Sequence[Board]) -> str:
    """What tasks, and of the split, tier and rules version what is not the same on all boards."""
    facts = {"split": board.split, "tier": board.tier, "rules": board.rules}
    differ = [
        f"{name} {value}"
        for name, value in facts.items()
        if len({getattr(other, name) for other in others}) > 1
    ]
    return ", ".join([re.sub(r"([0-9a-f]{12})[0-9a-f]{20}\b", r"\1...", board.described), *differ])


def _together(one: BoardEntry, other: BoardEntry) -> bool:
    return one.evaluation.played == other.evaluation.played and comparable(one, other)


def comparable(one: BoardEntry, other: BoardEntry) -> bool:
    """Whether nothing says that two agents played different things: rules, tier, split, panel, or what was shown first."""
    a, b = one.evaluation, other.evaluation
    if a.recorded.played_on != b.recorded.played_on:
        return False
    if a.panel and b.panel and a.panel != b.panel:
        return False
    return a.recorded.options != b.recorded.options or same_contents(a, b)


def same_contents(one: Evaluation, other: Evaluation) -> bool:
    """Whether all tasks that both have a result of began alike."""
    first, second = one.recorded.tasks, other.recorded.tasks
    return all(first[task][0].shown == second[task][0].shown for task in first.keys() & second.keys())


def _tasks_of(evaluation: Evaluation) -> tuple[str, bool]:
    """What tasks a file is about, in words, and whether they are a whole panel."""
    if not evaluation.panel:
        return "not of a panel", False
    version, _, digest = evaluation.panel.partition(" ")
    shown = f"panel {clean(version, 20)} ({clean(digest, 40)})"
    try:
        part = panel(version)[evaluation.env]
    except UnknownOption:
        return f"{shown}, which this version of tstar does not have", False
    played = len(evaluation.played)
    if part.hash != digest:
        return f"{shown}, which is not the {clean(version, 20)} that this version of tstar has", False
    if played == len(part.tasks):
        return f"all {played} tasks of {shown}", True
    return f"{played} of {len(part.tasks)} tasks of {shown}", False


def _names(board: Board) -> str:
    return ", ".join(player.name for player in board.players)


def _letter(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else f"A{place}"
