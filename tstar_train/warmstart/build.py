"""Making the shipped weights: tokenizer, imitation, and a record of how they were made."""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from rich.console import Console
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tstar_envs import EnvEntry, TextEnv, find_entry, write_whole
from tstar_envs.utils import counted
from tstar_train.claim import claimed
from tstar_train.display import Ticker
from tstar_train.finite import NotFinite
from tstar_train.policy.checksums import sha256_of
from tstar_train.policy.codec import PlainCodec
from tstar_train.policy.limit import position_limit
from tstar_train.policy.model import load_policy, load_tokenizer, new_tiny, save_tiny
from tstar_train.policy.shipped import POLICY_FIELD, WEIGHTS
from tstar_train.policy.tokenizer import train_tokenizer
from tstar_train.recipes.built_in import recipe_of
from tstar_train.recipes.recipe import Recipe
from tstar_train.recipes.warm_start import ImitationSchedule
from tstar_train.warmstart.demonstrations import practice_rows, shuffled
from tstar_train.warmstart.imitate import imitate
from tstar_train.warmstart.quoting import quoting_rows


class TextCodec:
    """Rows of plain text instead of ids, for the tokenizer's training corpus."""

    end: Any = ""
    pad: Any = ""
    ends: Any = frozenset([""])
    line_ends: Any = frozenset(["\n"])

    def start(self, prompt: str, observation: str) -> list[Any]:
        return [f"{observation}\n"]

    def observation(self, text: str) -> list[Any]:
        return [f"\nObservation: {text}\n"]

    def reply(self, text: str) -> list[Any]:
        return [text, self.end]

    def closed(self, reply: Sequence[Any]) -> list[Any]:
        return [*reply] if reply[-1] == self.end else [*reply, self.end]

    def asked(self, context: Sequence[Any], text: str) -> list[Any]:
        return [*context, text]

    def text(self, text: str) -> list[Any]:
        return [text]

    def decode(self, ids: Sequence[Any]) -> str:
        return "".join(ids)


class PracticeMix:
    """Fresh practice environments, under the options that a built-in policy plays with.

    Args:
        recipe: of that policy; which environments are practised, and how often, its ``mix`` says.
        entry: what is practised where there is no mix.
        only: practise this environment alone, whatever the mix.
    """

    def __init__(self, recipe: Recipe, entry: EnvEntry, only: bool = False) -> None:
        mix = {entry.name: 1.0} if only or not recipe.warm_start.mix else recipe.warm_start.mix
        self._options = recipe.env.options
        self._entries = [find_entry(name) for name in mix]
        self._weights = list(mix.values())

    def __call__(self, seed: str) -> TextEnv[Any, Any]:
        """The environment of a seed."""
        chosen = self._entries[0]
        if len(self._entries) > 1:
            chosen = random.Random(f"practice/{seed}").choices(self._entries, self._weights)[0]
        env: TextEnv[Any, Any] = chosen.load_class().practice(seed, **{**chosen.kwargs, **self._options})
        return env


def build_weights(
    entry: EnvEntry, out: Path, seed: int, steps: int | None, console: Console, recipe: Recipe | None = None
) -> None:
    """Make the built-in policy that plays an environment, from nothing or from the one that it begins with, and write it.

    Args:
        entry: the environment; the policy's recipe says all but what follows.
        out: folder, new or empty; ``model.safetensors``, ``config.json``, the tokenizer and ``training.json`` are written there.
        seed: of weights and demonstrations.
        steps: updates of each stage, None for the recipe's.
        console: for progress.
        recipe: to follow instead of the policy's own.

    Raises:
        UnknownOption: the folder holds something.
        InUse: another process writes there.
        NotFinite: a loss or gradient is no number; the weights of the stage before stand in the folder, the batch beside them.
    """
    with claimed(out, used="what it holds would be lost: choose another --out"):
        try:
            _build(entry, recipe or recipe_of(entry), out, seed, steps, console)
        except NotFinite as error:
            write_whole(out / "broken_batch.json", json.dumps(error.batch))
            raise NotFinite(f"{error}. The batch is in {out / 'broken_batch.json'}", error.batch) from error


def _build(
    entry: EnvEntry, recipe: Recipe, out: Path, seed: int, steps: int | None, console: Console
) -> None:
    torch.set_num_threads(1)
    made: list[dict[str, Any]] = []  # the stages of the policy that it begins with
    if start := recipe.warm_start.begins_with:
        policy = load_policy("tiny", start)
        tokenizer, model = policy.tokenizer, policy.model
        made = json.loads((WEIGHTS / start / "training.json").read_text(encoding="utf-8"))["stages"]
    else:
        rows = counted(recipe.tokenizer.rows, "demonstration")
        console.print(f"making the tokenizer from {rows} of the expert ...", highlight=False)
        tokenizer, model = new_policy(recipe, entry, seed)
    setattr(model.config, POLICY_FIELD, recipe.name)
    save_tiny(model, tokenizer, out)
    stages = recipe.warm_start.stages
    if steps is not None:
        stages = tuple(replace(stage, steps=steps) for stage in stages)
    record: dict[str, Any] = {
        "made_by": f"python -m tstar_train warmstart --env {entry.name} --seed {seed}",
        "policy": recipe.name,
        "rules_version": entry.rules_version,
        "torch": torch.__version__,
        "stages": made,
    }
    for number, schedule in enumerate(stages, start=len(made)):
        which = f"stage {number + 1 - len(made)} of {len(stages)}"
        console.print(f"{which}: {counted(schedule.steps, 'update')} ...", highlight=False)
        (out / "training.json").unlink(missing_ok=True)  # its sums are those of the stage before
        run_stage(entry, recipe, out, seed + 1000 * number, schedule, console, record)
        record["sha256"] = {
            p.name: sha256_of(p) for p in sorted(out.iterdir()) if p.suffix in (".json", ".safetensors")
        }
        write_whole(out / "training.json", json.dumps(record, indent=1) + "\n")


def new_policy(recipe: Recipe, entry: EnvEntry, seed: int) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """A tokenizer of the demonstrations, and a model with random weights that begins as the recipe says."""
    tokens = recipe.tokenizer
    texts = practice_rows(
        PracticeMix(recipe, entry), TextCodec(), 999, recipe.warm_start.demonstrations, recipe.env
    )
    pieces = (str(piece) for row in itertools.islice(texts, tokens.rows) for piece in row.ids)
    tokenizer = train_tokenizer(pieces, tokens.vocabulary, tokens.symbols, tokens.words, tokens.units)
    return tokenizer, new_tiny(tokenizer, seed, recipe.model)


def run_stage(
    entry: EnvEntry,
    recipe: Recipe,
    out: Path,
    seed: int,
    schedule: ImitationSchedule,
    console: Console,
    record: dict[str, Any],
) -> None:
    """Go on from the weights in ``out`` by one schedule, write them back, and add the stage to the record."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        arguments = (schedule, entry, recipe, out, seed, meeting, f"{folder}/stage.json")
        if schedule.processes == 1:
            _stage(0, *arguments)
        else:
            try:
                spawn(_stage, args=arguments, nprocs=schedule.processes)
            except (ProcessRaisedException, ProcessExitedException):
                broken = Path(f"{folder}/stage.json.broken")
                if not broken.exists():
                    raise
                message = json.loads(broken.read_text(encoding="utf-8"))
                raise NotFinite(message["message"], message["batch"]) from None
        stage = json.loads(Path(f"{folder}/stage.json").read_text(encoding="utf-8"))
    style = recipe.warm_start.demonstrations
    record["stages"].append({"seed": seed, "schedule": asdict(schedule), "style": asdict(style), **stage})
    loss = f"loss {stage['losses'][-1][1]:.4f}" if stage["losses"] else "no steps"
    console.print(f"stage done: {loss}", highlight=False)


def _stage(
    rank: int,
    schedule: ImitationSchedule,
    entry: EnvEntry,
    recipe: Recipe,
    out: Path,
    seed: int,
    meeting: str,
    result: str,
) -> None:
    """One process of a stage; all of them stay in step, and the first writes."""
    torch.set_num_threads(1)
    average = None
    if schedule.processes > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=meeting, rank=rank, world_size=schedule.processes
        )
        average = _average
    started = time.process_time()
    tokenizer = load_tokenizer(out)
    codec = PlainCodec(tokenizer, with_prompt=False)
    model = load_policy(str(out), recipe.name).model
    losses: list[tuple[int, float]] = []

    def report(step: int, loss: float, seconds: float) -> None:
        losses.append((step, loss))
        if rank == 0:
            print(
                f"step {step}/{schedule.steps}  loss {loss:.4f}  {seconds / 60:.1f} CPU-minutes", flush=True
            )

    ticker = Ticker(partial(print, flush=True))

    def tell(step: int) -> None:
        if rank == 0:
            ticker(f"step {step}/{schedule.steps}  {(time.process_time() - started) / 60:.1f} CPU-minutes")

    if schedule.rows == "quotes":
        rows = quoting_rows(len(tokenizer), seed + rank)
    else:
        practice, style = PracticeMix(recipe, entry), recipe.warm_start.demonstrations
        rows = practice_rows(practice, codec, seed + rank, style, recipe.env, position_limit(model.config))
    try:
        imitate(
            model,
            shuffled(rows, schedule.held, seed + rank),
            schedule,
            codec.pad,
            report,
            average=average,
            told=tell,
        )
    except NotFinite as error:
        # What is raised in a process of its own arrives as the text of a traceback.
        if schedule.processes > 1:
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
