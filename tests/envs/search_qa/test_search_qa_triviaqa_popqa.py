"""TriviaQA and PopQA of the mini tier: rebuilt byte for byte, read against the whole graph, proofs that fail when they should."""

import dataclasses
import gzip
import hashlib
import json
import re
from collections import Counter, defaultdict

import pytest

from tstar_envs import UnknownOption
from tstar_envs.envs.search_qa.env import SearchQAEnv
from tstar_envs.envs.search_qa.generate import single_facts, triviaqa
from tstar_envs.envs.search_qa.generate.files import held_out_names, practice_set, questions_bytes
from tstar_envs.envs.search_qa.generate.questions import (
    MOST_FORMS,
    ProofFailed,
    Prover,
    Question,
    accepted_answers,
    ill_formed,
)
from tstar_envs.envs.search_qa.generate.worlds import RICH, MiniWorld
from tstar_envs.envs.search_qa.question_sets import NORMALIZERS, normalize_answer
from tstar_envs.envs.search_qa.search import EMBEDDED_BACKENDS
from tstar_envs.envs.search_qa.tasks import RICH_FOLDER, QASet, Task, load_set

MAKERS = {"triviaqa": triviaqa.build, "popqa": single_facts.build_popqa}


@pytest.fixture(scope="module")
def mini() -> MiniWorld:
    return RICH.make()


@pytest.fixture(scope="module")
def prover(mini: MiniWorld) -> Prover:
    return Prover(mini)


@pytest.fixture(scope="module")
def trivia() -> QASet:
    return load_set("triviaqa", "mini")


@pytest.fixture(scope="module")
def tail() -> QASet:
    return load_set("popqa", "mini")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "triviaqa" else n for n in MAKERS]
)
def test_rebuilding_gives_the_shipped_bytes(name: str) -> None:
    rebuilt = questions_bytes(MAKERS[name]()[1])
    folder = RICH_FOLDER / name
    manifest = json.loads((folder / "MANIFEST.json").read_text(encoding="utf-8"))
    assert {file: hashlib.sha256(data).hexdigest() for file, data in rebuilt.items()} == manifest[
        "sha256_uncompressed"
    ]
    for file, data in rebuilt.items():
        assert gzip.decompress((folder / f"{file}.gz").read_bytes()) == data


def test_clues_fix_the_answer_only_together(trivia: QASet, mini: MiniWorld) -> None:
    """Each question against the sets of entities of each value, which share no code with the generator."""
    facts, entities = mini.world.facts, mini.world.entities
    assert {s: len(ids) for s, ids in trivia.by_split.items()} == {"train": 2000, "valid": 500, "test": 1000}
    having, of_kind, of_type = (defaultdict[object, set[str]](set) for _ in range(3))  # sets of ids
    for (id_, relation), value in facts.items():
        having[relation, value].add(id_)
    for id_, entity in entities.items():
        of_kind[entity.kind].add(id_)
        of_type[entity.type].add(id_)
    kinds: set[str] = set()
    for task in trivia.tasks.values():
        (hop,) = task.hops
        relations = task.template.split("/")[1].split("-")[1:]
        clues = [(relation, facts[hop.passage, relation]) for relation in relations]

        def fitting(
            chosen: list[tuple[str, str]], among: set[str] = of_kind[entities[hop.passage].kind]
        ) -> set[str]:
            return among.intersection(*(having[clue] for clue in chosen))

        assert fitting(clues) == {hop.passage}
        needs_kind = len(fitting(clues, of_type[entities[hop.passage].type])) > 1
        assert int(task.kind[-1]) == len(clues) + needs_kind in (2, 3)
        for left_out in clues:
            assert len(fitting([c for c in clues if c != left_out])) > 1, task.id
        for relation, _ in clues:
            assert mini.world.object_name(hop.passage, relation) in task.question
        kinds.add(task.kind)
        assert f" {entities[hop.passage].kind} " in task.question
        assert task.golden_answers[0] == entities[hop.passage].name == hop.value and len(hop.queries) == 2
    assert kinds == {"person-2", "work-2", "work-3", "city-2"}


def test_no_golden_answer_means_anything_else(trivia: QASet, tail: QASet, mini: MiniWorld) -> None:
    answers = accepted_answers(mini.world)
    owner: dict[str, str] = {}
    for id_, entity in mini.world.entities.items():
        forms = answers(id_)
        assert forms[0] == entity.name and len(forms) <= MOST_FORMS and not ill_formed(forms)
        for form in forms[1:]:
            assert owner.setdefault(normalize_answer(form), id_) == id_
    names = {normalize_answer(entity.name): entity.name for entity in mini.world.entities.values()}
    for task in (*trivia.tasks.values(), *tail.tasks.values()):
        for alias in task.golden_answers[1:]:
            assert names.get(normalize_answer(alias), task.golden_answers[0]) == task.golden_answers[0]
        for normalize in NORMALIZERS.values():
            forms = [normalize(answer) for answer in task.golden_answers]
            assert all(forms) and len(set(forms)) == len(forms)
            assert not any(form in normalize(task.question) for form in forms), task.id
    assert {len(t.golden_answers) for t in trivia.tasks.values()} <= set(range(3, 13))


def test_splits_share_neither_answer_nor_template_nor_frequent_answer(trivia: QASet, tail: QASet) -> None:
    splits = {split: [trivia.tasks[i] for i in ids] for split, ids in trivia.by_split.items()}
    triviaqa.check_disjoint(splits)
    for tasks in (*splits.values(), list(tail.tasks.values())):
        assert Counter(t.golden_answers[0] for t in tasks).most_common(1)[0][1] < 0.03 * len(tasks)
    for tasks in splits.values():
        assert len({t.question for t in tasks}) == len(tasks)
    moved = dataclasses.replace(splits["train"][0], template="new", split="test")
    with pytest.raises(ProofFailed, match="occurs in"):
        triviaqa.check_disjoint({"train": splits["train"], "test": [moved]})


def as_question(task: Task) -> Question:
    name, *aliases = task.golden_answers
    return Question(task.question, name, task.kind, task.template, task.hops, tuple(aliases), task.popularity)


def test_bad_clue_questions_are_rejected(trivia: QASet, mini: MiniWorld, prover: Prover) -> None:
    index, replace = triviaqa.ClueIndex(mini.world), dataclasses.replace
    good = next(as_question(t) for t in trivia.tasks.values() if t.kind == "person-2")
    relations = good.template.split("/")[1].split("-")[1:]
    (hop,) = good.hops
    assert triviaqa.rejection(mini, prover, index, good, relations) == ""
    assert "do not fix" in triviaqa.rejection(mini, prover, index, good, relations[:1])
    more = [
        *relations,
        next(
            r
            for s, r in mini.world.facts
            if s == hop.passage and r in triviaqa.CLUES["person"] and r not in relations
        ),
    ]
    assert "not needed" in triviaqa.rejection(mini, prover, index, good, more)
    assert (
        triviaqa.rejection(mini, prover, index, replace(good, answer="Somebody Else"), relations)
        == "a namesake"
    )
    assert "too few aliases" in triviaqa.rejection(mini, prover, index, replace(good, aliases=()), relations)
    assert "equal ones" in triviaqa.rejection(
        mini, prover, index, replace(good, aliases=("The " + good.answer, "x")), relations
    )
    revealing = replace(good, text=f"{good.text} {good.aliases[0]}")
    assert triviaqa.rejection(mini, prover, index, revealing, relations) == "answer in question"
    lost = replace(good, hops=(replace(hop, queries=("qqqq", "zzzz")),))
    assert triviaqa.rejection(mini, prover, index, lost, relations) == "oracle cannot solve"
    objects = ", ".join(mini.world.object_name(hop.passage, r) for r in relations)
    repeated = MiniWorld(
        mini.world, [(mini.corpus[0][0], f"{mini.corpus[0][1]} {objects}."), *mini.corpus[1:]]
    )
    assert "another passage" in triviaqa.rejection(repeated, Prover(repeated), index, good, relations)


def test_popqa_asks_for_the_tail_in_fixed_forms(tail: QASet, mini: MiniWorld) -> None:
    assert {s: len(ids) for s, ids in tail.by_split.items()} == {"train": 0, "valid": 0, "test": 1000}
    forms = [re.compile(re.escape(form).replace(r"\{X\}", "(.+)")) for _, form in single_facts.FORMS.values()]
    world = mini.world
    for task in tail.tasks.values():
        (hop,) = task.hops
        named = {match.group(1) for form in forms if (match := form.fullmatch(task.question))}
        assert hop.entity in named and task.popularity == world.entities[hop.passage].popularity > 0
        assert world.object_name(hop.passage, hop.relation) == task.golden_answers[0]
        twins = [
            i for i, e in world.entities.items() if e.name == hop.entity and (i, hop.relation) in world.facts
        ]
        kinds = {
            kind
            for (kind, relation), (name, _) in single_facts.FORMS.items()
            if (relation, name) == (hop.relation, task.kind)
        }
        assert [i for i in twins if world.entities[i].kind in kinds] == [hop.passage]
    asked = {(t.hops[0].passage, t.hops[0].relation) for t in tail.tasks.values()}
    assert len(asked) == 1000 and len({t.kind for t in tail.tasks.values()}) == 10
    best_known = sorted((e.popularity for e in world.entities.values() if e.region == "test"), reverse=True)
    assert max(t.popularity for t in tail.tasks.values()) <= best_known[0]


def test_bad_tail_questions_are_rejected(tail: QASet, mini: MiniWorld, prover: Prover) -> None:
    replace = dataclasses.replace
    good = next(as_question(t) for t in tail.tasks.values() if t.kind == "father")
    (hop,) = good.hops
    assert single_facts.popqa_rejection(mini, prover, good) == ""
    twin = replace(mini.world.entities[hop.passage], id="person99999")
    doubled = MiniWorld(replace(mini.world, entities={**mini.world.entities, twin.id: twin}), mini.corpus)
    assert single_facts.popqa_rejection(doubled, prover, good) == "answer not unique"
    assert (
        single_facts.popqa_rejection(mini, prover, replace(good, aliases=(good.answer,)))
        == "aliases equal or empty"
    )
    assert (
        single_facts.popqa_rejection(mini, prover, replace(good, text=f"{good.text} {good.answer}"))
        == "answer in question"
    )
    assert (
        single_facts.popqa_rejection(
            mini, prover, replace(good, hops=(replace(hop, queries=("qqqq", "zzzz")),))
        )
        == "oracle cannot solve"
    )


@pytest.mark.parametrize("backend", EMBEDDED_BACKENDS)
@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize(("name", "split"), [("triviaqa", "valid"), ("popqa", "test")])
def test_the_expert_solves_them(name: str, split: str, backend: str, topk: int) -> None:
    env = SearchQAEnv(dataset=name, retriever=backend, topk=topk, split=split)
    for task in env.task_ids()[:400]:
        env.reset(options={"task": task})
        while not env.snapshot().over:
            reply = env.oracle()
            assert reply is not None
            env.step(reply)
        assert env.snapshot().success, task


def test_every_alias_is_right(trivia: QASet) -> None:
    env = SearchQAEnv(dataset="triviaqa")
    for task in trivia.by_split["test"][:50]:
        for answer in trivia.tasks[task].golden_answers:
            env.reset(options={"task": task})
            assert env.step(f"finish[{answer}]")[1] == 1.0


@pytest.mark.parametrize("name", list(MAKERS))
def test_practice(name: str, trivia: QASet) -> None:
    qa_set, corpus = practice_set(7, dataset=name)
    assert len(qa_set.tasks) >= 100
    everything = "\n".join([c for _, c in corpus] + [t.question for t in qa_set.tasks.values()])
    assert not [held for held in held_out_names(name) if held in everything]
    held_out = {trivia.tasks[i].template for s in ("valid", "test") for i in trivia.by_split[s]}
    assert not {t.template for t in qa_set.tasks.values()} & held_out
    env = SearchQAEnv.practice(7, dataset=name)
    assert env.horizon == 4 and "one passage" in env.prompt()
    for task in env.task_ids("train"):
        env.reset(options={"task": task})
        while (reply := env.oracle()) is not None:
            env.step(reply)
        assert env.snapshot().success, "practice is proved too"


def test_popqa_has_one_split() -> None:
    for wrong in ("train", "valid"):
        with pytest.raises(UnknownOption, match=f"split must be one of 'test' .*, got '{wrong}'"):
            SearchQAEnv(dataset="popqa", split=wrong)
    assert SearchQAEnv.survey(dataset="popqa") == ("mini", {"test": 1000})
    env = SearchQAEnv(dataset="popqa")
    with pytest.raises(UnknownOption, match="'train'"):
        env.demonstrations(1)
