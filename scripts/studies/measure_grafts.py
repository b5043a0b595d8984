"""How often grafted thoughts lead to success when they are played on, by where they come from (docs/results/hotpotqa.md).

    python scripts/studies/measure_grafts.py --env hotpotqa --tasks 48

Groups are played by the built-in policy, trees built, and for the same divergences three kinds of grafts made: written by the
policy at temperature 1, at temperature 0, and the successful branch's own thought.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch

from tstar_envs import find_entry
from tstar_train.build import trainer_of
from tstar_train.distributed import SingleProcess
from tstar_train.engines.local import LocalEngine
from tstar_train.grafting import graft, verify
from tstar_train.learner.base import Norms
from tstar_train.loop import iterate
from tstar_train.policy.model import load_policy
from tstar_train.presets import tiny
from tstar_train.recipes.recipe import policy_name
from tstar_train.rollout.collect import EnvSpec, sampling_of

KINDS = {
    "written at temperature 1": {"temperature": 1.0, "fallback": "none"},
    "written at temperature 0": {"temperature": 0.0, "fallback": "none"},
    "successful branch's own": {"fallback": "z_plus_only"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--env", default="hotpotqa", help="environment id or short name (default: %(default)s)"
    )
    parser.add_argument("--model", default="tiny", help="tiny (the built-in policy), or a checkpoint of it")
    parser.add_argument(
        "--tasks", type=int, default=48, help="training tasks, with 8 episodes each (default: %(default)s)"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    entry = find_entry(options.env)
    preset = tiny(entry, options.model)
    config = dataclasses.replace(preset, graft=dataclasses.replace(preset.graft, enabled=False))
    policy = load_policy(options.model, policy_name(entry))
    spec = EnvSpec(config.env, dict(config.env_options))
    config = dataclasses.replace(
        config, rollout=dataclasses.replace(config.rollout, tasks_per_iteration=options.tasks), processes=1
    )
    one = trainer_of(config, policy, SingleProcess())
    one.learner.apply = lambda factor: Norms(
        0.0, {}
    )  # plays as an iteration of training does, and learns nothing
    played = iterate(one, 0).data
    found = [(g.trajectories, d) for g in played.groups for d in g.divergences]
    engine = LocalEngine(policy)
    print(
        f"{len(found)} divergences\n| grafts | kept | won at temperature 1 | won greedily |\n|---|---|---|---|"
    )
    for name, how in KINDS.items():
        shares = []
        for temperature in (1.0, 0.0):
            made = graft(
                engine, policy.codec, found, seed="measure", max_tokens=config.rollout.max_tokens, **how
            )
            failed = [played.groups[g.group].trajectories[g.worst_step[0]] for g in made.kept]
            count = len(made.kept)
            verify(
                made,
                failed,
                spec,
                engine,
                policy.codec,
                split="train",
                seed="measure",
                sampling=sampling_of(config, temperature),
                fallback="none",
            )
            shares.append(len(made.kept) / max(1, count))
        print(f"| {name} | {count} | {shares[0]:.2f} | {shares[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
