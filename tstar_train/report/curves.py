"""Which curves the report shows, and in one sentence each how to read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Curve:
    """One diagram.

    Attributes:
        title: what it shows.
        reading: how to read it.
        lines: (legend, name of the metric) pairs; empty: every phase of the timings.
        unit: `share` is shown in per cent.
        kind: `stack` lays bars on one another, so its metrics must be parts of a whole; `log` has a logarithmic axis.
        smooth: adds the mean of the last iterations to each line.
        rule: a value worth a dashed line, with its meaning.
        from_zero: whether the axis includes zero.
        source: which file the metrics come from; a curve of `validation` is passed over in runs that do not validate.
        part: of the method that it belongs to, "" for every run's; a run without that part does not show it.
    """

    title: str
    reading: str
    lines: tuple[tuple[str, str], ...]
    unit: Literal["share", "number", "seconds"] = "number"
    kind: Literal["line", "log", "stack"] = "line"
    smooth: bool = False
    rule: tuple[float, str] | None = None
    from_zero: bool = True
    source: Literal["metrics", "timings", "validation"] = "metrics"
    part: Literal["", "tree", "kl", "grafts", "surgical"] = ""


LEARNING = (
    Curve(
        "Success in training",
        "Share of the sampled episodes that solved their task; every iteration has other tasks, so judge the moving average, "
        "and the held-out tasks above for the real gain.",
        (("success", "success"),),
        unit="share",
        smooth=True,
    ),
    Curve(
        "Validation",
        "The same tasks of the validation split each time, sampled and greedy; the weights with the highest sampled figure are kept, of "
        "equal ones the earliest. Iteration 0 is the start. The highest of several is a little lucky: judge the gain by the held-out "
        "tasks above.",
        (("sampled", "mean"), ("greedy", "greedy"), ("best so far", "best_mean")),
        unit="share",
        source="validation",
    ),
    Curve(
        "Reward",
        "Mean terminal reward. Where the task is to answer, also F1, the overlap of answers with the right ones: F1 rising alone means "
        "that answers get closer without being right.",
        (("reward", "reward"), ("F1", "f1")),
        smooth=True,
    ),
    Curve(
        "Groups without contrast, invalid actions",
        "Groups whose episodes all earned the same teach nothing, so a rising line means that fewer tasks still do; invalid actions "
        "should fall towards zero.",
        (("zero-variance groups", "zero_variance_groups"), ("invalid actions", "invalid_rate")),
        unit="share",
    ),
    Curve(
        "Episode length",
        "Turns per episode: falling with success means shorter solutions, falling without it means giving up early.",
        (("turns", "episode_length"),),
    ),
    Curve(
        "Reply length",
        "Tokens per reply: a steady climb or a collapse is an early sign of degenerate text.",
        (("tokens", "response_tokens"),),
    ),
    Curve(
        "Entropy",
        "Nats per token: it falls as the policy makes up its mind; close to zero, groups lose their variety and learning ends.",
        (("entropy", "entropy"),),
    ),
)

TREES = (
    Curve(
        "Merging and divergence",
        "Merge ratio is the share of steps that turned out to be the same decision as another episode's; divergent is the share of "
        "the remaining nodes at which the way taken decided over success.",
        (("merge ratio", "tree_merge_ratio"), ("divergent nodes / nodes", "tree_p_div")),
        unit="share",
        part="tree",
    ),
    Curve(
        "Nodes per tree",
        "The gap between the upper two lines is what merging saved; divergent nodes are where a thought can be grafted.",
        (
            ("before merging", "tree_nodes_before"),
            ("after merging", "tree_nodes_after"),
            ("several parents", "tree_multi_parent_nodes"),
            ("divergent", "tree_divergent_nodes"),
        ),
        part="tree",
    ),
    Curve(
        "Value spread at divergences",
        "Best child's value minus the worst's, mean over divergent nodes: near 1, one decision settles the episode.",
        (("mean spread", "tree_mean_spread"),),
        part="tree",
    ),
    Curve(
        "Change of the step weights against GRPO",
        "How far the tree's step advantages move the gradient away from GRPO's, summed over equal steps: near 0, the tree changes nothing.",
        (("relative change", "weight_change"),),
        smooth=True,
        part="tree",
    ),
    Curve(
        "Pairs of steps per tree",
        "All pairs of steps at one depth: tested ones cost model calls, the others were decided without (different history, "
        "an ending, or already connected).",
        (
            ("tested", "tree_pairs_tested"),
            ("other history", "tree_pairs_skipped_history"),
            ("ending", "tree_pairs_skipped_ending"),
            ("connected", "tree_pairs_skipped_connected"),
        ),
        kind="stack",
        part="kl",
    ),
    Curve(
        "Cost of the KL tests",
        "Divergences asked for in an iteration, and how many were answered by identical contexts or by an early rejection instead of "
        "by the model.",
        (
            ("asked", "kl_asked"),
            ("identical contexts", "kl_identical"),
            ("rejected early", "kl_rejected_early"),
        ),
        part="kl",
    ),
    Curve(
        "Scores computed and saved",
        "Continuations that the model scored for those tests, and those that sharing made unnecessary.",
        (("computed", "kl_scored"), ("saved", "kl_scores_saved")),
        kind="stack",
        part="kl",
    ),
)

GRAFTING = (
    Curve(
        "Coverage and anchor reuse",
        "Coverage is the share of failed episodes that got a grafted thought; reuse is the share of divergent decisions that had got "
        "one in an earlier iteration already.",
        (("grafting coverage", "grafting_coverage"), ("anchor reuse", "anchor_reuse")),
        unit="share",
        part="grafts",
    ),
    Curve(
        "Grafts by source",
        "Thoughts that the policy wrote itself, and those where the successful episode's own thought had to step in.",
        (("policy", "grafts_model"), ("successful thought", "grafts_z_plus")),
        kind="stack",
        part="grafts",
    ),
    Curve(
        "Thoughts dropped",
        "Written thoughts that could not be used; the reasons stand below, under Grafts.",
        (("dropped", "dropped_total"),),
        part="grafts",
    ),
    Curve(
        "Evidence behind grafts",
        "Mean number of episodes behind the better and the worse branch: one on each side is weak evidence.",
        (("better branch", "grafts_best_members"), ("worse branch", "grafts_worst_members")),
        part="grafts",
    ),
    Curve(
        "Surgical loss",
        "Preference loss of grafted over failed thoughts: at log 2 (dashed) there is no preference, lower is learnt.",
        (("surgical loss", "surgical_loss"),),
        rule=(0.693147, "log 2"),
        from_zero=False,
        part="surgical",
    ),
    Curve(
        "Surgical accuracy",
        "Share of pairs in which the policy has moved towards the grafted thought, compared with the reference; moving at random "
        "would give a half (dashed), not moving at all 0.",
        (("accuracy", "surgical_accuracy"),),
        unit="share",
        rule=(0.5, "at random"),
        part="surgical",
    ),
)

UPDATE = (
    Curve(
        "Gradient norms",
        "The surgical part (weighted by lambda) beside the base algorithm's: many times smaller, and the grafts hardly matter; "
        "larger, and they rule.",
        (
            ("base", "base_gradient_norm"),
            ("surgical", "surgical_gradient_norm"),
            ("together", "gradient_norm"),
        ),
    ),
    Curve(
        "KL to the reference",
        "Nats per token away from the slowly following reference: how fast the policy moves.",
        (("KL", "kl_reference"),),
    ),
    Curve(
        "Clipped tokens",
        "Share of tokens whose probability ratio left the clip range; 0 with one on-policy update per iteration.",
        (("clip fraction", "clip_fraction"),),
        unit="share",
    ),
    Curve(
        "Base loss",
        "The base algorithm's loss; with one on-policy update it is about minus the mean advantage and says little.",
        (("base loss", "base_loss"),),
        from_zero=False,
    ),
)

CHECKS = (
    Curve(
        "Seconds per phase",
        "Wall time of each iteration, by phase.",
        (),
        unit="seconds",
        kind="stack",
        source="timings",
    ),
    Curve(
        "Sampler against trainer",
        "Difference of the log-probabilities that the sampler and the trainer give the same tokens; above the dashed line the two "
        "no longer compute the same policy.",
        (("mean", "logprob_difference_mean"), ("largest", "logprob_difference_max")),
        kind="log",
        rule=(1e-5, "limit 1e-5"),
    ),
)

CURVES = {
    "Learning": LEARNING,
    "Cognitive trees": TREES,
    "Grafting": GRAFTING,
    "Update": UPDATE,
    "Time and checks": CHECKS,
}
