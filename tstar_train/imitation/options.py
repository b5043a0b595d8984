"""Options of ``warmstart --model``, and the run whose form of context they share."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tstar_envs import UnknownOption, find_entry
from tstar_train.config import (
    ABOVE_0,
    ABOVE_0_OR_INFINITE,
    BELOW_1,
    FROM_0,
    FROM_1,
    SHARE,
    THREADS,
    Config,
    LoraConfig,
    OptimConfig,
    Range,
    RolloutConfig,
)
from tstar_train.config_check import check, check_values, options
from tstar_train.policy.files import is_tiny, recipe_of_policy
from tstar_train.presets import with_options
from tstar_train.recipes.recipe import DemonstrationStyle

WHOLE_RATE, LORA_RATE = 1e-5, 1e-4  # default peak learning rates, of the whole model and of adapters
DEMONSTRATIONS = 1_000


@dataclass(frozen=True)
class ShownConfig:
    """Form of the contexts, which must be that of the run that follows."""

    context: Literal["concat", "step"] = RolloutConfig.context
    """Context of a reply. concat: the whole transcript; step: the task and the last turns (--rollout.history)."""
    history: Annotated[int, FROM_0] = RolloutConfig.history
    """Earlier turns in a context with --rollout.context step."""
    max_tokens: Annotated[int, FROM_1] = RolloutConfig.max_tokens
    """Maximum length of a reply in tokens; episodes with a longer one are left out."""
    context_tokens: Annotated[int | None, Range(2)] = RolloutConfig.context_tokens
    """Maximum number of tokens of a context and its reply together; None: the model's maximum sequence length."""


@dataclass(frozen=True)
class ImitationOptimConfig:
    """The optimizer of the imitation."""

    learning_rate: Annotated[float | None, FROM_0] = None
    """Peak learning rate. None: 1e-5, and 1e-4 with --lora.rank."""
    optimizer: Literal["adamw", "muon"] = OptimConfig.optimizer
    """Optimizer. adamw; or muon: Muon for the matrices within the layers, with steps of AdamW's size, and AdamW for all other weights."""
    adam_beta1: Annotated[float, BELOW_1] = OptimConfig.adam_beta1
    """Decay of AdamW's first moment per optimizer step."""
    adam_beta2: Annotated[float, BELOW_1] = OptimConfig.adam_beta2
    """Decay of AdamW's second moment per optimizer step."""
    weight_decay: Annotated[float, FROM_0] = OptimConfig.weight_decay
    """Decoupled weight decay of matrices, times the learning rate per step; norms and biases have none."""
    warmup: Annotated[float, SHARE] = 0.03
    """Fraction of the steps, at the start, over which the learning rate rises linearly; 0 to 1."""
    decay: Annotated[float, SHARE] = 1.0
    """Fraction of the steps, at the end, over which the learning rate falls linearly to zero; 0 to 1."""
    max_gradient_norm: Annotated[float, ABOVE_0_OR_INFINITE] = OptimConfig.max_gradient_norm
    """Largest gradient norm; larger gradients are scaled down to it (gradient clipping)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the weights in computation and in --out. auto: bfloat16 on a GPU, float32 on a CPU. bfloat16 keeps a float32 copy of the
    trained weights (master weights) until the end."""
    gradient_checkpointing: bool = OptimConfig.gradient_checkpointing
    """Gradient checkpointing: recompute activations in the backward pass instead of keeping them."""
    micro_tokens: Annotated[int, FROM_1] = OptimConfig.micro_tokens
    """Largest micro-batch in tokens, padding included; it changes memory use and float rounding, not the result."""


@dataclass(frozen=True)
class ImitationOptions:
    """Options of ``warmstart --model``."""

    episodes: tuple[Path, ...] = ()
    """Files of recorded episodes to imitate instead of the experts: JSON lines, as `python -m tstar_envs eval` and training write them."""
    min_score: Annotated[float, SHARE] = 1.0
    """With --episodes: lowest score of an episode that is imitated, 0 to 1."""
    max_per_task: Annotated[int | None, FROM_1] = None
    """With --episodes: largest number of episodes of one task, those with the highest score, then the first ones. None: all."""
    splits: tuple[str, ...] = ("train",)
    """With --episodes: splits whose episodes may be imitated. Episodes of other splits are refused, since a model that imitated test tasks
    cannot be measured on them."""
    demonstrations: Annotated[int | None, FROM_1] = None
    """Number of the experts' episodes, over all environments together. None: 1,000."""
    tasks: Literal["auto", "train", "practice"] = "auto"
    """Tasks that the experts play. train: those of the split train; practice: new ones of the environment's generator, which are in no
    split. auto: practice where there is a generator and the data are the built-in ones, else train."""
    mistakes: Annotated[float, SHARE] = 0.0
    """Share of the experts' turns with a suboptimal action instead, which is shown and not imitated: the model learns to recover."""
    no_thought: Annotated[float, SHARE] = 0.0
    """Share of the experts' turns whose reply is the action alone."""
    wordings: Annotated[int, FROM_1] = 4
    """Number of paraphrases of the experts' thoughts."""
    epochs: Annotated[float, ABOVE_0] = 1.0
    """Passes over the episodes."""
    steps: Annotated[int | None, FROM_1] = None
    """Number of optimizer steps. None: as many as --epochs takes."""
    batch: Annotated[int, FROM_1] = 8
    """Rows per optimizer step. A row is an episode, with --rollout.context step a turn with its context."""
    held_out: Annotated[float, Range(0, 0.5)] = 0.05
    """Share of the tasks whose episodes are not trained on, for the loss before and after; at least one task, 0: none."""
    seed: int = 0
    """Seed of the demonstrations, of the held-out tasks and of the order."""
    threads: Annotated[int | None, THREADS] = None
    """CPU threads of PyTorch; None: 1 for models under 5M parameters, else PyTorch's default."""
    device: str = "auto"
    """PyTorch device, for example cpu or cuda:0; auto: a CUDA GPU if there is one, else the CPU."""
    rollout: ShownConfig = field(default_factory=ShownConfig)
    optim: ImitationOptimConfig = field(default_factory=ImitationOptimConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)

    @property
    def style(self) -> DemonstrationStyle:
        """Variations of the experts' demonstrations."""
        return DemonstrationStyle(self.mistakes, self.no_thought, 0.0, self.wordings, 1.0)

    @property
    def learning_rate(self) -> float:
        """Peak learning rate."""
        given = self.optim.learning_rate
        return given if given is not None else (LORA_RATE if self.lora.rank else WHOLE_RATE)


def default_options(preset: Config) -> ImitationOptions:
    """Return the defaults beside a preset: its form of contexts, and of a built-in policy the variations of its recipe.

    Args:
        preset: of the run that would follow, by ``presets.chosen_for``.
    """
    names = [each.name for each in dataclasses.fields(ShownConfig)]
    shown = ShownConfig(**{name: getattr(preset.rollout, name) for name in names})
    if not is_tiny(preset.model):
        return ImitationOptions(rollout=shown)
    style = recipe_of_policy(preset.model, find_entry(preset.env)).warm_start.demonstrations
    return ImitationOptions(
        mistakes=style.mistake, no_thought=style.no_thought, wordings=style.wordings, rollout=shown
    )


# Options that only say something about recorded episodes, and about the experts' ones.
_RECORDED, _EXPERT = (
    ("min_score", "max_per_task", "splits"),
    ("demonstrations", "tasks", "mistakes", "no_thought", "wordings"),
)


def run_of(preset: Config, asked: ImitationOptions) -> Config:
    """Return the options of a run that plays as the imitation shows, trained as it asks; all of them are checked.

    Args:
        preset: of that run, with the environments' options.
        asked: of the imitation.

    Raises:
        UnknownOption: an option is not valid.
        MissingExtra: a package that an option needs is not installed.
    """
    check_values(asked)
    names = _EXPERT if asked.episodes else _RECORDED
    unused = [name for name in names if getattr(asked, name) != getattr(default_options(preset), name)]
    if unused:
        name = f"--{unused[0].replace('_', '-')}"
        raise UnknownOption(
            f"{name} is for the experts' demonstrations, which --episodes replaces: leave one of the two out"
            if asked.episodes
            else f"{name} chooses among recorded episodes: give --episodes FILE, or leave it out"
        )
    changed = [
        f"--rollout.{each.name.replace('_', '-')}"
        for each in dataclasses.fields(ShownConfig)
        if getattr(asked.rollout, each.name) != getattr(preset.rollout, each.name)
    ]
    if changed and is_tiny(preset.model):
        raise UnknownOption(
            f"{changed[0]} is part of a built-in policy's recipe, which {preset.model} keeps: leave it out, or make a policy by a recipe "
            "of your own (docs/recipes.md)"
        )
    given: dict[str, Any] = {name: value for name, value, _ in options(asked)}
    known = {name for name, _, _ in options(preset)}
    shared = {name: value for name, value in given.items() if name in known and name != "episodes"}
    shared["optim.learning_rate"] = asked.learning_rate
    if asked.optim.dtype == "auto":
        del shared["optim.dtype"]
    config = with_options(preset, shared)
    check(config)
    return config
