"""Proofs that a question is fit to ship, made while a set is generated: one answer, each look-up needed, and the expert solves it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence

from tstar_envs.envs.search_qa.generate.questions.question import Question
from tstar_envs.envs.search_qa.generate.worlds.making import MiniWorld
from tstar_envs.envs.search_qa.search.embedded import EMBEDDED_BACKENDS, EmbeddedSearcher
from tstar_envs.envs.search_qa.search.passage import Searcher

PROOF_TOPKS = (1, 3)
ONE_SHOT_DEPTH = 10


class Prover:
    """Checks single questions against a corpus and its search engines.

    Args:
        mini: the world and its corpus.
        searchers: back end name -> index over that corpus; by default every embedded one.
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
        """The proofs that every kind of question shares: each hop is stated once, and the oracle is done within the horizon."""
        return (
            "a hop is stated elsewhere" if self._stated_elsewhere(question) else self._lost(question, horizon)
        )

    def conjunction_rejection(self, question: Question, clues: Sequence[str], horizon: int) -> str:
        """The rejection of a question whose one passage holds several clues: no other passage may hold them all."""
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
