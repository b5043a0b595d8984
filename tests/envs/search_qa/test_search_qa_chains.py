"""2WikiMultihopQA, MuSiQue and Bamboogle: rebuilt byte for byte, read anew from the graph, proofs that fail when they should."""

import dataclasses
import gzip
import hashlib
import itertools
import json
import re
from collections import Counter

import pytest

from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.generate import musique, two_wiki
from tstar_envs.envs.search_qa.generate.files import held_out_names, practice_set, questions_bytes
from tstar_envs.envs.search_qa.generate.graph import World
from tstar_envs.envs.search_qa.generate.questions import (
    KEPT_FOR_BAMBOOGLE,
    ChainProver,
    ProofFailed,
    Question,
    check_disjoint,
    is_join,
    runs,
)
from tstar_envs.envs.search_qa.generate.recipe import collect
from tstar_envs.envs.search_qa.generate.worlds import RICH, MiniWorld
from tstar_envs.envs.search_qa.search import EMBEDDED_BACKENDS
from tstar_envs.envs.search_qa.tasks import RICH_FOLDER, Hop, QASet, Task, load_set
from tstar_envs.utils import StableRandom

RECIPES = {
    recipe.question_set.name: recipe
    for recipe in (two_wiki.RECIPE, musique.MUSIQUE_RECIPE, musique.BAMBOOGLE_RECIPE)
}
SIZES = {
    "train": 2000,
    "valid": 500,
    "test": 1000,
}  # written out: the issue says so, whatever the generator says
LATER = re.compile(r"\b(later|last|younger|newer)\b")


@pytest.fixture(scope="module")
def mini() -> MiniWorld:
    return RICH.make()


@pytest.fixture(scope="module")
def prover(mini: MiniWorld) -> ChainProver:
    return ChainProver(mini)


@pytest.fixture(scope="module", params=sorted(RECIPES))
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def shipped(name: str) -> QASet:
    return load_set(name, "mini")


def splits_of(shipped: QASet) -> dict[str, list[Task]]:
    return {split: [shipped.tasks[i] for i in ids] for split, ids in shipped.by_split.items() if ids}


def question_of(task: Task) -> Question:
    answer, *aliases = task.golden_answers
    return Question(task.question, answer, task.kind, task.template, task.hops, tuple(aliases))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow) if n in ("musique", "2wikimultihopqa") else n
        for n in sorted(RECIPES)
    ],
)
def test_rebuilding_gives_the_shipped_bytes(name: str) -> None:
    folder, rebuilt = RICH_FOLDER / name, questions_bytes(RECIPES[name].build(RICH.seed)[1])
    manifest = json.loads((folder / "MANIFEST.json").read_text(encoding="utf-8"))
    assert {file: hashlib.sha256(data).hexdigest() for file, data in rebuilt.items()} == manifest[
        "sha256_uncompressed"
    ]
    assert f".generate {name} --seed {RICH.seed} " in manifest["made_by"]
    for file, data in rebuilt.items():
        assert gzip.decompress((folder / f"{file}.gz").read_bytes()) == data


def test_every_hop_is_what_the_graph_and_the_passage_say(shipped: QASet, mini: MiniWorld) -> None:
    """A reading of graph and passages that shares no code with the generator."""
    texts = dict(mini.corpus)
    facts = mini.world.facts
    names = {id_: e.name for id_, e in mini.world.entities.items()}
    for task in shipped.tasks.values():
        for hop in task.hops:
            value = facts[hop.passage, hop.relation]
            assert names.get(value, value) == hop.value and names[hop.passage] == hop.entity
            assert hop.entity in texts[hop.passage] and hop.value in texts[hop.passage]
        for position, hop in enumerate(task.hops):
            entity, before = mini.world.entities[hop.passage], [h.value for h in task.hops[:position]]
            if (
                hop.entity in task.question
            ):  # named by the question, with its kind where it may have a namesake
                assert entity.type != "work" or entity.kind in task.question
            elif hop.entity not in before:  # to be found by two values that were found before
                assert hop.queries[0] in {f"{one} {two}" for one in before for two in before}


def test_answers_follow_from_the_values(shipped: QASet, mini: MiniWorld) -> None:
    for task in shipped.tasks.values():
        if not task.kind.endswith("comparison"):
            assert (
                task.golden_answers[0] == task.hops[-1].value
                and task.golden_answers[0].lower() not in task.question.lower()
            )
            continue
        (one, two) = (task.hops[: len(task.hops) // 2], task.hops[len(task.hops) // 2 :])
        first, second = one[-1].value, two[-1].value
        if task.golden_answers[0] in ("yes", "no"):
            assert task.golden_answers == ("yes" if first == second else "no",)
        else:
            assert abs(int(first) - int(second)) >= 2
            earlier = one if int(first) < int(second) else two
            wanted = earlier if not LATER.search(task.question) else one if earlier is two else two
            assert task.golden_answers == (wanted[0].entity,), task.question


def test_sizes_kinds_and_guesses(name: str, shipped: QASet) -> None:
    splits = splits_of(shipped)
    assert {split: len(tasks) for split, tasks in splits.items()} == (
        {"test": 125} if name == "bamboogle" else SIZES
    )
    for tasks in splits.values():
        answers = Counter(t.golden_answers[0] for t in tasks)
        assert answers.pop("yes", 0) == answers.pop("no", 0)
        assert answers.most_common(1)[0][1] < 0.03 * len(tasks)
        assert len({t.question for t in tasks}) == len(tasks)
        compared = [
            t for t in tasks if t.kind.endswith("comparison") and t.golden_answers[0] not in ("yes", "no")
        ]
        assert (
            not compared
            or 0.4 < sum(t.golden_answers[0] == t.hops[0].entity for t in compared) / len(compared) < 0.6
        )
        shares = {kind: count / len(tasks) for kind, count in Counter(t.kind for t in tasks).items()}
        expected = Counter[str]()
        for kind, share in RECIPES[name].shares.items():
            expected[kind.partition(":")[0]] += share  # type: ignore[assignment]
        assert shares == pytest.approx(dict(expected), abs=0.01)
    check_disjoint(splits)
    if name != "musique":
        assert all(len(t.golden_answers) == 1 for t in shipped.tasks.values()), (
            "one golden answer, as in the public files"
        )
    else:
        assert any(len(t.golden_answers) > 1 for t in shipped.tasks.values())


def test_no_name_of_one_split_occurs_in_another_of_any_set() -> None:
    owner: dict[str, str] = {}
    for name in RECIPES:
        for split, tasks in splits_of(load_set(name, "mini")).items():
            for task in tasks:
                for text in (n for h in task.hops for n in (h.entity, h.value) if " " in n):
                    assert owner.setdefault(text, split) == split


def test_musique_shapes(mini: MiniWorld) -> None:
    lengths = {
        "2hop": [2],
        "3hop1": [3],
        "3hop2": [1, 1, 1],
        "4hop1": [4],
        "4hop2": [2, 1, 1],
        "4hop3": [1, 1, 2],
    }
    facts = mini.world.facts
    names = {id_: e.name for id_, e in mini.world.entities.items()}
    holders: dict[str, dict[str, set[str]]] = {}
    for (subject, relation), value in facts.items():
        holders.setdefault(relation, {}).setdefault(names.get(value, value), set()).add(subject)
    for task in load_set("musique", "mini").tasks.values():
        parts = runs(task.hops)
        assert [len(part) for part in parts] == lengths[task.kind]
        if len(parts) == 3:
            ends, joined = [part[-1].value for part in parts[:2]], parts[2][0]
            assert (
                is_join(joined)
                and joined.queries[0] == " ".join(ends)
                and joined.entity not in joined.queries[1]
            )
            sets = [set().union(*(found.get(end, set()) for found in holders.values())) for end in ends]
            assert sets[0] & sets[1] == {joined.passage}, "one entity has both"
            assert len(sets[0]) > 1 and len(sets[1]) > 1, "and each is needed"


def test_bamboogles_chains_are_its_own() -> None:
    def pairs(name: str) -> set[tuple[str, str, str]]:
        return {
            (re.sub(r"\d", "", one.passage), one.relation, two.relation)
            for task in load_set(name, "mini").tasks.values()
            for part in runs(task.hops)
            for one, two in itertools.pairwise(part)
        }

    own = pairs("bamboogle")
    assert len(own) >= 15 and {pair[:2] for pair in own} <= KEPT_FOR_BAMBOOGLE
    for other in ("hotpotqa", "2wikimultihopqa", "musique"):
        assert not own & pairs(other) and pairs(other)


def test_shipped_questions_are_proved(name: str, shipped: QASet, prover: ChainProver) -> None:
    tasks = (splits_of(shipped).get("valid") or splits_of(shipped)["test"])[
        :150
    ]  # all are, while they are rebuilt above
    assert not [t.id for t in tasks if RECIPES[name].rejection(prover, question_of(t))]


def of_kind(name: str, kind: str) -> Question:
    return question_of(next(t for t in load_set(name, "mini").tasks.values() if t.kind == kind))


def test_bad_chains_are_rejected(prover: ChainProver) -> None:
    replace, good = dataclasses.replace, of_kind("musique", "3hop1")
    assert musique.musique_rejection(prover, good) == ""
    assert musique.musique_rejection(prover, replace(good, answer="Nowhere Falls")) == "answer not unique"
    assert (
        musique.musique_rejection(prover, replace(good, text=f"{good.text} {good.answer}"))
        == "answer in question"
    )
    assert (
        musique.musique_rejection(prover, replace(good, text=f"{good.text} an alias", aliases=("Alias",)))
        == "answer in question"
    )
    assert (
        musique.musique_rejection(prover, replace(good, text=f"What about {good.hops[-1].entity}?"))
        == "one shot"
    )
    last = good.hops[-1]
    noise = " ".join(f"Velros Falls {word}" for word in ("river", "mayor", "country") * 20)
    lost = (*good.hops[:-1], replace(last, queries=(f"{last.entity} {noise}", noise)))
    assert musique.musique_rejection(prover, replace(good, hops=lost)) == "oracle cannot solve"
    wrong = (*good.hops[:-1], replace(last, value="1066"))
    assert musique.musique_rejection(prover, replace(good, hops=wrong, answer="1066")) == "answer not unique"


def test_a_fact_stated_twice_or_a_join_of_two_is_rejected(mini: MiniWorld) -> None:
    def prover_with(*words: str) -> ChainProver:
        id_, contents = mini.corpus[0]
        return ChainProver(
            MiniWorld(mini.world, [(id_, f"{contents} {' and '.join(words)}."), *mini.corpus[1:]])
        )

    good = of_kind("musique", "2hop")
    first = good.hops[0]
    assert (
        musique.musique_rejection(prover_with(first.entity, first.value), good) == "a hop is stated elsewhere"
    )
    assert (
        musique.musique_rejection(prover_with(first.entity, good.answer), good) == "a passage joins two hops"
    )
    joined = of_kind("musique", "3hop2")
    ends = [part[-1].value for part in runs(joined.hops)[:2]]
    assert musique.musique_rejection(prover_with(*ends), joined) == "answer not unique"


def test_bad_comparisons_are_rejected(prover: ChainProver) -> None:
    replace = dataclasses.replace
    for kind in ("comparison", "bridge_comparison"):
        tasks = [question_of(t) for t in load_set("2wikimultihopqa", "mini").tasks.values() if t.kind == kind]
        choice, either = (
            next(q for q in tasks if q.answer not in ("yes", "no")),
            next(q for q in tasks if q.answer in ("yes", "no")),
        )
        assert two_wiki.rejection(prover, choice) == two_wiki.rejection(prover, either) == ""
        assert two_wiki.rejection(prover, replace(choice, answer="Nobody")) == "answer does not follow"
        assert (
            two_wiki.rejection(prover, replace(either, answer="yes" if either.answer == "no" else "no"))
            == "answer does not follow"
        )
    deep = of_kind("2wikimultihopqa", "bridge_comparison")
    assert two_wiki.rejection(prover, replace(deep, text=f"Who is {deep.hops[1].entity}?")) == "one shot"


def test_too_few_candidates_fail_the_build() -> None:
    with pytest.raises(ProofFailed, match="x: only 0 of 5"):
        collect({"x": 5}, lambda kind: iter(()), lambda question: "")
    few = of_kind("musique", "2hop")
    with pytest.raises(ProofFailed, match="only 1 of 2"):
        collect({"x": 2}, lambda kind: iter([few, few]), lambda question: "")
    idle = dataclasses.replace(musique.MUSIQUE_RECIPE, draw=lambda *_: None)
    assert list(idle.candidates(World(), "train", "train", StableRandom(1), "2hop")) == []


@pytest.mark.parametrize("backend", EMBEDDED_BACKENDS)
@pytest.mark.parametrize("topk", [1, 3])
def test_the_expert_solves_them(name: str, backend: str, topk: int) -> None:
    split = "test" if name == "bamboogle" else "valid"
    env = SearchQAEnv(dataset=name, retriever=backend, topk=topk, split=split)
    assert env.horizon == (6 if name == "bamboogle" else 8)
    for task in env.task_ids()[:: 1 if name == "bamboogle" else 4]:
        env.reset(options={"task": task})
        while not env.snapshot().over:
            reply = env.oracle()
            assert reply is not None, task
            env.step(reply)
        assert env.snapshot().success, task


def test_the_expert_names_nobody_before_it_has_read_the_name() -> None:
    env = SearchQAEnv(dataset="musique", split="valid", topk=1)
    for task in env.task_ids():
        seen = env.reset(options={"task": task})[0]
        for paraphrase in range(4):
            reply = env.oracle(paraphrase) or ""
            names = {h.entity for h in env.task.hops if h.entity in reply}
            assert all(n in seen for n in names)
        while not env.snapshot().over:
            reply = env.oracle() or ""
            assert all(h.entity in seen for h in env.task.hops if h.entity in reply), (
                task,
                reply,
            )
            seen += env.step(reply)[0]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_practice(seed: int, name: str, shipped: QASet) -> None:
    qa_set, corpus = practice_set(seed, dataset=name)
    everything = "\n".join([c for _, c in corpus] + [t.question for t in qa_set.tasks.values()])
    assert not [n for n in held_out_names(name) if n in everything]
    held_out = {shipped.tasks[i].template for s in ("valid", "test") for i in shipped.by_split[s]}
    assert not {t.template for t in qa_set.tasks.values()} & held_out
    env = SearchQAEnv.practice(seed, dataset=name, topk=1)
    for task in env.task_ids("train"):
        env.reset(options={"task": task})
        while (reply := env.oracle()) is not None and not env.snapshot().over:
            env.step(reply)
        assert env.snapshot().success, task
    assert ("two to four" in env.prompt()) == (name != "bamboogle")


def test_a_hop_is_a_join_only_if_its_query_does_not_name_it() -> None:
    assert not is_join(Hop("Alvik Corbor", "father", "x", "person1", ("Alvik Corbor", "y")))
    assert is_join(Hop("Alvik Corbor", "father", "x", "person1", ("Velros Falls Alfin Press", "y")))
