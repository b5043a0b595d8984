"""What a policy's single replies are worth in the states of the expert's episodes.

    python scripts/studies/measure_turns.py --env sokoban-hard --tasks 60

In every state that the expert comes to on held-out tasks the policy replies, and the reply is judged by the state it leads to: ``best`` is
as near to success as the expert's own turn or nearer, ``detour`` changed the state and did not lose, ``unchanged`` changed nothing
that matters (no push, an invalid action), ``loses`` cannot be won from any more. Unlike success this does not depend on how early an
episode fails, so a few hundred states distinguish two policies that both solve next to nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from typing import Any

import torch

from tstar_envs import Snapshot, TextEnv, find_entry
from tstar_train.build import held_out_tasks, make_env
from tstar_train.engines.local import LocalEngine
from tstar_train.policy.codec import Codec
from tstar_train.policy.files import settings_name
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny
from tstar_train.rollout.player import Transcript

KINDS = ("best", "detour", "unchanged", "loses")
Env = TextEnv[Any, Any]


def expert_states(
    env: Env, task: str, codec: Codec, context: str, history: int
) -> list[tuple[Snapshot[Any], list[int], float]]:
    """The states of the expert's episode of a task: how to come back, what the policy sees, and the progress after the expert's turn."""
    observation, info = env.reset(options={"task": task})
    transcript = Transcript(codec, env.prompt(), str(info["instruction"]), observation, context, history)
    found: list[tuple[Snapshot[Any], list[int], float]] = []
    over = False
    while not over and (reply := env.oracle()) is not None:
        here, seen = env.snapshot(), transcript.context()
        observation, _, terminated, truncated, _ = env.step(reply)
        over = terminated or truncated
        found.append((here, seen, env.progress()))
        if not over:
            transcript.add(codec.reply(reply), observation)
    return found


def judge(env: Env, here: Snapshot[Any], reply: str, expert: float) -> str:
    """What a reply in a state is worth (see above); ``expert`` is the progress after the expert's turn there."""
    env.restore(here)
    _, _, terminated, truncated, info = env.step(reply)
    if info["success"] or env.progress() >= expert:
        return "best"
    if not (terminated or truncated) and env.oracle() is None:
        return "loses"
    return "detour" if info["modifies_state"] else "unchanged"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--env", default="sokoban-hard", help="environment id or short name (default: %(default)s)"
    )
    parser.add_argument(
        "--model", default="tiny", help="tiny (the built-in policy), or a folder or checkpoint of one"
    )
    parser.add_argument(
        "--split", default="valid", help="split that the tasks come from (default: %(default)s)"
    )
    parser.add_argument("--tasks", type=int, default=60, help="number of tasks (default: %(default)s)")
    parser.add_argument(
        "--temperature", type=float, default=1.0, help="sampling temperature (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    entry = find_entry(options.env)
    config = tiny(entry, options.model)
    config = dataclasses.replace(
        config, evaluation=dataclasses.replace(config.evaluation, split=options.split, tasks=options.tasks)
    )
    policy = load_policy(options.model, settings_name(options.model, entry))
    env, rollout = make_env(config), config.rollout
    tasks = held_out_tasks(env, config)
    states = [
        state
        for task in tasks
        for state in expert_states(env, task, policy.codec, rollout.context, rollout.history)
    ]
    samples = LocalEngine(policy).generate(
        [seen for _, seen, _ in states],
        [f"turns/{number}" for number in range(len(states))],
        max_tokens=rollout.max_tokens,
        temperature=options.temperature,
    )
    kinds = Counter(
        judge(env, here, policy.codec.decode(sample.ids), expert)
        for (here, _, expert), sample in zip(states, samples, strict=True)
    )
    print(
        f"| environment | model | tasks | states | {' | '.join(KINDS)} |\n|---|---|---|---|{'---|' * len(KINDS)}"
    )
    shares = " | ".join(f"{kinds[kind] / len(states):.3f}" for kind in KINDS)
    print(f"| {entry.name} | {options.model} | {len(tasks)} of {options.split} | {len(states)} | {shares} |")


if __name__ == "__main__":
    main()
