"""Warm start: train a tiny policy by imitation of an environment's expert."""

from __future__ import annotations

import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from rich.console import Console
from torch import Tensor
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from tstar_envs import EnvEntry, TextEnv, find_entry, parse_reply, render_reply, write_whole
from tstar_envs.utils import counted
from tstar_train.finite import NotFinite, rounding_subnormals
from tstar_train.grafting import contrast_context
from tstar_train.learner.optimizers import layer_matrices
from tstar_train.policy.codec import Codec, PlainCodec
from tstar_train.policy.files import POLICY_FIELD, RECIPE_FIELD, WEIGHTS, sha256_of
from tstar_train.policy.kv import ContextTooLong, output_logits, position_limit
from tstar_train.policy.model import (
    load_policy,
    load_tokenizer,
    new_tiny,
    save_tiny,
)
from tstar_train.policy.tokenizer import train_tokenizer
from tstar_train.recipes.recipe import (
    DemonstrationStyle,
    EnvRecipe,
    ImitationSchedule,
    Recipe,
    in_package,
    recipe_of,
    recipe_record,
)
from tstar_train.rollout.player import Transcript
from tstar_train.run_lock import lock_run_dir
from tstar_train.tracking import Ticker
from tstar_train.types import Branch


@dataclass
class Row:
    """Token ids with a loss mask that is 1 at the expert's own tokens."""

    ids: list[int]
    mask: list[int]


def practice_rows(
    practice: Callable[[str], TextEnv[object, object]],
    codec: Codec,
    seed: int,
    style: DemonstrationStyle,
    seen: EnvRecipe,
    limit: int | None = None,
    kind: str = "expert",
) -> Iterator[Row]:
    """Yield an endless stream of demonstration rows from practice environments.

    Args:
        practice: makes a new practice environment for a seed.
        codec: codec between turns and token ids.
        seed: the same seed gives the same rows.
        style: variations of the demonstrations.
        seen: context options of the policy. ``concat`` gives one row per episode, ``step`` one per imitated turn.
        limit: maximum number of tokens per row, None for no limit. Contexts are shortened as in a rollout; an episode that does not fit
            is skipped.
        kind: kind of oracle that plays.
    """
    world = 0
    while True:
        env = practice(f"{seed}/{world}")
        rng = random.Random(f"demonstrations/{seed}/{world}")
        for task_id in env.task_ids("train"):
            rows = _episode_rows(env, task_id, codec, rng, style, seen, limit, kind)
            yield from (row for row in rows if style.kept == 1.0 or rng.random() < style.kept)
        world += 1


def shuffled(rows: Iterator[Row], held: int, seed: int) -> Iterator[Row]:
    """Shuffle a stream with a buffer: yield a random row of the buffer, and replace it by the next one.

    Args:
        rows: endless stream; rows left in the buffer when it ends are dropped.
        held: buffer size; 0 yields the rows in order.
        seed: the same seed gives the same order.
    """
    if not held:
        yield from rows
        return
    rng = random.Random(f"shuffled/{seed}")
    pool = list(itertools.islice(rows, held))
    for row in rows:
        drawn = rng.randrange(held)
        yield pool[drawn]
        pool[drawn] = row


@dataclass
class Played:
    """One turn of a demonstration or of a recorded episode, as text.

    Attributes:
        reply: the reply.
        observation: what followed it.
        imitated: True if the reply's tokens count for the loss.
        contrast: (failed branch, successful branch, expert's reply) of a contrast row before the turn; None for no such row.
    """

    reply: str
    observation: str
    imitated: bool = True
    contrast: tuple[Branch, Branch, str] | None = None


@dataclass
class Demonstration:
    """An episode to imitate, as text; ``rows_of_demonstration`` encodes it.

    Attributes:
        prompt: the environment's rules.
        instruction: the goal.
        observation: the first observation.
        turns: turns in order.
    """

    prompt: str
    instruction: str
    observation: str
    turns: list[Played]


def demonstrate(
    env: TextEnv[object, object],
    task_id: str,
    rng: random.Random,
    style: DemonstrationStyle,
    kind: str = "expert",
) -> Demonstration | None:
    """Let an oracle play a task; None if it does not solve it, or a suboptimal action lost it.

    Args:
        env: environment to play in.
        task_id: task to play.
        rng: source of the variations.
        style: variations of the demonstration.
        kind: kind of oracle that plays (``TextEnv.oracle``).
    """
    observation, info = env.reset(options={"task": task_id})
    shown = Demonstration(env.prompt(), str(info["instruction"]), observation, [])
    over = False
    while not over:
        expert = env.oracle(paraphrase=rng.randrange(style.wordings), kind=kind)
        if expert is None:
            return None
        contrast = _contrast(env, expert, rng, kind) if rng.random() < style.contrast else None
        imitate = rng.random() >= style.mistake
        reply = expert if imitate else env.mistake(str(rng.random()))
        if rng.random() < style.no_thought:
            reply = render_reply("", parse_reply(reply).action)
        observation, _, terminated, truncated, info = env.step(reply)
        over = terminated or truncated
        shown.turns.append(Played(reply, observation, imitate, contrast))
    return shown if info["success"] else None


def rows_of_demonstration(
    shown: Demonstration,
    codec: Codec,
    seen: EnvRecipe,
    limit: int | None,
    longest: int | None = None,
    join: bool = False,
) -> list[Row]:
    """Encode a demonstration in the form in which a rollout would record it.

    Args:
        shown: the episode.
        codec: codec between turns and token ids.
        seen: context options of the policy.
        limit: maximum number of tokens of a context and its reply, None for no limit. Contexts are shortened as in a rollout.
        longest: maximum number of tokens of an imitated reply with its end, None for no limit.
        join: True to join turns of ``step`` contexts too where one begins with another, as training does.

    Raises:
        ContextTooLong: a context does not fit, or a reply is longer than ``longest``.
    """
    transcript = Transcript(
        codec, shown.prompt, shown.instruction, shown.observation, seen.context, seen.history
    )
    turns: list[Row] = []
    extra: list[Row] = []
    for turn in shown.turns:
        context = transcript.context(None if limit is None else limit - seen.max_tokens)
        if turn.contrast is not None:
            failed, succeeded, expert = turn.contrast
            prompt, target = contrast_context(codec, context, failed, succeeded), codec.reply(expert)
            extra.append(Row([*prompt, *target], [0] * len(prompt) + [1] * len(target)))
        ids = codec.reply(turn.reply)
        if turn.imitated and longest is not None and len(ids) > longest:
            raise ContextTooLong(f"a reply has {len(ids)} tokens, and there is room for {longest}")
        turns.append(Row([*context, *ids], [0] * len(context) + [int(turn.imitated)] * len(ids)))
        if turn is not shown.turns[-1]:
            transcript.add(ids, turn.observation)
    joined = _whole(turns) if join or seen.context == "concat" else [t for t in turns if any(t.mask)]
    return [*joined, *extra]


def _episode_rows(
    env: TextEnv[object, object],
    task_id: str,
    codec: Codec,
    rng: random.Random,
    style: DemonstrationStyle,
    seen: EnvRecipe,
    limit: int | None,
    kind: str,
) -> list[Row]:
    shown = demonstrate(env, task_id, rng, style, kind)
    if shown is None:
        return []
    try:
        rows = rows_of_demonstration(shown, codec, seen, limit)
    except ContextTooLong:
        return []
    return [row for row in rows if limit is None or len(row.ids) <= limit]


def _whole(turns: list[Row]) -> list[Row]:
    """Join an episode's turns into one row; start a new row where a context was truncated."""
    rows = [Row(list(turns[0].ids), list(turns[0].mask))]
    for turn in turns[1:]:
        row = rows[-1]
        if turn.ids[: len(row.ids)] != row.ids:
            rows.append(Row(list(turn.ids), list(turn.mask)))
            continue
        row.mask += turn.mask[len(row.ids) :]
        row.ids += turn.ids[len(row.ids) :]
    return rows


def _contrast(
    env: TextEnv[object, object], expert: str, rng: random.Random, kind: str
) -> tuple[Branch, Branch, str]:
    """Play what a contrast row shows: a failed branch and a successful one, from the present state."""
    here = env.snapshot()
    branches = []
    wrong, right = env.mistake(str(rng.random())), env.oracle(paraphrase=rng.randrange(4), kind=kind)
    for reply in (wrong, right or expert):
        observation, *_ = env.step(reply)
        env.restore(here)
        parsed = parse_reply(reply)
        branches.append(Branch(parsed.thought, parsed.action, observation))
    return branches[0], branches[1], expert


_SHORTEST, _LONGEST, _QUOTED = 8, 100, 24
_PIECE = (2, 8)
_FIRST_TOKEN = 2  # lower ids are special tokens


def copy_task_rows(vocabulary: int, seed: int) -> Iterator[Row]:
    """Yield an endless stream of copy tasks: 8 to 100 random tokens, then pieces of 2 to 8 of them in random order.

    All tokens of a piece but its first count for the loss.

    Args:
        vocabulary: vocabulary size.
        seed: the same seed gives the same rows.
    """
    rng = random.Random(f"quoting/{seed}")
    while True:
        length = rng.randint(_SHORTEST, _LONGEST)
        ids = [rng.randrange(_FIRST_TOKEN, vocabulary) for _ in range(length)]
        row = Row(list(ids), [0] * length)
        while len(row.ids) < length + _QUOTED:
            first = rng.randrange(length - _PIECE[0])
            piece = ids[first : first + rng.randint(*_PIECE)]
            row.ids += piece
            row.mask += [0] + [1] * (len(piece) - 1)
        yield row


def batches_of(rows: Sequence[Row], schedule: ImitationSchedule) -> list[list[Row]]:
    """Split rows into batches of ``schedule.batch``, shortest first; similar lengths share a batch to save padding."""
    length: Callable[[Row], int] = {
        "row": lambda r: len(r.ids),
        "context": lambda r: len(r.ids) - sum(r.mask),
    }[schedule.alike]
    ordered = sorted(rows, key=length)
    return [ordered[i : i + schedule.batch] for i in range(0, len(ordered), schedule.batch)]


def pad_rows(rows: Sequence[Row], pad: int) -> tuple[Tensor, Tensor]:
    """Pad ids and masks on the right, each to a tensor of shape (rows, longest)."""
    longest = max(len(r.ids) for r in rows)
    ids = torch.tensor([r.ids + [pad] * (longest - len(r.ids)) for r in rows])
    mask = torch.tensor([r.mask + [0] * (longest - len(r.ids)) for r in rows], dtype=torch.bool)
    return ids, mask


def imitation_loss(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean cross-entropy in nats per masked token; logits are computed at masked positions only."""
    # Rows are padded on the right, so causal attention needs no mask.
    hidden = model.base_model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    wanted = mask[:, 1:]
    return torch.nn.functional.cross_entropy(output_logits(model, hidden[wanted]), ids[:, 1:][wanted])


def optimizers(model: PreTrainedModel, schedule: ImitationSchedule) -> list[torch.optim.Optimizer]:
    """Make the optimizers: Muon for the matrices inside the layers, AdamW for all other parameters."""
    matrices = layer_matrices(model)
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=schedule.matrix_rate, weight_decay=0.0),
        torch.optim.AdamW(others, lr=schedule.other_rate, betas=(0.9, 0.98), weight_decay=0.0),
    ]


@rounding_subnormals()
def imitate(
    model: PreTrainedModel,
    rows: Iterator[Row],
    schedule: ImitationSchedule,
    pad: int,
    report: Callable[[int, float, float], None],
    every: int = 200,
    average: Callable[[PreTrainedModel], None] | None = None,
    on_step: Callable[[int], None] = lambda step: None,
) -> int:
    """Train a policy in place by imitation.

    Args:
        model: changed in place.
        rows: endless stream of demonstrations.
        schedule: steps, batch size and learning rates.
        pad: padding id.
        report: called every ``every`` steps and at the end, with the step, the mean loss since the last call and the CPU seconds so far.
        every: number of steps between reports.
        average: averages the gradients over processes, None for one process.
        on_step: called after every step with its number, from 1.

    Returns:
        Number of updates.

    Raises:
        NotFinite: a loss or gradient is NaN or infinite. The weights are those before that update, and the error holds the batch.
    """
    optimizer_list = optimizers(model, schedule)
    peaks = [[g["lr"] for g in o.param_groups] for o in optimizer_list]
    started, total, summed = time.process_time(), 0.0, 0
    model.train()
    for step in itertools.count():
        factor = schedule.rate(step, time.process_time() - started)
        if factor <= 0:
            break
        if step % 8 == 0:
            batches = batches_of([next(rows) for _ in range(8 * schedule.batch)], schedule)
        ids, mask = pad_rows(batches[step * 5 % 8], pad)
        for optimizer, rates in zip(optimizer_list, peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = peak * factor
        loss = imitation_loss(model, ids, mask)
        loss.backward()
        if average is not None:
            average(model)
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))
        if not (math.isfinite(norm) and math.isfinite(loss.item())):
            batch = {"update": step + 1, "rows": [asdict(row) for row in batches[step * 5 % 8]]}
            raise NotFinite(
                f"update {step + 1} of the imitation has a loss of {loss.item()} and a gradient of norm {norm}",
                batch,
            )
        for optimizer in optimizer_list:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        total, summed = total + loss.item(), summed + 1
        on_step(step + 1)
        if (step + 1) % every == 0:
            report(step + 1, total / summed, time.process_time() - started)
            total, summed = 0.0, 0
    if summed:
        report(step, total / summed, time.process_time() - started)
    model.eval()
    return step


class TextCodec:
    """Codec that yields text pieces instead of token ids, for the tokenizer's training corpus."""

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
    """Makes practice environments with a built-in policy's options.

    Args:
        recipe: recipe of the policy; its ``mix`` has the practice environments and their weights.
        entry: environment to practise if the recipe has no mix.
        only: True to practise ``entry`` alone, ignoring the mix.
    """

    def __init__(self, recipe: Recipe, entry: EnvEntry, only: bool = False) -> None:
        mix = {} if only else recipe.warm_start.mix
        self._options = recipe.env.options
        self._entries = [find_entry(name) for name in mix] or [entry]
        self._weights = list(mix.values())

    def __call__(self, seed: str) -> TextEnv[Any, Any]:
        """Make the environment of a seed."""
        chosen = self._entries[0]
        if len(self._entries) > 1:
            chosen = random.Random(f"practice/{seed}").choices(self._entries, self._weights)[0]
        env: TextEnv[Any, Any] = chosen.load_class().practice(seed, **{**chosen.kwargs, **self._options})
        return env


def build_weights(
    entry: EnvEntry, out: Path, seed: int, steps: int | None, console: Console, recipe: Recipe | None = None
) -> None:
    """Make and write the built-in policy of an environment, from scratch or from another built-in policy.

    Args:
        entry: the environment.
        out: new or empty folder; ``model.safetensors``, ``config.json``, the tokenizer and ``training.json`` are written there.
        seed: seed of weights and demonstrations.
        steps: number of updates per stage, None for the recipe's.
        console: console for progress.
        recipe: recipe to use instead of the environment's own.

    Raises:
        UnknownOption: the folder is not empty.
        InUse: another process writes to the folder.
        NotFinite: a loss or gradient is NaN or infinite. The folder has the weights of the last finished stage, and
            ``broken_batch.json``.
    """
    with lock_run_dir(out, used="what it holds would be lost: choose another --out"):
        try:
            _build(entry, recipe or recipe_of(entry), out, seed, steps, console)
        except NotFinite as error:
            write_whole(out / "broken_batch.json", json.dumps(error.batch))
            raise NotFinite(f"{error}. The batch is in {out / 'broken_batch.json'}", error.batch) from error


def _build(
    entry: EnvEntry, recipe: Recipe, out: Path, seed: int, steps: int | None, console: Console
) -> None:
    torch.set_num_threads(1)
    made: list[dict[str, Any]] = []  # stages of the policy to start from
    if start := recipe.warm_start.begins_with:
        policy = load_policy("tiny", start)
        tokenizer, model = policy.tokenizer, policy.model
        made = json.loads((WEIGHTS / start / "training.json").read_text(encoding="utf-8"))["stages"]
    else:
        rows = counted(recipe.tokenizer.rows, "demonstration")
        console.print(f"making the tokenizer from {rows} of the expert ...", highlight=False)
        tokenizer, model = new_policy(recipe, entry, seed)
    setattr(model.config, POLICY_FIELD, recipe.name)
    if not in_package(recipe):
        setattr(model.config, RECIPE_FIELD, recipe_record(recipe))
    save_tiny(model, tokenizer, out)
    stages = recipe.warm_start.stages
    if steps is not None:
        stages = tuple(replace(stage, steps=steps) for stage in stages)
    record: dict[str, Any] = {
        "made_by": f"python -m tstar_train warmstart --env {entry.cli_name} --seed {seed}",
        "policy": recipe.name,
        "rules_version": entry.rules_version,
        "torch": torch.__version__,
        "stages": made,
    }
    for number, schedule in enumerate(stages, start=len(made)):
        which = f"stage {number + 1 - len(made)} of {len(stages)}"
        console.print(f"{which}: {counted(schedule.steps, 'update')} ...", highlight=False)
        (out / "training.json").unlink(missing_ok=True)  # its checksums are of the last stage's files
        run_stage(entry, recipe, out, seed + 1000 * number, schedule, console, record)
        record["sha256"] = {
            p.name: sha256_of(p) for p in sorted(out.iterdir()) if p.suffix in (".json", ".safetensors")
        }
        write_whole(out / "training.json", json.dumps(record, indent=1) + "\n")


def new_policy(recipe: Recipe, entry: EnvEntry, seed: int) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    """Train a tokenizer on demonstrations and initialize a model by the recipe."""
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
    """Train the weights in ``out`` by one schedule, write them back, and add the stage to the record."""
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
    """Run one process of a stage; all processes take the same steps, and rank 0 writes."""
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

    ticker = Ticker(partial(print, file=sys.stderr, flush=True))

    def tell(step: int) -> None:
        if rank == 0:
            ticker(f"step {step}/{schedule.steps}  {(time.process_time() - started) / 60:.1f} CPU-minutes")

    if schedule.rows == "quotes":
        rows = copy_task_rows(len(tokenizer), seed + rank)
    else:
        practice, style = PracticeMix(recipe, entry), recipe.warm_start.demonstrations
        limit = position_limit(model.config)
        rows = practice_rows(practice, codec, seed + rank, style, recipe.env, limit, kind=schedule.rows)
    try:
        imitate(
            model,
            shuffled(rows, schedule.held, seed + rank),
            schedule,
            codec.pad,
            report,
            average=average,
            on_step=tell,
        )
    except NotFinite as error:
        # An error of a spawned process reaches the parent only as traceback text, so pass it by a file.
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
    """Average the gradients over the processes, in place."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.nn.utils.parameters_to_vector(gradients)
    torch.distributed.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / torch.distributed.get_world_size(), gradients)
