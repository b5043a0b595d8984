"""Where a run's defaults come from: the paper's table, or, for the built-in tiny model, what was chosen on validation tasks.

A preset is only a set of defaults: every option on the command line wins over it.
"""

from __future__ import annotations

from dataclasses import replace

from tstar_envs import EnvEntry, UnknownOption, find_entry
from tstar_train.config import Config, EvaluationConfig, GraftConfig, OptimConfig, RolloutConfig, TreeConfig
from tstar_train.policy.family import policy_name, tiny_family
from tstar_train.policy.model import has_tiny, is_tiny, settings_name, warmstart_advice


def paper(env: str) -> Config:
    """The paper's hyperparameters (its table; 4 tasks x 8 episodes a batch, at most 20 steps in training, 4096 tokens)."""
    return Config(env=env, model="auto", rollout=RolloutConfig(horizon=20, context_tokens=4096))


def tiny(entry: EnvEntry, model: str = "tiny") -> Config:
    """For the built-in model on two CPU cores, chosen on validation tasks.

    The weights come from Muon and are large, so AdamW needs a rate far above the usual: at 4e-4 nothing moved in 20
    iterations, 1.5e-3 gained, 3e-3 lost (docs/results/hotpotqa.md). Where the warm start itself had a lower rate so has training:
    1.5e-3 took the question sets' policy from .73 to .36 in five iterations (docs/results/search_qa.md). The fall to zero at the end
    takes the noise out. ``model`` is ``tiny`` or the path of a policy of that kind, whose settings come with it.
    """
    family = tiny_family(settings_name(model, entry))
    return Config(
        env=entry.id, model=model, iterations=family.iterations, checkpoint_every=16,
        env_options=dict(family.env_options), training_options=dict(family.training_options),
        rollout=RolloutConfig(
            tasks=family.tasks, group=8, max_tokens=family.max_tokens, batch=256, context=family.context, history=family.history,
            horizon=family.horizon, invalid_penalty=family.invalid_penalty, revisit_penalty=family.revisit_penalty,
            progress_credit=family.progress_credit,
        ),
        tree=TreeConfig(gamma=1.0, kl_samples=8, history=family.tree_history),
        graft=GraftConfig(weight=family.graft_weight, fallback="z_plus_only"),
        optim=OptimConfig(
            learning_rate=family.learning_rate, negative_weight=family.negative_weight, updates=family.updates,
            aggregation=family.aggregation, decay=0.8,
        ),
        evaluation=EvaluationConfig(tasks=1000, samples=4),
    )  # fmt: skip


def require_train_split(entry: EnvEntry) -> None:
    """Refuse to train on an environment that is for evaluation only.

    Raises:
        UnknownOption: it has no train split; the set to train on is named.
    """
    if "train" not in entry.splits:
        other = find_entry(entry.train_on).name
        raise UnknownOption(
            f"{entry.id} is for evaluation only (its splits: {', '.join(entry.splits)}): train with --env {other}, "
            f"then evaluate with: python -m tstar_envs eval --env {entry.name} --agent tiny:RUN/checkpoints/NUMBER"
        )


def choose(entry: EnvEntry, model: str) -> tuple[Config, str]:
    """The preset for an environment and a model, and a sentence that says what was chosen and why.

    Raises:
        UnknownOption: nothing to train on, or ``auto`` where the package ships no weights for this environment.
    """
    require_train_split(entry)
    if model == "auto":
        if not has_tiny(policy_name(entry)):
            raise UnknownOption(
                f"no built-in model for {entry.id} yet: name one (--model PATH or a Hugging Face name), "
                f"or make one with: {warmstart_advice(entry.name)}"
            )
        return tiny(entry), f"model: tiny (the built-in policy {policy_name(entry)}; --model auto takes one where there is one)"
    if model == "tiny":
        return tiny(entry), "model: tiny (built in), with the tiny preset"
    if is_tiny(model):
        made_as = settings_name(model, entry)
        return tiny(entry, model), f"model: {model}, a policy of the tiny kind, with the tiny preset (settings of {made_as})"
    return replace(paper(entry.id), model=model), f"model: {model}, with the paper's hyperparameters"
