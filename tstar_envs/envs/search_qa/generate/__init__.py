"""Question generators, one module per set, for the mini tier and for practice."""

from tstar_envs.envs.search_qa.generate import hotpotqa, musique, single_facts, triviaqa, two_wiki

GENERATORS = {
    generator.question_set.name: generator
    for generator in (
        hotpotqa.GENERATOR,
        single_facts.NQ_GENERATOR,
        two_wiki.GENERATOR,
        musique.MUSIQUE_GENERATOR,
        triviaqa.GENERATOR,
        single_facts.POPQA_GENERATOR,
        musique.BAMBOOGLE_GENERATOR,
    )
}
