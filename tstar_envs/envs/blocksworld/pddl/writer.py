"""Writing the domain and its problems; ``reader`` reads them."""

from __future__ import annotations

import re

from tstar_envs.envs.blocksworld.facts import Fact, state_facts
from tstar_envs.envs.blocksworld.operators import PICK_UP, PUT_DOWN, STACK, UNSTACK
from tstar_envs.envs.blocksworld.task import Problem
from tstar_envs.envs.blocksworld.vocabularies import PLAIN
from tstar_envs.envs.blocksworld.vocabulary import Vocabulary

_DOMAIN = """\
(define (domain {domain})
  (:requirements :strips)
  (:predicates ({clear} ?x) ({ontable} ?x) ({handempty}) ({holding} ?x) ({on} ?x ?y))
  (:action {pick}
    :parameters (?x)
    :precondition (and ({clear} ?x) ({ontable} ?x) ({handempty}))
    :effect (and ({holding} ?x) (not ({clear} ?x)) (not ({ontable} ?x)) (not ({handempty}))))
  (:action {put}
    :parameters (?x)
    :precondition ({holding} ?x)
    :effect (and ({clear} ?x) ({ontable} ?x) ({handempty}) (not ({holding} ?x))))
  (:action {stack}
    :parameters (?x ?y)
    :precondition (and ({holding} ?x) ({clear} ?y))
    :effect (and ({on} ?x ?y) ({clear} ?x) ({handempty}) (not ({holding} ?x)) (not ({clear} ?y))))
  (:action {unstack}
    :parameters (?x ?y)
    :precondition (and ({on} ?x ?y) ({clear} ?x) ({handempty}))
    :effect (and ({holding} ?x) ({clear} ?y) (not ({on} ?x ?y)) (not ({clear} ?x)) (not ({handempty})))))
"""


def write_domain(vocabulary: Vocabulary = PLAIN) -> str:
    """The domain file."""
    verbs = vocabulary.verbs
    return _DOMAIN.format(
        domain=vocabulary.domain,
        pick=verbs[PICK_UP],
        put=verbs[PUT_DOWN],
        stack=verbs[STACK],
        unstack=verbs[UNSTACK],
        **vocabulary.predicates,
    )


def write_problem(problem: Problem, title: str, vocabulary: Vocabulary = PLAIN) -> str:
    """The problem file; ``title`` becomes part of its name, what PDDL forbids replaced; mystery leaves it out, as it may name blocks."""

    def line(fact: Fact) -> str:
        blocks = [problem.names[block] for block in fact.arguments]
        return f"({' '.join([vocabulary.predicates[fact.predicate], *blocks])})"

    name = f"{vocabulary.domain}-{re.sub(r'[^a-z0-9_-]+', '-', title.lower()) if vocabulary is PLAIN else 'problem'}"
    return (
        f"(define (problem {name})\n"
        f"  (:domain {vocabulary.domain})\n"
        f"  (:objects {' '.join(problem.names)})\n"
        f"  (:init {' '.join(map(line, state_facts(problem.start)))})\n"
        f"  (:goal (and {' '.join(map(line, problem.goal.facts))})))\n"
    )
