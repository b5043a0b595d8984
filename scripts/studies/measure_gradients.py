"""Measure the parts of a policy gradient at fixed weights: advantages above and below zero, their noise, and the direction of the expert
(docs/results/planning_settings.md).

    python scripts/studies/measure_gradients.py --env sokoban-easy --iterations 16

The policy plays the preset's groups without learning. For each part of the base gradient: its norm, how far the sums over even and over odd
iterations agree (cosine), how far it agrees with the gradient of imitating fresh demonstrations, how much a step of norm 1 along the even
iterations' sum adds to the objective of the odd ones (first order, and the other way round), plain and as AdamW scales it, and the
imitation loss after steps along the whole sum.
"""

from __future__ import annotations

import argparse
import dataclasses

import torch
from torch import Tensor

from tstar_envs import find_entry
from tstar_train import make_config
from tstar_train.build import trainer_of
from tstar_train.config import Config
from tstar_train.distributed import SingleProcess
from tstar_train.learner.base import Norms
from tstar_train.loop import iterate
from tstar_train.policy.files import settings_name
from tstar_train.policy.model import Policy, load_policy
from tstar_train.recipes.recipe import load_recipe
from tstar_train.warmstart import PracticeMix, imitation_loss, pad_rows, practice_rows

STEPS = (0.1, 0.3, 1.0)


def preset(env: str, model: str, tasks: int | None) -> Config:
    """The preset of an environment with a number of tasks per iteration; None: its own."""
    return make_config(env, model=model, rollout={} if tasks is None else {"tasks_per_iteration": tasks})


def demonstrations(policy: Policy, config: Config, count: int) -> list[tuple[Tensor, Tensor]]:
    """Batches of 16 fresh rows of the expert, as ids and masks."""
    entry = find_entry(config.env)
    recipe = load_recipe(settings_name(config.model, entry))
    practice = PracticeMix(recipe, entry, only=True)
    rows = practice_rows(practice, policy.codec, 2_000_000, recipe.warm_start.demonstrations, recipe.env)
    return [pad_rows([next(rows) for _ in range(16)], policy.codec.pad) for _ in range(count)]


def imitation_gradient(policy: Policy, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Mean gradient of the imitation loss, as one vector."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    each = (torch.autograd.grad(imitation_loss(policy.model, *batch), parameters) for batch in batches)
    return torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in each]).mean(0)


def loss_after(policy: Policy, step: Tensor, batches: list[tuple[Tensor, Tensor]]) -> float:
    """The imitation loss with the weights moved by a step; they are put back."""
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    start = torch.nn.utils.parameters_to_vector(parameters).detach().clone()
    torch.nn.utils.vector_to_parameters(start + step, parameters)
    with torch.no_grad():
        loss = sum(float(imitation_loss(policy.model, *batch)) for batch in batches) / len(batches)
    torch.nn.utils.vector_to_parameters(start, parameters)
    return loss


def base_gradients(policy: Policy, config: Config, iterations: int) -> dict[str, Tensor]:
    """Gradients of the base loss without penalties, shape (iterations, weights), by part; above and below zero they add up to the whole."""
    rollout = dataclasses.replace(
        config.rollout, invalid_penalty=0.0, revisit_penalty=0.0, progress_credit=0.0
    )
    graft = dataclasses.replace(config.graft, enabled=False)
    found: dict[str, list[Tensor]] = {"whole": [], "above": []}
    for part, weight in (("whole", 1.0), ("above", 0.0)):
        optim = dataclasses.replace(config.optim, num_minibatches=1, negative_weight=weight)
        changed = dataclasses.replace(config, rollout=rollout, graft=graft, optim=optim, processes=1)
        one = trainer_of(changed, policy, SingleProcess())
        learner = one.learner
        # No step is taken: both parts are of the same episodes, since seeds say what is drawn.
        learner.apply = lambda factor, learner=learner, part=part: (
            found[part].append(learner.gradient) or Norms(0.0, {})
        )
        for number in range(iterations):
            learner.discard()
            iterate(one, number)
            print(f"{part}: iteration {number + 1}/{iterations}", flush=True)
    whole, above = torch.stack(found["whole"]), torch.stack(found["above"])
    return {
        "whole": whole,
        "above zero": above,
        "below zero": whole - above,
        "above, and a tenth of below": above + 0.1 * (whole - above),
    }


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def gain(directions: Tensor, objective: Tensor) -> float:
    """First-order gain in the mean objective of one half by a step of norm 1 along the other half's sum, mean of both ways."""
    halves = [(directions[i::2].sum(0), objective[1 - i :: 2].mean(0)) for i in (0, 1)]
    return sum(float(o @ d / d.norm()) for d, o in halves) / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--env", default="sokoban-easy", help="environment id or short name (default: %(default)s)"
    )
    parser.add_argument(
        "--model", default="tiny", help="tiny (the built-in policy), or the folder of a policy of that kind"
    )
    parser.add_argument("--iterations", type=int, default=16, help="batches to sample (default: %(default)s)")
    parser.add_argument(
        "--tasks-per-iteration", type=int, metavar="N", help="tasks of a batch (default: the preset's)"
    )
    options = parser.parse_args()
    if options.iterations < 2:
        parser.error(f"--iterations {options.iterations}: at least 2, one for each half")
    if options.tasks_per_iteration is not None and options.tasks_per_iteration < 1:
        parser.error(f"--tasks-per-iteration {options.tasks_per_iteration}: at least 1")
    torch.set_num_threads(1)
    entry = find_entry(options.env)
    config = preset(options.env, options.model, options.tasks_per_iteration)
    policy = load_policy(options.model, settings_name(options.model, entry))
    batches = demonstrations(policy, config, 104)
    expert, held_out = imitation_gradient(policy, batches[:80]), batches[80:]
    parts = base_gradients(policy, config, options.iterations)
    zero = torch.zeros_like(expert)
    print(f"imitation loss {loss_after(policy, zero, held_out):.4f} nats a token")
    steps = "".join(f" after {size:g} |" for size in STEPS)
    print(
        f"| part | norm | halves agree | agrees with the expert | gain | gain as AdamW |{steps}\n"
        + "|---" * (6 + len(STEPS))
        + "|"
    )
    for name, gradients in parts.items():
        direction, scaled = gradients.sum(0), gradients / (gradients.square().mean(0).sqrt() + 1e-9)
        losses = "".join(
            f" {loss_after(policy, -size * direction / direction.norm(), held_out):.4f} |" for size in STEPS
        )
        print(
            f"| {name} | {gradients.mean(0).norm():.4f} | {cosine(gradients[0::2].sum(0), gradients[1::2].sum(0)):.2f} "
            f"| {cosine(direction, expert):.2f} | {gain(gradients, parts['whole']):.4f} | {gain(scaled, parts['whole']):.4f} |{losses}"
        )
    noise = torch.randn(zero.shape, generator=torch.Generator().manual_seed(0))
    print(
        "| random | | | | | |"
        + "".join(f" {loss_after(policy, size * noise / noise.norm(), held_out):.4f} |" for size in STEPS)
    )


if __name__ == "__main__":
    main()
