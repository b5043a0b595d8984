"""Kill -9 at random moments of a run, resume, and compare with a run that nothing interrupted (docs/algorithms.md).

    python scripts/kill_and_resume.py                                  # all combinations, ten kills each
    python scripts/kill_and_resume.py --algo ppo --kills 3 --processes 2
    python scripts/kill_and_resume.py --algo dapo --tstar --env sokoban-easy --rollout.horizon 5
    python scripts/kill_and_resume.py --algo grpo --evaluation.validate-every 1 --evaluation.validation-tasks 3    # and the chosen weights
    python scripts/kill_and_resume.py --further grafts-kept --processes 2                # one of the further combinations alone
    python scripts/kill_and_resume.py --further units --processes 3                      # tasks go to whoever is free

For each combination one run goes through; it also measures how long each of its steps takes. A second run with the same options is killed
with all its processes at ``--kills`` moments, each time resumed by the documented command, and at last let finish. A fifth of the moments
lies in the time in which a process starts, a fifth within the writing of a checkpoint, the others one in each of as many equal shares of
the run's own duration, from the first measurement to the report. A moment is a step and a time within it, so that on a machine that is
slower meanwhile it comes at the same place. Options that are not this script's go to the trainer. Exit code 1: something differs, or a
kill did not come.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tstar_train.ahead import QUEUE, read_queue
from tstar_train.types import IterationData

# With this seed DAPO replaces groups on both sides of the first checkpoint.
SMALL = (
    "--seed 1 --iterations 4 --checkpoint-every 2 --rollout.tasks-per-iteration 2 --rollout.group-size 4 "
    "--tree.kl-samples 2 --tree.statistics-everywhere "
    "--evaluation.tasks 2 --evaluation.samples 1"
).split()
ALGORITHMS = ["grpo", "dapo", "dapo-paper", "gigpo", "hgpo", "graphgpo", "ppo"]
# Combinations with options besides, by name: the algorithm, always with T-STAR, and the options.
FURTHER = {
    "grafts-kept": ("grpo", "--tree.nodes depth --graft.keep all --graft.batch 4 --optim.epochs 2"),
    "ways": ("gigpo", "--tree.nodes state --tree.values bellman --graft.source way"),
    "ways-kept": (
        "grpo",
        "--tree.nodes state --graft.source both --graft.loss surgical --graft.keep all --graft.batch 4",
    ),
    "forks": ("dapo", "--explore.share 0.5 --explore.first untried"),
    "forks-kept": ("grpo", "--explore.share 0.5 --graft.enabled --graft.keep all --graft.batch 4"),
    "forks-ways": ("hgpo", "--explore.share 0.5 --graft.source way --explore.weights reach --turns 150"),
    "forks-graph": ("graphgpo", "--explore.share 0.5 --explore.first untried --graft.source way"),
    "ahead": ("dapo", "--tree.nodes depth --rollout.ahead 1"),
    "ahead-ways-kept": ("gigpo", "--graft.source both --graft.keep all --graft.batch 4 --rollout.ahead 1"),
    "mix": (
        "dapo",
        "--env sokoban-easy --env sokoban-medium:0.5 --env-option horizon=6 --curriculum success --rollout.horizon-growth 2 "
        "--rollout.tasks-per-iteration 6 --evaluation.validate-every 2 --evaluation.validation-tasks 2",
    ),
    "mix-ahead": (
        "grpo",
        "--env blocksworld-stack --env blocksworld-unstack:0.5 --explore.share 0 --env-option horizon=12 --curriculum optimum "
        "--rollout.ahead 1 --rollout.tasks-per-iteration 6",
    ),
    "units": ("dapo", "--tree.nodes depth --rollout.tasks-per-iteration 6 --rollout.tasks-at-once 1"),
    "all": (
        "grpo",
        "--env sokoban-easy --rollout.horizon 6 --explore.share 0.5 --explore.where policy --explore.credit graph "
        "--graft.source both --graft.keep 5 --graft.batch 4 --optim.num-minibatches 2",
    ),
}
LOGS = ("metrics.jsonl", "episodes.jsonl")
# Entries that hold clock times, and the sums of files, which are compared themselves.
CLOCKS = {"seconds", "wall_seconds", "sha256", "state_sha256"}
POLL_SECONDS = 0.002
LONGEST_SECONDS = 900


class Stand(NamedTuple):
    """How far a run folder is; it grows in this order.

    ``saves`` is twice the newest checkpoint's iteration, and one more while the next is written; ``validated`` is how many validations
    are recorded, and ``best`` the iteration that is kept as the best.
    """

    measured: bool
    lines: int
    saves: int
    summary: bool
    report: bool
    validated: int = 0
    best: int = -1

    @classmethod
    def of(cls, out: Path) -> Stand:
        metrics, checkpoints = out / "metrics.jsonl", out / "checkpoints"
        names = [p.name for p in checkpoints.iterdir()] if checkpoints.is_dir() else []
        newest = max([int(name) for name in names if name.isdigit()], default=0)
        saving = any(name.startswith(".partial-") and not name.startswith(".partial-old-") for name in names)
        lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        measured, summary, report = (
            (out / name).exists() for name in ("evaluation.json", "summary.json", "report.html")
        )
        validations, best = out / "validation.jsonl", -1
        validated = validations.read_bytes().count(b"\n") if validations.exists() else 0
        with contextlib.suppress(FileNotFoundError):
            best = json.loads((out / "best" / "state.json").read_bytes())["iteration"]
        return cls(measured, lines, 2 * newest + saving, summary, report, validated, best)

    def place(self, iterations: int, every: int, validate: int = 0) -> str:
        """What the run was doing."""
        if self.summary:
            return "report"
        if not self.measured:
            return "first measurement"
        if self.saves % 2:
            return f"saving {self.lines}"
        last = self.lines == iterations
        due = self.lines // validate + 1 + (last and self.lines % validate > 0) if validate else 0
        if self.saves == 2 * self.lines and self.validated < due:
            return f"validating {self.lines}"
        if self.saves < 2 * self.lines and (
            last or self.lines % every == 0 or (validate and self.lines % validate == 0)
        ):
            return f"logging {self.lines}"
        return f"iteration {self.lines + 1}" if self.lines < iterations else "last measurement"


@dataclasses.dataclass(frozen=True)
class Moment:
    """A moment of a run: ``seconds`` after the run reached ``stand``, or after the process began where that is None."""

    stand: Stand | None
    seconds: float


class Ended(NamedTuple):
    """How a process ended: killed, having begun its work and with a folder as it ``stood``, or by itself with a code and a message."""

    killed: bool
    began: bool
    stood: Stand
    code: int
    message: str


def written(out: Path) -> dict[str, int]:
    """When each file was written that a process writes anew as its work begins."""
    return {name: (out / name).stat().st_mtime_ns for name in ("config.json", *LOGS) if (out / name).exists()}


def play(
    arguments: list[str], out: Path, moment: Moment | None, timeline: list[tuple[float, Stand]] | None = None
) -> Ended:
    """A process of the trainer, killed with its group at a moment; ``timeline`` gets when it came how far."""
    with (
        tempfile.TemporaryDirectory(prefix="kill-") as folder,
        open(Path(folder) / "message", "w+", encoding="utf-8") as message,
    ):
        before, began, reached = written(out), False, None
        begun = time.monotonic()
        command = [sys.executable, "-m", "tstar_train", *arguments]
        # What a killed run leaves among the temporary files goes with ours.
        environment = {**os.environ, "TMPDIR": folder}
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=message,
            stdin=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                now = time.monotonic() - begun
                if now > LONGEST_SECONDS:
                    raise SystemExit(f"{' '.join(command)}: not done after {LONGEST_SECONDS} s")
                if not began:
                    found = written(out)
                    began = "config.json" in found and all(
                        found.get(name) != when for name, when in before.items()
                    )
                stand = Stand.of(out) if began else None
                if timeline is not None and stand is not None and (not timeline or timeline[-1][1] != stand):
                    timeline.append((now, stand))
                if moment is not None:
                    if reached is None and (
                        moment.stand is None or (stand is not None and stand >= moment.stand)
                    ):
                        reached = now if moment.stand is not None else 0.0
                    if reached is not None and now - reached >= moment.seconds:
                        os.killpg(process.pid, signal.SIGKILL)
                        if process.wait() == -signal.SIGKILL:
                            return Ended(True, began, Stand.of(out), process.returncode, "")
                        break
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        message.seek(0)
        return Ended(False, began, Stand.of(out), process.returncode, message.read().strip())


def moments(timeline: list[tuple[float, Stand]], kills: int, rng: random.Random) -> list[Moment]:
    """Where to kill, in an order in which each comes after the one before."""
    starts = [begun for begun, _ in timeline]
    first, last = starts[0], next(begun for begun, stand in timeline if stand.report)
    special = max(1, kills // 5) if kills >= 3 else 0
    drawn = []
    saving = [number for number, (_, stand) in enumerate(timeline[:-1]) if stand.saves % 2]
    for number in rng.choices(saving, k=special):
        drawn.append(Moment(timeline[number][1], rng.uniform(0, starts[number + 1] - starts[number])))
    shares = kills - 2 * special
    for share in range(shares):
        when = first + (last - first) * (share + rng.random()) / shares
        begun, stand = [step for step in timeline if step[0] <= when][-1]
        drawn.append(Moment(stand, when - begun))
    drawn.sort(key=lambda moment: (moment.stand, moment.seconds))
    for _ in range(special):
        drawn.insert(rng.randrange(len(drawn)), Moment(None, rng.uniform(0, first)))
    return drawn


def interrupted(start: list[str], out: Path, kills: list[Moment]) -> tuple[list[str], str | None]:
    """A run that is killed at moments and resumed; where it was killed, and what went wrong."""
    places: list[str] = []
    command = start
    for moment in [*kills, None]:
        ended = play(command, out, moment)
        if "there is no run to resume there: start one" in ended.message:
            ended = play(start, out, moment)
        if ended.killed:
            options = json.loads((out / "config.json").read_text()) if ended.began else {}
            validate = options["evaluation"]["validate_every"] if ended.began else 0
            places.append(
                ended.stood.place(options["iterations"], options["checkpoint_every"], validate)
                if ended.began
                else "start-up"
            )
        elif ended.code:
            return places, f"exit code {ended.code}: {ended.message[-300:]}"
        elif moment is not None:
            return places, "it was done before the next kill"
        command = ["--resume", str(out)]
    return places, None


def differ(one: Any, two: Any, where: str = "") -> str | None:
    """The first place in which two records differ, clock times apart."""
    if isinstance(one, dict) and isinstance(two, dict):
        for name in dict.fromkeys([*one, *two]):
            if name not in CLOCKS and (found := differ(one.get(name), two.get(name), f"{where} {name}")):
                return found
        return None
    if isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        pairs = enumerate(zip(one, two, strict=True))
        return next((found for number, pair in pairs if (found := differ(*pair, f"{where} {number}"))), None)
    return None if one == two else f"{where}: {str(one)[:60]} and {str(two)[:60]}"


def first_difference(whole: Path, killed: Path) -> str | None:
    """Where two run folders differ: every line, record and tree, every file of the checkpoints, TensorBoard's curves, and what is there."""
    names = [
        {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file() and "tensorboard" not in p.parts}
        for out in (whole, killed)
    ]
    if odd := names[0] ^ names[1]:
        return f"only one has {min(odd)}"
    for name in sorted(names[0], key=lambda name: (name not in LOGS, name != LOGS[0], name)):
        one, two = (out / name for out in (whole, killed))
        if name == "report.html" or name == "timings.jsonl":
            continue
        if name.endswith(".json"):
            found = differ(json.loads(one.read_text()), json.loads(two.read_text()), name)
        elif Path(name).name == QUEUE:
            found = differ(*([sampled(part) for part in read_queue(path)] for path in (one, two)), name)
        elif name.endswith(".jsonl"):
            lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in (one, two)]
            found = differ(*lines, name) or (
                None if one.read_bytes() == two.read_bytes() else f"{name}: other bytes"
            )
        else:
            found = None if one.read_bytes() == two.read_bytes() else f"{name}: other bytes"
        if found:
            return found
    return differ(curves(whole), curves(killed), "tensorboard")


def sampled(part: IterationData) -> list[Any]:
    """What was sampled ahead: tokens with their log-probabilities, and credit."""
    turns = [[turn.reply, turn.logprobs] for g in part.groups for t in g.members for turn in t.turns]
    return [part.number, part.tasks, turns, [row.tolist() for g in part.groups for row in g.advantages]]


def curves(out: Path) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard's points of every figure, as it shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it says of every restart that it saw it
    drawn = {}
    for part in (out / "tensorboard", out / "tensorboard" / "validation"):
        if not part.exists():
            continue
        events = EventAccumulator(str(part), size_guidance={"scalars": 0})
        events.Reload()
        names = [name for name in sorted(events.Tags()["scalars"]) if not name.startswith("seconds/")]
        drawn |= {name: [(point.step, point.value) for point in events.Scalars(name)] for name in names}
    return drawn


def combinations(
    algorithms: list[str] | None, tstar: bool | None, further: list[str] | None
) -> list[tuple[str, str, list[str]]]:
    """List the combinations to run: the algorithm, what is shown of T-STAR, and the options; everything where nothing is chosen.

    T-STAR is the paper's, whose tree asks the policy, unless a further combination says otherwise.
    """
    everything = algorithms is None and tstar is None and further is None
    if algorithms is None and further is None:
        algorithms = ALGORITHMS
    pairs = itertools.product(algorithms or [], (False, True))
    chosen = [
        (algo, "yes" if on else "no", ["--tstar", "--tree.nodes", "depth"] if on else ["--no-tstar"])
        for algo, on in pairs
        if not (algo == "ppo" and on) and tstar in (None, on)
    ]
    for name in FURTHER if everything else further or []:
        algo, options = FURTHER[name]
        chosen.append((algo, name, ["--tstar", *options.split()]))
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0] if __doc__ else None, allow_abbrev=False
    )
    parser.add_argument(
        "--env", default="hotpotqa", help="environment id or short name (default: %(default)s)"
    )
    parser.add_argument(
        "--algo", nargs="+", choices=ALGORITHMS, help="base algorithms (default: all; none with --further)"
    )
    parser.add_argument(
        "--tstar",
        action=argparse.BooleanOptionalAction,
        help="run only with or only without T-STAR (default: both)",
    )
    parser.add_argument(
        "--further",
        nargs="+",
        choices=FURTHER,
        help="combinations with options besides (default: all; none with --algo or --tstar)",
    )
    parser.add_argument("--kills", type=int, default=10, help="kills per combination (default: %(default)s)")
    parser.add_argument("--processes", default="1", help="processes of each run (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the moments of the kills (default: %(default)s)"
    )
    options, further = parser.parse_known_args()
    folder, rng, failed = (
        Path(tempfile.mkdtemp(prefix="kill-and-resume-")),
        random.Random(options.seed),
        False,
    )
    print(f"| algorithm | T-STAR | kills | killed at | learnt in | result |\n|{'---|' * 6}", flush=True)
    for algo, tstar, own in combinations(options.algo, options.tstar, options.further):
        name = f"{algo}-{tstar}"
        whole, killed = folder / name / "whole", folder / name / "killed"
        start = [
            *([] if "--env" in own else ["--env", options.env]),
            "--algo",
            algo,
            "--processes",
            options.processes,
        ]
        start += [*SMALL, *own, *further, "--out"]
        timeline: list[tuple[float, Stand]] = []
        ended = play([*start, str(whole)], whole, None, timeline)
        if ended.code or not (whole / "report.html").exists():
            raise SystemExit(f"{name}: the run that nothing interrupted failed: {ended.message}")
        if not timeline[-1][1].report:  # it came between the last look and the end
            timeline.append((timeline[-1][0] + POLL_SECONDS, Stand.of(whole)))
        places, wrong = interrupted([*start, str(killed)], killed, moments(timeline, options.kills, rng))
        wrong = wrong or first_difference(whole, killed)
        metrics = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
        learnt = sum(m["gradient_norm"] > 0 for m in metrics)
        cells = (
            algo,
            tstar,
            len(places),
            ", ".join(places),
            f"{learnt} of {len(metrics)}",
            wrong or "equal",
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        if wrong:
            failed = True
        else:
            shutil.rmtree(folder / name)
    if failed:
        raise SystemExit(f"the folders of what differs: {folder}")
    folder.rmdir()


if __name__ == "__main__":
    main()
