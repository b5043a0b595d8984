"""Questions: look-ups, chains of facts, accepted answers, and proofs of fitness."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tstar_envs.envs.search_qa.generate import graph, passages, templates
from tstar_envs.envs.search_qa.generate.graph import REAL_NAMES, WORK_KINDS, Entity, World
from tstar_envs.envs.search_qa.generate.worlds import MiniWorld
from tstar_envs.envs.search_qa.question_sets import NORMALIZERS, normalize_answer
from tstar_envs.envs.search_qa.search import EMBEDDED_BACKENDS, EmbeddedSearcher
from tstar_envs.envs.search_qa.tasks import Hop, Searcher, Task
from tstar_envs.utils import StableRandom

SMALLEST_MARGIN = 2  # minimum years between compared values


@dataclass(frozen=True, slots=True)
class Question:
    """Question with its golden answer and look-ups.

    Attributes:
        text: text of the question.
        answer: the golden answer.
        kind: type of question; HotpotQA's are ``KINDS``.
        template: id of its wording.
        hops: the look-ups, in order.
        aliases: other golden answers.
        popularity: popularity of the entity in question, 0 if the set does not use it.
    """

    text: str
    answer: str
    kind: str
    template: str
    hops: tuple[Hop, ...]
    aliases: tuple[str, ...] = ()
    popularity: int = 0

    def task(self, id_: str, split: str) -> Task:
        """Convert to a task."""
        golden = (self.text, (self.answer, *self.aliases))
        return Task(id_, split, *golden, self.kind, self.template, self.hops, self.popularity)


def hop(world: World, entity: Entity, relation: str) -> Hop:
    """Create the look-up of one fact; the second query adds the kind, which distinguishes namesakes."""
    queries = (
        entity.name,
        f"{entity.name} {entity.kind if entity.type == 'work' else relation.replace('_', ' ')}",
    )
    return Hop(entity.name, relation, world.object_name(entity.id, relation), entity.id, queries)


MOST_FORMS = 12


def accepted_answers(world: World) -> Callable[[str], tuple[str, ...]]:
    """Create a function from entity id to golden answers, the name first, at most ``MOST_FORMS``."""
    candidates = {
        id_: _distinct([entity.name, *entity.aliases, *_other_forms(world, entity)])
        for id_, entity in world.entities.items()
    }
    owners = Counter(normalize_answer(form) for forms in candidates.values() for form in forms)

    def forms(id_: str) -> tuple[str, ...]:
        name, *others = candidates[id_]
        return (name, *(form for form in others if owners[normalize_answer(form)] == 1))[:MOST_FORMS]

    return forms


def ill_formed(answers: tuple[str, ...]) -> bool:
    """Check whether two golden answers are equal, or one is empty, under any normalisation."""
    for normalize in NORMALIZERS.values():
        forms = [normalize(answer) for answer in answers]
        if "" in forms or len(set(forms)) < len(forms):
            return True
    return False


def _distinct(forms: list[str]) -> list[str]:
    """Drop forms that are equal under a normalisation."""
    kept: list[str] = []
    for form in forms:
        if not ill_formed((*kept, form)):
            kept.append(form)
    return kept


def _other_forms(world: World, entity: Entity) -> list[str]:
    """Generate alternative forms: initials, surname, occupation and origin of a person, type of a place or organisation."""

    def stated(relation: str) -> str:
        return world.object_name(entity.id, relation) if (entity.id, relation) in world.facts else ""

    if entity.type == "person":
        first, last = entity.name.split()
        forms = [f"{first[0]}. {last}", last]
        forms += [f"{work} {entity.name}"] if (work := stated("occupation")) else []
        forms += [f"{entity.name} (born {year})"] if (year := stated("birth_year")) else []
        return forms + ([f"{entity.name} of {place}"] if (place := stated("birthplace")) else [])
    if entity.type == "work":
        maker = stated("creator")
        return [f"{entity.name} by {maker}", f"{maker}'s {entity.name}"] if maker else []
    if entity.type in ("company", "school", "award"):
        return [f"{entity.name} in {place}"] if (place := stated("city")) else []
    if entity.type == "city":
        return [f"{entity.name} in {country}"] if (country := stated("country")) else []
    return []


# Reserved for Bamboogle: chains through an office, a capital or an award's facts, as (type, relation) of a hop before the last.
KEPT_FOR_BAMBOOGLE = {
    ("country", "capital"),
    ("country", "president"),
    ("city", "mayor"),
    ("award", "presenter"),
    ("award", "city"),
}


@dataclass(frozen=True)
class Path:
    """Chain of facts: the object of each is the subject of the next."""

    subjects: tuple[Entity, ...]
    relations: tuple[str, ...]

    def end(self, world: World) -> str:
        """Get the object of the last fact: an entity id or a literal."""
        return world.facts[self.subjects[-1].id, self.relations[-1]]

    def hops(self, world: World) -> tuple[Hop, ...]:
        """List the look-ups of the chain, in order."""
        return tuple(
            hop(world, entity, relation)
            for entity, relation in zip(self.subjects, self.relations, strict=True)
        )


def follow(world: World, start: Entity, relations: Sequence[str]) -> Path | None:
    """Follow relations from an entity.

    None if a fact is missing or the path is circular.
    """
    subjects = [start]
    for relation in relations[:-1]:
        entity = world.entities.get(world.facts.get((subjects[-1].id, relation), ""))
        if entity is None or entity in subjects:
            return None
        subjects.append(entity)
    if (subjects[-1].id, relations[-1]) not in world.facts:
        return None
    return Path(tuple(subjects), tuple(relations))


def answers_as(world: World, path: Path) -> tuple[str, tuple[str, ...]]:
    """Get the answer of a path and, for an entity, its aliases."""
    value = path.end(world)
    return (
        (world.entities[value].name, world.entities[value].aliases)
        if value in world.entities
        else (value, ())
    )


def made(entity: Entity) -> dict[str, str]:
    """Get the template fields of a work: maker noun and past-tense verb."""
    maker, verb = WORK_KINDS.get(entity.kind, ("", ""))
    return {"a": maker, "v": verb}


def describe(path: Path, rng: StableRandom) -> str:
    """Describe the last subject of a path in words, through all earlier facts."""
    text = templates.subject(path.subjects[0].type, path.subjects[0].kind, path.subjects[0].name)
    for entity, relation in zip(path.subjects, path.relations[:-1], strict=False):
        text = rng.choice(templates.PHRASES[relation]).format(D=text, **made(entity))
    return text


def runs(hops: Sequence[Hop]) -> list[list[Hop]]:
    """Split hops into runs; see the module."""
    result: list[list[Hop]] = []
    for each in hops:
        if result and result[-1][-1].value == each.entity:
            result[-1].append(each)
        else:
            result.append([each])
    return result


def is_join(each: Hop) -> bool:
    """Check whether a hop is a join: no earlier hop names its entity."""
    return each.entity not in each.queries[0]


def join_hop(world: World, entity: Entity, relation: str, values: tuple[str, str], words: str) -> Hop:
    """Create the look-up of an entity by two of its values.

    The second query is worded like a passage.
    """
    return Hop(
        entity.name,
        relation,
        world.object_name(entity.id, relation),
        entity.id,
        (f"{values[0]} {values[1]}", words),
    )


MOST_COMMON_SHARE = 0.03


class ProofFailed(RuntimeError):
    """A generated set violates a guarantee."""


def check_split(split: str, tasks: Sequence[Task], size: int) -> None:
    """Check a whole split: size, no frequent answer, balanced yes and no.

    Raises:
        ProofFailed: a check failed; the message says which.
    """
    if len(tasks) != size:
        raise ProofFailed(f"{split}: {len(tasks)} questions instead of {size}")
    answers = Counter(normalize_answer(t.golden_answers[0]) for t in tasks)
    yes, no = answers.pop("yes", 0), answers.pop("no", 0)
    if yes != no:
        raise ProofFailed(f"{split}: {yes} yes and {no} no")
    answer, count = answers.most_common(1)[0]
    if count >= MOST_COMMON_SHARE * size:
        raise ProofFailed(f"{split}: always answering {answer!r} would be right {count} times in {size}")


def check_lengths(mini: MiniWorld) -> None:
    """Check that every passage is short enough for three to fit an observation.

    Raises:
        ProofFailed: a passage is too long; the message names the first.
    """
    for id_, contents in mini.corpus:
        words = len(contents.partition("\n")[2].split())
        if not passages.SHORTEST <= words <= passages.LONGEST:
            raise ProofFailed(f"passage {id_} has {words} words: {contents!r}")


def check_names(world: World) -> None:
    """Check that no invented word is a real name, so nothing can be answered from memory."""
    words = {w.casefold() for name in dir(graph) if name.endswith("_WORDS") for w in getattr(graph, name)}
    english = {w.casefold() for w in (*graph.CITY_WORDS, *graph.COMPANY_WORDS, *graph.SCHOOL_WORDS)}
    real = sorted((words - english) & REAL_NAMES)
    if real:
        raise ProofFailed(f"the lexicon holds real names: {', '.join(real)}")


def check_disjoint(splits: Mapping[str, Sequence[Task]]) -> None:
    """Check that no two splits share an entity or a template."""
    owner: dict[str, str] = {}
    for split, tasks in splits.items():
        for task in tasks:
            for key in (*(h.entity for h in task.hops), f"template {task.template}"):
                if owner.setdefault(key, split) != split:
                    raise ProofFailed(f"{key!r} occurs in {split} and in {owner[key]}")


def check_aliases(world: World) -> None:
    """Check that every normalised form of a name is unique, across entities and within one.

    Works share their bare names with namesakes; questions with such an answer are rejected one by one.

    Raises:
        ProofFailed: a form is ambiguous; the message names it.
    """
    owner: dict[str, str] = {}
    for entity in world.entities.values():
        forms = [normalize_answer(form) for form in (entity.name, *entity.aliases)]
        if len(set(forms)) < len(forms) or "" in forms:
            raise ProofFailed(
                f"two forms of {entity.title!r} are equal or empty as answers are compared: {forms}"
            )
        for form in forms:
            other = owner.setdefault(form, entity.name)
            if other != entity.name:
                raise ProofFailed(f"{form!r} means {other!r} and {entity.name!r}")


def check_world(mini: MiniWorld) -> None:
    """Check all guarantees of a world and its passages.

    Raises:
        ProofFailed: a guarantee is violated; the message says which.
    """
    check_names(mini.world)
    check_lengths(mini)
    check_aliases(mini.world)


PROOF_TOPKS = (1, 3)
ONE_SHOT_DEPTH = 10


class Prover:
    """Prover of single questions against a corpus and its search engines.

    Args:
        mini: the world and its corpus.
        searchers: back end name -> index over that corpus; default: all embedded ones.
    """

    def __init__(self, mini: MiniWorld, searchers: Mapping[str, Searcher] | None = None) -> None:
        self._world = mini.world
        self._texts = dict(mini.corpus)
        if searchers is None:
            searchers = {name: EmbeddedSearcher(mini.corpus, name) for name in EMBEDDED_BACKENDS}
        self._searchers = searchers
        self._found: dict[tuple[str, str], list[str]] = {}
        self._by_name: dict[str, list[str]] = {}
        for entity in mini.world.entities.values():
            self._by_name.setdefault(entity.name, []).append(entity.id)
        self._mentions: dict[str, frozenset[str]] = {}

    def look_up_rejection(self, question: Question, horizon: int) -> str:
        """Check the common proofs: each hop is stated once, and the oracle finishes within the horizon."""
        return (
            "a hop is stated elsewhere" if self._stated_elsewhere(question) else self._lost(question, horizon)
        )

    def conjunction_rejection(self, question: Question, clues: Sequence[str], horizon: int) -> str:
        """Check a question about one passage with several clues: no other passage may have all of them."""
        together = frozenset.intersection(*map(self._mentioning, clues))
        return (
            "another passage holds the clues"
            if together != {question.hops[0].passage}
            else self._lost(question, horizon)
        )

    def _stated_elsewhere(self, question: Question) -> bool:
        return any(self._stating(hop.entity, hop.value) != {hop.passage} for hop in question.hops)

    def _lost(self, question: Question, horizon: int) -> str:
        runs = itertools.product(self._searchers, PROOF_TOPKS)
        solved = all(self._oracle_steps(question, backend, topk) <= horizon for backend, topk in runs)
        return "" if solved else "oracle cannot solve"

    def _mentioning(self, text: str) -> frozenset[str]:
        if text not in self._mentions:
            self._mentions[text] = frozenset(i for i, contents in self._texts.items() if text in contents)
        return self._mentions[text]

    def _stating(self, entity: str, value: str) -> frozenset[str]:
        """Find passages with both ends of a fact, the weakest form of stating it."""
        return self._mentioning(entity) & self._mentioning(value)

    def _search(self, backend: str, query: str) -> list[str]:
        if (backend, query) not in self._found:
            results = self._searchers[backend].search([query], ONE_SHOT_DEPTH)[0]
            self._found[backend, query] = [p.id for p in results]
        return self._found[backend, query]

    def _oracle_steps(self, question: Question, backend: str, topk: int) -> int:
        steps = 1
        for hop in question.hops:
            found = (
                n
                for n, query in enumerate(hop.queries, start=1)
                if hop.passage in self._search(backend, query)[:topk]
            )
            steps += next(found, sys.maxsize)
        return steps


class ChainProver(Prover):
    """Prover of questions that chain facts, with every embedded search engine."""

    def chain_rejection(self, question: Question, horizon: int, compares: bool = False) -> str:
        """Explain why a question is unfit, "" if it is fit.

        Proved: by the graph every run leads to one value only, and a join to one entity; no passage but its own states a hop
        or joins an earlier entity with the answer; the question does not contain its answer (unless it ``compares``); the
        last passage of a run that chains facts is not among the first 10 results for the raw question; every back end finds
        every hop with one of its two queries, at depth 1 and 3, within the horizon.
        """
        parts = runs(question.hops)
        ends: list[str] = []
        for part in parts:
            starts = self._joined(ends) if is_join(part[0]) else self._named(part[0])
            if starts != {part[0].passage} or self._ends(part) != {part[-1].value}:
                return "answer not unique"
            ends.append(part[-1].value)
        if not compares:
            if parts[-1][-1].value != question.answer:
                return "answer not unique"
            if any(self._stating(h.entity, question.answer) for h in question.hops[:-1]):
                return "a passage joins two hops"
            asked = normalize_answer(question.text)
            if any(normalize_answer(answer) in asked for answer in (question.answer, *question.aliases)):
                return "answer in question"
        for part in parts:
            if len(part) > 1 or is_join(part[0]):
                for backend in self._searchers:
                    if part[-1].passage in self._search(backend, question.text)[:ONE_SHOT_DEPTH]:
                        return "one shot"
        return self.look_up_rejection(question, horizon)

    def distractor_rejection(self, question: Question) -> str:
        """Explain why a question has no single-hop distractor, "" if every back end finds one.

        A distractor answers the last step for another entity of its type. It must be among the first 10 passages for the question or
        a query of its hops.
        """
        last, hops = question.hops[-1], {h.passage for h in question.hops}
        entities, queries = (
            self._world.entities,
            [question.text, *(q for h in question.hops for q in h.queries)],
        )
        type_ = entities[last.passage].type
        for backend in self._searchers:
            near = (id_ for query in queries for id_ in self._search(backend, query)[:ONE_SHOT_DEPTH])
            if not any(
                entities[i].type == type_ and (i, last.relation) in self._world.facts
                for i in near
                if i not in hops
            ):
                return "no distractor"
        return ""

    def _named(self, first: Hop) -> set[str]:
        kind = self._world.entities[first.passage].kind
        return {id_ for id_ in self._by_name[first.entity] if self._world.entities[id_].kind == kind}

    def _joined(self, ends: Sequence[str]) -> set[str]:
        """Find passages with both values, the weakest form of a join."""
        first, second = ends[-2:]
        return set(self._mentioning(first) & self._mentioning(second))

    def _ends(self, part: Sequence[Hop]) -> set[str]:
        """Collect all values that a run reaches from entities of its first hop."""
        current = {part[0].passage}
        for each in part[:-1]:
            current = {self._world.facts[id_, each.relation] for id_ in current}
        return {self._world.object_name(id_, part[-1].relation) for id_ in current}
