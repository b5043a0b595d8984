"""Proofs of HotpotQA's questions."""

from __future__ import annotations

from tstar_envs.envs.search_qa.generate.proofs.prover import ONE_SHOT_DEPTH, Prover
from tstar_envs.envs.search_qa.generate.questions.question import Question
from tstar_envs.envs.search_qa.generate.sets.hotpotqa_questions import BRIDGES
from tstar_envs.envs.search_qa.metrics import normalize_answer
from tstar_envs.envs.search_qa.question_sets import HOTPOTQA


class TwoHopProver(Prover):
    """Proofs of bridge questions and comparisons, with every embedded search engine."""

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
