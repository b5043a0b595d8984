"""Configuration of a run."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import tyro

from tstar_envs import UnknownOption, find_entry, read_json
from tstar_envs.redaction import keep_named_secret, without_secrets


class Range(NamedTuple):
    """Valid numbers: ``low`` to ``high``, both included unless they are open."""

    low: float
    high: float = math.inf
    open_low: bool = False
    infinite: bool = False  # whether infinity has a meaning: everything merges, nothing is clipped, no end

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int | float) or math.isnan(value):
            return False
        return (value > self.low if self.open_low else value >= self.low) and value <= self.high

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"above {self.low:g}" if self.open_low else f"{self.low:g} or more"
        return f"{'above' if self.open_low else 'from'} {self.low:g} {'and at most' if self.open_low else 'to'} {self.high:g}"


FROM_0, FROM_1, ABOVE_0 = Range(0), Range(1), Range(0, open_low=True)
FROM_1_OR_INFINITE = Range(1, infinite=True)
FROM_0_OR_INFINITE, ABOVE_0_OR_INFINITE = FROM_0._replace(infinite=True), ABOVE_0._replace(infinite=True)
THREADS = Range(1, 1024)  # PyTorch ends the process at some tens of thousands
SHARE, ABOVE_0_TO_1, BELOW_1 = Range(0, 1), Range(0, 1, open_low=True), Range(0, 0.9999)


def range_of(hint: Any) -> Range | None:
    """Return the range that a type is annotated with; None if there is none."""
    notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((note for note in notes if isinstance(note, Range)), None)


@dataclass(frozen=True)
class TreeConfig:
    """The cognitive tree, and the advantages computed from it (docs/tstar.md)."""

    enabled: bool = True
    """Compute step advantages from the values of the cognitive tree; off: the base algorithm's own advantages."""
    nodes: Literal["depth", "state"] = "depth"
    """Rule that merges steps into nodes. depth: equal decisions at the same depth, decided by KL divergence (the paper); state: equal
    environment states at any depth, without KL divergence."""
    credit: Literal["value", "transition"] = "value"
    """Step credit. value: the value of the node that it leads to (the paper); transition: that value minus the value of the node it
    was taken in."""
    eps_kl: Annotated[float, FROM_0_OR_INFINITE] = 0.25
    """KL divergence in nats below which two steps merge into one node; 0 or more."""
    kl_samples: Annotated[int, FROM_1] = 16
    """Samples per context that estimate the KL divergence (K in the paper)."""
    kl_tokens: Annotated[int | Literal["action", "reply"], FROM_1] = "action"
    """Maximum length of these samples in tokens. action: that of the longest admissible action, rounded up to a multiple of 8, where the
    environment lists them; reply, and where it lists none: --rollout.max-tokens."""
    kl_over: Literal["action", "turn"] = "action"
    """Text that the KL divergence compares. action: the action without a thought before it; turn: thought and action together."""
    kl_estimator: Literal["mc", "exact"] = "mc"
    """Estimator of the KL divergence. mc: Monte Carlo over sampled actions; exact: a sum over the admissible actions, for environments that
    list them."""
    kl_symmetry: Literal["max", "mean", "forward"] = "max"
    """Combination of the two directions of the KL divergence. max: the larger; mean: their mean; forward: only the one from the earlier
    trajectory to the later."""
    history: Literal["sequence", "state"] = "sequence"
    """Condition on the histories of steps that may merge. sequence: equal sequences of state-modifying actions (the paper); state: equal
    environment states."""
    same_parent: bool = False
    """Merge only steps whose previous steps are merged too, so that the result is a strict tree."""
    gamma: Annotated[float, ABOVE_0_TO_1] = 0.99
    """Discount factor per step, above 0 up to 1; with --tree.nodes state the default is 0.95."""
    values: Literal["mean", "bellman"] = "mean"
    """Values of states with --tree.nodes state. mean: mean discounted return over all visits of a state; bellman: solved on the graph of
    the group's states, so that a visit also counts what other episodes found from there."""
    baseline: Literal["group", "discounted"] = "group"
    """Baseline subtracted from a node's Q-value with --tree.nodes depth. group: the group's mean reward; discounted: its mean discounted
    return."""
    delta: Annotated[float, FROM_0] = 0.3
    """Difference between the values of a node's best and worst child, in units of reward, above which the node counts as divergent."""
    statistics_everywhere: bool = False
    """Also build trees of groups whose rewards are all equal, to record their statistics; such trees train nothing."""


@dataclass(frozen=True)
class GraftConfig:
    """Thought grafting and the surgical loss (docs/tstar.md)."""

    enabled: bool = True
    """Thought grafting: write rectified thoughts at divergent nodes."""
    surgical: bool = True
    """Train on the rectified thoughts with the surgical loss."""
    fallback: Literal["z_plus", "none", "z_plus_only"] = "z_plus"
    """Replacement for an unusable rectified thought. z_plus: the thought of the successful branch; none: nothing; z_plus_only: no
    thoughts are written, the successful branch's is always taken."""
    temperature: Annotated[float, FROM_0] = 1.0
    """Sampling temperature of rectified thoughts; 0 is greedy decoding."""
    verify: bool = False
    """Play each rectified thought on from its divergence and keep it only if it earns more than the failed episode."""
    shrink: Annotated[float, FROM_0] = 0.0
    """Pseudo-count that shrinks a child's value towards its parent's before the children's values are compared; 0 is off."""
    source: Literal["divergence", "way", "both"] = "divergence"
    """Source of the grafts. divergence: thoughts where better and worse branches part (the paper); way: the shortest way through the states
    of the group to its best ending, maybe stitched from several episodes (needs --tree.nodes state); both."""
    loss: Literal["imitate", "surgical"] = "imitate"
    """Loss of the way. imitate: its turns enter the policy loss with an extra advantage; surgical: its thoughts are preferred to those of
    worse actions, as at divergences."""
    way_weight: Annotated[float, FROM_0] = 1.0
    """Extra advantage of the way's turns, times the difference between its reward and the group's mean, with --graft.loss imitate."""
    way_only: bool = False
    """Leave all other credit and all penalties out, so that the policy only imitates the ways."""
    surgical_weight: Annotated[float, FROM_0] = 0.15
    """Weight of the surgical loss (lambda in the paper)."""
    dpo_beta: Annotated[float, ABOVE_0] = 0.1
    """Inverse temperature of the preference in the surgical loss (beta in DPO and the paper), above 0."""
    keep: Annotated[int | Literal["all", "iteration"], FROM_1] = "all"
    """Grafts kept in the grafting set, which the surgical loss draws its pairs from. all: those of the whole run (D_graft in the paper); a
    number: the newest ones; iteration: no set, each iteration trains on its own grafts only."""
    batch: Annotated[int, FROM_1] = 16
    """Minimum number of pairs drawn from the grafting set per iteration, over all processes; as many as the iteration made are drawn if
    that is more."""
    ref_ema_decay: Annotated[float, SHARE] = 0.95
    """Decay of the reference policy, a moving average of the policy's weights: the fraction of itself that it keeps after each iteration,
    0 to 1 (alpha in the paper)."""


@dataclass(frozen=True)
class ExploreConfig:
    """Forks: episodes played on from restored states (docs/tstar.md; with --tree.nodes state and --tree.values bellman)."""

    share: Annotated[float, SHARE] = 0.0
    """Share of a group's turns that are sampled in forks: the group plays 1 - share of its episodes from the start, at least two, and then
    forks until it has sampled as many turns as all episodes would have taken. 0: no forks."""
    where: Literal["reach", "policy", "uniform"] = "reach"
    """States that forks begin in. reach: with probability proportional to how often the policy comes by on the graph, divided by one more
    than the visits; policy: to how often it would try an action there that nobody tried (needs listed actions; its probabilities are those
    at temperature 1, whatever the sampling temperature); uniform: all alike."""
    first: Literal["policy", "untried"] = "policy"
    """First action of a fork. policy: drawn by the policy, whatever it is; untried: up to eight replies are drawn and the first with an
    action that nobody tried there is played, and without one there is no fork."""
    weights: Literal["equal", "reach"] = "equal"
    """Weight of a turn's credit. equal: 1; reach: how often the policy comes by its state on the graph, over the visits in the group."""
    credit: Literal["rows", "graph"] = "rows"
    """Credit of turns. rows: every sampled turn has its own; graph: each tried action of a state once, with the expected gradient under the
    policy's own probabilities (needs listed actions), which are those at temperature 1, whatever the sampling temperature."""


@dataclass(frozen=True)
class LoraConfig:
    """LoRA: low-rank adapters on a frozen model (extra `lora`)."""

    rank: Annotated[int, FROM_0] = 0
    """Rank of the LoRA adapters on every linear layer; 0 trains the whole model."""
    alpha: Annotated[int, ABOVE_0] = 32
    """LoRA alpha: the adapters' output is scaled by alpha / rank."""


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer and the policy loss."""

    learning_rate: Annotated[float, FROM_0] = 5e-6
    """Peak learning rate."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """Optimizer. adamw; or muon: torch's Muon for the matrices within the layers, its steps scaled to the size of AdamW's so that one
    learning rate fits both, and AdamW for embeddings, the output matrix, norms and biases. Muon needs --learner torch."""
    adam_beta1: Annotated[float, BELOW_1] = 0.9
    """Decay of AdamW's first moment per optimizer step."""
    adam_beta2: Annotated[float, BELOW_1] = 0.99
    """Decay of AdamW's second moment per optimizer step."""
    weight_decay: Annotated[float, FROM_0] = 0.0
    """Decoupled weight decay of matrices, times the learning rate per step; norms and biases have none."""
    zero_stage: Annotated[int, Range(1, 2)] = 1
    """Stage of DeepSpeed's ZeRO with --learner deepspeed. 1: the processes share the optimizer's state, and gradients are summed once an
    optimizer step; 2: they share gradients too, which are summed after each micro-batch."""
    warmup: Annotated[float, SHARE] = 0.0
    """Fraction of the training, at its start, over which the learning rate rises linearly; 0 to 1."""
    clip_low: Annotated[float, SHARE] = 0.2
    """Lower clip range: the probability ratio is clipped at 1 - clip_low; 0 to 1."""
    clip_high: Annotated[float, FROM_0_OR_INFINITE] = 0.2
    """Upper clip range: the probability ratio is clipped at 1 + clip_high; 0 or more."""
    negative_weight: Annotated[float, FROM_0] = 1.0
    """Factor on negative advantages and credits (penalties excepted), 0 or more. Unlikely sampled tokens have the largest gradients
    (arXiv 2505.12929), and unsuccessful turns hold most of them: a factor below 1 keeps their noise from dominating the update. For large
    models the opposite, a larger weight on unsuccessful samples, has been found to help (arXiv 2506.01347)."""
    kl_coefficient: Annotated[float, FROM_0] = 0.0
    """Weight of the KL penalty that keeps the policy close to the reference policy (k3 estimator); 0 is off."""
    max_gradient_norm: Annotated[float, ABOVE_0_OR_INFINITE] = 1.0
    """Largest gradient norm; larger gradients are scaled down to it (gradient clipping)."""
    max_loss: Annotated[float, ABOVE_0_OR_INFINITE] = 10_000.0
    """Largest absolute loss: beyond it the run stops before the optimizer step and saves the batch. Typical losses are around 1; inf
    accepts any finite loss."""
    num_minibatches: Annotated[int, FROM_1] = 1
    """Minibatches per training iteration. Its optimizer steps are this times --optim.epochs."""
    epochs: Annotated[int, FROM_1] = 1
    """Passes over the minibatches of an iteration. The probability ratio is taken against the policy that sampled, in all of them; with
    --explore.credit graph against the policy at the start of the step, since the credit is solved anew."""
    decay: Annotated[float, SHARE] = 0.0
    """Fraction of the training, at its end, over which the learning rate falls linearly to zero; 0 to 1. The end is that of --iterations,
    --episodes, --turns or --minutes, whichever comes first."""
    aggregation: Literal["token-mean", "episode-mean"] = "token-mean"
    """Averaging of token losses. token-mean: every token has equal weight (DAPO, and the default); episode-mean: every episode has
    equal weight, whatever its length (the original GRPO). Where failed episodes are longer than successful ones, token-mean weighs
    failures more."""
    max_logprob_difference: Annotated[float | None, ABOVE_0] = None
    """Largest difference in nats between the sampler's and the trainer's log-probability of a sampled token, checked before an iteration's
    first step; beyond it the run stops, because the update would not match the sampled policy. None: 0.05 in float32, 2 in
    bfloat16."""
    correction: Literal["none", "token-truncate", "token-mask", "sequence-mask"] = "sequence-mask"
    """Importance correction for a sampler with a copy of the weights (vLLM); the local engine is exact and has none. The policy loss of a
    token is multiplied by the ratio of the trainer's to the sampler's probability, of each token or of the whole episode (sequence).
    truncate: a ratio above the cap becomes the cap; mask: it becomes 0. TRL's vllm_importance_sampling_mode."""
    correction_cap: Annotated[float, FROM_1_OR_INFINITE] = 3.0
    """Largest ratio of --optim.correction, 1 or more; inf has no limit."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the model's weights in computation. bfloat16 keeps a float32 copy of the trained weights (master weights)."""
    gradient_checkpointing: bool = False
    """Gradient checkpointing: recompute activations in the backward pass instead of keeping them, for about a third more computation and a
    fraction of the memory."""
    micro_tokens: Annotated[int, FROM_1] = 3_072
    """Largest micro-batch in tokens, padding included; it changes memory use and float rounding, not the result."""


@dataclass(frozen=True)
class RolloutConfig:
    """Sampling of training episodes, and penalties on single turns."""

    tasks_per_iteration: Annotated[int, FROM_1] = 4
    """Tasks per training iteration, over all processes together."""
    group_size: Annotated[int, Range(2)] = (
        8  # a group of one has nothing to be compared with: its advantage is 0
    )
    """Episodes per task, 2 or more (M in the paper)."""
    max_tokens: Annotated[int, FROM_1] = 512
    """Maximum length of a reply in tokens."""
    context_tokens: Annotated[int | None, Range(2)] = None
    """Maximum number of tokens of a context and its reply together; None: the model's maximum sequence length, which is the limit in any
    case. Where more is needed, the oldest turns are dropped first (docs/tstar.md)."""
    temperature: Annotated[float, ABOVE_0] = 1.0  # the update divides by it
    """Sampling temperature in training, above 0."""
    context: Literal["concat", "step"] = "concat"
    """Context of the policy at each turn. concat: the whole transcript; step: the task and the last turns (--rollout.history)."""
    history: Annotated[int, FROM_0] = 2
    """Earlier turns that the policy reads with --rollout.context step."""
    horizon: Annotated[int | None, FROM_1] = None
    """Maximum number of steps of a training episode; None: the environment's own horizon, which evaluation always uses."""
    horizon_growth: Annotated[int | None, FROM_1] = None
    """Maximum number of steps at the start of the run. It grows in proportion to the run's progress to the full training horizon, which it
    reaches after --curriculum-until of the run. None: the full horizon from the start."""
    invalid_penalty: Annotated[float, FROM_0] = 0.0
    """Penalty subtracted from the advantage of the tokens of an invalid action."""
    revisit_penalty: Annotated[float, FROM_0] = 0.0
    """Penalty subtracted from the advantage of the tokens of an action that leads back to an earlier state of the episode: a bump into a
    wall, a step back, a repeated search. A policy that runs in circles learns little from the final reward alone."""
    progress_credit: Annotated[float, FROM_0] = 0.0
    """Weight of a credit added to the advantage of a turn's tokens: this times the progress towards the goal that the turn made, as a
    fraction of the whole way measured by the environment's `progress()` (negative where the turn led away; all earlier progress is lost
    where the episode ends without success or can no longer succeed). It asks the environment's oracle, so training is no longer from the
    outcome alone."""
    tasks_at_once: Annotated[int | None, FROM_1] = None
    """Tasks that a process plays side by side and takes at a time, as it gets free. Fewer keep unequally fast processes busy; more fill the
    batches of a GPU better. Which process plays a task changes no result. None: an equal share, in up to four parts if each has
    --rollout.max-sequences episodes or more; with one process always the whole."""
    max_sequences: Annotated[int, FROM_1] = 256
    """Maximum number of sequences sampled at the same time."""
    cache_gib: Annotated[float, ABOVE_0] = 8.0
    """Memory limit of the sampler's key-value cache in GiB; fewer sequences are sampled at the same time where more would not fit."""
    ahead: Annotated[int, Range(0, 1)] = 0
    """Largest number of updates by which sampling may lag. 1: the next iteration's episodes are sampled during the update, with the weights
    before it, by a process with a copy of them (or by the engine's own server); 0: sampling and update take turns."""


@dataclass(frozen=True)
class VLLMConfig:
    """The vLLM engine (``--engine vllm``, extra `vllm`)."""

    memory: Annotated[float, ABOVE_0_TO_1] = 0.3
    """Fraction of the GPU's memory for vLLM, or for a server on the trainer's GPU: its copy of the weights and its key-value cache; the
    trainer has the rest. Above 0 up to 1."""


@dataclass(frozen=True)
class ServerConfig:
    """The sampling server (``--engine vllm-server``, docs/llm.md). Without a URL the run starts and ends one of its own."""

    url: str | None = None
    """URL of a vLLM server that runs already, for example http://HOST:8000; docs/llm.md has the command that starts it. Its key, if it has
    one, comes from the variable VLLM_API_KEY."""
    devices: str | None = None
    """GPUs of the run's own server, with commas, as in CUDA_VISIBLE_DEVICES: 6,7. None: the GPU of the trainer's first process, of which
    the server takes --vllm.memory."""
    tensor_parallel: Annotated[int | None, FROM_1] = None
    """Number of GPUs that the run's own server splits each layer over. None: all of --engine.devices."""
    transfer: Literal["auto", "disk", "adapters", "ipc", "nccl"] = "auto"
    """Way of the new weights to the server. disk: a checkpoint in the run's folder, which the server must see under the same path, adapters
    merged into it; adapters: the adapters of --lora.rank alone, through that folder, after a checkpoint of the frozen weights at the start;
    ipc and nccl: vLLM's weight transfer between GPUs, ipc within one GPU, nccl from one to others. auto: nccl to --engine.devices, ipc to
    the trainer's own GPU, and to a server given by its URL or where the policy is on a CPU adapters if there are any, else disk."""


@dataclass(frozen=True)
class PPOConfig:
    """PPO's critic and advantages (``--algo ppo``)."""

    critic: Literal["shared", "separate"] = "shared"
    """Critic model. shared: a value head on the policy's own layers; separate: a model of its own, initialised as a copy of the policy."""
    critic_learning_rate: Annotated[float, FROM_0] = 1e-5
    """Learning rate of a separate critic; a shared critic uses the policy's."""
    level: Literal["token", "turn"] = "token"
    """Steps of generalised advantage estimation (GAE). token: every token is an action; turn: a whole reply is, with one value, and its
    tokens share the advantage (Turn-PPO)."""
    gamma: Annotated[float, ABOVE_0_TO_1] = 1.0
    """Discount factor per token, or per turn with --ppo.level turn, above 0 up to 1."""
    lam: Annotated[float, SHARE] = 1.0
    """Lambda of GAE, 0 to 1: 1 uses the returns to the end of the episode, 0 one token (or turn) ahead."""
    whiten: bool = True
    """Normalise the advantages of an iteration to mean 0 and variance 1."""
    value_weight: Annotated[float, FROM_0] = 0.5
    """Weight of the value loss relative to the policy loss."""
    value_clip: Annotated[float | None, FROM_0] = 0.2
    """Value clip range: how far a predicted value may move in one update, in units of reward; None: no limit."""


@dataclass(frozen=True)
class DAPOConfig:
    """Dynamic sampling and the length penalty (``--algo dapo`` and ``dapo-paper``)."""

    rounds: Annotated[int, FROM_1] = 10
    """Maximum rounds of dynamic sampling per iteration; after them the iteration trains on the groups it has and prints a note."""
    overlong_buffer: Annotated[float, SHARE] = 0.2
    """Last part of the maximum reply length over which the length penalty grows, as a fraction of --rollout.max-tokens; 0: no penalty."""
    overlong_factor: Annotated[float, FROM_0] = 1.0
    """Length penalty of a reply of the maximum length, in units of reward."""


@dataclass(frozen=True)
class GiGPOConfig:
    """Step-level advantages among turns that begin in the same state (``--algo gigpo``)."""

    step_weight: Annotated[float, FROM_0] = 1.0
    """Weight of the step-level advantage relative to the episode-level advantage."""
    gamma: Annotated[float, ABOVE_0_TO_1] = 0.95
    """Discount factor per turn of the step returns, above 0 up to 1."""
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    """Normalisation of both advantages. mean_norm: subtract the group's mean; mean_std_norm: also divide by its standard deviation."""
    inner: Annotated[int, Range(2)] = 2  # a turn that is compared with itself alone has advantage 0
    """Minimum number of turns in the same state that form a step-level group, 2 or more (inner group in the T-STAR paper)."""
    shrink: Annotated[float | None, FROM_0] = None
    """Pseudo-count of ECPO's shrinkage: an action taken n times in a state gets n / (n + shrink) of its mean step credit (2 in the paper).
    None: each turn keeps its own credit."""
    gate: Annotated[float | None, ABOVE_0] = None
    """Number of visits at which ECPO's variance gate opens: the step credit of a state visited n times is multiplied by tanh(n / gate) and
    by the part of its variance that lies between actions. None: no gate."""


@dataclass(frozen=True)
class HGPOConfig:
    """Step-level advantages among turns with the same last states, at several levels (``--algo hgpo``)."""

    step_weight: Annotated[float, FROM_0] = 1.0
    """Weight of the step-level advantage."""
    episode_weight: Annotated[float, FROM_0] = 0.0
    """Weight of the episode-level advantage (as GiGPO's), which the published runs leave out. T-STAR replaces that term, whatever its
    weight."""
    gamma: Annotated[float, ABOVE_0_TO_1] = 0.95
    """Discount factor per turn of the step returns, above 0 up to 1."""
    history: Annotated[int, FROM_0] = 2
    """Number of earlier states that the finest level compares; 0: the present state alone, as GiGPO."""
    weight_power: Annotated[float, FROM_0] = 1.0
    """Exponent of the levels' weights: with j equal states a level weighs (j + 1)^weight_power; 0: all alike (alpha in the paper)."""
    mode: Literal["mean_norm", "mean_std_norm"] = "mean_std_norm"
    """Normalisation at each level. mean_norm: subtract the mean; mean_std_norm: also divide by the standard deviation."""
    shrink: Annotated[float | None, FROM_0] = None
    """As --gigpo.shrink, at every level."""
    gate: Annotated[float | None, ABOVE_0] = None
    """As --gigpo.gate, at every level."""


@dataclass(frozen=True)
class GraphGPOConfig:
    """Step-level advantages from the shortest known way to success (``--algo graphgpo``)."""

    step_weight: Annotated[float, FROM_0] = 1.0
    """Weight of the step-level advantage relative to the episode-level advantage."""
    decay: Annotated[float, ABOVE_0_TO_1] = 0.1
    """Factor on a step's score for each further step to success, above 0 up to 1 (omega in the paper)."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Measurement before and after training."""

    tasks: Annotated[int, FROM_1] = 1000
    """Number of held-out tasks (the first ones of the split)."""
    samples: Annotated[int, FROM_1] = 4
    """Episodes per task, sampled at temperature 1."""
    split: str = "test"
    """Split that the held-out tasks come from: train, valid or test."""
    greedy: bool = True
    """Also play one episode per task with greedy decoding."""
    validate_every: Annotated[int, FROM_0] = 0
    """Iterations between validations; 0: no validation. The weights are measured on tasks of the split `valid` at the start, at this
    interval and after the last iteration. The best are kept in `best`, a checkpoint in the run's folder, and are the ones measured at the
    end; without validation these are the last weights."""
    validation_tasks: Annotated[int, FROM_1] = 200
    """Number of validation tasks (the first ones of the split `valid`), each played as often as a held-out task."""


def import_named(option: str, name: str) -> Any:
    """Import what an option names as ``module:Class``.

    Raises:
        UnknownOption: the module cannot be imported, or lacks the name.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownOption(
            f"{option} {name}: {error}; start where {module} can be imported, or set PYTHONPATH"
        ) from error


# Old name of an option -> the present one. Both are read for one release: by the command line with a note, and from ``config.json``.
RENAMED_OPTIONS = {
    "rollout.tasks": "rollout.tasks_per_iteration",
    "rollout.group": "rollout.group_size",
    "rollout.batch": "rollout.max_sequences",
    "optim.updates": "optim.num_minibatches",
    "optim.recompute": "optim.gradient_checkpointing",
    "optim.precision": "optim.dtype",
    "graft.alpha": "graft.ref_ema_decay",
    "graft.beta": "graft.dpo_beta",
    "graft.weight": "graft.surgical_weight",
    "optimizer": "learner",
    "helper_minutes": "timeout_minutes",
}
# Old value of a renamed option -> the present one.
RENAMED_VALUES = {"optim.precision": {"single": "float32", "half": "bfloat16"}}


# Behaviour of runs from before an option existed, where that is not its default.
DONE_BEFORE = {
    "graft.keep": "iteration",
    "optim.correction": "none",
    "optim.zero_stage": 2,
    "tree.kl_tokens": "reply",
}


def with_present_names(record: dict[str, Any], part: str = "") -> dict[str, Any]:
    """Replace old names and values of options in a nested record, as an older version wrote it, and add ``DONE_BEFORE``."""
    present: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{part}{key}"
        if not part and isinstance(value, dict) and key not in _WITH_OPTIONS:
            value = with_present_names(value, f"{key}.")
        elif isinstance(value, str):
            value = RENAMED_VALUES.get(name, {}).get(value, value)
        present[RENAMED_OPTIONS.get(name, name).rpartition(".")[2]] = value
    for option, before in () if part else DONE_BEFORE.items():
        section, _, field = option.partition(".")
        if isinstance(present.get(section), dict):
            present[section].setdefault(field, before)
    return present


ENVIRONMENT_OPTIONS = ("env_options", "training_options")  # fields of ``Config``
# Fields of ``Config`` with keys that are no options' names, and values that may hold secrets.
_WITH_OPTIONS = (*ENVIRONMENT_OPTIONS, "mix", "mix_options")
# Field of ``Config`` -> its name on the command line, where that differs: --engine is an option itself.
FLAG_PARTS = {"server": "engine"}


@dataclass(frozen=True)
class Config:
    """All options of a training run."""

    env: Annotated[str, tyro.conf.Suppress]
    """Environment: id or short name, for example hotpotqa."""
    model: Annotated[str, tyro.conf.Suppress] = "auto"
    """auto, tiny, or a Hugging Face causal LM by name or path."""
    algo: str = "grpo"
    """Base algorithm: grpo, dapo, dapo-paper, gigpo, hgpo, graphgpo or ppo (docs/algorithms.md explains each and lists the options it
    sets), or one of your own as module:Class (docs/adding_an_algorithm.md)."""
    tstar: bool = True
    """Use T-STAR on top of the base algorithm; off: the base algorithm alone. It cannot be used with ppo, where it is off."""
    engine: str = "local"
    """Engine that samples replies. local: the trainer's own model; paged: the same behind the continuous batching of transformers, for one
    GPU with FlashAttention; vllm: vLLM in the trainer's process, with its own copy of the weights; vllm-server: a vLLM server, on GPUs or a
    host of its own (docs/llm.md); or one of your own as module:Class (docs/adding_an_engine.md)."""
    learner: Literal["torch", "deepspeed"] = "torch"
    """Learner: takes the optimizer steps. torch: the optimizer's state is whole on every process; deepspeed: DeepSpeed's ZeRO
    (--optim.zero-stage), in which the processes share it (extra `deepspeed`)."""
    seed: int = 0
    """Seed of all random numbers of the run."""
    iterations: Annotated[int, FROM_0] = 160
    """Number of training iterations."""
    minutes: Annotated[float | None, ABOVE_0_OR_INFINITE] = None
    """Stop training after this many minutes of training; finished iterations count. None: no limit."""
    episodes: Annotated[int | None, FROM_1] = None
    """Stop training after this many sampled episodes, those that dynamic sampling drops included, so that algorithms can be compared at
    equal cost; with forks (--explore.share) a group counts in full, so give --turns. None: no limit."""
    turns: Annotated[int | None, FROM_1] = None
    """Stop training after this many sampled turns, those of dropped groups and of forks included, so that runs with forks can be compared
    at equal cost. None: no limit."""
    checkpoint_every: Annotated[int, FROM_1] = 20
    """Iterations between checkpoints; a checkpoint of the last iteration is always written."""
    checkpoint_beside: bool = True
    """Write checkpoints in the background, from a copy of weights and optimizer state in main memory; off: the run waits, and nothing is
    copied."""
    keep_checkpoints: Annotated[int, FROM_1] = 2
    """Number of latest checkpoints to keep, besides those that validation chose."""
    threads: Annotated[int | None, THREADS] = None
    """CPU threads of PyTorch per process; None: 1 for models under 5M parameters, else PyTorch's default."""
    processes: Annotated[int | None, FROM_1] = None
    """Number of processes that share rollouts and gradients; it must divide --rollout.tasks-per-iteration. None: one per core (at
    most 8) for small models on a CPU, else 1. A run repeats bit for bit with the same number."""
    timeout_minutes: Annotated[float, Range(0, 10_000, open_low=True)] = 10.0
    """Minutes that a process waits for others that make no progress, up to 10,000; if one has stopped or hangs, the run is saved and ends.
    A slow one that makes progress is waited for."""
    device: str = "auto"
    """PyTorch device, for example cpu or cuda:0; auto: a CUDA GPU if there is one, else the CPU."""
    split: str = "train"
    """Split that the training tasks come from."""
    train_tasks: Annotated[int | None, FROM_1] = None
    """Number of tasks of the split to train on, the same ones for every seed; None: all. A few, played again and again, show whether a
    policy learns at all. With several environments: so many of each."""
    curriculum: Literal["none", "success", "optimum"] = "none"
    """Order of the training tasks. none: shuffled passes over all; success: more often those that the policy solves about half of the time,
    by the episodes so far; optimum: those with a short optimal solution first, for Sokoban and Blocksworld (docs/curricula.md)."""
    curriculum_until: Annotated[float, ABOVE_0_TO_1] = 0.5
    """Share of the run after which --curriculum optimum draws from all tasks and --rollout.horizon-growth ends; above 0 up to 1. The run's
    progress counts iterations, and --episodes or --turns where they are given, but no minutes."""
    wandb: str | None = None
    """Project of Weights & Biases to log to as well; with WANDB_MODE=offline the logs stay on this machine."""
    env_options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """Options of the environment; on the command line: --env-option KEY=VALUE, repeatable."""
    training_options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """Further options of the environment while training only (Sokoban: ``end_when_lost``, ``reward=shaped``); evaluation goes
    without them. On the command line: --training-option KEY=VALUE, repeatable."""
    mix: Annotated[dict[str, float], tyro.conf.Suppress] = field(default_factory=dict)
    """Weights of all environments by id, the first one's included; empty with one. On the command line: --env ENV:WEIGHT, repeatable."""
    mix_options: Annotated[dict[str, dict[str, dict[str, Any]]], tyro.conf.Suppress] = field(
        default_factory=dict
    )
    """``env_options`` and ``training_options`` of the further environments, by id. On the command line: --env-option ENV:KEY=VALUE."""
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    tree: TreeConfig = field(default_factory=TreeConfig)
    graft: GraftConfig = field(default_factory=GraftConfig)
    explore: ExploreConfig = field(default_factory=ExploreConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    vllm: VLLMConfig = field(default_factory=VLLMConfig)
    server: Annotated[ServerConfig, tyro.conf.arg(name=FLAG_PARTS["server"])] = field(
        default_factory=ServerConfig
    )
    ppo: PPOConfig = field(default_factory=PPOConfig)
    dapo: DAPOConfig = field(default_factory=DAPOConfig)
    gigpo: GiGPOConfig = field(default_factory=GiGPOConfig)
    hgpo: HGPOConfig = field(default_factory=HGPOConfig)
    graphgpo: GraphGPOConfig = field(default_factory=GraphGPOConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)

    @property
    def environments(self) -> list[str]:
        """Ids of all environments, the first one first."""
        return list(self.mix) or [find_entry(self.env).id if self.env else ""]

    @property
    def metric(self) -> str:
        """Name of the metric: success, or score if an environment has one, of which success is a special case."""
        metrics = {find_entry(env).metric for env in self.environments}
        return metrics.pop() if len(metrics) == 1 else "score"

    def of(self, env: str) -> Config:
        """Return the options of a run on one of the environments alone.

        Args:
            env: id, of ``environments``.
        """
        if not self.mix:
            return self
        own = {name: getattr(self, name) for name in ENVIRONMENT_OPTIONS}
        own = own if env == self.env else {name: self.mix_options[env][name] for name in ENVIRONMENT_OPTIONS}
        alone: dict[str, Any] = {**own, "env": env, "mix": {}, "mix_options": {}}
        return dataclasses.replace(self, **alone)

    @property
    def needs_reference(self) -> bool:
        """True if the run needs the reference policy: for the surgical loss or the KL penalty."""
        return (self.tstar and self.graft.surgical and self.makes_pairs) or self.optim.kl_coefficient > 0

    @property
    def makes_pairs(self) -> bool:
        """True if preference pairs are made: at divergences, or along ways."""
        graft = self.graft
        return graft.enabled and (graft.source != "way" or graft.loss == "surgical")

    @property
    def imitates_ways(self) -> bool:
        """True if the turns of ways enter the policy loss."""
        graft = self.graft
        return self.tstar and graft.enabled and graft.source != "divergence" and graft.loss == "imitate"

    @property
    def forks(self) -> bool:
        """True if part of a group's turns is sampled in forks."""
        return self.tstar and self.explore.share > 0

    @property
    def first_episodes(self) -> int:
        """Number of a group's episodes from the start: the share that is not explored, at least 2."""
        size = self.rollout.group_size
        return min(size, max(2, math.ceil(round((1 - self.explore.share) * size, 9)))) if self.forks else size

    @property
    def keeps_grafts(self) -> bool:
        """True if the run has a grafting set that outlasts an iteration."""
        return self.tstar and self.makes_pairs and self.graft.keep != "iteration"

    def to_json(self) -> str:
        """Every option, readable again by ``from_json``, but for secrets (see ``record``)."""
        return json.dumps(self.record(), indent=1) + "\n"

    def record(self) -> dict[str, Any]:
        """All options for files: secrets in the environment's options are replaced by ``***``."""
        record = dataclasses.asdict(self)
        for name in _WITH_OPTIONS:
            record[name] = without_secrets(record[name])
        return record

    def keep_secrets(self) -> None:
        """Keep secrets in the environment's options out of all that this process prints and writes."""
        for name in _WITH_OPTIONS:
            keep_named_secret("", getattr(self, name))

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
            named = with_present_names(record).items()
            return cls(**{k: parts[k](**v) if k in parts else v for k, v in named})
        except (TypeError, AttributeError) as error:
            raise UnknownOption(f"{path} is not a configuration of this version: {error}") from error
