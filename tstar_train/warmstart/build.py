"""Making the shipped weights: tokenizer, imitation, and a record of how they were made."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from rich.console import Console
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn
from transformers import PreTrainedModel

from tstar_envs import EnvEntry, TextEnv, find_entry, write_whole
from tstar_train.claim import claimed
from tstar_train.finite import NotFinite
from tstar_train.policy.checksums import sha256_of
from tstar_train.policy.codec import PlainCodec
from tstar_train.policy.family import TinyFamily, policy_name, tiny_family
from tstar_train.policy.limit import position_limit
from tstar_train.policy.model import POLICY_FIELD, WEIGHTS, load_policy, load_tokenizer, new_tiny, save_tiny
from tstar_train.policy.tokenizer import train_tokenizer
from tstar_train.warmstart.demonstrations import DemonstrationStyle, practice_rows, shuffled
from tstar_train.warmstart.imitate import ImitationSchedule, imitate
from tstar_train.warmstart.quoting import quoting_rows

SCHEDULES: dict[str, tuple[ImitationSchedule, ...]] = {
    "search_qa": (
        ImitationSchedule(steps=12_000),
        ImitationSchedule(steps=5_000, matrix_rate=0.01, other_rate=1.5e-3, decay=1.0, processes=2),
    ),
    "question_sets": (
        ImitationSchedule(steps=400, batch=24, matrix_rate=0.007, other_rate=1.2e-3, decay=0.3, warmup=20, rows="quotes"),
        ImitationSchedule(steps=2_600, batch=12, matrix_rate=0.004, other_rate=1.2e-3, decay=0.8, processes=2),
    ),
    # Rows are single turns here, about a third as long as a whole conversation.
    # Batches of 24 find out how to plan, which batches of 8 alone do not; after that small batches at a low rate make the most of a
    # minute (docs/results/planning_imitation.md). This policy is a start (.56 on stacking): an hour of imitation (.88) left training
    # little to show.
    "blocksworld": (
        ImitationSchedule(steps=2_000, batch=24, matrix_rate=0.007, other_rate=1.2e-3),
        ImitationSchedule(steps=4_500, batch=8, matrix_rate=0.002, other_rate=4e-4, decay=1.0, warmup=50),
    ),
    # Rows are whole episodes, about three times as long as those of search-QA.
    "alfworld": (
        ImitationSchedule(steps=4_000, matrix_rate=0.01, other_rate=1.5e-3),
        ImitationSchedule(steps=2_500, matrix_rate=0.008, other_rate=1.2e-3, decay=1.0),
    ),
    # Rows are single turns with the page before, twice as long as those of the planning families. At a rate of .007 the quoting
    # is lost again within 300 updates, at .004 it is kept.
    "webshop": (
        ImitationSchedule(steps=400, batch=24, matrix_rate=0.007, other_rate=1.2e-3, decay=0.3, warmup=20, rows="quotes"),
        ImitationSchedule(steps=2_800, batch=12, matrix_rate=0.004, other_rate=1.2e-3, decay=0.8, processes=2),
    ),
    # A start, like Blocksworld's: steps count here, and batches of 8 at a low rate make the most of a minute
    # (docs/results/planning_imitation.md). 1,500 steps solve .68 of the validation levels instead of .47.
    "sokoban": (ImitationSchedule(steps=850, batch=8, matrix_rate=0.003, other_rate=7e-4, decay=0.9, alike="context"),),
    # Two hours on two cores, the longest of all: an hour of CPU time, at other rates, left hard levels at .02. Steps count here too:
    # in 17 CPU-minutes batches of 24 solve half as many medium levels as batches of 8. The second stage was added later; a pool from the
    # beginning would have cost nothing (docs/results/planning_imitation.md).
    "sokoban_harder": (
        ImitationSchedule(steps=40_000, batch=4, matrix_rate=0.003, other_rate=7e-4, decay=0.9, alike="context", processes=2),
        ImitationSchedule(
            steps=27_000, batch=4, matrix_rate=0.002, other_rate=5e-4, decay=0.9, alike="context", processes=2, held=2048
        ),
    ),
    "sokoban_hard": (
        ImitationSchedule(
            steps=18_000, batch=4, matrix_rate=0.002, other_rate=5e-4, decay=0.9, alike="context", processes=2, held=2048
        ),
    ),
}


def style_of(family: TinyFamily) -> DemonstrationStyle:
    """How the demonstrations of a family vary."""
    return DemonstrationStyle(mistake=family.mistakes, no_thought=family.no_thought, wordings=family.wordings, kept=family.kept_rows)


class TextCodec:
    """Rows of plain text instead of ids, for the tokenizer's training corpus."""

    end: Any = ""
    pad: Any = ""

    def start(self, prompt: str, observation: str) -> list[Any]:
        return [f"{observation}\n"]

    def observation(self, text: str) -> list[Any]:
        return [f"\nObservation: {text}\n"]

    def reply(self, text: str) -> list[Any]:
        return [text, self.end]

    def closed(self, reply: Sequence[Any]) -> list[Any]:
        return [*reply] if reply[-1] == self.end else [*reply, self.end]

    def text(self, text: str) -> list[Any]:
        return [text]

    def decode(self, ids: Sequence[Any]) -> str:
        return "".join(ids)


class PracticeMix:
    """Fresh practice environments of a family, under the options that its tiny policy plays with.

    Args:
        entry: any environment of the family; which ones are practised, and how often, ``TinyFamily.mix`` says.
        only: practise this environment alone.
        settings: the built-in policy whose options they have, None for the environment's own.
    """

    def __init__(self, entry: EnvEntry, only: bool = False, settings: str | None = None) -> None:
        family = tiny_family(settings or policy_name(entry))
        mix = {entry.name: 1.0} if only or not family.mix else family.mix
        self._options = family.env_options
        self._entries = [find_entry(name) for name in mix]
        self._weights = list(mix.values())

    def __call__(self, seed: str) -> TextEnv[Any, Any]:
        """The environment of a seed."""
        chosen = self._entries[0]
        if len(self._entries) > 1:
            chosen = random.Random(f"practice/{seed}").choices(self._entries, self._weights)[0]
        return chosen.load_class().practice(seed, **{**chosen.kwargs, **self._options})


def build_weights(entry: EnvEntry, out: Path, seed: int, steps: int | None, console: Console) -> None:
    """Train a tiny policy for a family, from nothing or from the built-in policy that it begins with, and write it.

    Args:
        entry: any environment of the family.
        out: folder, new or empty; ``model.safetensors``, ``config.json``, the tokenizer and ``training.json`` are written there.
        seed: of weights and demonstrations.
        steps: updates of each stage, None for the family's schedules.
        console: for progress.

    Raises:
        UnknownOption: the folder holds something.
        InUse: another process writes there.
        NotFinite: a loss or gradient is no number; the weights of the stage before stand in the folder, the batch beside them.
    """
    with claimed(out, used="what it holds would be lost: choose another --out"):
        try:
            _build(entry, out, seed, steps, console)
        except NotFinite as error:
            write_whole(out / "broken_batch.json", json.dumps(error.batch))
            raise NotFinite(f"{error}. The batch is in {out / 'broken_batch.json'}", error.batch) from error


def _build(entry: EnvEntry, out: Path, seed: int, steps: int | None, console: Console) -> None:
    torch.set_num_threads(1)
    family = tiny_family(policy_name(entry))
    made: list[dict[str, Any]] = []  # the stages of the policy that it begins with
    if family.begins_with:
        start = load_policy("tiny", family.begins_with)
        tokenizer, model = start.tokenizer, start.model
        made = json.loads((WEIGHTS / family.begins_with / "training.json").read_text(encoding="utf-8"))["stages"]
    else:
        texts = itertools.islice(practice_rows(PracticeMix(entry), TextCodec(), 999, style_of(family), family), family.tokenizer_rows)
        pieces = (str(piece) for row in texts for piece in row.ids)
        tokenizer = train_tokenizer(pieces, family.vocabulary, family.symbols, family.words, family.units)
        model = new_tiny(tokenizer, seed, family.look_back, family.rope_base, family.copying)
    setattr(model.config, POLICY_FIELD, policy_name(entry))
    save_tiny(model, tokenizer, out)
    stages = SCHEDULES[policy_name(entry)]
    if steps is not None:
        stages = tuple(replace(stage, steps=steps) for stage in stages)
    record: dict[str, Any] = {
        "made_by": f"python -m tstar_train warmstart --env {entry.name} --seed {seed}",
        "policy": policy_name(entry),
        "rules_version": entry.rules_version,
        "torch": torch.__version__,
        "stages": made,
    }
    for number, schedule in enumerate(stages, start=len(made)):
        (out / "training.json").unlink(missing_ok=True)  # its sums are those of the stage before
        run_stage(entry, out, seed + 1000 * number, schedule, console, record)
        record["sha256"] = {p.name: sha256_of(p) for p in sorted(out.iterdir()) if p.suffix in (".json", ".safetensors")}
        write_whole(out / "training.json", json.dumps(record, indent=1) + "\n")


def run_stage(entry: EnvEntry, out: Path, seed: int, schedule: ImitationSchedule, console: Console, record: dict[str, Any]) -> None:
    """Go on from the weights in ``out`` by one schedule, write them back, and add the stage to the record."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        arguments = (schedule, entry, out, seed, meeting, f"{folder}/stage.json")
        if schedule.processes == 1:
            _stage(0, *arguments)
        else:
            try:
                spawn(_stage, args=arguments, nprocs=schedule.processes)
            except (ProcessRaisedException, ProcessExitedException):
                broken = Path(f"{folder}/stage.json.broken")
                if not broken.exists():
                    raise
                told = json.loads(broken.read_text(encoding="utf-8"))
                raise NotFinite(told["message"], told["batch"]) from None
        stage = json.loads(Path(f"{folder}/stage.json").read_text(encoding="utf-8"))
    style = style_of(tiny_family(policy_name(entry)))
    record["stages"].append({"seed": seed, "schedule": asdict(schedule), "style": asdict(style), **stage})
    loss = f"loss {stage['losses'][-1][1]:.4f}" if stage["losses"] else "no steps"
    console.print(f"stage done: {loss}", highlight=False)


def _stage(rank: int, schedule: ImitationSchedule, entry: EnvEntry, out: Path, seed: int, meeting: str, result: str) -> None:
    """One process of a stage; all of them stay in step, and the first writes."""
    torch.set_num_threads(1)
    average = None
    if schedule.processes > 1:
        torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=schedule.processes)
        average = _average
    started = time.process_time()
    tokenizer = load_tokenizer(out)
    codec = PlainCodec(tokenizer, with_prompt=False)
    model = load_policy(str(out), policy_name(entry)).model
    losses: list[tuple[int, float]] = []

    def report(step: int, loss: float, seconds: float) -> None:
        losses.append((step, loss))
        if rank == 0:
            print(f"step {step}/{schedule.steps}  loss {loss:.4f}  {seconds / 60:.1f} CPU-minutes", flush=True)

    family = tiny_family(policy_name(entry))
    if schedule.rows == "quotes":
        rows = quoting_rows(len(tokenizer), seed + rank)
    else:
        rows = practice_rows(PracticeMix(entry), codec, seed + rank, style_of(family), family, position_limit(model.config))
    try:
        imitate(model, shuffled(rows, schedule.held, seed + rank), schedule, codec.pad, report, average=average)
    except NotFinite as error:
        if schedule.processes > 1:  # what is raised in a process of its own arrives as the text of a traceback
            write_whole(Path(f"{result}.broken"), json.dumps({"message": str(error), "batch": error.batch}))
        raise
    if rank == 0:
        save_tiny(model, tokenizer, out)
        seconds = round((time.process_time() - started) * schedule.processes, 1)
        Path(result).write_text(json.dumps({"cpu_seconds": seconds, "losses": losses}), encoding="utf-8")
    if schedule.processes > 1:
        torch.distributed.destroy_process_group()


def _average(model: PreTrainedModel) -> None:
    """Gradients become their mean over the processes."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.nn.utils.parameters_to_vector(gradients)
    torch.distributed.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / torch.distributed.get_world_size(), gradients)
