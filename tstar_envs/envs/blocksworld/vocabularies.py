"""The two vocabularies, plain and mystery, and the colours that blocks are named by.

Mystery Blocksworld (PlanBench, Valmeekam et al. 2023; MIT) is the same domain under words that say nothing about blocks, so
that a model cannot fall back on what it has read about stacking: pick-up, put-down, stack and unstack are called attack,
succumb, overcome and feast; clear, ontable, holding, handempty and on are called province, planet, pain, harmony and craves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tstar_envs.envs.blocksworld.facts import CLEAR, HANDEMPTY, HOLDING, ON, ONTABLE
from tstar_envs.envs.blocksworld.operators import PICK_UP, PUT_DOWN, STACK, UNSTACK
from tstar_envs.envs.blocksworld.vocabulary import Phrases, Vocabulary

# The colours of PlanBench's blocks, in its order.
COLOURS = tuple("red blue orange yellow white magenta black cyan green violet silver gold".split())

# Possessive: a name never gives characters back, so that every expression is linear in the length of an action.
_BLOCK = r"(?:the )?(?:block |object )?(\S++)(?: block)?"


def _grammar(verbs: Mapping[str, str], links: Mapping[str, str]) -> dict[str, re.Pattern[str]]:
    forms = {}
    for verb, words in verbs.items():
        second = f"(?: (?:{links[verb]}))? {_BLOCK}" if verb in links else ""
        forms[verb] = re.compile(f"(?:{words}) {_BLOCK}{second}")
    return forms


PLAIN = Vocabulary(
    name="plain",
    thing="block",
    domain="blocksworld-4ops",
    verbs={verb: verb for verb in (PICK_UP, PUT_DOWN, STACK, UNSTACK)},
    predicates={fact: fact for fact in (CLEAR, ONTABLE, HANDEMPTY, HOLDING, ON)},
    natural=Phrases(
        facts={
            ON: "{0} is on top of {1}",
            ONTABLE: "{0} is on the table",
            CLEAR: "{0} is clear",
            HOLDING: "the hand is currently holding {0}",
            HANDEMPTY: "the hand is empty",
        },
        wishes={
            ON: "{0} must be on top of {1}",
            ONTABLE: "{0} must be on the table",
            CLEAR: "{0} must be clear",
            HOLDING: "the hand must hold {0}",
            HANDEMPTY: "the hand must be empty",
        },
        acts={
            PICK_UP: "pick up {0}",
            PUT_DOWN: "put down {0}",
            STACK: "stack {0} on top of {1}",
            UNSTACK: "unstack {0} from on top of {1}",
        },
    ),
    compact=Phrases(
        facts={
            ON: "{0} is on {1}",
            ONTABLE: "{0} is on the table",
            CLEAR: "{0} is clear",
            HOLDING: "the hand holds {0}",
            HANDEMPTY: "the hand is empty",
        },
        wishes={
            ON: "{0} must be on {1}",
            ONTABLE: "{0} must be on the table",
            CLEAR: "{0} must be clear",
            HOLDING: "the hand must hold {0}",
            HANDEMPTY: "the hand must be empty",
        },
        acts={
            PICK_UP: "pick up {0}",
            PUT_DOWN: "put down {0}",
            STACK: "stack {0} on {1}",
            UNSTACK: "unstack {0} from {1}",
        },
    ),
    grammar=_grammar(
        {PICK_UP: "pick[-_ ]?up", PUT_DOWN: "put[-_ ]?down", STACK: "stack", UNSTACK: "unstack"},
        {STACK: "on top of|onto|on", UNSTACK: "from on top of|from the top of|from|off"},
    ),
)

_MYSTERY_PHRASES = Phrases(
    facts={
        ON: "{0} craves {1}",
        ONTABLE: "planet {0}",
        CLEAR: "province {0}",
        HOLDING: "pain {0}",
        HANDEMPTY: "harmony",
    },
    wishes={
        ON: "{0} must crave {1}",
        ONTABLE: "planet {0} must hold",
        CLEAR: "province {0} must hold",
        HOLDING: "pain {0} must hold",
        HANDEMPTY: "harmony must hold",
    },
    acts={
        PICK_UP: "attack {0}",
        PUT_DOWN: "succumb {0}",
        STACK: "overcome {0} from {1}",
        UNSTACK: "feast {0} from {1}",
    },
)

MYSTERY = Vocabulary(
    name="mystery",
    thing="object",
    domain="mystery-4ops",
    verbs={PICK_UP: "attack", PUT_DOWN: "succumb", STACK: "overcome", UNSTACK: "feast"},
    predicates={CLEAR: "province", ONTABLE: "planet", HANDEMPTY: "harmony", HOLDING: "pain", ON: "craves"},
    natural=_MYSTERY_PHRASES,
    compact=_MYSTERY_PHRASES,
    grammar=_grammar(
        {PICK_UP: "attack", PUT_DOWN: "succumb", STACK: "overcome", UNSTACK: "feast"},
        {STACK: "from", UNSTACK: "from"},
    ),
)

VOCABULARIES = (PLAIN, MYSTERY)
