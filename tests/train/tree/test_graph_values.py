"""Values solved on the graph of states, and ways through it (docs/tstar.md): against inverse matrices and enumeration."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tstar_train import make_config
from tstar_train.algorithms.tstar import TStar
from tstar_train.tree import StateGraph, Tree, Way, build_tree

EPS = 1e-6


@dataclass
class Step:
    state_key: str
    action: str
    thought: str = ""
    observation: str = "o"
    modifies_state: bool = True
    effect_key: str = "e"


@dataclass
class Fork:
    state: str
    turn: int = 1
    untried: bool = False
    stopped: bool = False


@dataclass
class Walk:
    """The states that an episode was in after each step, what it earned, whether the horizon cut it off, and its fork."""

    states: str
    reward: float = 0.0
    truncated: bool = False
    fork: Fork | None = None
    actions: str = ""
    steps: list[Step] = field(init=False)

    def __post_init__(self) -> None:
        actions = self.actions or self.states
        self.steps = [Step(letter, f"to {a}") for letter, a in zip(self.states, actions, strict=True)]


def solved(walks: Sequence[Walk], gamma: float = 0.95) -> Tree:
    return build_tree(walks, None, gamma=gamma, nodes="state", start_key="S", values="bellman")


@st.composite
def walks(draw: st.DrawFn, rewards: Sequence[float] = (0.0, 0.25, 1.0)) -> Walk:
    """Few letters, so that walks meet, loop and return to the start; some are cut off."""
    states = draw(st.text("Sabc", min_size=1, max_size=6))
    truncated = draw(st.booleans())
    earned = (0.0, 0.25) if truncated else rewards  # what is cut off may have shaping
    return Walk(states, draw(st.sampled_from(earned)), truncated)


@st.composite
def groups_with_forks(draw: st.DrawFn) -> list[Walk]:
    """Episodes from the start, then forks from states that were left before: stopped, with an untried first step, or both."""
    group: list[Walk] = draw(st.lists(walks(), min_size=2, max_size=6))
    for _ in range(draw(st.integers(0, 4))):
        known = sorted({state for walk in group for state in left_by(walk)})
        fork = Fork(draw(st.sampled_from(known)), untried=draw(st.booleans()))
        states = draw(st.text("Sabcde", min_size=1, max_size=4))
        if states[-1] in known and draw(st.booleans()):
            fork.stopped = True
            group.append(Walk(states, fork=fork))
        else:
            truncated = draw(st.booleans())
            reward = draw(st.sampled_from([0.0, 0.25] if truncated else [0.0, 0.25, 1.0]))
            group.append(Walk(states, reward, truncated, fork))
    return group


def left_by(walk: Walk) -> list[str]:
    """States that a walk's steps were taken in."""
    return ["S" if walk.fork is None else walk.fork.state, *walk.states[:-1]]


groups = groups_with_forks()
gammas = st.sampled_from([1.0, 0.95, 0.5])


def stopped(walk: Walk) -> bool:
    return walk.fork is not None and walk.fork.stopped


def untried(walk: Walk, t: int) -> bool:
    """Whether a step was chosen because nobody had tried it, so that it counts in no average."""
    return walk.fork is not None and walk.fork.untried and t == 0


def outcomes(
    group: Sequence[Walk], own: bool = True
) -> dict[str, list[tuple[str | None, float, tuple[int, int]]]]:
    """Per state what each step from it led to, word for word as the definition: (state, reward, member)."""
    left = {state for walk in group for state in left_by(walk)}
    found: dict[str, list[tuple[str | None, float, tuple[int, int]]]] = defaultdict(list)
    for i, walk in enumerate(group):
        for t, (before, after) in enumerate(zip(left_by(walk), walk.states, strict=True)):
            goes_on = t + 1 < len(walk.states) or ((walk.truncated or stopped(walk)) and after in left)
            if not (own and untried(walk, t)):
                found[before].append((after, 0.0, (i, t)) if goes_on else (None, walk.reward, (i, t)))
    return found


def true_values(group: Sequence[Walk], gamma: float, power: int = 1) -> dict[str, float]:
    """(I - gamma P)^-1 gamma r; at gamma 1, where that matrix may be singular, the limit of sweeps that begin at 0."""
    led = outcomes(group)
    names = list(led)
    moves, ends = np.zeros((len(names), len(names))), np.zeros(len(names))
    for s, name in enumerate(names):
        for after, reward, _ in led[name]:
            if after is None:
                ends[s] += reward**power / len(led[name])
            else:
                moves[s, names.index(after)] += 1 / len(led[name])
    if gamma < 1:
        values = np.linalg.inv(np.eye(len(names)) - gamma * moves) @ (gamma * ends)
    else:
        values = ends
        for _ in range(20):  # n sweeps become 2 n
            values, moves = values + moves @ values, moves @ moves
    return dict(zip(names, values.tolist(), strict=True))


@given(groups, gammas)
def test_values_are_those_of_the_inverse_matrix_and_a_fixed_point(group: list[Walk], gamma: float) -> None:
    tree, wanted, led = solved(group, gamma), true_values(group, gamma), outcomes(group)
    for i, walk in enumerate(group):
        for t, state in enumerate(left_by(walk)):
            value = tree.node_of(i, t - 1).value
            assert value == pytest.approx(wanted[state], abs=1e-12)
            back = [wanted[after] if after is not None else reward for after, reward, _ in led[state]]
            assert value == pytest.approx(gamma * sum(back) / len(back), abs=1e-9)


def divisor(group: Sequence[Walk]) -> float:
    """Spread of the rewards that credits are divided by; 0 where the policy's own steps lead to equal ones."""
    rewards = [walk.reward for walk in group]
    if all(walk.fork is None for walk in group):
        return float(np.std(rewards, ddof=1)) + EPS if len(set(rewards)) > 1 else 0.0
    led, reached, front = outcomes(group), {"S"}, ["S"]
    while front:
        into = {after for after, _, _ in led[front.pop()] if after is not None}
        front += into - reached
        reached |= into
    known = {
        walk.reward
        for walk in group
        if left_by(walk)[-1] in reached and not stopped(walk) and not untried(walk, len(walk.states) - 1)
    }
    first, second = (true_values(group, 1.0, power)["S"] for power in (1, 2))
    return math.sqrt(max(0.0, second - first**2)) + 0.1 if len(known) > 1 else 0.0


@given(groups, gammas)
def test_credits_are_what_a_step_gained_and_add_up(group: list[Walk], gamma: float) -> None:
    tree, value, spread = solved(group, gamma), true_values(group, gamma), divisor(group)
    # A variance of 0 is a difference of moments, so its root has half of the digits.
    digits = 1e-6 if any(walk.fork is not None for walk in group) else 0.0
    for walk, row in zip(group, tree.advantages(credit="transition"), strict=True):
        on = (walk.truncated or stopped(walk)) and walk.states[-1] in value
        path = [*(value[s] for s in left_by(walk)), value[walk.states[-1]] if on else walk.reward]
        gained = np.diff(path) / spread if spread else np.zeros(len(row))
        if untried(walk, 0):
            gained[0] = 0.0
        assert row == pytest.approx(gained, rel=digits, abs=1e-7)


@given(groups, gammas, st.randoms())
def test_the_order_of_trajectories_changes_nothing(group: list[Walk], gamma: float, shuffle: object) -> None:
    order = list(range(len(group)))
    shuffle.shuffle(order)  # type: ignore[attr-defined]
    plain, other = solved(group, gamma), solved([group[i] for i in order], gamma)
    before, after = plain.advantages(credit="transition"), other.advantages(credit="transition")
    for place, i in enumerate(order):
        assert np.array_equal(before[i], after[place])


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from([0.0, 1.0])), min_size=2, max_size=5), gammas)
def test_without_shared_states_it_is_the_mean(shapes: list[tuple[int, float]], gamma: float) -> None:
    group = [
        Walk("".join(chr(ord("A") + 7 * i + t) for t in range(length)), reward)
        for i, (length, reward) in enumerate(shapes)
    ]
    mean = build_tree(group, None, gamma=gamma, nodes="state", start_key="start")
    both = build_tree(group, None, gamma=gamma, nodes="state", start_key="start", values="bellman")
    for one, other in zip(
        both.advantages(credit="transition"), mean.advantages(credit="transition"), strict=True
    ):
        assert one == pytest.approx(other, abs=1e-9)


@given(
    st.lists(
        st.tuples(st.text("abc", min_size=4, max_size=4), st.sampled_from([0.0, 1.0])), min_size=2, max_size=6
    )
)
def test_a_layered_graph_has_the_values_of_the_tree_by_depth(drawn: list[tuple[str, float]]) -> None:
    """Letters of one depth merge, and only those: exact merging by depth gives the same recursion."""
    group = [
        Walk("".join(chr(ord(c) + 4 * t) for t, c in enumerate(states)), reward) for states, reward in drawn
    ]

    def kl(t: int, i: int, j: int) -> float:
        return 0.0 if group[i].states[t] == group[j].states[t] else 9.0

    for i, walk in enumerate(group):
        for t, step in enumerate(
            walk.steps
        ):  # ends merge by their histories: by state each is a leaf of its own
            step.effect_key, step.modifies_state = f"{i}", t == 3
    tree, layered = solved(group, 0.9), build_tree(group, kl, gamma=0.9)
    for i, walk in enumerate(group):
        for t in range(-1, len(walk.states) - 1):
            assert tree.node_of(i, t).value == pytest.approx(layered.node_of(i, t).value, abs=1e-9)


def test_the_worked_example() -> None:
    """S -> a -> b -> win beside S -> a -> S -> a cut off."""
    tree = solved([Walk("abW", 1.0), Walk("aSa", 0.0, truncated=True)])
    values = [tree.root.value, tree.node_of(0, 0).value, tree.node_of(0, 1).value]
    assert values == pytest.approx([0.7812, 0.8223, 0.95], abs=5e-5)
    assert tree.node_of(1, 2) is tree.node_of(0, 0), "the cut-off step leads to a"
    last = tree.advantages(credit="transition")[1][2]
    assert last == pytest.approx((values[1] - values[0]) / (np.std([1, 0], ddof=1) + EPS))


def test_a_full_context_is_an_end_of_its_own() -> None:
    """It is not marked as cut off, so its reward stands."""
    tree = solved([Walk("abW", 1.0), Walk("aSa", 0.0)])
    assert tree.node_of(1, 2).ending and tree.node_of(1, 2).value == 0.0


def test_without_a_discount_a_loop_without_an_end_is_worth_nothing() -> None:
    tree = solved([Walk("bW", 1.0), Walk("aaa", 0.0, truncated=True)], 1.0)
    assert tree.node_of(1, 0).value == 0.0 and tree.root.value == 0.5


def ways_by_enumeration(group: Sequence[Walk]) -> tuple[int, float] | None:
    """Length of the shortest path to the best ending, by trying all simple paths."""
    led = outcomes(group, own=False)
    rewards = [walk.reward for walk in group if not stopped(walk)]
    best = max((r for steps in led.values() for after, r, _ in steps if after is None), default=-math.inf)
    if best <= min(rewards):
        return None
    shortest = math.inf

    def walk_on(state: str, seen: tuple[str, ...]) -> None:
        nonlocal shortest
        for after, reward, _ in led[state]:
            if after is None and reward == best:
                shortest = min(shortest, len(seen))
            elif after is not None and after not in seen:
                walk_on(after, (*seen, after))

    walk_on("S", ("S",))
    return int(shortest), best


@given(groups)
@settings(max_examples=200)
def test_ways_are_the_shortest_of_all_paths(group: list[Walk]) -> None:
    way, wanted = solved(group).way(), ways_by_enumeration(group)
    assert (way is None) == (wanted is None)
    if way is None or wanted is None:
        return
    assert (len(way.steps), way.reward) == wanted
    at = "S"
    for n, (i, t) in enumerate(way.steps):  # each step begins where the one before led
        assert left_by(group[i])[t] == at
        at = group[i].states[t]
        last = t + 1 == len(group[i].states)
        assert last == (n + 1 == len(way.steps)) or (last and (group[i].truncated or stopped(group[i])))
    assert group[way.steps[-1][0]].reward == way.reward


def way_of(*group: Walk) -> Way | None:
    return solved(group).way()


def test_a_way_is_stitched_from_several_episodes() -> None:
    """One knew the short beginning and lost, the other went round and won."""
    way = way_of(Walk("abcdW", 1.0), Walk("dL", 0.0))
    assert way is not None and way.steps == ((1, 0), (0, 4)) and way.reward == 1.0


def test_ties_go_to_the_edge_with_more_passages_then_to_the_lowest_step() -> None:
    once, twice = Walk("aW", 1.0), Walk("bW", 1.0)
    lost = Walk("bL", 0.0)
    assert way_of(once, twice, lost) == Way(((1, 0), (1, 1)), 1.0, 1.0), (
        "b has two passages; the winner stands for the edge"
    )
    assert way_of(once, twice, Walk("cL", 0.0)) == Way(((0, 0), (0, 1)), 1.0, 1.0)
    assert way_of(twice, once, Walk("cL", 0.0)) == Way(((0, 0), (0, 1)), 1.0, 1.0)


def test_graded_rewards_lead_to_the_best_one() -> None:
    way = way_of(Walk("W", 0.25), Walk("abcW", 0.75), Walk("bL", 0.5))
    assert way is not None and way.reward == 0.75 and way.steps == ((2, 0), (1, 2), (1, 3))


@dataclass
class Shaped(Walk):
    """A walk whose reward has shaping, or a penalty, beside its terminal reward."""

    ending: float = 0.0


def test_the_best_ending_is_that_of_the_terminal_reward() -> None:
    """The lost walk with the most shaping is no example, and a penalty for length makes no other ending."""
    lost = Shaped("aL", 0.2, ending=0.0), Shaped("bL", 0.0, ending=0.0)
    assert solved(lost).way() is None and not solved(lost).zero_variance
    assert way_of(*lost, Shaped("cdW", 0.9, ending=1.0), Shaped("eW", 0.8, ending=1.0)) == Way(
        ((3, 0), (3, 1)), 0.9, 1.0
    )


def test_a_group_that_is_cut_off_in_known_states_alone_has_no_way() -> None:
    """Shaping tells their rewards apart, and no step ends anything."""
    tree = solved([Walk("aSa", 0.25, truncated=True), Walk("aSa", 0.0, truncated=True)])
    assert not tree.zero_variance and tree.way() is None and tree.root.value == 0.0


@given(st.lists(walks(rewards=[1.0]), min_size=2, max_size=4))
def test_equal_endings_have_no_way(group: list[Walk]) -> None:
    won = [Walk(walk.states, 1.0) for walk in group]
    assert solved(won).way() is None and not any(
        row.any() for row in solved(won).advantages(credit="transition")
    )


def forked(*group: Walk) -> StateGraph:
    return StateGraph(group, "S")


def test_a_fork_that_stops_leads_to_the_state_and_has_no_reward() -> None:
    group = [Walk("abW", 1.0), Walk("cL", 0.0), Walk("xb", fork=Fork("a", stopped=True))]
    graph = forked(*group)
    assert graph.endings == [1.0, 0.0]
    assert graph.values(1.0)[graph.keys.index("x")] == 1.0, "x leads to b, from where the other won"
    assert graph.moments() == pytest.approx((0.5, 0.5))
    tree = solved(group)
    assert tree.rewards == (1.0, 0.0, 1.0) and tree.mean_reward == 0.5
    rows = tree.advantages(credit="transition")
    value = dict(zip(graph.keys, graph.values(0.95), strict=True))
    assert rows[2] == pytest.approx(np.array([value["x"] - value["a"], value["b"] - value["x"]]) / 0.6)


def test_a_graph_is_as_deep_as_its_forks_reach() -> None:
    group = [Walk("abW", 1.0), Walk("aL", 0.0), Walk("xyzL", fork=Fork("b", turn=2))]
    assert solved(group).stats()["depth"] == 6 and solved(group[:2]).stats()["depth"] == 3


def test_visits_of_forks_count_like_all_others() -> None:
    """From a one episode won and one lost; the fork lost too."""
    graph = forked(Walk("aW", 1.0), Walk("aL", 0.0), Walk("L", 0.0, fork=Fork("a")))
    assert graph.values(1.0)[graph.keys.index("a")] == pytest.approx(1 / 3)
    assert graph.reach(10)[graph.keys.index("a")] == pytest.approx(1.0) and graph.visits.tolist() == [
        2.0,
        3.0,
    ]


def test_an_untried_first_step_belongs_to_the_graph_but_counts_in_no_average() -> None:
    group = [Walk("aL", 0.0), Walk("aL", 0.0), Walk("xW", 1.0, fork=Fork("a", untried=True))]
    graph, tree = forked(*group), solved(group)
    assert graph.values(1.0)[graph.keys.index("a")] == 0.0 and graph.moments() == (0.0, 0.0)
    way = tree.way()
    assert way is not None and way.steps == ((0, 0), (2, 0), (2, 1)) and way.reward - tree.mean_reward == 1.0
    assert not any(row.any() for row in tree.advantages(credit="transition")), (
        "only an untried edge leads there"
    )
    assert not tree.zero_variance


def test_an_untried_step_that_lost_gives_winners_nothing_to_compare() -> None:
    """With a discount the winners' steps differ in value, and yet all that the policy did earned the same."""
    group = [Walk("aW", 1.0), Walk("bcW", 1.0), Walk("L", 0.0, fork=Fork("a", untried=True))]
    assert not any(row.any() for row in solved(group).advantages(credit="transition"))
    drawn = [*group[:2], Walk("L", 0.0, fork=Fork("a"))]
    assert any(row.any() for row in solved(drawn).advantages(credit="transition"))


def test_an_untried_step_has_no_credit_where_the_policy_learns() -> None:
    group = [Walk("aL", 0.0), Walk("aW", 1.0), Walk("xL", 0.0, fork=Fork("a", untried=True))]
    rows = solved(group).advantages(credit="transition")
    assert rows[2][0] == 0.0 and rows[1][1] > 0 > rows[0][1]


def test_a_fork_that_stopped_is_the_last_to_stand_for_an_edge() -> None:
    group = [Walk("cL", 0.0), Walk("abW", 1.0), Walk("acL", 0.0), Walk("b", fork=Fork("a", stopped=True))]
    way = way_of(*group)
    assert way is not None and way.steps == ((1, 0), (1, 1), (1, 2))


@given(groups, st.integers(2, 12))
def test_reach_is_the_expected_number_of_visits(group: list[Walk], horizon: int) -> None:
    """Against the walk of all probabilities, state by state."""
    led, graph = outcomes(group), StateGraph(group, "S")
    total: defaultdict[str, float] = defaultdict(float)
    now = {"S": 1.0}
    for _ in range(horizon - 1):
        after: defaultdict[str, float] = defaultdict(float)
        for state, share in now.items():
            total[state] += share
            for into, _, _ in led[state]:
                if into is not None:
                    after[into] += share / len(led[state])
        now = dict(after)
    assert graph.reach(horizon) == pytest.approx([total[key] for key in graph.keys], abs=1e-12)


def test_what_cannot_be_a_graph_is_refused() -> None:
    with pytest.raises(ValueError, match="forks alone"):
        solved([Walk("a", fork=Fork("b")), Walk("b", fork=Fork("b"))])
    with pytest.raises(ValueError, match="trajectory 1 is a fork from state 'q', which nobody else was in"):
        solved([Walk("ab", 1.0), Walk("c", fork=Fork("q"))])
    with pytest.raises(ValueError, match="fork 1 stopped in state 'z', which nobody left"):
        solved([Walk("ab", 1.0), Walk("z", fork=Fork("a", stopped=True))])
    with pytest.raises(ValueError, match="values is 'sum'"):
        build_tree([Walk("ab", 1.0)], None, nodes="state", values="sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a group with forks needs 'bellman'"):
        build_tree([Walk("ab", 1.0), Walk("c", fork=Fork("a"))], None, nodes="state", start_key="S")


@given(groups, st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_the_weights_of_actions_are_the_gradient_of_the_start_value(group: list[Walk], seed: int) -> None:
    """Against the numeric derivative of V(start) by each logit, where no walk is cut off; gamma 1, no horizon to speak of."""
    group = [Walk(walk.states, walk.reward, fork=walk.fork, actions=walk.states) for walk in group]
    graph, random = StateGraph(group, "S"), np.random.default_rng(seed)
    logits = {(s, a): random.normal() for s, actions in graph.tried().items() for a in actions}

    def chances(logits: dict[tuple[int, str], float]) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = defaultdict(dict)
        for (s, a), logit in logits.items():
            found[s][a] = math.exp(logit)
        return found

    def start_value(logits: dict[tuple[int, str], float]) -> float:
        """By many sweeps."""
        moves, ends = np.zeros((len(graph.keys), len(graph.keys))), np.zeros(len(graph.keys))
        for s, own in chances(logits).items():
            for a, chance in own.items():
                steps = [p for p in graph.passages if p.state == s and p.action == a]
                for p in steps:
                    part = chance / sum(own.values()) / len(steps)
                    if p.next is None:
                        ends[s] += part * p.reward
                    else:
                        moves[s, p.next] += part
        value = np.zeros(len(graph.keys))
        for _ in range(2000):
            value = ends + moves @ value
        return float(value[graph.start])

    first = start_value(logits)
    if not 0.02 < first < 0.98:
        return
    spread = math.sqrt(first * (1 - first)) + 0.1
    found = graph.advantages_of_actions(chances(logits), 1.0, 3000)
    (key,) = random.choice(len(logits), 1)
    name = list(logits)[key]
    up = start_value({**logits, name: logits[name] + 1e-4})
    down = start_value({**logits, name: logits[name] - 1e-4})
    assert found[name] * spread == pytest.approx((up - down) / 2e-4, abs=1e-4)


def test_actions_that_only_forks_tried_have_their_weight() -> None:
    group = [Walk("aL", 0.0), Walk("aL", 0.0), Walk("xW", 1.0, fork=Fork("a", untried=True))]
    graph = StateGraph(group, "S")
    a = graph.keys.index("a")
    weights = graph.advantages_of_actions({a: {"to L": 0.9, "to x": 0.1}}, 1.0, 10)
    assert weights[a, "to x"] == pytest.approx(0.1 * 0.9 / (math.sqrt(0.09) + 0.1))
    assert weights[a, "to L"] == pytest.approx(-0.9 * 0.1 / (math.sqrt(0.09) + 0.1))
    assert graph.taker(a, "to x") == (2, 0) and graph.tried()[a] == ["to L", "to x"]


def test_contrasts_are_worse_actions_beside_the_way() -> None:
    """At S the way's action is good; the worse of two others stands, by its worst trajectory."""
    group = [Walk("aW", 1.0), Walk("aW", 1.0), Walk("bV", 0.25), Walk("cL", 0.0), Walk("cL", 0.0)]
    tree = solved(group)
    way = tree.way()
    assert way is not None and way.steps == ((0, 0), (0, 1))
    (found,) = tree.contrasts(way, 0.3)
    assert (found.best_step, found.worst_step) == ((0, 0), (3, 0)) and (
        found.best_count,
        found.worst_count,
    ) == (2, 2)
    assert found.spread == pytest.approx(0.95) and found.node is tree.root
    assert tree.contrasts(way, 0.96) == []


@given(groups, gammas, st.sampled_from([0.0, 0.05, 0.3]))
@settings(max_examples=200)
def test_contrasts_are_those_of_enumeration(group: list[Walk], gamma: float, delta: float) -> None:
    tree = solved(group, gamma)
    way = tree.way()
    if way is None:
        return
    values, led = true_values(group, gamma), outcomes(group, own=False)
    wanted = []
    for i, t in way.steps:
        worth: dict[str, list[float]] = defaultdict(list)
        by: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for after, reward, (j, u) in led[left_by(group[i])[t]]:
            worth[group[j].steps[u].action].append(reward if after is None else values[after])
            by[group[j].steps[u].action].append((j, u))
        quality = {action: round(float(np.mean(each)), 9) for action, each in worth.items()}
        mine = group[i].steps[t].action
        lower = [a for a in quality if a != mine and round(quality[mine] - quality[a], 9) > delta]
        if lower:
            worst = min(lower, key=lambda a: (quality[a], -len(by[a]), min(by[a])))
            loser = min(by[worst], key=lambda m: (stopped(group[m[0]]), group[m[0]].reward, m))
            counts = [len({j for j, _ in by[a]}) for a in (mine, worst)]
            wanted.append(((i, t), loser, *counts, quality[mine] - quality[worst]))
    found = tree.contrasts(way, delta)
    assert [(c.best_step, c.worst_step, c.best_count, c.worst_count) for c in found] == [
        w[:4] for w in wanted
    ]
    assert [c.spread for c in found] == pytest.approx([w[4] for w in wanted], abs=1e-8)


def test_a_difference_of_exactly_delta_is_no_divergence() -> None:
    """1 - .7 is a little more than .3 in floating point."""
    tree = solved([Walk("aW", 1.0), Walk("bV", 0.7)], 1.0)
    way = tree.way()
    assert way is not None and tree.contrasts(way, 0.3) == [] and tree.divergences(0.3) == []
    assert len(tree.contrasts(way, 0.29)) == len(tree.divergences(0.29)) == 1


def test_a_way_that_ends_below_the_mean_is_not_pushed_away() -> None:
    """The best terminal reward, with the penalty for a reply that is too long."""
    group = [Shaped("aW", 0.1, ending=0.8), *(Shaped("bL", 0.5, ending=0.5) for _ in range(3))]
    tree = solved(group)
    way = tree.way()
    assert way is not None and way.steps == ((0, 0), (0, 1)) and way.reward < tree.mean_reward
    config = make_config("sokoban-easy", graft={"source": "way"})
    credit = [np.zeros(2) for _ in group]
    assert not any(row.any() for row in TStar(config, *[None] * 4).imitate(tree, way, credit))  # type: ignore[arg-type]
    assert not np.array_equal(
        TStar(config, *[None] * 4).imitate(tree, way._replace(reward=0.9), credit)[0], np.zeros(2)
    )  # type: ignore[arg-type]
