"""The mini tier's Bamboogle: 125 two-hop questions for testing only, worded by hand, over the rich world.

No other set chains these relations, and none is trained on: the set asks whether searching in two steps was learnt, or
only the chains of the training questions.
"""

from __future__ import annotations

from dataclasses import replace

from tstar_envs.envs.search_qa.generate.generator import Generator
from tstar_envs.envs.search_qa.generate.proofs.chain_prover import ChainProver
from tstar_envs.envs.search_qa.generate.questions.chains import answers_as, follow
from tstar_envs.envs.search_qa.generate.questions.question import Question
from tstar_envs.envs.search_qa.generate.recipe import Recipe
from tstar_envs.envs.search_qa.generate.sets import musique
from tstar_envs.envs.search_qa.generate.worlds.graph import World
from tstar_envs.envs.search_qa.question_sets import BAMBOOGLE
from tstar_envs.stable_random import StableRandom

# (type, first relation, second relation) -> whole questions; {X} is the named entity. The first relations are kept from
# the middle of any other set's chains (``chains.KEPT_FOR_BAMBOOGLE``).
FORMS: dict[tuple[str, str, str], tuple[str, ...]] = {
    ("country", "capital", "mayor"): (
        "Who was mayor of the capital of {X}?",
        "Who ran the city that {X} is governed from?",
        "Who was in charge of {X}'s capital city?",
    ),
    ("country", "capital", "river"): (
        "What river runs through the capital of {X}?",
        "By which river was the capital of {X} built?",
        "On the banks of what river does {X}'s government sit?",
    ),
    ("country", "president", "birth_year"): (
        "When was the president of {X} born?",
        "What year saw the birth of the one who led {X}?",
    ),
    ("country", "president", "death_year"): (
        "When did the president of {X} die?",
        "In what year did {X}'s president pass away?",
    ),
    ("country", "president", "birthplace"): (
        "Where was the president of {X} born?",
        "What is the home town of the president of {X}?",
    ),
    ("country", "president", "spouse"): (
        "Who was married to the president of {X}?",
        "With whom did {X}'s president share a home?",
    ),
    ("country", "president", "school"): (
        "Where did the president of {X} go to school?",
        "At what school was {X}'s president educated?",
    ),
    ("country", "president", "father"): (
        "Who was the father of the president of {X}?",
        "Which man was the father of {X}'s president?",
    ),
    ("country", "president", "mother"): (
        "Who was the mother of the president of {X}?",
        "Who gave birth to the president of {X}?",
    ),
    ("city", "mayor", "birth_year"): (
        "What year was the mayor of {X} born in?",
        "When was the person born who became mayor of {X}?",
    ),
    ("city", "mayor", "death_year"): (
        "What year did the mayor of {X} die in?",
        "When did the person die who was mayor of {X}?",
    ),
    ("city", "mayor", "occupation"): (
        "What did the mayor of {X} do by trade?",
        "What was the job of the person elected mayor of {X}?",
    ),
    ("city", "mayor", "employer"): (
        "Who was the employer of the mayor of {X}?",
        "Who employed the person elected mayor of {X}?",
    ),
    ("city", "mayor", "mother"): (
        "Who was the mother of the mayor of {X}?",
        "Who gave birth to the person who led the town of {X}?",
    ),
    ("city", "mayor", "father"): (
        "Who was the father of the mayor of {X}?",
        "What was the father of the person who led {X} called?",
    ),
    ("award", "presenter", "founder"): (
        "Who founded the organisation that gives the {X}?",
        "Who started the house that awards the {X}?",
    ),
    ("award", "presenter", "founding_year"): (
        "When was the organisation founded that gives the {X}?",
        "In what year did the giver of the {X} open?",
    ),
    ("award", "presenter", "city"): (
        "In what city is the organisation based that gives the {X}?",
        "Where does the giver of the {X} have its head office?",
    ),
    ("award", "city", "country"): (
        "In what country is the ceremony of the {X} held?",
        "To which country do winners of the {X} travel to receive it?",
    ),
    ("award", "city", "river"): (
        "What river runs through the town where the {X} is handed over?",
        "Beside which river do winners receive the {X}?",
    ),
    ("award", "city", "mayor"): (
        "Who was mayor of the place where the {X} is handed over?",
        "Who led the town in which the {X} is given to its winners?",
    ),
}


def draw_question(
    world: World, region: str, split: str, rng: StableRandom, kind: str, turn: int
) -> Question | None:
    """See ``recipe.Draw``."""
    type_, *relations = rng.choice(list(FORMS))
    path = follow(world, rng.choice(world.of_type(type_, region)), relations)
    if path is None:
        return None
    forms = FORMS[type_, relations[0], relations[1]]
    number = rng.below(len(forms))
    text = forms[number].format(X=path.subjects[0].name)
    # One golden answer, as in Bamboogle.
    return Question(
        text,
        answers_as(world, path)[0],
        kind,
        f"bamboogle/{type_}-{'-'.join(relations)}/{number}",
        path.hops(world),
    )


def rejection(prover: ChainProver, asked: Question) -> str:
    """Why a question must not ship, "" if it may: the proofs of chains."""
    return prover.chain_rejection(asked, BAMBOOGLE.horizon)


RECIPE = Recipe(BAMBOOGLE, {"2hop": 1.0}, draw_question, rejection, sizes={"test": 125})
# Nothing of its own may be trained on, so what is practised is MuSiQue's chains of two.
GENERATOR = Generator(BAMBOOGLE, RECIPE.build, replace(musique.RECIPE, shares={"2hop": 1.0}).practice)
