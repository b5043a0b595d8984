"""Proofs that a question is fit to ship, made while a set is generated: one answer, each look-up needed, and the expert solves it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tstar_envs.envs.search_qa.metrics import normalize_answer
from tstar_envs.envs.search_qa.question_sets import HOTPOTQA
from tstar_envs.envs.search_qa.questions import BRIDGES, Question
from tstar_envs.envs.search_qa.searcher import Searcher
from tstar_envs.envs.search_qa.world import World

PROOF_TOPKS = (1, 3)
ONE_SHOT_DEPTH = 10


class ProofFailed(RuntimeError):
    """What the generator made is not what it promises."""


@dataclass(frozen=True)
class MiniWorld:
    """A world with its corpus: (id, Search-R1 contents) per entity, in order of creation."""

    world: World
    corpus: list[tuple[str, str]]


class Prover:
    """Checks single questions against a corpus and its search engines.

    Args:
        mini: the world and its corpus.
        searchers: back end name -> index over that corpus.
    """

    def __init__(self, mini: MiniWorld, searchers: Mapping[str, Searcher]) -> None:
        self._world = mini.world
        self._texts = dict(mini.corpus)
        self._searchers = searchers
        self._found: dict[tuple[str, str], list[str]] = {}
        self._by_name: dict[str, list[str]] = {}
        for entity in mini.world.entities.values():
            self._by_name.setdefault(entity.name, []).append(entity.id)
        self._mentions: dict[str, frozenset[str]] = {}

    def rejection(self, question: Question) -> str:
        """Why a question must not ship, "" if it may.

        Proved: the answer is unique by graph query; no passage but its own states a hop; a bridge question does not contain
        its answer, and its last passage is not among the first 10 results for the raw question; every back end finds every
        hop with one of its two queries, at depth 1 and 3, within the horizon.
        """
        if self._answers(question) != {question.answer}:
            return "answer not unique"
        if self._stated_elsewhere(question):
            return "a hop is stated elsewhere"
        if question.kind in BRIDGES:
            if self._stating(question.hops[0].entity, question.answer):
                return "a passage joins both hops"
            if normalize_answer(question.answer) in normalize_answer(question.text):
                return "answer in question"
            for backend in self._searchers:
                if question.hops[-1].passage in self._search(backend, question.text)[:ONE_SHOT_DEPTH]:
                    return "one shot"
        return self._lost(question, HOTPOTQA.horizon)

    def look_up_rejection(self, question: Question, horizon: int) -> str:
        """The proofs that every kind of question shares: each hop is stated once, and the oracle is done within the horizon."""
        return (
            "a hop is stated elsewhere" if self._stated_elsewhere(question) else self._lost(question, horizon)
        )

    def conjunction_rejection(self, question: Question, clues: Sequence[str], horizon: int) -> str:
        """The same for a question whose one passage holds several clues: no other passage holds them all."""
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

    def _answers(self, question: Question) -> set[str]:
        """All answers that the graph gives to the question as worded (names may be shared by several entities)."""
        first, last = question.hops[0], question.hops[-1]
        if question.kind not in BRIDGES:
            for hop in question.hops:
                same_kind = [
                    i
                    for i in self._by_name[hop.entity]
                    if self._world.entities[i].kind == self._world.entities[hop.passage].kind
                ]
                if same_kind != [hop.passage]:
                    return set()
            return {question.answer}
        kind = self._world.entities[first.passage].kind
        answers = set()
        for start in self._by_name[first.entity]:
            if self._world.entities[start].kind == kind:
                middle = self._world.facts[start, first.relation]
                answers.add(self._world.object_name(middle, last.relation))
        return answers

    def _mentioning(self, text: str) -> frozenset[str]:
        if text not in self._mentions:
            self._mentions[text] = frozenset(i for i, contents in self._texts.items() if text in contents)
        return self._mentions[text]

    def _stating(self, entity: str, value: str) -> frozenset[str]:
        """Passages that hold both ends of a fact (the weakest form of stating it)."""
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
