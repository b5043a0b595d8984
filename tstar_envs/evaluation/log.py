"""Episode logs: record files with their settings, and files read for a comparison."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from tstar_envs.data.files import read_json, write_whole
from tstar_envs.data.lock import only_writer
from tstar_envs.errors import BadData, UnknownOption, WriteFailed
from tstar_envs.evaluation.stats import Figures
from tstar_envs.record import Episode
from tstar_envs.record_files import Head, append_episodes, located_results, read_episodes, read_heads
from tstar_envs.redaction import redacted_parts

Key = tuple[str, int]  # task id, sample
SETTINGS = ".config.json"  # suffix of the settings file


class ResultFile:
    """Record file of an evaluation; episodes are appended to it.

    Args:
        path: JSON-lines file; ``<path>.config.json`` holds the settings.
        settings: settings that all runs of one file must share; JSON values only.

    Raises:
        UnknownOption: the file was made with other settings; the message names the differences.
        BadData: the file or its settings cannot be read.
        WriteFailed: the settings cannot be written.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self.path = path
        # Resolved, so that the path still leads to this file if a link or the working directory changes.
        self._file = resolved(path)
        if path.exists() and not path.is_file():  # a folder, or an endless device
            raise BadData(f"{path} is not a regular file: choose another file for the episodes")
        self.config = settings_path(path)
        # A round trip through JSON makes tuples and lists compare equal. Secrets are never written.
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
        """Read the episodes of the file; the last of several records of an episode counts."""
        return latest(read_episodes(self._file)) if self._file.exists() else {}

    def heads(self) -> dict[Key, Head]:
        """Read the heads of the file's records, which is fast; the last of several records of an episode counts."""
        heads = read_heads(self._file) if self._file.exists() else ()
        return {(head.task, head.sample): head for head in heads}

    def figures(self) -> dict[Key, Figures]:
        """Read the figures of the file's episodes, one at a time; the last of several records of an episode counts."""
        episodes = read_episodes(self._file) if self._file.exists() else ()
        return {(episode.task, episode.sample): Figures.of(episode) for episode in episodes}

    def append(self, *episodes: Episode) -> None:
        """Append a record for each episode; they are on disk when this returns.

        Raises:
            WriteFailed: the records were not all written; earlier records are intact.
        """
        try:
            append_episodes(self._file, episodes)
        except OSError as error:  # write errors name no file
            raise WriteFailed(
                f"{self.path} cannot be written: {error.strerror or error}. The episodes before are in it: "
                "make room, then run the same command again to resume"
            ) from error


def resolved(path: Path) -> Path:
    """Resolve the symbolic links of a path.

    Raises:
        BadData: the links form a loop.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise BadData(f"{path} leads nowhere ({error}): choose another file for the episodes") from error


def settings_path(path: Path) -> Path:
    """Find the settings beside a record file, or beside the target if it is a link."""
    beside = path.with_name(path.name + SETTINGS)
    if beside.exists() or not path.is_symlink():
        return beside
    file = resolved(path)
    return file.with_name(file.name + SETTINGS)


def sole_evaluation(path: Path | None) -> AbstractContextManager[None]:
    """Lock a record file against a second evaluation; no-op without a file.

    Raises:
        InUse: another process writes the file.
        WriteFailed: the folder is not writable.
    """
    if path is None:
        return nullcontext()
    file = resolved(path)  # a second evaluation through a link must see the same lock
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
    """Index episodes by task and sample; the last of several records of one counts."""
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


# Fields that must be equal for episodes to be comparable, with their names in messages.
SAME = {"env": "environment", "rules_version": "rules version", "tier": "tier", "split": "split"}


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """Result of one episode.

    Attributes:
        success: 1 or 0.
        score: the reward, in [0, 1].
        shown: digest of the first observation; equal if the task is the same.
    """

    success: float
    score: float
    shown: str


@dataclass
class Recorded:
    """One file of recorded episodes.

    Attributes:
        path: path of the file.
        agent: name of the agent, with the model.
        played_on: values of the fields in ``SAME``.
        options: options of the environment, None if ``FILE.config.json`` is missing.
        tasks: outcomes of the episodes with a result, by task.
        panel: name and hash of the evaluation set of all its tasks, "" if none.
        errors: episodes that ended in an error; excluded from everything else.
        without_result: tasks of which all episodes ended in an error.
    """

    path: Path
    agent: str
    played_on: dict[str, str]
    options: dict[str, Any] | None
    panel: str = ""
    tasks: dict[str, list[EpisodeOutcome]] = field(default_factory=dict)
    errors: int = 0
    without_result: int = 0


def read_recorded(path: Path) -> Recorded:
    """Read a record file of ``eval --out``; the last of several records of an episode counts.

    Raises:
        MissingData: the file does not exist.
        BadData: not a file of episodes, no episode with a result, or a mix of agents, environments, rules versions, tiers or splits.
    """
    recorded = collect(path, (episode for _, episode in located_results(path)))
    if not recorded.tasks:
        kind = "only episodes that ended in an error" if recorded.errors else "no episode"
        raise BadData(
            f"{path} holds {kind}: run `python -m tstar_envs eval ... --out {path}` (again), or leave it out"
        )
    return recorded


def collect(path: Path, episodes: Iterable[Episode]) -> Recorded:
    """Collect the outcomes of a file's episodes; a result is not required.

    Raises:
        BadData: see ``read_recorded``.
    """
    names = [*SAME, "agent"]
    facts_of = attrgetter(*names)
    first: tuple[str, ...] | None = None
    panels: set[str] = set()
    outcomes: dict[Key, EpisodeOutcome | None] = {}
    try:
        for episode in episodes:
            facts = facts_of(episode)
            first = first or facts
            panels.add(episode.panel)
            if facts != first:
                name, one, other = next(
                    each for each in zip(names, first, facts, strict=False) if each[1] != each[2]
                )
                what = SAME.get(name, name)
                raise BadData(
                    f"{path} mixes episodes of {what} {one!r} and {other!r}: give one file for each"
                )
            outcomes[sys.intern(episode.task), episode.sample] = (
                None if episode.ended == "error" else _outcome(episode)
            )
    except BadData as error:
        raise BadData(f"{error}. Give files that `python -m tstar_envs eval --out FILE` wrote") from error
    played_on = dict(zip(names, first or (), strict=False))
    agent = played_on.pop("agent", "")
    settings = settings_of(path)
    errors = sum(outcome is None for outcome in outcomes.values())
    recorded = Recorded(path, agent_name(agent, settings), played_on, recorded_options(path), errors=errors)
    recorded.panel = panels.pop() if len(panels) == 1 else ""
    for (task, _), outcome in sorted(outcomes.items()):
        if outcome is not None:
            recorded.tasks.setdefault(task, []).append(outcome)
    recorded.without_result = len({task for task, _ in outcomes} - recorded.tasks.keys())
    return recorded


def _outcome(episode: Episode) -> EpisodeOutcome:
    text = f"{episode.instruction}\0{episode.first_observation}".encode("utf-8", "surrogatepass")
    return EpisodeOutcome(
        float(episode.success),
        float(episode.reward),
        sys.intern(hashlib.blake2b(text, digest_size=16).hexdigest()),
    )


def settings_of(path: Path) -> dict[str, Any] | None:
    """Read the settings of a record file; None if ``FILE.config.json`` is missing.

    Raises:
        BadData: it is unreadable.
    """
    config = settings_path(path)
    return read_json(config) if config.exists() else None


def agent_name(agent: str, settings: dict[str, Any] | None) -> str:
    """Format the name of an agent, with its model if it has one."""
    own = settings.get("agent_settings") if settings is not None else None
    model = own.get("model") if isinstance(own, dict) else None
    return f"{agent} {model}" if isinstance(model, str) else agent


def recorded_options(path: Path) -> dict[str, Any] | None:
    """Read the environment's options of a record file; None if its settings are missing.

    Raises:
        BadData: the settings have no options.
    """
    settings = settings_of(path)
    if settings is None:
        return None
    options = settings.get("options")
    if not isinstance(options, dict):
        raise BadData(
            f"{path}.config.json: 'options' must be an object, found {options!r:.60}. Move the file away to go without it"
        )
    return options


def common_tasks(files: Sequence[Recorded], *, overlap: bool = False, any_options: bool = False) -> list[str]:
    """Select the tasks to compare files on, sorted.

    Args:
        files: at least two files.
        overlap: take the tasks in all files, if the files have different tasks.
        any_options: allow different environment options and first observations.

    Raises:
        UnknownOption: the files are not comparable; the message names file, value and remedy.
    """
    _same_setting(files)
    shared = sorted(set.intersection(*(set(file.tasks) for file in files)))
    if not shared:
        ids = "; ".join(f"{file.path} has {_listed(sorted(file.tasks))}" for file in files)
        raise UnknownOption(
            f"another task set: no task has a result in all files ({ids}). Play the same tasks with each agent"
        )
    if not any_options:
        _same_options(files)
        _same_texts(files, shared)
    union = set().union(*(file.tasks for file in files))
    if len(shared) < len(union) and not overlap:
        raise UnknownOption(
            f"another task set: {_task_sets(files, len(union))}. {len(shared)} tasks are in all: --overlap compares those"
        )
    return shared


def _same_setting(files: Sequence[Recorded]) -> None:
    for name, what in SAME.items():
        counted = Counter(file.played_on[name] for file in files)
        if len(counted) == 1:
            continue
        most = counted.most_common(1)[0]
        usual = next(file for file in files if file.played_on[name] == most[0])
        other = next(file for file in files if file.played_on[name] != most[0])
        together = " ".join(str(file.path) for file in files if file.played_on[name] == most[0])
        offer = f"What can be compared: {together}" if most[1] > 1 else "Nothing of them can be compared"
        raise UnknownOption(
            f"another {what}: {other.path} has {other.played_on[name]!r}, {usual.path} has {usual.played_on[name]!r}. "
            f"{offer}; or play both under the same {what}"
        )


def _same_options(files: Sequence[Recorded]) -> None:
    known = [file for file in files if file.options is not None]
    for file in known[1:]:
        if file.options != known[0].options:
            raise UnknownOption(
                f"other options: {file.path} was played with {json.dumps(file.options)}, {known[0].path} with "
                f"{json.dumps(known[0].options)}. Play both with the same (eval --options-of AGENT), or add --any-options"
            )


def _same_texts(files: Sequence[Recorded], shared: Sequence[str]) -> None:
    for task in shared:
        for file in files[1:]:
            if file.tasks[task][0].shown != files[0].tasks[task][0].shown:
                raise UnknownOption(
                    f"another task set: task {task!r} begins differently in {file.path} and {files[0].path}: its contents have "
                    "changed between them. Play both on the same data, or add --any-options"
                )


def _task_sets(files: Sequence[Recorded], union: int) -> str:
    message = []
    for file in files:
        lost = (
            f", and {file.without_result} that ended in errors alone (eval again repeats them)"
            if file.without_result
            else ""
        )
        message.append(f"{file.path} has {len(file.tasks)} of {union} tasks{lost}")
    return "; ".join(message)


def _listed(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}"
