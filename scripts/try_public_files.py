"""What of a folder of public files can be played, before a long evaluation begins.

    python scripts/try_public_files.py FOLDER [--family sokoban] [--seconds 20]

FOLDER (or one file) may hold Sokoban levels, Blocksworld problems in PDDL, WebShop's shop files, ALFWorld games and question files;
which they are is seen from their names. Of each group it says how many tasks were found, how many can be used, why the others
cannot (by reason, with an example), how many are solved at the start and how many need more steps than the environment gives,
and with which command to evaluate on the rest. Exit code: 0 if something can be used, 1 if nothing, 2 for a path that is none.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import gymnasium as gym

from tstar_envs import BadData, MissingData, TStarError, find_entry
from tstar_envs.horizon import reach

FAMILIES = ("sokoban", "blocksworld", "webshop", "alfworld", "search_qa")
LEVELS = (".txt", ".xsb", ".sok", ".slc", ".ssx")
QUESTIONS = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".tsv", ".csv", ".parquet")
QUESTION_SETS = {  # a part of a path -> environment
    "triviaqa": "triviaqa",
    "popqa": "popqa",
    "2wiki": "2wikimultihopqa",
    "musique": "musique",
    "bamboogle": "bamboogle",
    "hotpot": "hotpotqa",
    "nq": "nq",
}
SPLITS = ("test", "valid", "train")


@dataclass
class Group:
    """Files that one environment reads, and what came of it.

    Attributes:
        family: of the environment.
        env: its short name.
        path: file or folder.
        options: that read the files.
        sure: whether the files are of this family by their names alone; else they are passed over where nothing can be used.
        before: what else has to be done before the command works.
        refused: reason with an example -> how many.
    """

    family: str
    env: str
    path: Path
    options: dict[str, str]
    sure: bool = True
    before: tuple[str, ...] = ()
    usable: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    solved: int = 0
    over: str = ""
    short: int = 0

    @property
    def loaded(self) -> int:
        return self.usable + sum(self.refused.values())

    def command(self) -> str:
        """The command that evaluates on this group."""
        split = next((name for name in SPLITS if self.splits.get(name)), "test")
        options = {
            **self.options,
            **({"skip_bad": "true"} if self.refused else {}),
            **({"horizon": "optimal*2"} if self.short else {}),
        }
        chosen = ["--split", split] if split != "test" else []
        typed = chain.from_iterable(("--option", f"{name}={value}") for name, value in options.items())
        return shlex.join(
            ["python", "-m", "tstar_envs", "eval", "--env", self.env, "--agent", "random", *chosen, *typed]
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", metavar="FOLDER", help="folder or single file to look at")
    parser.add_argument(
        "--family",
        choices=FAMILIES,
        help="environment family of the files (default: recognised from their names)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="seconds per group of files to find out how long its tasks are (default: 20)",
    )
    given = parser.parse_args(arguments)
    root = Path(given.path)
    # os.path answers where Path raises: for names that the system refuses.
    if not given.path or not (os.path.isdir(root) or os.path.isfile(root)):  # noqa: PTH112, PTH113
        print(f"{given.path!r:.200}: no folder and no regular file is there", file=sys.stderr)
        return 2
    if not given.seconds > 0:
        print(f"--seconds must be above 0, got {given.seconds:g}", file=sys.stderr)
        return 2
    message = []
    for group in groups_of(root, given.family):
        look_at(group, given.seconds)
        if group.usable or group.sure or given.family:
            show(group)
            message.append(group)
    if not message:
        print(
            f"{root}: nothing that an environment reads; with --family, which names what the files are, the reasons are listed"
        )
    usable, refused = (
        sum(group.usable for group in message),
        sum(sum(group.refused.values()) for group in message),
    )
    print(f"total: {usable + refused:,} loaded, {usable:,} usable, {refused:,} refused")
    return 0 if usable else 1


def groups_of(root: Path, family: str | None) -> Iterator[Group]:
    """What the files below a path may be, or all as one family."""
    files = sorted(_files_below(root)) if root.is_dir() else [root]
    folder = root if root.is_dir() else root.parent
    shops = sorted({file.parent for file in files if re.fullmatch(r"items_shuffle.*\.json", file.name)})
    games = [file for file in files if file.name == "game.tw-pddl"]
    houses = {file.parent for file in games}
    rest = [file for file in files if file.parent not in houses and file.parent not in shops]
    if family in (None, "sokoban"):
        levels = [file for file in rest if _ends(file, LEVELS)]
        if levels or family:
            yield Group(
                "sokoban",
                "sokoban-hard",
                root,
                {"levels": str(root)},
                any(not _ends(file, (".txt",)) for file in levels),
            )
    if family in (None, "blocksworld") and (family or any(_ends(file, (".pddl",)) for file in rest)):
        yield Group("blocksworld", "blocksworld-stack", root, {"problems": str(root)})
    if family in (None, "webshop"):
        for shop in shops or ([folder] if family else []):
            yield Group("webshop", "webshop", shop, {"data": str(shop)})
    if family in (None, "alfworld") and (games or family):
        yield Group("alfworld", "alfworld", folder, {"data": str(folder)})
    if family in (None, "search_qa"):
        for file in rest:
            named = _ends(file, QUESTIONS) and not file.name.startswith("corpus.")
            if named or (family and file == root):
                name = next(
                    (
                        env
                        for part, env in QUESTION_SETS.items()
                        if part in str(file.relative_to(folder)).lower()
                    ),
                    "hotpotqa",
                )
                yield Group("search_qa", name, file, {}, sure=False)


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(parent, name)).is_file())


def _ends(file: Path, endings: tuple[str, ...]) -> bool:
    return file.name.lower().endswith(endings)


def look_at(group: Group, seconds: float) -> None:
    """Load a group, and fill in what came of it."""
    try:
        if group.family == "search_qa":
            _look_at_questions(group)
        else:
            env = _make(group, group.options)
            _count(group, env)
            if env.optimum_known:
                _look_at_lengths(group, env, seconds)
    except MissingData as error:  # no task, which is no fault of one
        if group.family != "sokoban" and group.family != "blocksworld":
            group.refused[str(error)] = 1
    except TStarError as error:
        _refuse(group, error)


def _make(group: Group, options: dict[str, str]) -> Any:
    """The environment of a group, with what is bad left out where its family can do that."""
    entry = find_entry(group.env)
    may_skip = "skip_bad" in inspect.signature(entry.load_class().__init__).parameters
    given: dict[str, Any] = {**options, "horizon": entry.horizon, **({"skip_bad": True} if may_skip else {})}
    return gym.make(entry.id, **given).unwrapped


def _count(group: Group, env: Any) -> None:
    group.splits = {split: len(env.task_ids(split)) for split in env.splits}
    group.usable = sum(group.splits.values())
    group.solved = len(getattr(env, "solved_at_start", ()))
    group.refused = {f"{kind.example.why} ({kind.example.where})": kind.count for kind in env.left_out.kinds}


def _refuse(group: Group, error: TStarError) -> None:
    """Mark all of a group as unusable."""
    left_out = error.left_out if isinstance(error, BadData) else None
    kinds = left_out.kinds if left_out is not None else ()
    group.refused = {f"{kind.example.why} ({kind.example.where})": kind.count for kind in kinds} or {
        str(error): 1
    }


def _look_at_lengths(group: Group, env: Any, seconds: float) -> None:
    found = [reach(env, split, seconds=seconds) for split in SPLITS if group.splits.get(split)]
    group.short, looked_at, lost = (
        sum(getattr(part, name) for part in found) for name in ("over", "looked_at", "lost")
    )
    group.over = f"above the horizon of {env.horizon} steps: {group.short:,} of {looked_at:,} looked at"
    group.over += f"; cannot be won: {lost:,}" if lost else ""


def _look_at_questions(group: Group) -> None:
    """A question file may have any name, and its corpus may be elsewhere: it is read through a folder made for it."""
    ending = max((ending for ending in QUESTIONS if _ends(group.path, (ending,))), key=len, default=".jsonl")
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder, f"test{ending}")
        link.symlink_to(group.path.resolve())
        Path(folder, "corpus.jsonl").write_text(
            '{"id": "0", "contents": "\\"Nothing\\"\\nNothing."}\n', encoding="utf-8"
        )
        try:
            _count(group, _make(group, {"data": folder}))
        except TStarError as error:
            _refuse(group, error)
        group.refused = {
            reason.replace(str(link), str(group.path)): count for reason, count in group.refused.items()
        }
    group.sure = _names_questions(group.path)
    home = Path("questions", group.path.name.partition(".")[0])
    group.options = {"data": str(home)}
    moves = (["mkdir", "-p", str(home)], ["ln", "-s", str(group.path.resolve()), str(home / link.name)])
    group.before = (
        " && ".join(
            map(shlex.join, (*moves, ["ln", "-s", "/YOUR/CORPUS.jsonl", str(home / "corpus.jsonl")]))
        ),
    )
    own = group.path.parent
    if any((own / name).is_file() for name in ("corpus.jsonl", "corpus.jsonl.gz")) and _reads(group, own):
        group.options, group.before = {"data": str(own)}, ()


def _names_questions(file: Path) -> bool:
    """Whether a file that cannot be read as questions looks as if it were meant to hold some."""
    with open(file, "rb") as handle:
        return b'"question"' in handle.read(1 << 16).lower()


def _reads(group: Group, folder: Path) -> bool:
    """Whether a folder can be given as it is, and this file is the one that is then read."""
    name = group.path.name.lower()
    if not name.startswith(SPLITS) and not name.startswith(tuple(f"{group.env}.{split}" for split in SPLITS)):
        return False
    entry = find_entry(group.env)
    try:
        _, found = entry.load_class().survey(**entry.kwargs, data=str(folder))
    except TStarError:  # already reported for the file itself
        return False
    group.splits = found
    return True


def show(group: Group) -> None:
    """Print what was found."""
    refused = sum(group.refused.values())
    solved = f", {group.solved:,} solved at the start" if group.solved else ""
    print(f"{group.family}: {group.path}")
    print(
        f"  {group.loaded:,} loaded, {group.usable:,} usable, {refused:,} refused{solved}{f', {group.over}' if group.over else ''}"
    )
    for reason, count in sorted(group.refused.items(), key=lambda item: -item[1]):
        print(f"  refused {count:,} x {reason}")
    if group.usable:
        for line in (*group.before, group.command()):
            print(f"    {line}")


if __name__ == "__main__":
    sys.exit(main())
