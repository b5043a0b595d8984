"""The file of an evaluation: one episode per line, appended as each ends, and beside it the settings it was made with.

A run that was killed goes on where it stopped: what is in the file is kept, episodes that ended in an error are played
again (their later record counts), and a file made with other settings is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tstar_envs.data.files import read_json, write_whole
from tstar_envs.data.lock import only_writer
from tstar_envs.errors import BadData, UnknownOption, WriteFailed
from tstar_envs.record import Episode, append_episode, read_episodes
from tstar_envs.redaction import redacted_parts

Key = tuple[str, int]  # task id, sample
SETTINGS = ".config.json"  # what the name of the settings adds to that of the episodes


class ResultFile:
    """A file that episodes are appended to.

    Args:
        path: the JSON-lines file; ``<path>.config.json`` holds the settings.
        settings: what must be equal for two runs to belong to one file; JSON values only.

    Raises:
        UnknownOption: the file was made with other settings; the differences are named.
        BadData: the file or its settings cannot be read.
        WriteFailed: the settings cannot be written.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        # A link, and an agent that changes the folder, must not lead to another file later.
        self._file = resolved(path)
        if path.exists() and not path.is_file():  # a folder, or a device that could be read without end
            raise BadData(f"{path} is not a regular file: choose another file for the episodes")
        self.config = settings_path(path)
        # As JSON gives it back, so that a tuple and a list compare equal; what is secret is in no file.
        settings = redacted_parts(json.loads(json.dumps(settings)))
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.config.exists():
            self._check(settings)
        elif path.exists() and path.stat().st_size:
            raise BadData(
                f"{path} holds episodes, but {self.config}, which says how they were made, is missing: choose another file"
            )
        else:
            try:
                write_whole(self.config, json.dumps(settings, indent=1) + "\n")
            except OSError as error:
                reason = error.strerror or error
                raise WriteFailed(
                    f"{self.config} cannot be written: {reason}. Make room or choose another file"
                ) from error

    def _check(self, settings: dict[str, Any]) -> None:
        try:
            differences = _differences(redacted_parts(read_json(self.config)), settings)
        except BadData as error:
            raise BadData(
                f"the settings cannot be read: {error}. Choose another file for the episodes"
            ) from None
        if differences:
            raise UnknownOption(
                f"{self.path} was made with other settings: {'; '.join(differences)}. "
                "Use the same settings to resume it, or choose another file"
            )

    def episodes(self) -> dict[Key, Episode]:
        """What the file holds; of several records of one episode the last."""
        return latest(read_episodes(self._file)) if self._file.exists() else {}

    def append(self, episode: Episode) -> None:
        """Add one record; it is on disk when this returns.

        Raises:
            WriteFailed: it is not; the records before it are.
        """
        try:
            append_episode(self._file, episode)
        except OSError as error:  # one of writing names no file
            raise WriteFailed(
                f"{self.path} cannot be written: {error.strerror or error}. The episodes before are in it: "
                "make room, then run the same command again to go on"
            ) from error


def resolved(path: Path) -> Path:
    """The file that a path leads to, whatever links are on the way.

    Raises:
        BadData: the links lead in a circle.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise BadData(f"{path} leads nowhere ({error}): choose another file for the episodes") from error


def settings_path(path: Path) -> Path:
    """The settings of a file of episodes: beside it, or where it is a link and has none there, beside what it leads to."""
    beside = path.with_name(path.name + SETTINGS)
    if beside.exists() or not path.is_symlink():
        return beside
    file = resolved(path)
    return file.with_name(file.name + SETTINGS)


def sole_evaluation(path: Path | None) -> AbstractContextManager[None]:
    """Keep a second evaluation out of a file of episodes; nothing where there is no file.

    Raises:
        InUse: another process writes it.
        WriteFailed: nothing can be written there.
    """
    if path is None:
        return nullcontext()
    file = resolved(path)  # through a link to it a second one must see the same lock
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WriteFailed(
            f"{path.parent} cannot be made: {error.strerror or error}. Choose another file for the episodes"
        ) from error
    if path.is_dir():
        raise BadData(f"{path} is not a regular file: choose another file for the episodes")
    return only_writer(
        file.with_name(f".{file.name}.lock"), str(path), "wait for it, end it, or choose another --out"
    )


def latest(episodes: Iterable[Episode]) -> dict[Key, Episode]:
    """Episodes by task and sample; of several records of one the last."""
    return {(episode.task, episode.sample): episode for episode in episodes}


def _differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            found += _differences(before, after, f"{prefix}{name}.")
        elif before != after or (name in old) != (name in new):
            shown = [json.dumps(side[name]) if name in side else "not set" for side in (old, new)]
            found.append(f"{prefix}{name} was {shown[0]}, now {shown[1]}")
    return found
