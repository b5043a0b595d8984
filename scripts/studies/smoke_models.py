"""Train one iteration of a small random model of every public architecture on two environments, or show why it is refused.

    python scripts/studies/smoke_models.py [NAME ...] [--env sokoban-easy hotpotqa]

Each line is a run of ``python -m tstar_train --model FOLDER``: trained (exit 0, a summary was written) or refused (exit 2, one sentence,
no run folder). The exit status is 1 where something else happened.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from small_models import MODELS, REFUSED, save_small
from transformers.utils import logging

# A model that knows nothing fails every episode alike, which teaches nothing: the penalty for what is no action gives it a gradient.
SMALL = """--iterations 1 --processes 1 --rollout.tasks-per-iteration 2 --rollout.group-size 2 --rollout.max-tokens 24 --rollout.horizon 3
--rollout.invalid-penalty 0.5 --tree.kl-samples 2 --evaluation.tasks 2 --evaluation.samples 1 --evaluation.no-greedy""".split()


def run(model: Path, env: str, out: Path) -> tuple[str, str]:
    """(trained, refused or broken; what was said)."""
    horizon = ["--env-option", "horizon=3"]  # what is measured is as short as what is trained on
    command = [
        sys.executable,
        "-m",
        "tstar_train",
        "--env",
        env,
        "--model",
        str(model),
        "--out",
        str(out),
        *horizon,
        *SMALL,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:] or [""]
    if done.returncode == 0 and (out / "summary.json").exists():
        (line,) = (out / "metrics.jsonl").read_text().splitlines()
        figures = json.loads(line)
        if not figures["gradient_norm"]:
            return "broken", "no gradient"
        return (
            "trained",
            f"sampler and trainer differ by at most {figures['logprob_difference_max']:.0e} nats a token",
        )
    if done.returncode == 2 and not out.exists():
        return "refused", last[0].replace(str(model), "FOLDER")
    return "broken", f"exit {done.returncode}: {done.stderr.strip()[-600:]}"


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names",
        nargs="*",
        default=[],
        metavar="NAME",
        help=f"models to train, of {', '.join(MODELS)} (default: all)",
    )
    parser.add_argument(
        "--env",
        nargs="+",
        default=["sokoban-easy", "hotpotqa"],
        help="environment ids (default: sokoban-easy hotpotqa)",
    )
    asked = parser.parse_args()
    logging.disable_progress_bar()
    wrong = 0
    print("| model | environment | result | |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.names or MODELS:
            model = Path(folder) / name
            save_small(name, model)
            for env in asked.env:
                result, said = run(model, env, Path(folder) / f"{name}-{env}")
                print(f"| {name} | {env} | {result} | {said} |", flush=True)
                wrong += result != ("refused" if name in REFUSED else "trained")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
