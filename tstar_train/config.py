"""All options of a run, as frozen dataclasses that the command line, ``config.json`` and the tests share."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import tyro

from tstar_envs import UnknownOption, read_json
from tstar_train.ranges import (
    ABOVE_0,
    ABOVE_0_OR_INFINITE,
    ABOVE_0_TO_1,
    FROM_0,
    FROM_0_OR_INFINITE,
    FROM_1,
    SHARE,
    Range,
)


@dataclass(frozen=True)
class TreeConfig:
    """The cognitive tree, its valuation, grafting and the surgical loss (docs/tstar.md)."""

    enabled: bool = True
    """Step advantages from the Q-tree; off: the base algorithm's own."""
    nodes: Literal["depth", "state"] = "depth"
    """What makes a node: equal decisions at one depth, as the paper has it, or a state, whatever the depth (asks for no KL)."""
    credit: Literal["value", "transition"] = "value"
    """What a step is credited with: the value of where it leads, or what it gained over where it was taken."""
    eps_kl: Annotated[float, FROM_0_OR_INFINITE] = 0.25
    """Two steps merge below this KL, in nats."""
    kl_samples: Annotated[int, FROM_1] = 16
    """K, samples per context."""
    kl_over: Literal["action", "turn"] = "action"
    """What the KL compares: the action without a thought before it, or the whole turn."""
    kl_estimator: Literal["mc", "exact"] = "mc"
    """Monte Carlo, or exact over the admissible actions where the environment lists them."""
    kl_symmetry: Literal["max", "mean", "forward"] = "max"
    """How the two directions of the KL make one number."""
    history: Literal["sequence", "state"] = "sequence"
    """Historical compatibility: equal sequences of state-modifying actions, or equal states."""
    same_parent: bool = False
    """Intersect every merged node with its parent's: a strict tree."""
    gamma: Annotated[float, ABOVE_0_TO_1] = 0.99
    """Discount per step; with nodes by state .95, unless it is given."""
    baseline: Literal["group", "discounted"] = "group"
    """What is subtracted from Q by depth: the mean reward, or the mean discounted return."""
    delta: Annotated[float, FROM_0] = 0.3
    """Value spread above which a node is divergent."""
    statistics_everywhere: bool = False
    """Also build trees of groups whose rewards are all equal, for statistics only."""


@dataclass(frozen=True)
class GraftConfig:
    """Thought grafting and the surgical loss."""

    enabled: bool = True
    """Write rectified thoughts at divergences."""
    surgical: bool = True
    """Train on them."""
    fallback: Literal["z_plus", "none", "z_plus_only"] = "z_plus"
    """What takes the place of an unusable thought: the successful branch's own, or nothing; or always the former."""
    temperature: Annotated[float, FROM_0] = 1.0
    """At which thoughts are written; 0 takes the likeliest."""
    verify: bool = False
    """Play each rectified thought on from its divergence and keep it only if it earns more than the failed episode."""
    shrink: Annotated[float, FROM_0] = 0.0
    """Pseudo-count that pulls a child's value towards its parent's before values are compared; 0 is off."""
    weight: Annotated[float, FROM_0] = 0.15
    """lambda, the weight of the surgical loss."""
    beta: Annotated[float, ABOVE_0] = 0.1
    """Inverse temperature of the preference."""
    alpha: Annotated[float, SHARE] = 0.95
    """Share of itself that the reference keeps after each iteration."""


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters on a model that is itself left as it is (extra `lora`)."""

    rank: Annotated[int, FROM_0] = 0
    """Of the adapters on every linear layer; 0 trains the whole model."""
    alpha: Annotated[int, ABOVE_0] = 32
    """They are scaled by alpha / rank."""


@dataclass(frozen=True)
class OptimConfig:
    """The update."""

    learning_rate: Annotated[float, FROM_0] = 5e-6
    """Peak learning rate of AdamW."""
    clip_low: Annotated[float, SHARE] = 0.2
    """The ratio is clipped below 1 - clip_low."""
    clip_high: Annotated[float, FROM_0_OR_INFINITE] = 0.2
    """The ratio is clipped above 1 + clip_high."""
    negative_weight: Annotated[float, FROM_0] = 1.0
    """What advantages and credits below zero are multiplied by (fines are not). Sampled tokens that were unlikely have the largest
    gradients (arXiv 2505.12929), and turns that went wrong hold most of them: below 1 their noise no longer drowns what is learnt from
    what went well. Large models have been found to want the opposite, more weight on what went wrong (arXiv 2506.01347)."""
    kl_coefficient: Annotated[float, FROM_0] = 0.0
    """Weight of the KL penalty towards the reference (k3)."""
    max_gradient_norm: Annotated[float, ABOVE_0_OR_INFINITE] = 1.0
    """Gradients are scaled down to this norm."""
    max_loss: Annotated[float, ABOVE_0_OR_INFINITE] = 10_000.0
    """A loss beyond this, in either direction, has exploded: the run stops before the step, and the batch is saved. Losses are of the size
    of 1; inf lets any finite one pass."""
    updates: Annotated[int, FROM_1] = 1
    """Optimizer steps per iteration."""
    decay: Annotated[float, SHARE] = 0.0
    """Share of the iterations over which the learning rate falls linearly to zero at the end."""
    aggregation: Literal["token-mean", "episode-mean"] = "token-mean"
    """How token losses become one number: every token counts alike (DAPO, and the default), or every episode does (the
    original GRPO), whatever its length. Where losing takes longer than winning, token-mean has more to push down than up."""
    max_logprob_difference: Annotated[float | None, ABOVE_0] = None
    """Most nats by which sampler and trainer may differ about a sampled token before an iteration's first step; beyond it the run stops,
    since it would learn from other probabilities than it sampled with. None: 0.05 in single precision, 2 in half."""
    precision: Literal["single", "half"] = "single"
    """Of the model's weights while it computes: float32, or bfloat16 (what is trained is kept in float32 beside it)."""
    recompute: bool = False
    """Compute layers again in the backward pass instead of keeping what they gave (gradient checkpointing): a third more work, a fraction
    of the memory."""
    micro_tokens: Annotated[int, FROM_1] = 3_072
    """Most padded tokens computed at once; changes memory and float rounding, not the result."""


@dataclass(frozen=True)
class RolloutConfig:
    """Sampling."""

    tasks: Annotated[int, FROM_1] = 4
    """Tasks per iteration."""
    group: Annotated[int, Range(2)] = 8  # a group of one has nothing to be compared with: its advantage is 0
    """M, episodes per task."""
    max_tokens: Annotated[int, FROM_1] = 512
    """Longest reply, in tokens."""
    context_tokens: Annotated[int | None, Range(2)] = None
    """Most tokens of a context and its reply together; None: as many as the model has positions, which is the bound in any case.
    What does not fit is dropped, the oldest turns first (docs/tstar.md)."""
    temperature: Annotated[float, ABOVE_0] = 1.0  # the update divides by it
    """Of the sampling distribution."""
    context: Literal["concat", "step"] = "concat"
    """The whole transcript, or the task with the last turns."""
    history: Annotated[int, FROM_0] = 2
    """Turns kept by the step context."""
    horizon: Annotated[int | None, FROM_1] = None
    """Most steps of a training episode; None: the environment's own, which evaluation always keeps."""
    invalid_penalty: Annotated[float, FROM_0] = 0.0
    """Subtracted from the advantage of the tokens of an invalid action."""
    revisit_penalty: Annotated[float, FROM_0] = 0.0
    """Subtracted from the advantage of the tokens of an action after which the environment is as it was after an earlier turn of the
    episode: a bump into a wall, a step back, a repeated search. A policy that runs in circles learns little from the final reward alone."""
    progress_credit: Annotated[float, FROM_0] = 0.0
    """Weight of a credit added to the advantage of a turn's tokens: this times the progress towards the goal that the turn made, as a
    fraction of the whole way measured by the environment's `progress()` (negative where the turn led away; all earlier progress is lost
    where the episode ends without success or can no longer succeed). It asks the environment's oracle, so training is no longer from the
    outcome alone."""
    batch: Annotated[int, FROM_1] = 256
    """Most rows sampled side by side."""
    cache_gib: Annotated[float, ABOVE_0] = 8.0
    """Most memory for the sampler's keys and values, in GiB; fewer rows go side by side where more would not fit."""


@dataclass(frozen=True)
class VLLMConfig:
    """The vLLM engine (``--engine vllm``, extra `vllm`)."""

    memory: Annotated[float, ABOVE_0_TO_1] = 0.3
    """Share of the GPU's memory for its copy of the weights, its keys and its values; the rest is the trainer's."""


@dataclass(frozen=True)
class PPOConfig:
    """PPO's critic and advantages (``--algo ppo``)."""

    critic: Literal["shared", "separate"] = "shared"
    """A value head on the policy's own layers, or layers of its own (a copy of the policy's to begin with)."""
    critic_learning_rate: Annotated[float, FROM_0] = 1e-5
    """Of a separate critic; a shared one has the policy's."""
    gamma: Annotated[float, ABOVE_0_TO_1] = 1.0
    """Discount per token of the policy."""
    lam: Annotated[float, SHARE] = 1.0
    """The lambda of generalised advantage estimation; 1 looks to the end of the episode, 0 one token ahead."""
    whiten: bool = True
    """Shift and scale the advantages of an iteration to mean 0 and variance 1."""
    value_weight: Annotated[float, FROM_0] = 0.5
    """Weight of the critic's loss beside the policy's."""
    value_clip: Annotated[float | None, FROM_0] = 0.2
    """How far a value may move from what it was in one update, in units of reward; None: any way."""


@dataclass(frozen=True)
class DAPOConfig:
    """Dynamic sampling and the penalty for long replies (``--algo dapo`` and ``dapo-paper``)."""

    rounds: Annotated[int, FROM_1] = 10
    """Most rounds of sampling in an iteration; then it trains on the groups that there are, and says so."""
    overlong_buffer: Annotated[float, SHARE] = 0.2
    """Share of the longest reply, at its end, over which the penalty grows; 0: no penalty."""
    overlong_factor: Annotated[float, FROM_0] = 1.0
    """What a reply of the full length loses, in units of reward."""


@dataclass(frozen=True)
class GiGPOConfig:
    """The comparison of turns that began in one state (``--algo gigpo``)."""

    step_weight: Annotated[float, FROM_0] = 1.0
    """Weight of the turns' comparison beside that of whole episodes."""
    gamma: Annotated[float, ABOVE_0_TO_1] = 0.95
    """Discount per turn of the returns that are compared."""
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    """Whether differences from the mean are divided by the standard deviation, in both comparisons."""
    inner: Annotated[int, Range(2)] = 2  # a turn that is compared with itself alone has advantage 0
    """Least number of turns in one state that are compared (the T-STAR paper's inner group)."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Measurement before and after training."""

    tasks: Annotated[int, FROM_1] = 1000
    """Held-out tasks (the first ones of the split)."""
    samples: Annotated[int, FROM_1] = 4
    """Episodes per task at temperature 1."""
    split: str = "test"
    """Which split."""
    greedy: bool = True
    """Also one greedy episode per task."""
    validate_every: Annotated[int, FROM_0] = 0
    """Iterations between validations. The weights at the start, after every so many iterations and after the last are measured on tasks of
    the split `valid`. The best are kept in `best`, a checkpoint in the run's folder, and only they are measured at the end. 0: no
    validation, the last weights are measured."""
    validation_tasks: Annotated[int, FROM_1] = 200
    """Tasks of a validation (the first ones of the split `valid`), with the samples and the greedy episode of any measurement."""


@dataclass(frozen=True)
class Config:
    """A run."""

    env: Annotated[str, tyro.conf.Suppress]
    """Environment: id or short name, for example hotpotqa."""
    model: Annotated[str, tyro.conf.Suppress] = "auto"
    """auto, tiny, or a Hugging Face causal LM by name or path."""
    algo: str = "grpo"
    """Base algorithm: grpo, dapo, dapo-paper, gigpo or ppo (what each compares, and which options it sets: docs/algorithms.md), or one of
    your own as module:Class (docs/adding_an_algorithm.md)."""
    tstar: bool = True
    """T-STAR on top of the base algorithm; off is the base algorithm alone, and with ppo it is off."""
    engine: Literal["local", "vllm"] = "local"
    """What samples: the trainer's own model, or vLLM in the trainer's process with a copy of the weights (docs/llm.md)."""
    optimizer: Literal["torch", "deepspeed"] = "torch"
    """Who takes the steps: AdamW whole on every process, or DeepSpeed's ZeRO-2, which deals its state and the gradient over the processes
    (extra `deepspeed`)."""
    seed: int = 0
    """Of everything random."""
    iterations: Annotated[int, FROM_0] = 160
    """Training iterations."""
    minutes: Annotated[float | None, ABOVE_0_OR_INFINITE] = None
    """Stop training after this many minutes of it (iterations counted so far stand)."""
    episodes: Annotated[int | None, FROM_1] = None
    """Stop training when so many episodes were sampled, those that dynamic sampling drops included: algorithms compared at equal cost."""
    checkpoint_every: Annotated[int, FROM_1] = 20
    """Iterations between checkpoints; the last one is always written."""
    keep_checkpoints: Annotated[int, FROM_1] = 2
    """How many checkpoints are kept, beside those that validation had chosen by then."""
    threads: Annotated[int | None, FROM_1] = None
    """Torch threads; None: 1 for models under 5M parameters, else torch's own choice."""
    processes: Annotated[int | None, FROM_1] = None
    """Processes that share the rollouts and gradients; --rollout.tasks must divide by them. None: one per core (at most 8) for small
    models on a CPU, else 1. A run repeats bit for bit with the same number."""
    helper_minutes: Annotated[float, Range(0, 10_000, open_low=True)] = 10.0
    """Minutes that a process waits for another one's part after its own; a process that is stopped or hangs ends the run, saved."""
    device: str = "auto"
    """Torch device; auto takes cuda if there is one."""
    split: str = "train"
    """Where training tasks come from."""
    wandb: str | None = None
    """Also log to this project of Weights & Biases (WANDB_MODE=offline keeps it on this machine)."""
    env_options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """Options of the environment; on the command line: --env-option KEY=VALUE, repeatable."""
    training_options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """Further options of the environment while training only (Sokoban: ``end_when_lost``, ``reward=shaped``); evaluation goes
    without them. On the command line: --training-option KEY=VALUE, repeatable."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    tree: TreeConfig = field(default_factory=TreeConfig)
    graft: GraftConfig = field(default_factory=GraftConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    vllm: VLLMConfig = field(default_factory=VLLMConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    dapo: DAPOConfig = field(default_factory=DAPOConfig)
    gigpo: GiGPOConfig = field(default_factory=GiGPOConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    @property
    def needs_reference(self) -> bool:
        """Whether a run keeps the moving average of its policy: for the surgical loss or the KL penalty."""
        return (self.tstar and self.graft.enabled and self.graft.surgical) or self.optim.kl_coefficient > 0

    def to_json(self) -> str:
        """Every option, readable again by ``from_json``."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @classmethod
    def from_json(cls, path: Path) -> Config:
        """Read ``config.json``.

        Raises:
            MissingData, BadData: no such file, or it cannot be read.
            UnknownOption: not a configuration, or one with options this version does not know.
        """
        record = read_json(path)
        hints = get_type_hints(cls, include_extras=False)
        parts = {
            field.name: hints[field.name]
            for field in dataclasses.fields(cls)
            if dataclasses.is_dataclass(hints[field.name])
        }
        try:
            return cls(**{k: parts[k](**v) if k in parts else v for k, v in record.items()})
        except (TypeError, AttributeError) as error:
            raise UnknownOption(f"{path} is not a configuration of this version: {error}") from error
