"""Sokoban levels solved exactly for a policy that writes no thoughts, for ``measure_credit.py``."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tstar_envs import UnknownOption, find_entry
from tstar_envs.envs.sokoban.level import DIRECTIONS, SOLVER_SECONDS, SOLVER_STATES, State
from tstar_envs.envs.sokoban.rules import TaskView, ViewOptions, apply, view_of
from tstar_envs.envs.sokoban.tasks import load_path, load_shipped
from tstar_train.engines.base import Engine, Sample, uniform_noise
from tstar_train.policy.codec import ACTION_CUE, Codec
from tstar_train.rollout.kl import action_logprobs

Floats = NDArray[np.float64]
MOST_STATES = 50_000  # of a level that is solved exactly


class ActionPolicy:
    """Engine that samples bare actions, by their exact probabilities: the policy without thoughts.

    Implements ``tstar_train.engines.base.Engine``.

    Args:
        engine: engine of the policy.
        codec: its codec.
        actions: all actions; their probabilities are those of ``action_logprobs``, which sum to 1 over them.
        temperature: of the choice among them.
    """

    def __init__(
        self, engine: Engine, codec: Codec, actions: Sequence[str], temperature: float = 1.0
    ) -> None:
        self._engine = engine
        self._codec = codec
        self.actions = tuple(actions)
        self._temperature = temperature
        self._replies = [codec.reply(f"{ACTION_CUE} {action}") for action in self.actions]
        self._known: dict[tuple[int, ...], Floats] = {}
        self._scores: dict[tuple[tuple[int, ...], tuple[int, ...]], float] = {}

    @property
    def limit(self) -> int:
        """See ``Engine``."""
        return self._engine.limit

    @property
    def shares_weights(self) -> bool:
        """See ``Engine``."""
        return self._engine.shares_weights

    def probabilities(self, contexts: Sequence[Sequence[int]]) -> Floats:
        """Compute the probability of each action after each context, shape (contexts, actions)."""
        missing = [c for c in dict.fromkeys(map(tuple, contexts)) if c not in self._known]
        scored = action_logprobs(self, self._codec, missing, [self.actions] * len(missing))
        for context, found in zip(missing, scored, strict=True):
            self._known[context] = np.exp([found[action] for action in self.actions])
        return np.stack([self._known[tuple(c)] for c in contexts])

    def generate(
        self,
        contexts: Sequence[Sequence[int]],
        seeds: Sequence[str],
        *,
        max_tokens: int,
        temperature: float = 1.0,
        keys: Sequence[Hashable] | None = None,
        copies: int = 1,
        ends: Collection[int] = (),
    ) -> list[Sample]:
        """See ``Engine``; at the own temperature, and the whole log-probability is that of the first id."""
        longest = max(map(len, self._replies))
        if temperature != self._temperature or max_tokens < longest:
            raise ValueError(
                f"these actions are sampled at temperature {self._temperature} with room for {longest} tokens, got {temperature} "
                f"and {max_tokens}"
            )
        chances = np.repeat(self.probabilities(contexts), copies, axis=0)
        noise = np.array([uniform_noise(seed, 1)[0] for seed in seeds])
        drawn = (chances.cumsum(axis=1) <= noise[:, None]).sum(axis=1).clip(max=len(self.actions) - 1)
        return [
            Sample(self._replies[a], [math.log(row[a])] + [0.0] * (len(self._replies[a]) - 1))
            for a, row in zip(drawn, chances, strict=True)
        ]

    def logprobs(
        self, contexts: Sequence[Sequence[int]], continuations: Sequence[Sequence[Sequence[int]]]
    ) -> list[list[float]]:
        """See ``Engine``; over the temperature, and what was scored before is not computed again."""
        asked = [
            (tuple(c), [tuple(a) for a in listed]) for c, listed in zip(contexts, continuations, strict=True)
        ]
        missing: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {}
        for context, listed in asked:
            for one in listed:
                if (context, one) not in self._scores:
                    missing.setdefault(context, {})[one] = None
        scored = self._engine.logprobs(list(missing), [list(listed) for listed in missing.values()])
        for (context, listed_once), scores in zip(missing.items(), scored, strict=True):
            self._scores |= {(context, one): s for one, s in zip(listed_once, scores, strict=True)}
        return [
            [self._scores[context, one] / self._temperature for one in listed] for context, listed in asked
        ]

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """See ``Engine``."""
        self._engine.sync(weights)
        self.clear_cache()

    def clear_cache(self) -> None:
        """See ``Engine``."""
        self._engine.clear_cache()
        self._known.clear()
        self._scores.clear()

    def release(self) -> None:
        """See ``Engine``."""
        self.clear_cache()


@dataclass(frozen=True)
class SolvedLevel:
    """Values of all states of a Sokoban level under a policy.

    Attributes:
        rows: row of each state, by state key.
        values: V(s) with h steps left, shape (horizon + 1, states).
    """

    rows: dict[str, int]
    values: Floats


def solve_level(
    view: TaskView, chances: Callable[[list[State]], Floats], horizon: int, most: int = MOST_STATES
) -> SolvedLevel:
    """Solve a level for a policy by dynamic programming over all states that can be reached.

    V_h(s) = sum over moves a of pi(a | s) * (the reward if a ends the episode, else V_{h-1}(next state)); V_0 = 0.

    Args:
        view: the level, with the options of the environment.
        chances: the policy: probabilities of the four moves in each state, shape (states, 4).
        horizon: steps of an episode.
        most: number of states above which a level is refused.

    Raises:
        UnknownOption: the level has more states.
    """
    states, rows = [view.task.start], {view.task.start: 0}
    leads: list[list[int]] = []  # next state; -1 where the episode ends
    rewards: list[list[float]] = []
    for state in states:  # grows while it is walked
        outcomes = [apply(view, state, move) for move in DIRECTIONS]
        rewards.append([o.score if o.terminated else 0.0 for o in outcomes])
        for outcome in outcomes:
            if not outcome.terminated and outcome.state not in rows:
                rows[outcome.state] = len(states)
                states.append(outcome.state)
        if len(states) > most:
            raise UnknownOption(f"{view.task.id} has more than {most} states: measure it with --truth plays")
        leads.append([-1 if o.terminated else rows[o.state] for o in outcomes])
    policy, following, earned = chances(states), np.array(leads), np.array(rewards)
    values = np.zeros((horizon + 1, len(states)))
    for h in range(1, horizon + 1):
        after = np.where(following < 0, earned, values[h - 1][following])
        values[h] = (policy * after).sum(axis=1)
    return SolvedLevel({view.key(state): row for state, row in rows.items()}, values)


def level_view(env: str, options: dict[str, Any], task: str) -> TaskView:
    """Make the view of a level as an environment with these options plays it.

    Raises:
        UnknownOption: not Sokoban, or an option under which moves or state keys say less than the whole.
    """
    entry = find_entry(env)
    given = {**entry.kwargs, **options}
    known = {"difficulty", "observation", "end_when_lost", "levels", "horizon"}
    others = sorted(given.keys() - known)
    if entry.family != "sokoban" or others:
        what = entry.id if entry.family != "sokoban" else f"with the option {others[0]}"
        raise UnknownOption(f"--truth exact solves plain Sokoban levels, and not {what}: use --truth plays")
    levels = load_path(given["levels"]) if "levels" in given else load_shipped(given["difficulty"])
    shown, ends = given.get("observation", "grid"), given.get("end_when_lost", False)
    return view_of(
        levels.task(task), ViewOptions(shown, False, False, False, False, ends, SOLVER_STATES, SOLVER_SECONDS)
    )
