"""Lock-step comparison of ALFWorld's rules in this project with TextWorld and ALFWorld's wrappers, on freshly drawn games.

    python scripts/studies/parity_alfworld.py --states 20000 --seed 1 --out FILE.json

Feedback, admissible commands and "won" must be equal, in order, after every command; the record holds the number of states, every
difference, and how often each verb was played. Needs the extra ``alfworld``; the original takes some 70 ms of CPU per step.
With ``--memoise`` it keeps what it parsed (texts of its grammar, queries, translations of PDDL): the same answers in a third of the time.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

from alfworld_lockstep import Difference, compare, memoise_original

from tstar_envs.envs.alfworld.engine import game_data
from tstar_envs.envs.alfworld.generate import fresh_scenes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--states",
        type=int,
        default=20_000,
        help="minimum number of states to compare (default: %(default)s)",
    )
    parser.add_argument("--steps", type=int, default=160, help="steps per game (default: %(default)s)")
    parser.add_argument(
        "--seed",
        default="1",
        help="seed of games and commands; use one that was not used in development (default: %(default)s)",
    )
    parser.add_argument("--memoise", action="store_true", help="let the original cache what it parsed")
    parser.add_argument(
        "--out", type=Path, required=True, help="file of the record; an existing one is continued"
    )
    arguments = parser.parse_args()
    if arguments.memoise:
        memoise_original()
    verbs: Counter[str] = Counter()
    differences: list[Difference] = []
    types: Counter[str] = Counter()
    states = games = 0
    began = time.process_time()
    spent = 0
    if arguments.out.exists():
        before = json.loads(arguments.out.read_text(encoding="utf-8"))
        if (before["steps"], before["seed"]) != (arguments.steps, arguments.seed) or before["differences"]:
            parser.error(
                f"{arguments.out} is a record of other steps or another seed, or has differences: name another file"
            )
        verbs.update(before["verbs"])
        types.update(before["games_by_type"])
        games, states, spent = before["games"], before["states"], before["cpu_seconds"]
    sources = [
        fresh_scenes(f"parity/{arguments.seed}/{unseen}", unseen=unseen) for unseen in (False, False, True)
    ]
    for game in range(games):
        next(sources[game % len(sources)])
    while states < arguments.states:
        scene = next(sources[games % len(sources)])
        differences += compare(
            game_data(scene, f"parity-{games}"), f"parity-{games}", arguments.steps, arguments.seed, verbs
        )
        types[scene.task] += 1
        games, states = games + 1, states + arguments.steps + 1
        record = {
            "command": f"python scripts/studies/parity_alfworld.py --states {arguments.states}"
            + f" --steps {arguments.steps} --seed {arguments.seed}"
            + " --memoise" * arguments.memoise,
            "steps": arguments.steps,
            "seed": arguments.seed,
            "games": games,
            "states": states,
            "differences": len(differences),
            "verbs": dict(sorted(verbs.items())),
            "games_by_type": dict(sorted(types.items())),
            "cpu_seconds": spent + round(time.process_time() - began),
            "first_differences": [difference._asdict() for difference in differences[:20]],
        }
        arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(
            f"{games} games, {states} states, {len(differences)} differences, {record['cpu_seconds']} s",
            flush=True,
        )
    return 1 if differences else 0


if __name__ == "__main__":
    raise SystemExit(main())
