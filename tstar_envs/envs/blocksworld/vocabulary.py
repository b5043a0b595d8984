"""Vocabularies: the words of Blocksworld's operators and facts, and the phrases that texts are made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tstar_envs.envs.blocksworld.operators import ARITY


@dataclass(frozen=True)
class Phrases:
    """Templates with ``{0}`` and ``{1}`` for the blocks: facts, what the goal demands, and operators as a clause."""

    facts: Mapping[str, str]
    wishes: Mapping[str, str]
    acts: Mapping[str, str]


@dataclass(frozen=True)
class Vocabulary:
    """One set of words for the domain.

    Attributes:
        name: ``plain`` or ``mystery``.
        thing: what a block is called.
        domain: name of the PDDL domain.
        verbs: operator -> its word in actions and PDDL.
        predicates: predicate -> its word in PDDL.
        natural: phrases of the natural observation.
        compact: phrases of the compact observation.
        grammar: operator -> expression of its written forms (lower case, single spaces), one group per block.
    """

    name: str
    thing: str
    domain: str
    verbs: Mapping[str, str]
    predicates: Mapping[str, str]
    natural: Phrases
    compact: Phrases
    grammar: Mapping[str, re.Pattern[str]]

    def action(self, verb: str, *blocks: str) -> str:
        """An action in its canonical, compact form."""
        return " ".join((self.verbs[verb], *blocks))

    def usage(self) -> str:
        """The forms of the actions in one line."""
        forms = [self.action(verb, *("X", "Y")[: ARITY[verb]]) for verb in self.verbs]
        return ", ".join(forms[:-1]) + f" or {forms[-1]}"
