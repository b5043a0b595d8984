"""What a credit is worth to a small linear policy on the real Sokoban levels, with the trainer's ways brought in one at a time.

    python scripts/studies/credit_toy.py --credit grpo state --seeds 0 1 2 3 4    # the toy itself; its ways:
    python scripts/studies/credit_toy.py --credit grpo state --negative-weight 0.1 --updates 4 --end-when-lost --penalties --episode-mean

The policy sees the seven by seven cells around the player and the way to the nearest box and target, and knows no words: only the formula
of the credit differs between runs. The rate is chosen for each credit on validation levels with seed 100, then the test levels are played
once for each seed. The difference to GRPO has a bootstrap interval over levels, of the means over seeds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import gymnasium as gym
import numpy as np
import tyro
from numpy.typing import NDArray

from tstar_envs import TextEnv, cluster_bootstrap
from tstar_train.advantages import discounted_returns, gigpo_step, grpo
from tstar_train.config import RolloutConfig
from tstar_train.learner.rows import penalties
from tstar_train.tree import Values, build_tree

ACTIONS = ("Up", "Down", "Left", "Right")
SYMBOLS = "#_OX√PS?"
REACH = 3  # cells that the policy sees to each side of the player
FEATURES = (2 * REACH + 1) ** 2 * len(SYMBOLS) + 3**4 * 2 + 1
_PENALTIES = RolloutConfig(invalid_penalty=0.2, revisit_penalty=0.1)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """Compare credits by training a small linear policy on Sokoban."""

    credit: tuple[Literal["grpo", "gigpo", "paper", "state", "bellman", "way", "way-only"], ...] = (
        "grpo",
        "state",
    )
    """Credits to compare; the first is the baseline. paper: nodes by depth, merged exactly; state: nodes by state, transition credit;
    bellman: the same with values solved on the graph; way: bellman, and the way imitated; way-only: the way without other credit."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    """Seeds of the order of the training levels and of the samples."""
    rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    """Learning rates to choose from on validation levels."""
    same_rate: bool = False
    """Use the learning rate chosen for the first credit for all of them."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Optimizer: Adam, or plain gradient descent (with learning rates a hundred times as large)."""
    updates: int = 1
    """Optimizer steps per iteration, each on its part of the episodes, with the ratio clipped at 0.8 and 1.2."""
    end_when_lost: bool = False
    """End training episodes when the level cannot be won any more (training_options of the preset)."""
    penalties: bool = False
    """Subtract a penalty of 0.2 for an invalid move and 0.1 for one back to an earlier state (the preset's penalties)."""
    episode_mean: bool = False
    """Give every episode equal weight in the loss, whatever its length (optim.aggregation of the preset)."""
    negative_weight: float = 1.0
    """Factor on negative credits."""
    gamma: float = 0.95
    """Discount factor per step of the credits state and gigpo."""
    iterations: int = 100
    """Number of training iterations, each of 16 levels x 8 episodes."""
    turns: int | None = None
    """Train for this many sampled turns, not for a number of iterations."""
    start_steps: int = 20
    """Steps of imitation that make the start."""
    test_samples: int = 4
    """Episodes per level of the 334 test levels."""
    out: Path | None = None
    """JSON Lines file to write the results to."""


@dataclass(frozen=True)
class Turn:
    """A step as the trees read it, with its features and action."""

    state_key: str
    features: NDArray[np.int64]
    choice: int
    thought: str = ""
    action: str = ""
    observation: str = ""
    modifies_state: bool = False
    effect_key: str = ""
    action_valid: bool = True


@dataclass
class Walk:
    """One episode of the toy policy."""

    start_key: str
    steps: list[Turn]
    reward: float = 0.0
    truncated: bool = False

    @property
    def states(self) -> list[str]:
        """Where each step was taken."""
        return [self.start_key, *(step.state_key for step in self.steps[:-1])]


class Communicator:
    """The levels, with every move that was made remembered: the rules are deterministic."""

    def __init__(self, end_when_lost: bool) -> None:
        self.envs: dict[str, TextEnv] = {}
        for split in ("train", "valid", "test"):
            env = gym.make(
                "tstar/Sokoban-easy", split=split, end_when_lost=end_when_lost and split == "train"
            ).unwrapped
            if not isinstance(env, TextEnv):
                raise TypeError(f"{env} is no TextEnv")
            self.envs[split] = env
        self._features: dict[tuple[str, str], NDArray[np.int64]] = {}
        self._moves: dict[tuple[str, str, int], tuple[str, bool, bool, bool]] = {}
        self._snapshots: dict[tuple[str, str], tuple[TextEnv, object]] = {}
        self.horizon = self.envs["train"].horizon

    def ids(self, split: str) -> Sequence[str]:
        """The levels of a split."""
        return self.envs[split].task_ids(split)

    def begin(self, split: str, task: str) -> str:
        """The key of a level's start."""
        env = self.envs[split]
        observation, _ = env.reset(options={"task": task})
        self._know(task, env, env.state_key(), observation)
        return env.state_key()

    def _know(self, task: str, env: TextEnv, key: str, observation: str) -> None:
        if (task, key) not in self._features:
            self._features[task, key] = _features(observation)
            self._snapshots[task, key] = (env, env.snapshot())

    def seen(self, task: str, key: str) -> NDArray[np.int64]:
        """The features of a state."""
        return self._features[task, key]

    def move(self, task: str, key: str, choice: int) -> tuple[str, bool, bool, bool]:
        """The state that a move leads to, whether the level is solved, whether the episode is over, and whether the move was valid."""
        found = self._moves.get((task, key, choice))
        if found is None:
            env, snapshot = self._snapshots[task, key]
            env.restore(replace(snapshot, step=0))  # type: ignore[type-var]
            observation, _, terminated, truncated, info = env.step(ACTIONS[choice])
            found = (
                info["state_key"],
                bool(info["success"]),
                bool(terminated or truncated),
                bool(info["action_valid"]),
            )
            self._know(task, env, found[0], observation)
            self._moves[task, key, choice] = found
        return found


def _features(observation: str) -> NDArray[np.int64]:
    """Indexes of the features that are 1: a symbol for each cell around the player, and one for where box and target are."""
    rows = observation.split("\n")
    at = {
        symbol: [(r, c) for r, row in enumerate(rows) for c, s in enumerate(row) if s in symbol]
        for symbol in ("PS", "X", "OS")
    }
    (row, column), *_ = at["PS"]
    found = []
    for place, (r, c) in enumerate(
        (row + i, column + j) for i in range(-REACH, REACH + 1) for j in range(-REACH, REACH + 1)
    ):
        symbol = rows[r][c] if 0 <= r < len(rows) and 0 <= c < len(rows[r]) else "?"
        found.append(place * len(SYMBOLS) + SYMBOLS.index(symbol))
    base = (2 * REACH + 1) ** 2 * len(SYMBOLS)
    if not at["X"] or not at["OS"]:
        return np.array([*found, base + 3**4 * 2])
    box = min(at["X"], key=lambda p: abs(p[0] - row) + abs(p[1] - column))
    target = min(at["OS"], key=lambda p: abs(p[0] - box[0]) + abs(p[1] - box[1]))
    way = 0
    for one, other in zip((*box, *target), (row, column, *box), strict=True):
        way = way * 3 + int(np.sign(one - other)) + 1
    near = abs(box[0] - row) + abs(box[1] - column) == 1
    return np.array([*found, base + way * 2 + int(near)])


def chances(weights: Floats, features: NDArray[np.int64]) -> Floats:
    """Probabilities of the actions, shape (rows, 4); features has shape (rows, 50)."""
    logits = weights[features].sum(1)
    exponents = np.exp(logits - logits.max(1, keepdims=True))
    return exponents / exponents.sum(1, keepdims=True)


def play(
    world: Communicator, weights: Floats, split: str, tasks: Sequence[str], rng: np.random.Generator
) -> list[Walk]:
    """An episode of each level, side by side."""
    walks = [Walk(world.begin(split, task), []) for task in tasks]
    at, running = [walk.start_key for walk in walks], list(range(len(tasks)))
    for _ in range(world.horizon):
        if not running:
            break
        features = np.stack([world.seen(tasks[i], at[i]) for i in running])
        chosen = (chances(weights, features).cumsum(1) < rng.random(len(running))[:, None]).sum(1).clip(0, 3)
        going_on = []
        for i, choice, row in zip(running, chosen, features, strict=True):
            key, solved, over, valid = world.move(tasks[i], at[i], int(choice))
            walks[i].steps.append(Turn(key, row, int(choice), action_valid=valid))
            at[i], walks[i].reward = key, float(solved)
            if not over:
                going_on.append(i)
        running = going_on
    for i in running:
        walks[i].truncated = True
    return walks


def credits(name: str, group: Sequence[Walk], gamma: float) -> list[Floats]:
    """What each step of a group's episodes is credited with."""
    rewards = [walk.reward for walk in group]
    if len(set(rewards)) == 1:
        return [np.zeros(len(walk.steps)) for walk in group]
    episode = [
        np.full(len(walk.steps), a) for a, walk in zip(grpo(rewards, [0] * len(group)), group, strict=True)
    ]
    if name == "grpo":
        return episode
    if name == "gigpo":
        returns = [discounted_returns([0.0] * (len(walk.steps) - 1) + [walk.reward], gamma) for walk in group]
        anchors = [state for walk in group for state in walk.states]
        step = gigpo_step(np.concatenate(returns), anchors, [0] * len(anchors), "mean_std_norm")
        return [
            a + b
            for a, b in zip(episode, np.split(step, np.cumsum([len(r) for r in returns])[:-1]), strict=True)
        ]
    # Equal states at one depth are equal decisions: the merging that an exact KL would make.
    if name == "paper":
        return build_tree(group, lambda t, i, j: 0.0, gamma=1.0, history="state").advantages()
    values: Values = "mean" if name == "state" else "bellman"
    tree = build_tree(group, None, gamma=gamma, nodes="state", values=values, start_key=group[0].start_key)
    found = tree.advantages(credit="transition")
    if name == "way-only":
        found = [np.zeros_like(row) for row in found]
    way = tree.way() if name.startswith("way") else None
    return found if way is None else [a + b for a, b in zip(found, tree.way_advantages(way), strict=True)]


def start(world: Communicator, steps: int) -> Floats:
    """Weights after some steps of imitation of the expert on 30 levels."""
    env = world.envs["train"]
    rows, moves = [], []
    for task in np.random.default_rng(0).choice(world.ids("train"), 30, replace=False):
        observation, _ = env.reset(options={"task": str(task)})
        while (reply := env.oracle()) is not None:
            rows.append(_features(observation))
            moves.append(ACTIONS.index(reply.rpartition("Action: ")[2]))
            observation, _, over, _, _ = env.step(reply)
            if over:
                break
    features, chosen = np.stack(rows), np.array(moves)
    optimizer, weights = Adam(), np.zeros((FEATURES, 4))
    for _ in range(steps):
        weights = weights + optimizer.step(_gradient(weights, features, chosen, np.ones(len(chosen))), 0.05)
    return weights


class Adam:
    """Kingma and Ba 2015, with beta 0.9 and 0.99."""

    def __init__(self) -> None:
        self._mean, self._square, self._steps = 0.0, 0.0, 0

    def step(self, gradient: Floats, rate: float) -> Floats:
        """The change of the weights."""
        self._steps += 1
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient * gradient
        first, second = self._mean / (1 - 0.9**self._steps), self._square / (1 - 0.99**self._steps)
        change: Floats = rate * first / (np.sqrt(second) + 1e-8)
        return change


def _gradient(
    weights: Floats, features: NDArray[np.int64], chosen: NDArray[np.int64], worth: Floats
) -> Floats:
    """The gradient of the mean of worth times the log-probability of the chosen action."""
    towards = -chances(weights, features) * worth[:, None]
    towards[np.arange(len(chosen)), chosen] += worth
    gradient = np.zeros_like(weights)
    np.add.at(gradient, features.reshape(-1), np.repeat(towards / len(chosen), features.shape[1], axis=0))
    return gradient


def train(
    world: Communicator, weights: Floats, name: str, rate: float, seed: int, options: Options
) -> Floats:
    """Train from the start; the rate falls to zero. No iteration begins after the last of ``options.turns``."""
    rng = np.random.default_rng(1000 + seed)
    ids = world.ids("train")
    order, optimizer = rng.permutation(len(ids)), Adam()
    k, used, done = 0, 0, 0.0
    while done < 1:
        levels = [ids[order[(16 * k + j) % len(ids)]] for j in range(16) for _ in range(8)]
        walks = play(world, weights, "train", levels, rng)
        worth = np.concatenate(
            [row for g in range(16) for row in credits(name, walks[8 * g : 8 * g + 8], options.gamma)]
        )
        worth = np.where(worth < 0, options.negative_weight * worth, worth)
        if options.penalties:
            worth = worth - np.concatenate([penalties(walk.steps, _PENALTIES) for walk in walks])  # type: ignore[arg-type]
        if options.episode_mean:
            lengths = np.concatenate([np.full(len(walk.steps), len(walk.steps)) for walk in walks])
            worth = worth * lengths.mean() / lengths
        share = np.concatenate(
            [np.full(len(walk.steps), n % options.updates) for n, walk in enumerate(walks)]
        )
        features = np.stack([turn.features for walk in walks for turn in walk.steps])
        chosen = np.array([turn.choice for walk in walks for turn in walk.steps])
        before = chances(weights, features)[np.arange(len(chosen)), chosen]
        now = rate * (1 - done)
        for number in range(options.updates):
            mine = np.flatnonzero(share == number)
            ratio = chances(weights, features[mine])[np.arange(len(mine)), chosen[mine]] / before[mine]
            clipped = ((ratio > 1.2) & (worth[mine] > 0)) | ((ratio < 0.8) & (worth[mine] < 0))
            gradient = _gradient(
                weights, features[mine], chosen[mine], np.where(clipped, 0.0, ratio * worth[mine])
            )
            weights = weights + (
                optimizer.step(gradient, now) if options.optimizer == "adam" else 100 * now * gradient
            )
        k, used = k + 1, used + len(chosen)
        done = k / options.iterations if options.turns is None else used / options.turns
    return weights


def measure(world: Communicator, weights: Floats, split: str, levels: int, samples: int) -> Floats:
    """Success on each level, the mean of several episodes."""
    rng = np.random.default_rng(7)
    tasks = list(world.ids(split)[:levels])
    return np.mean(
        [[walk.reward for walk in play(world, weights, split, tasks, rng)] for _ in range(samples)], axis=0
    )


def main(options: Options) -> None:
    """Choose rates, train, and print a table."""
    world, began = Communicator(options.end_when_lost), time.process_time()
    first, rates = start(world, options.start_steps), {}
    for name in options.credit:
        if options.same_rate and rates:
            rates[name] = next(iter(rates.values()))
            continue
        tried = {
            rate: measure(world, train(world, first, name, rate, 100, options), "valid", 200, 2).mean()
            for rate in options.rates
        }
        rates[name] = max(tried, key=lambda rate: tried[rate])
    print(f"start {measure(world, first, 'test', 334, options.test_samples).mean():.3f}", flush=True)
    found: dict[str, Floats] = {}
    for name in options.credit:
        runs = [train(world, first, name, rates[name], seed, options) for seed in options.seeds]
        found[name] = np.stack([measure(world, run, "test", 334, options.test_samples) for run in runs])
        line = f"{name:8} rate {rates[name]:<5} after {found[name].mean():.3f} (seeds {' '.join(f'{s:.3f}' for s in found[name].mean(1))})"
        difference = found[name].mean(0) - found[options.credit[0]].mean(0)
        low, high = cluster_bootstrap([[value] for value in difference])
        if name != options.credit[0]:
            line += f"  {difference.mean():+.3f} ({low:+.3f} to {high:+.3f})"
        print(line, flush=True)
        if options.out is not None:
            chosen = {k: v for k, v in asdict(options).items() if k != "out"}
            with options.out.open("a", encoding="utf-8") as handle:
                result = {
                    "credit": name,
                    "rate": rates[name],
                    "after": found[name].mean(1).tolist(),
                    "difference": difference.mean(),
                }
                handle.write(json.dumps({**chosen, **result, "low": low, "high": high}) + "\n")
    print(f"{time.process_time() - began:.0f} CPU seconds", file=sys.stderr)


if __name__ == "__main__":
    main(tyro.cli(Options))
