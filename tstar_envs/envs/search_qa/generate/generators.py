"""The generators of all question sets, by name."""

from __future__ import annotations

from tstar_envs.envs.search_qa.generate.sets import (
    bamboogle,
    hotpotqa,
    musique,
    nq,
    popqa,
    triviaqa,
    two_wiki,
)

GENERATORS = {
    module.GENERATOR.question_set.name: module.GENERATOR
    for module in (hotpotqa, nq, two_wiki, musique, triviaqa, popqa, bamboogle)
}
