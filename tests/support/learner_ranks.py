"""Optimizer steps of a learner over one or more ranks, as a program: python -m learner_ranks RANKS OUT SCENARIO...

A scenario is ``torch``, ``deepspeed`` (ZeRO-2) or ``zero1``, what is trained, and after a slash what happens: ``deepspeed whole``, ``torch
adapters``, ``deepspeed whole/save``, ``deepspeed whole/load``, ``deepspeed whole/epochs`` (each batch twice), ``deepspeed whole/nan``,
``deepspeed whole/large`` (its gradient as a large model's), ``deepspeed whole/decay`` (with weight decay). ``alone torch whole`` is what
the first rank does by itself over the whole batch. It writes what it measured to OUT. The ranks are forked after the imports, which take
longer than all else.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import multiprocessing
import random
import sys
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from scripts.studies.small_models import small_model
from tstar_train import distributed
from tstar_train.distributed import ProcessGroup, SingleProcess, dealt
from tstar_train.finite import NotFinite
from tstar_train.learner import deepspeed
from tstar_train.learner import reference as references
from tstar_train.learner import torch as torch_learner
from tstar_train.learner.batch import MicroBatch, Step, forward
from tstar_train.learner.deepspeed import DeepSpeedLearner
from tstar_train.learner.optimizers import OptimizerOptions
from tstar_train.learner.reference import AdapterReference, CopiedReference
from tstar_train.learner.terms import KLTerm, PolicyTerm, SurgicalTerm, ValueTerm
from tstar_train.learner.torch import PARTS_BELOW, TorchLearner
from tstar_train.learner.update import Batching, update
from tstar_train.policy.critic import Critic
from tstar_train.policy.lora import add_adapters
from tstar_train.policy.model import recompute_layers
from tstar_train.types import Branch, Graft, TokenSequence

STEPS, SAVED = 6, 3
SHORT = {"epochs": 3, "empty": 3}  # steps that show it
# Small models: several exchanges, the last of them not full.
references.BUCKET, torch_learner.BUCKET, distributed.BUCKET = 10_000, 10_000, 10_000
DECAY = OptimizerOptions(betas=(0.8, 0.9), weight_decay=2.0)


def learner_of(optimizer, kind, world, options=None):
    model = small_model("qwen2", 300)
    if "half" in kind:
        model = model.to(torch.bfloat16)
    if "adapters" in kind:
        add_adapters(model, 4, 8)
    if "recomputed" in kind:
        recompute_layers(model)
    reference = AdapterReference(model) if "adapters" in kind else CopiedReference(model, world=world)
    critic = Critic(model, "separate" in kind) if "critic" in kind else None
    if critic is not None:
        with torch.no_grad():
            critic.head.weight.fill_(0.01)
    cls = TorchLearner if optimizer == "torch" else DeepSpeedLearner
    options = (options or OptimizerOptions())._replace(zero_stage=1 if optimizer == "zero1" else 2)
    return cls(
        model,
        reference,
        world,
        learning_rate=3e-4 if critic else 1e-3,
        max_norm=0.5,
        alpha=0.5,
        critic=critic,
        critic_rate=1e-3,
        recompute="recomputed" in kind,
        optimizer=options,
    )


def sequence(model, chance):
    length = chance.randrange(6, 24)
    ids = [chance.randrange(2, 290) for _ in range(length)]
    mask = [0, 0, 0] + [1] * (length - 3)
    micro = MicroBatch(torch.tensor([ids]), torch.tensor([mask], dtype=torch.bool))
    with torch.no_grad():
        known = forward(model, micro).logprobs.tolist()
    returns = [chance.gauss(0, 1) for _ in ids]
    return TokenSequence(
        ids,
        mask,
        [0.0] * 3 + known,
        [chance.gauss(0, 1) for _ in ids],
        values=[0.0] * length,
        returns=returns,
    )


def pair(chance):
    def ids():
        return [chance.randrange(2, 290) for _ in range(chance.randrange(2, 8))]

    branch = Branch("", "", "")
    return Graft(0, ids(), ids(), ids(), "model", 0, 1.0, 1, 1, branch, branch, "", (0, 0))


def batches(kind):
    """What each optimizer step learns from, all ranks together: seven rows, and up to three pairs, which are no multiples of the ranks."""
    model, chance = small_model("qwen2", 300), random.Random(1)
    pairs = 0 if "critic" in kind else 3
    return [
        ([sequence(model, chance) for _ in range(7)], [pair(chance) for _ in range(min(n, pairs))])
        for n in (0, 1, 2, 3, 1, 3)
    ]


def broken_backward(module, given, output):
    if output.requires_grad:
        output.register_hook(lambda gradient: gradient * float("nan"))


def places_of(state):
    """Where the tensors of a learner's state are in memory."""
    tensors = [t for _, part in state.parts for t in part.values()]
    tensors += [t for values in state.optimizer["state"].values() for t in values.values()]
    return {t.data_ptr() for t in tensors if t.numel()}


def scenario(name, folder, world):
    """Metrics of each step and the final weights on the first rank, nothing on the others."""
    what, _, how = name.partition("/")
    optimizer, _, kind = what.partition(" ")
    bound = 0 if how == "large" else PARTS_BELOW
    with patch.object(deepspeed, "PARTS_BELOW", bound), patch.object(torch_learner, "PARTS_BELOW", bound):
        learner = learner_of(optimizer, kind, world, DECAY if how == "decay" else None)
    terms = [PolicyTerm(0.2, 0.2), KLTerm(0.02)] + ([ValueTerm(0.5, 0.2)] if "critic" in kind else [])
    batching = Batching(40, 1.0, 0, torch.device("cpu"))
    metrics, error, first = [], None, 0
    followed = {n: p.detach().float() for n, p in learner.model.named_parameters()}
    place = folder / what.replace(" ", "-")
    if how == "load":
        learner.load(place)
        first = SAVED
    for number, (rows, pairs) in enumerate(batches(kind)[: SHORT.get(how, STEPS)]):
        if number < first:
            continue
        if how == "save" and number == SAVED:
            learner.gather()
            if world.rank == 0:
                place.mkdir()
                snapshot = learner.state().in_memory()
                # Tensors that the ranks sent are there once; the copy is of those that the first rank goes on to change.
                held = places_of(learner.state())
                snapshot.parts = list(snapshot.parts)
                shared = places_of(snapshot) & held
                assert bool(shared) == bool(snapshot.gathered) and len(shared) < len(held)
                snapshot.write(place)
            break
        step = Step(dealt(rows, world), dealt(pairs, world))
        if how == "nan" and number == 1 and world.rank == world.size - 1:
            step.sequences[0].advantages[-1] = float("nan")
        if (
            how == "nan gradient" and number == 1 and world.rank == world.size - 1
        ):  # the losses are numbers, what comes back is none
            learner.model.base_model.norm.register_forward_hook(broken_backward)
        if how == "empty" and number == 1:  # as where all groups had equal rewards
            step = Step([], [])
        try:
            measured = update(
                learner,
                (1 + (how == "epochs")) * [step],
                terms,
                SurgicalTerm(0.15, 0.1),
                world,
                factor=1.0,
                batching=batching,
            )
            metrics.append(dataclasses.asdict(measured))
        except NotFinite as raised:
            error = f"{raised}", len(raised.batch.get("rows", []))
            break
        learner.end_iteration()
        followed = {n: followed[n].lerp(p.detach().float(), 0.5) for n, p in learner.model.named_parameters()}
    learner.average.gather()
    if world.rank:
        return {"steps": learner.steps}
    weights = {
        **{n: t.clone() for n, t in learner.weights()},
        **{f"reference {n}": t.clone() for n, t in learner.average.state().items()},
    }
    if learner.critic is not None:
        weights |= {f"critic {n}": t.clone() for n, t in learner.critic.state_dict().items()}
    result = {"metrics": metrics, "weights": weights, "error": error, "steps": learner.steps}
    if "half" in kind and "adapters" not in kind:
        result |= {"followed": followed, "used": dict(learner.average.model.named_parameters())}
    return result


def everything(names, folder, world):
    torch.set_num_threads(1)
    results = {}
    for name in names:
        alone = name.removeprefix("alone ")
        if alone == name:
            results[name] = scenario(name, folder, world)
        elif world.rank == 0:
            results[name] = scenario(alone, folder, SingleProcess())
    return results


def world_of(rank, ranks, folder):
    return (
        ProcessGroup(rank, ranks, dist.FileStore(str(folder / f"store{ranks}"), ranks), 1.0)
        if ranks > 1
        else SingleProcess()
    )


def followed(rank, ranks, folder, names):
    world = world_of(rank, ranks, folder)
    everything(names, folder, world)
    world.close()


def main(ranks, out, *names):
    if importlib.util.find_spec("deepspeed") is not None:
        importlib.import_module("deepspeed")
    folder, ranks = Path(out).parent, int(ranks)
    others = [
        multiprocessing.get_context("fork").Process(target=followed, args=(n, ranks, folder, names))
        for n in range(1, ranks)
    ]
    for process in others:
        process.start()
    world = world_of(0, ranks, folder)
    torch.save(everything(names, folder, world), out)
    for process in others:
        process.join()
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
