"""Adapter for verl-agent: environment managers for its rollout loop and those of its forks.

    from tstar_envs.adapters.verl_agent import make_envs   # in place of agent_system.environments.make_envs

    envs, val_envs = make_envs(config)   # config.env.env_name: tstar/Sokoban-easy

An ``EnvironmentManager`` has the interface of verl-agent's ``EnvironmentManagerBase`` (``reset``, ``step``, ``success_evaluator``,
``close``; see agent_system/environments/base.py and multi_turn_rollout/rollout_loop.py). Nothing of that package is imported. Row r
of a batch plays the task of group ``r // env.rollout.n``. GiGPO's anchor for grouping steps is the environment's ``state_key``: equal
exactly for equal states of one task, whatever the path or the phrasing of the observation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from tstar_envs.core import TextEnv
from tstar_envs.errors import ResetNeeded, UnknownOption
from tstar_envs.react import parse_reply
from tstar_envs.rollout import GroupEnv, make_group
from tstar_envs.utils import StableRandom, check_option, is_whole, without_actions

Infos = list[dict[str, Any]]
Observations = dict[str, Any]
# Format of a reply -> cues that ``parse_reply`` reports for it.
REPLIES = {"tags": ("action", "search", "answer"), "react": ("line",)}


def projection(text_actions: Sequence[str], replies: str = "tags") -> tuple[list[str], list[bool]]:
    """Parse the replies of a policy.

    Args:
        text_actions: replies of the policy.
        replies: required format: ``tags`` is verl-agent's ``<think>...</think><action>...</action>``, ``react`` has ``Thought:`` and
            ``Action:`` lines.

    Returns:
        Actions for the environments, "" (invalid) for a reply without an action in that format; and per reply whether it is valid. A reply
            without a thought in that format is invalid although its action is played, as in verl-agent.
    """
    check_option("replies", replies, tuple(REPLIES))
    actions, valid = [], []
    for text in text_actions:
        thought, _, cue = parse_reply(text)
        marked = cue in REPLIES[replies]
        actions.append(text if marked else "")
        valid.append(marked and bool(thought) and (replies == "react" or "</think>" in text))
    return actions, valid


class Envs:
    """Environments of a manager: ``env_num`` groups of ``group_n``, in this process.

    Args:
        env_id: registered id or short name.
        env_num: number of groups.
        group_n: members per group, which play the same task.
        seed: seed of the order of the tasks.
        split: split of the tasks.
        fixed: True to play the first ``env_num`` tasks of the split after every reset, for validation. False passes through the split in a
            random order, reshuffled for each pass.
        **options: options of the environment.
    """

    def __init__(
        self,
        env_id: str,
        env_num: int,
        group_n: int,
        *,
        seed: int = 0,
        split: str = "train",
        fixed: bool = False,
        **options: Any,
    ) -> None:
        if not is_whole(env_num) or env_num < 1:
            raise UnknownOption(f"env_num must be a whole number of at least 1, got {env_num!r}")
        group = make_group(env_id, range(env_num), group_n, split=split, **options)
        self.rows: list[TextEnv[Any, Any]] = group.envs
        self.group_n, self._fixed = group.group_size, fixed
        self._ids = list(self.rows[0].task_ids())
        self._stream = self._drawn(seed)
        self._group: GroupEnv | None = None

    def _drawn(self, seed: int) -> Iterator[str]:
        for turn in itertools.count():
            yield from StableRandom(f"{seed}/{turn}").shuffled(self._ids)

    def _tasks(self, kwargs: Sequence[Mapping[str, Any]] | None) -> list[str | int]:
        """Choose the tasks of the groups: those that the rows of the batch name, or the next ones."""
        named = [row.get("task") for row in kwargs] if kwargs is not None else []
        if all(task is None for task in named):
            number = len(named) // self.group_n or len(self.rows) // self.group_n
            if self._fixed and number > len(self._ids):
                raise UnknownOption(
                    f"{number} fixed tasks are wanted and the split has {len(self._ids)}: take a smaller batch"
                )
            return list(itertools.islice(iter(self._ids) if self._fixed else self._stream, number))
        if len(named) > len(self.rows) or len(named) % self.group_n:
            raise UnknownOption(
                f"{len(named)} rows of env_kwargs do not fit {len(self.rows)} environments in groups of {self.group_n}"
            )
        chosen: list[str | int] = []
        for number in range(len(named) // self.group_n):
            members = named[number * self.group_n : (number + 1) * self.group_n]
            if members[0] is None or any(task != members[0] for task in members):
                raise UnknownOption(
                    f"the members of group {number} must name the same task in env_kwargs, got {members!r:.200}"
                )
            chosen.append(members[0])
        return chosen

    def reset(self, kwargs: Sequence[Mapping[str, Any]] | None = None) -> tuple[list[str], Infos]:
        """Reset every row.

        Args:
            kwargs: one mapping per row (the dataset's ``env_kwargs``); ``task`` is an id, or an index within the split. There may be fewer
                rows than environments, as in the last batch of a dataset.

        Raises:
            UnknownOption: the rows do not fit, or members of a group name different tasks.
            UnknownTask: unknown task.
        """
        tasks = self._tasks(kwargs)
        self._group = GroupEnv(self.rows[: len(tasks) * self.group_n], tasks, self.group_n)
        return self._group.reset()

    def step(self, actions: Sequence[str]) -> list[tuple[str, float, bool, dict[str, Any]] | None]:
        """Play one action in every row that is still running.

        Returns:
            Observation, reward, done and info per row; None for a row whose episode was over before.

        Raises:
            InfrastructureError: a search service failed. Nothing was played, and the same step may be retried.
            ResetNeeded: called before ``reset``.
        """
        if self._group is None:
            raise ResetNeeded("step comes after reset: call reset() first")
        if len(actions) != len(self._group):
            raise UnknownOption(
                f"step needs {len(self._group)} actions, one for each row, got {len(actions)}"
            )
        running = self._group.running
        played = self._group.step(
            [action if runs else None for action, runs in zip(actions, running, strict=True)]
        )
        return [
            (str(observation), float(reward), bool(terminated or truncated), info)
            if reward is not None and info is not None
            else None
            for observation, reward, terminated, truncated, info in zip(*played, strict=True)
        ]

    def step_with_mask(
        self, actions: Sequence[str], active_indices: Sequence[int]
    ) -> list[tuple[str, float, bool, dict[str, Any]] | None]:
        """Play one action in each of the given rows; the others wait. For loops that branch (SPARK).

        Args:
            actions: one action per given row.
            active_indices: the rows.

        Returns:
            As ``step``, in the order of the given rows.

        Raises:
            UnknownOption: not as many actions as rows, or no such row.
            InfrastructureError, ResetNeeded: see ``step``.
        """
        if self._group is None:
            raise ResetNeeded("step comes after reset: call reset() first")
        rows = [int(row) for row in active_indices]
        if len(actions) != len(rows) or len(set(rows)) < len(rows):
            raise UnknownOption(
                f"step_with_mask needs one action for each row, got {len(actions)} for rows {rows!r:.200}"
            )
        running = self._group.running
        if wrong := [row for row in rows if not 0 <= row < len(running)]:
            raise UnknownOption(f"there is no row {wrong[0]}: the batch has {len(running)}")
        played = self._group.step_rows(
            {row: action for row, action in zip(rows, actions, strict=True) if running[row]}
        )
        results: list[tuple[str, float, bool, dict[str, Any]] | None] = []
        for row in rows:
            if row not in played:
                results.append(None)
                continue
            observation, reward, terminated, truncated, info = played[row]
            results.append((observation, float(reward), terminated or truncated, info))
        return results

    def restore(self, maps: Sequence[Mapping[str, Any]]) -> None:
        """Copy episodes of rows into others, by snapshot.

        Args:
            maps: for each copy ``parent_idx`` and ``child_idx``. ``action_history``, which environments without snapshots replay, is not
                needed.

        Raises:
            UnknownOption: see ``GroupEnv.branch``.
            ResetNeeded: called before ``reset``.
        """
        if self._group is None:
            raise ResetNeeded("restore comes after reset: call reset() first")
        branches: dict[int, list[int]] = {}
        for one in maps:
            branches.setdefault(int(one["parent_idx"]), []).append(int(one["child_idx"]))
        self._group.branch(branches)

    def close(self) -> None:
        """Close the environments."""
        for env in self.rows:
            env.close()


class EnvironmentManager:
    """Environment manager for verl-agent's rollout loop.

    Args:
        envs: the environments.
        projection_f: parser of replies (``projection``).
        config: configuration of the run. ``config.env.history_length`` is the number of latest turns in a prompt, none at 0.
        prompt_style: format of replies that the rules ask for.
    """

    def __init__(
        self,
        envs: Envs,
        projection_f: Callable[[Sequence[str]], tuple[list[str], list[bool]]],
        config: Any,
        prompt_style: str = "tags",
    ) -> None:
        self.envs, self.projection_f, self.config = envs, projection_f, config
        self._history = max(0, int(config.env.history_length))
        self._style = prompt_style
        self._first: list[str] = []
        self._turns: list[list[tuple[str, str]]] = []  # per row, actions and observations
        self._infos: Infos = []
        self._anchors: list[str] = []

    def reset(self, kwargs: Sequence[Mapping[str, Any]] | None = None) -> tuple[Observations, Infos]:
        """Reset every row.

        Args:
            kwargs: ``env_kwargs`` of the batch, see ``Envs.reset``.

        Returns:
            Observations and infos, one entry per row. Observations hold prompts (``text``), None (``image``) and state keys (``anchor``).
        """
        self._first, infos = self.envs.reset(kwargs)
        self._turns = [[] for _ in infos]
        self._anchors = [env.state_key() for env in self.envs.rows[: len(infos)]]
        self._infos = [{**info, "won": False, "is_action_valid": True} for info in infos]
        return self._observed(), [dict(info) for info in self._infos]

    def step(self, text_actions: Sequence[str]) -> tuple[Observations, np.ndarray, np.ndarray, Infos]:
        """Play one reply in every row.

        Args:
            text_actions: one reply per row. Those of finished rows are ignored: verl-agent steps all rows until the last is done.

        Returns:
            Observations as in ``reset``; rewards (float32; 0 for a row that was over) and dones, shape (rows,); and infos with ``won`` (the
                task is solved) and ``is_action_valid`` (the reply has the required format, and its action could be parsed).

        Raises:
            InfrastructureError: see ``Envs.step``; never a reward of 0.
        """
        actions, valid = self.projection_f(list(text_actions))
        return self._noted(range(len(self._turns)), self.envs.step(actions), valid)

    def step_with_mask(
        self, text_actions: Sequence[str], active_indices: Sequence[int]
    ) -> tuple[Observations, np.ndarray, np.ndarray, Infos]:
        """Play one reply in each of the given rows; the others wait. For loops that branch, such as SPARK's.

        Args:
            text_actions: one reply per given row.
            active_indices: the rows.

        Returns:
            As ``step``, with one entry per given row.

        Raises:
            UnknownOption, InfrastructureError: see ``Envs.step_with_mask``.
        """
        actions, valid = self.projection_f(list(text_actions))
        rows = [int(row) for row in active_indices]
        return self._noted(rows, self.envs.step_with_mask(actions, rows), valid)

    def sync_branch_states(self, all_branches: Mapping[int, Sequence[int]]) -> None:
        """Copy the state of rows into others: each child continues where its parent stands, and has its history.

        Args:
            all_branches: children by parent, such as ``{0: [4, 5]}``.

        Raises:
            UnknownOption: no such row, a child of two parents, or a row that is both. Nothing is changed then.
        """
        maps = [
            {"parent_idx": parent, "child_idx": child}
            for parent, children in all_branches.items()
            for child in children
        ]
        self.envs.restore(maps)
        for one in maps:
            parent, child = int(one["parent_idx"]), int(one["child_idx"])
            self._first[child], self._anchors[child] = self._first[parent], self._anchors[parent]
            self._turns[child], self._infos[child] = list(self._turns[parent]), dict(self._infos[parent])

    def _noted(
        self,
        rows: Sequence[int],
        results: Sequence[tuple[str, float, bool, dict[str, Any]] | None],
        valid: Sequence[bool],
    ) -> tuple[Observations, np.ndarray, np.ndarray, Infos]:
        """Note the results of a step of some rows, and return what the loop gets of them."""
        rewards, dones = np.zeros(len(rows), np.float32), np.ones(len(rows), bool)
        for place, (row, result) in enumerate(zip(rows, results, strict=True)):
            if result is None:
                continue
            observation, rewards[place], dones[place], info = result
            self._turns[row].append((info["action"] or "(no action that could be read)", observation))
            self._anchors[row] = info["state_key"]
            self._infos[row] = {
                **info,
                "won": info["success"],
                "is_action_valid": valid[place] and bool(info["action"]),
            }
        seen = {
            "text": [self._prompt(row) for row in rows],
            "image": None,
            "anchor": [self._anchors[row] for row in rows],
        }
        return seen, rewards, dones, [dict(self._infos[row]) for row in rows]

    def _observed(self) -> Observations:
        return {"text": self.build_text_obs(), "image": None, "anchor": list(self._anchors)}

    def build_text_obs(self) -> list[str]:
        """Build the prompts of the next turn: rules, first observation, latest turns and current observation.

        A policy of verl-agent has no memory between turns, so that each prompt must be complete.
        """
        return [self._prompt(row) for row in range(len(self._turns))]

    def _prompt(self, row: int) -> str:
        turns, rules = self._turns[row], self.envs.rows[row].prompt(self._style)
        if not turns:
            return f"{rules}\n\n{self._first[row]}"
        parts = [rules, without_actions(self._first[row]), f"Turns taken so far: {len(turns)}."]
        for number, (action, answer) in enumerate(turns, 1):
            if number > len(turns) - self._history:  # earlier turns are left out
                last = number == len(turns)
                parts.append(f"Turn {number}: {action}\n{answer if last else without_actions(answer)}")
        if not self._history:
            parts.append(f"You see now:\n{turns[-1][1]}")
        return "\n\n".join(parts)

    def success_evaluator(
        self,
        *args: Any,
        total_infos: Sequence[Infos],
        total_batch_list: Sequence[Sequence[Mapping[str, Any]]],
        **kwargs: Any,
    ) -> dict[str, np.ndarray]:
        """Evaluate the success of the episodes of a rollout.

        Args:
            *args: not used.
            total_infos: per row the infos of its steps.
            total_batch_list: per row the loop's records of its steps; ``active_masks`` is True if the row was still running.
            **kwargs: other values of the loop (rewards, lengths), not used.

        Returns:
            ``success_rate`` and ``score``, shape (rows,), of the last step of each row.
        """
        last = [
            next(
                (
                    info
                    for info, kept in zip(reversed(infos), reversed(batch), strict=True)
                    if kept["active_masks"]
                ),
                None,
            )
            for infos, batch in zip(total_infos, total_batch_list, strict=True)
        ]
        return {
            "success_rate": np.array([float(info is not None and info["won"]) for info in last]),
            "score": np.array([0.0 if info is None else float(info["score"]) for info in last]),
        }

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def make_envs(config: Any) -> tuple[EnvironmentManager, EnvironmentManager]:
    """Make the managers for training and validation, like verl-agent's function of this name.

    It reads ``env.env_name`` (an id of this suite), ``env.seed``, ``env.max_steps`` (the horizon), ``env.history_length``,
    ``env.rollout.n`` (members of a group), ``data.train_batch_size`` and ``data.val_batch_size`` (groups). The optional ``env.tstar`` has
    ``replies`` (``tags`` or ``react``), ``train_split``, ``val_split`` and ``options`` of the environment.

    Returns:
        The training manager, on tasks of the train split in random order, and the validation manager, with groups of one member and the
            same tasks of the valid split each time.

    Raises:
        UnknownOption: an invalid setting; the message lists the valid ones.
    """
    own = dict(getattr(config.env, "tstar", None) or {})
    given = {"replies": "tags", "train_split": "train", "val_split": "valid", "options": {}, **own}
    unknown = given.keys() - {"replies", "train_split", "val_split", "options"}
    if unknown:
        raise UnknownOption(
            f"env.tstar has no setting {min(unknown)!r}; valid: replies, train_split, val_split, options"
        )
    check_option("env.tstar.replies", given["replies"], tuple(REPLIES))
    if not isinstance(given["options"], Mapping):
        raise UnknownOption(f"env.tstar.options must map options to values, got {given['options']!r:.80}")
    if not is_whole(config.env.history_length):
        raise UnknownOption(
            f"env.history_length must be a whole number, got {config.env.history_length!r:.80}"
        )
    if not is_whole(config.env.rollout.n):
        raise UnknownOption(f"env.rollout.n must be a whole number, got {config.env.rollout.n!r}")
    options = {"horizon": config.env.max_steps, **given["options"]}
    members, name, seed = max(1, config.env.rollout.n), config.env.env_name, config.env.seed
    train = Envs(
        name, config.data.train_batch_size, members, seed=seed, split=given["train_split"], **options
    )
    valid = Envs(name, config.data.val_batch_size, 1, split=given["val_split"], fixed=True, **options)
    read = partial(projection, replies=given["replies"])
    return EnvironmentManager(train, read, config, given["replies"]), EnvironmentManager(
        valid, read, config, given["replies"]
    )
