"""Proofs of questions that chain facts."""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs.envs.search_qa.generate.proofs.prover import ONE_SHOT_DEPTH, Prover
from tstar_envs.envs.search_qa.generate.questions.chains import is_join, runs
from tstar_envs.envs.search_qa.generate.questions.question import Question
from tstar_envs.envs.search_qa.metrics import normalize_answer
from tstar_envs.envs.search_qa.task import Hop


class ChainProver(Prover):
    """Proofs of questions that chain facts over one corpus, with every embedded search engine."""

    def chain_rejection(self, question: Question, horizon: int, compares: bool = False) -> str:
        """Why a question must not ship, "" if it may.

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
        """Why a question has no single-hop distractor, "" if every back end finds one: among the first 10 passages for the
        question or a query of its hops, one that answers the last step for another entity of that type.
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
        """The passages that hold both values, which is the weakest form of what a join asks for."""
        first, second = ends[-2:]
        return set(self._mentioning(first) & self._mentioning(second))

    def _ends(self, part: Sequence[Hop]) -> set[str]:
        """All values that a run leads to from entities of its first hop."""
        current = {part[0].passage}
        for each in part[:-1]:
            current = {self._world.facts[id_, each.relation] for id_ in current}
        return {self._world.object_name(id_, part[-1].relation) for id_ in current}
