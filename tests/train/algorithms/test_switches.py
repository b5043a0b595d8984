"""T-STAR's switches on each base algorithm: iterations that differ in one option, which has its effect and no other.

All cases of an environment have the same episodes, played once at each temperature. By default every switch is tried on one algorithm,
in turn; `-m slow` tries all on all.
"""

from __future__ import annotations

import dataclasses
import math
from copy import deepcopy
from functools import cache, partial

import numpy as np
import pytest
import torch
from policies import papers_preset, trainer

from tstar_envs import find_entry
from tstar_train.algorithms.base import Algorithm
from tstar_train.build import make_env
from tstar_train.config import DAPOConfig
from tstar_train.loop import iterate
from tstar_train.policy.files import has_tiny
from tstar_train.policy.model import load_policy
from tstar_train.presets import with_algorithm
from tstar_train.rollout import sample as select
from tstar_train.tree.merging import history_keys

pytestmark = pytest.mark.skipif(
    not has_tiny("search_qa") or not has_tiny("sokoban"), reason="the package has no tiny weights yet"
)

ALGORITHMS = ("grpo", "dapo", "dapo-paper", "gigpo", "hgpo", "graphgpo")
# The second of three iterations: there dapo-paper samples at 0.75.
ITERATION, ITERATIONS = 1, 3
# Which training tasks: some with members that win and others that lose, whose ways part with thoughts and meet again.
TASKS = {"hotpotqa": (0, 1), "sokoban-easy": (14, 19)}
POLICIES = {"hotpotqa": "search_qa", "sokoban-easy": "sokoban"}


@pytest.fixture(scope="module", autouse=True)
def played_once():
    """Episodes follow from what `collect` is given and the weights, which are the same in all cases, so they are played once."""
    torch.set_num_threads(1)
    collect, played = select.collect, {}

    def once(spec, engine, codec, tasks, **named):
        key = repr((spec, tasks, sorted(named.items())))
        if key not in played:
            played[key] = collect(spec, engine, codec, tasks, **named)
        return deepcopy(played[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "collect", once)
        yield
    outcome.cache_clear()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Of one iteration: its figures, what was played, the reference's weights after it, the algorithm, and all rows."""

    metrics: dict
    groups: list
    grafts: list
    reference: torch.Tensor | None
    algorithm: Algorithm
    rows: list

    @property
    def trees(self):
        return [g.tree for g in self.groups if g.tree is not None]

    @property
    def credit(self):
        return np.concatenate([a for g in self.groups for a in g.advantages])

    @property
    def spreads(self):
        return [d.spread for g in self.groups for d in g.divergences]

    @property
    def rectified(self):
        return [(g.group, g.worst_step, g.rectified) for g in self.grafts]


@cache
def outcome(algorithm, env, *changes):
    """An iteration with options changed, each (dotted name, value)."""
    entry = find_entry(env)
    config = with_algorithm(papers_preset(entry.name), algorithm)
    parts = {
        "rollout": {"tasks_per_iteration": len(TASKS[env]), "group_size": 4},
        "tree": {"kl_samples": 2, "gamma": 0.99, "history": "sequence"},
        "graft": {"fallback": "z_plus", "surgical_weight": 0.15},
        "optim": {"num_minibatches": 1, "decay": 0.0, "learning_rate": 1e-3},
        "explore": {},
        "gigpo": {},
        "hgpo": {},
        "ppo": {},
    }
    if env == "sokoban-easy":
        parts["rollout"]["horizon"] = 8
    whole = {"processes": 1, "iterations": ITERATIONS, "dapo": DAPOConfig(rounds=1)}
    for name, value in changes:
        part, _, option = name.rpartition(".")
        (parts[part] if part else whole)[option] = value
    config = dataclasses.replace(
        config, **whole, **{k: dataclasses.replace(getattr(config, k), **v) for k, v in parts.items()}
    )
    tasks = list(make_env(config).task_ids("train"))
    one = trainer(config, load_policy("tiny", POLICIES[env]), [tasks[n] for n in TASKS[env]])
    rows, token_advantages = [], one.algorithm.token_advantages

    def credited(episodes, world):
        token_advantages(episodes, world)
        rows.extend(row for _, own in episodes for row in own)

    one.algorithm.token_advantages = credited
    result = iterate(one, ITERATION)
    reference = one.learner.average
    weights = (
        None if reference is None else torch.cat([p.detach().flatten() for p in reference.state().values()])
    )
    data = result.data
    return Outcome(result.metrics, data.groups, data.grafts.kept, weights, one.algorithm, rows)


def same_trees(one, other):
    return [{(n.members, n.value) for n in t.nodes} for t in one.trees] == [
        {(n.members, n.value) for n in t.nodes} for t in other.trees
    ]


def no_grafting(of):
    on, off = of("hotpotqa"), of("hotpotqa", ("graft.enabled", False))
    assert on.metrics["grafts"] > 0 and on.metrics["surgical_loss"] is not None
    assert (
        off.metrics["grafts"] == 0
        and not off.metrics["grafts_dropped"]
        and off.metrics["surgical_loss"] is None
    )
    assert off.reference is None, "nothing compares with a reference, so none is kept"
    assert (
        same_trees(on, off)
        and off.metrics["base_gradient_norm"]
        == on.metrics["base_gradient_norm"]
        == off.metrics["gradient_norm"]
    )


def no_q_tree(of):
    on, off, base = of("hotpotqa"), of("hotpotqa", ("tree.enabled", False)), of("hotpotqa", ("tstar", False))
    np.testing.assert_array_equal(off.credit, base.credit)
    assert np.abs(on.credit - base.credit).max() > 0.1
    assert (
        off.metrics["base_gradient_norm"]
        == base.metrics["base_gradient_norm"]
        != on.metrics["base_gradient_norm"]
    )
    assert same_trees(on, off) and off.rectified == on.rectified, "trees still say where to graft"
    assert off.metrics["surgical_gradient_norm"] > 0
    assert not base.trees and "grafts" not in base.metrics and base.reference is None


def no_surgical_loss(of):
    on, off = of("hotpotqa"), of("hotpotqa", ("graft.surgical", False))
    assert off.rectified == on.rectified and off.metrics["grafts"] > 0, (
        "thoughts are written, counted and shown"
    )
    assert off.metrics["surgical_loss"] is None and off.metrics["surgical_gradient_norm"] is None
    assert (
        off.metrics["gradient_norm"] == off.metrics["base_gradient_norm"] == on.metrics["base_gradient_norm"]
    )
    assert on.metrics["gradient_norm"] != on.metrics["base_gradient_norm"]


def kl_over(of):
    action, turn = of("hotpotqa"), of("hotpotqa", ("tree.kl_over", "turn"))
    assert turn.metrics["kl_scored"] > 0 and turn.metrics["kl_scored"] != action.metrics["kl_scored"]
    assert not same_trees(action, turn)


def kl_estimator(of):
    drawn, exact = of("sokoban-easy"), of("sokoban-easy", ("tree.kl_estimator", "exact"))
    assert drawn.metrics["kl_contexts_sampled"] > 0
    assert exact.metrics["kl_contexts_sampled"] == 0 < exact.metrics["kl_scored"], (
        "actions are listed and scored, none is drawn"
    )


def same_parent(of):
    meeting = ("tree.history", "state")  # ways that part and come to one state again
    graph, strict = of("sokoban-easy", meeting), of("sokoban-easy", meeting, ("tree.same_parent", True))
    assert graph.metrics["tree_multi_parent_nodes"] > 0 == strict.metrics["tree_multi_parent_nodes"]
    assert strict.metrics["tree_nodes_after"] > graph.metrics["tree_nodes_after"]
    assert strict.metrics["kl_asked"] == graph.metrics["kl_asked"], (
        "the same is asked, the answers are cut up"
    )
    assert all(tree.stats()["edges"] == len(tree.nodes) - 1 for tree in strict.trees)


def history(of):
    sequence, state = of("sokoban-easy"), of("sokoban-easy", ("tree.history", "state"))
    for one, kind in ((sequence, "sequence"), (state, "state")):
        for group in one.groups:
            keys = history_keys(group.trajectories, kind)
            nodes = group.tree.nodes[1:] if group.tree is not None else ()
            assert all(len({keys[i][t] for i, t in node.members}) == 1 for node in nodes)
    assert not same_trees(sequence, state)


def eps_kl(of):
    nothing, usual, everything = (
        of("hotpotqa", ("tree.eps_kl", 0.0)),
        of("hotpotqa"),
        of("hotpotqa", ("tree.eps_kl", math.inf)),
    )
    counts = [o.metrics["tree_nodes_after"] for o in (nothing, usual, everything)]
    assert counts[0] > counts[1] >= counts[2]
    assert {o.metrics["tree_nodes_before"] for o in (nothing, usual, everything)} == {
        usual.metrics["tree_nodes_before"]
    }
    for group in everything.groups:  # whatever goes on after one history is one node
        keys = history_keys(group.trajectories, "sequence")
        going_on = {
            (t, keys[i][t])
            for i, member in enumerate(group.trajectories)
            for t in range(len(member.turns) - 1)
        }
        assert group.tree is None or sum(not node.ending for node in group.tree.nodes) == len(going_on) + 1


def delta(of):
    usual, none = of("hotpotqa"), of("hotpotqa", ("tree.delta", 1.0))
    least = min(usual.spreads)
    wider = of("hotpotqa", ("tree.delta", least))
    assert wider.spreads == [spread for spread in usual.spreads if spread > least > 0.3]
    assert none.spreads == [] and none.metrics["grafts"] == 0 < usual.metrics["grafts"]
    assert none.metrics["tree_divergent_nodes"] == 0 < usual.metrics["tree_divergent_nodes"]
    np.testing.assert_array_equal(none.credit, usual.credit)


def weight_of_the_surgical_loss(of):
    usual, double, nothing = (
        of("hotpotqa"),
        of("hotpotqa", ("graft.surgical_weight", 0.3)),
        of("hotpotqa", ("graft.surgical_weight", 0.0)),
    )
    for other, factor in ((double, 2.0), (nothing, 0.0)):
        assert other.metrics["surgical_gradient_norm"] == pytest.approx(
            factor * usual.metrics["surgical_gradient_norm"], rel=1e-4
        )
        assert (
            other.metrics["base_gradient_norm"] == usual.metrics["base_gradient_norm"]
            and other.rectified == usual.rectified
        )
        assert other.metrics["surgical_loss"] == usual.metrics["surgical_loss"], (
            "the figure is that of the loss before it is weighed"
        )
    assert nothing.metrics["gradient_norm"] == usual.metrics["base_gradient_norm"]


def beta(of):
    # Where policy and reference agree, the loss is ln 2 whatever beta is, and its gradient proportional to it.
    usual, double = of("hotpotqa"), of("hotpotqa", ("graft.dpo_beta", 0.2))
    assert (
        usual.metrics["surgical_loss"]
        == double.metrics["surgical_loss"]
        == pytest.approx(math.log(2), rel=1e-6)
    )
    assert double.metrics["surgical_gradient_norm"] == pytest.approx(
        2 * usual.metrics["surgical_gradient_norm"], rel=1e-4
    )
    assert double.metrics["base_gradient_norm"] == usual.metrics["base_gradient_norm"]


def keep(of):
    own, every = of("hotpotqa"), of("hotpotqa", ("graft.keep", "all"))
    assert own.metrics["graft_dataset_size"] == own.metrics["grafts"] > 0
    assert own.metrics == every.metrics, "the first draw from a set is of all that the iteration made"


def alpha(of):
    usual, stays, follows = (
        of("hotpotqa"),
        of("hotpotqa", ("graft.ref_ema_decay", 1.0)),
        of("hotpotqa", ("graft.ref_ema_decay", 0.0)),
    )
    assert (stays.reference - follows.reference).abs().max() > 1e-4, "the policy has moved"
    torch.testing.assert_close(
        usual.reference, 0.95 * stays.reference + 0.05 * follows.reference, rtol=1e-5, atol=1e-7
    )
    assert usual.metrics == stays.metrics == follows.metrics, "which only later iterations can show"


def verify(of):
    usual, checked = of("hotpotqa"), of("hotpotqa", ("graft.verify", True))
    assert all(g.verified is None for g in usual.grafts) and usual.metrics["grafts_played_on"] == 0
    lost = {t.group: group.trajectories for group in checked.groups for t in group.trajectories[:1]}
    assert all(g.verified > lost[g.group][g.worst_step[0]].earned for g in checked.grafts), (
        "a thought stays where it earned more"
    )
    assert (
        checked.metrics["turns_sampled"]
        >= usual.metrics["turns_sampled"] + checked.metrics["grafts_played_on"]
    )
    assert (
        checked.metrics["grafts_verified"] == checked.metrics["grafts"]
        and checked.metrics["grafts_played_on"] >= len(usual.grafts) > 0
    )
    assert len(checked.grafts) + checked.metrics["grafts_dropped"].get(
        "earned no more when played on", 0
    ) >= len(usual.grafts)


def nodes(of):
    depth, state = of("sokoban-easy"), of("sokoban-easy", ("tree.nodes", "state"))
    assert {tree.by for tree in state.trees} == {"state"} and {tree.by for tree in depth.trees} == {"depth"}
    assert state.metrics["tree_kl_calls"] == state.metrics["kl_asked"] == 0 < depth.metrics["tree_kl_calls"]
    for group in state.groups:
        if group.tree is not None:
            keys = [[t.start_key, *(step.state_key for step in t.steps[:-1])] for t in group.trajectories]
            visited = {key for row in keys for key in row}
            assert sum(not node.ending for node in group.tree.nodes) == len(visited)
            assert len(group.tree.root.members) == sum(row.count(row[0]) for row in keys), (
                "who comes back to the start visits it again"
            )
    for graft in state.grafts:
        assert graft.rectified != graft.rejected
    assert state.metrics["grafts"] > 0 and not np.array_equal(state.credit, depth.credit)


def credit(of):
    for way in (("tree.nodes", "depth"), ("tree.nodes", "state")):
        value, transition = of("sokoban-easy", way), of("sokoban-easy", way, ("tree.credit", "transition"))
        assert value.rectified == transition.rectified, "where to graft is the values' to say"
        assert not np.array_equal(value.credit, transition.credit)
        for one, other in zip(value.groups, transition.groups, strict=True):
            if one.tree is None:
                continue
            root, deviation = one.tree.root.value, np.std(one.tree.rewards, ddof=1) + 1e-6
            for row, trajectory in zip(
                other.tree.advantages(credit="transition"), one.trajectories, strict=True
            ):
                leaf = one.tree.node_of(trajectory.member, len(trajectory.steps) - 1).value
                assert row.sum() == pytest.approx((leaf - root) / deviation, abs=1e-9)


STATES = (("tree.nodes", "state"), ("tree.credit", "transition"), ("graft.enabled", False))
WAYS = (*STATES[:2], ("graft.source", "way"))
FORKS = (*STATES, ("tree.values", "bellman"), ("explore.share", 0.25))


def values(of):
    mean, solved = of("sokoban-easy", *STATES), of("sokoban-easy", *STATES, ("tree.values", "bellman"))
    assert len(mean.trees) == len(solved.trees) > 0 and not np.array_equal(mean.credit, solved.credit)
    for tree in solved.trees:
        assert tree.root.value == pytest.approx(tree.graph.values(tree.gamma)[tree.graph.start], abs=1e-12)


def way_imitated(of):
    off, on = of("sokoban-easy", *STATES), of("sokoban-easy", *WAYS)
    double, only = (
        of("sokoban-easy", *WAYS, ("graft.way_weight", 2.0)),
        of("sokoban-easy", *WAYS, ("graft.way_only", True)),
    )
    assert on.metrics["ways"] > 0 == on.metrics["grafts"] and on.reference is None
    found = 0
    for plain, imitated, twice, alone in zip(off.groups, on.groups, double.groups, only.groups, strict=True):
        extra = [b - a for a, b in zip(plain.advantages, imitated.advantages, strict=True)]
        for row, one in zip(extra, alone.advantages, strict=True):
            assert one == pytest.approx(row, abs=1e-12)
            found += np.count_nonzero(one)
        for a, b, c in zip(plain.advantages, extra, twice.advantages, strict=True):
            assert c == pytest.approx(a + 2 * b, abs=1e-12)
        if imitated.way is not None:
            worth = imitated.way.reward - np.mean([t.reward for t in imitated.trajectories])
            assert [extra[i][t] for i, t in imitated.way.steps] == pytest.approx(
                [worth] * len(imitated.way.steps)
            )
    assert found == sum(len(g.way.steps) for g in on.groups if g.way is not None)


def way_contrasted(of):
    on = of("sokoban-easy", *WAYS, ("graft.loss", "surgical"), ("tree.delta", 0.01))
    assert on.reference is not None and on.metrics["ways"] > 0
    off = of("sokoban-easy", *STATES)
    np.testing.assert_array_equal(on.credit, off.credit)
    for group in on.groups:
        steps = [] if group.way is None else group.way.steps
        assert {d.best_step for d in group.divergences} <= set(steps)


def both_sources(of):
    divergences, both = (
        of("sokoban-easy", *STATES[:2]),
        of("sokoban-easy", *STATES[:2], ("graft.source", "both")),
    )
    assert both.rectified == divergences.rectified and both.metrics["ways"] > 0
    assert both.metrics["surgical_loss"] == divergences.metrics["surgical_loss"]
    assert not np.array_equal(both.credit, divergences.credit)


def forks(of):
    off, on = of("sokoban-easy", *FORKS, ("explore.share", 0.0)), of("sokoban-easy", *FORKS)
    assert "forks" not in off.metrics and on.metrics["forks"] == sum(len(g.forks) for g in on.groups) > 0
    assert [len(g.trajectories) for g in on.groups] == [3] * len(on.groups), "a quarter is explored"
    for group in on.groups:
        assert [len(row) for row in group.advantages] == [len(t.turns) for t in group.members]
        assert group.horizon == 8
    rewards = [t.earned for g in on.groups for t in g.trajectories]
    assert on.metrics["reward"] == pytest.approx(np.mean(rewards)), (
        "figures are of the episodes from the start"
    )


def where_forks_begin(of):
    """In other states of the same episodes: with ``policy`` only where a listed action was not tried before."""
    begun = {}
    for where in ("reach", "uniform", "policy"):
        one = of("sokoban-easy", *FORKS, ("explore.where", where))
        begun[where] = [[(f.fork.state, f.fork.turn) for f in g.forks] for g in one.groups]
        assert sum(map(len, begun[where])) > 0
        for group in one.groups:
            for n, fork in enumerate(group.forks):
                first = group.members[: len(group.trajectories)]  # forks of a round are chosen together
                left = {key for t in first for key in (t.start_key, *(s.state_key for s in t.steps[:-1]))}
                assert fork.fork.state in left or n, "a known state"
    assert begun["reach"] != begun["uniform"] and begun["policy"] != begun["reach"]


def first_of_forks(of):
    """The same states; each fork begins with an action that no episode from the start took there, or does not come about."""
    policy = of("sokoban-easy", *FORKS)
    untried = of("sokoban-easy", *FORKS, ("explore.first", "untried"))
    assert not any(f.fork.untried for g in policy.groups for f in g.forks)
    assert sum(len(g.forks) for g in untried.groups) > 0
    for group in untried.groups:
        tried = {
            (before, step.action)
            for t in group.trajectories
            for before, step in zip([t.start_key, *(s.state_key for s in t.steps)], t.steps, strict=False)
        }
        for fork in group.forks:
            assert fork.fork.untried and (fork.fork.state, fork.steps[0].action) not in tried


def without_steps(one):
    """Advantages without the algorithm's own credit of steps, which turns of forks do not have."""
    found = []
    for group in one.groups:
        steps = one.algorithm.step_advantages(group.trajectories) or [
            np.zeros(len(t.turns)) for t in group.trajectories
        ]
        steps = [*steps, *(np.zeros(len(t.turns)) for t in group.forks)]
        found.append([whole - own for whole, own in zip(group.advantages, steps, strict=True)])
    return found


def weights_of_forks(of):
    equal, reach = of("sokoban-easy", *FORKS), of("sokoban-easy", *FORKS, ("explore.weights", "reach"))
    changed = 0
    for group, one, other in zip(reach.groups, without_steps(equal), without_steps(reach), strict=True):
        if group.tree is None:
            assert not any(row.any() for row in (*one, *other))
            continue
        graph = group.tree.graph
        reached = graph.reach(8)
        for step in graph.passages:
            i, t = step.member
            factor = 4 * reached[step.state] / graph.visits[step.state]
            assert other[i][t] == pytest.approx(factor * one[i][t], abs=1e-9)
            changed += abs(one[i][t]) > 0.01 < abs(factor - 1)
    assert changed > 0, "else nothing is tested"


def credit_of_actions(of):
    rows, graph = of("sokoban-easy", *FORKS), of("sokoban-easy", *FORKS, ("explore.credit", "graph"))
    assert not np.array_equal(rows.credit, graph.credit)
    credited = 0
    for group, credit in zip(graph.groups, without_steps(graph), strict=True):
        takers = set()
        for state, actions in [] if group.tree is None else group.tree.graph.tried().items():
            own = [group.tree.graph.taker(state, action) for action in actions]
            takers |= set(own)
            credits = [credit[i][t] for i, t in own]
            assert sum(credits) == pytest.approx(0.0, abs=1e-9), "what one action gains, the others lose"
            credited += sum(abs(a) > 0.01 for a in credits)
        for i, row in enumerate(credit):
            others = [a for t, a in enumerate(row) if (i, t) not in takers]
            assert others == pytest.approx([0.0] * len(others), abs=1e-9), "a row for each tried action"
    assert credited > 0, "else nothing is tested"


SWITCHES = (
    nodes,
    credit,
    values,
    way_imitated,
    way_contrasted,
    both_sources,
    forks,
    where_forks_begin,
    first_of_forks,
    weights_of_forks,
    credit_of_actions,
    no_grafting,
    no_q_tree,
    no_surgical_loss,
    kl_over,
    kl_estimator,
    same_parent,
    history,
    eps_kl,
    delta,
    weight_of_the_surgical_loss,
    beta,
    keep,
    alpha,
    verify,
)
MATRIX = [
    pytest.param(switch, algorithm, marks=[] if (0, 3, 4, 5)[n % 4] == m else pytest.mark.slow)
    for n, switch in enumerate(SWITCHES)
    for m, algorithm in enumerate(ALGORITHMS)
]


@pytest.mark.parametrize(("switch", "algorithm"), MATRIX)
def test_a_switch_has_its_effect(switch, algorithm):
    switch(partial(outcome, algorithm))


@pytest.mark.parametrize("algorithm", ["gigpo", pytest.param("hgpo", marks=pytest.mark.slow)])
def test_ecpos_shrinkage_changes_the_credit_of_steps_beside_the_trees(algorithm):
    of = partial(outcome, algorithm, "sokoban-easy", *STATES)
    plain, shrunk = of(), of((f"{algorithm}.shrink", 2.0), (f"{algorithm}.gate", 8.0))
    assert same_trees(plain, shrunk) and plain.metrics["reward"] == shrunk.metrics["reward"]
    for one, other in zip(without_steps(plain), without_steps(shrunk), strict=True):
        np.testing.assert_allclose(np.concatenate(other), np.concatenate(one), atol=1e-12)
    whole, less = [
        np.abs(o.credit - np.concatenate([row for own in without_steps(o) for row in own])).sum()
        for o in (plain, shrunk)
    ]
    assert 0 < less < whole, "by its evidence, so less"
    assert plain.metrics["base_gradient_norm"] != shrunk.metrics["base_gradient_norm"]


def test_ppo_by_turns_credits_all_tokens_of_a_turn_alike():
    of = partial(outcome, "ppo", "sokoban-easy", ("ppo.gamma", 0.9), ("ppo.lam", 0.9))
    by_token, by_turn = of(), of(("ppo.level", "turn"))
    assert by_token.metrics["reward"] == by_turn.metrics["reward"] and not by_turn.trees
    found = []
    for one in (by_token, by_turn):
        turns = []
        for row in one.rows:
            mask = np.array([0, *row.response_mask, 0])
            bounds = zip(np.flatnonzero(np.diff(mask) > 0), np.flatnonzero(np.diff(mask) < 0), strict=True)
            turns += [(row.advantages[a:b], row.returns[a:b]) for a, b in bounds]
        spread = max(max(advantages) - min(advantages) for advantages, _ in turns)
        targets = [sum(not math.isnan(r) for r in returns) for _, returns in turns]
        found.append((spread, targets, [len(returns) for _, returns in turns]))
    (spread, targets, lengths), (none, first, same) = found
    assert lengths == same and max(lengths) > 1
    assert none < 1e-9 < 1e-3 < spread
    assert targets == lengths and set(first) == {1}, "the critic learns one value a turn"
    assert by_token.metrics["value_loss"] != by_turn.metrics["value_loss"]
