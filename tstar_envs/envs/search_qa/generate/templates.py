"""Wordings of questions: templates, frames and descriptions."""

from __future__ import annotations

from collections.abc import Sequence

from tstar_envs.utils import StableRandom

# Question about the second entity: relation -> frames; {D} is the description of that entity.
FRAMES: dict[str, tuple[str, ...]] = {
    "birthplace": (
        "In which city was {D} born?",
        "Where was {D} born?",
        "What is the birthplace of {D}?",
        "Which city is the birthplace of {D}?",
        "What is the name of the city where {D} was born?",
        "From which city did {D} come?",
    ),
    "birth_year": (
        "In which year was {D} born?",
        "When was {D} born?",
        "What is the birth year of {D}?",
        "Which year is the birth year of {D}?",
        "What is the year when {D} was born?",
        "In what year was the birth of {D}?",
    ),
    "spouse": (
        "Who married {D}?",
        "Who is the spouse of {D}?",
        "To whom was {D} married?",
        "Who was married to {D}?",
        "What is the name of the spouse of {D}?",
        "Whom did {D} marry?",
    ),
    "school": (
        "Where did {D} study?",
        "Which school did {D} attend?",
        "At which school did {D} study?",
        "What is the name of the school of {D}?",
        "What school did {D} attend?",
        "From which school did {D} graduate?",
    ),
    "founder": (
        "Who founded {D}?",
        "Who is the founder of {D}?",
        "By whom was {D} founded?",
        "Who started {D}?",
        "What is the name of the founder of {D}?",
        "Which person founded {D}?",
    ),
    "founding_year": (
        "In which year was {D} founded?",
        "When was {D} founded?",
        "In what year did {D} open?",
        "What is the founding year of {D}?",
        "What is the year when {D} was founded?",
        "Which year is the founding year of {D}?",
    ),
    "city": (
        "In which city is {D} based?",
        "Where is {D} based?",
        "Which city is the home of {D}?",
        "What is the name of the city where {D} is based?",
        "In what city is {D} located?",
        "Where is the seat of {D}?",
    ),
    "country": (
        "In which country is {D}?",
        "Which country is home to {D}?",
        "What is the name of the country of {D}?",
        "In what country is {D} located?",
        "To which country does {D} belong?",
        "What country is home to {D}?",
    ),
    "river": (
        "Which river flows through {D}?",
        "On which river does {D} stand?",
        "What is the river of {D}?",
        "What is the name of the river of {D}?",
        "Which river divides {D}?",
        "By which river can boats reach {D}?",
    ),
}

# Description of the second entity through the first: relation -> descriptions.
# {X} name of the first entity, {k} its kind, {a} maker noun, {v} maker's verb, {t} company or school
DESCRIPTIONS: dict[str, tuple[str, ...]] = {
    "creator": (
        "the {a} of the {k} {X}",
        "the person who {v} the {k} {X}",
        "the {a} who {v} the {k} {X}",
        "the {a} behind the {k} {X}",
        "the person behind the {k} {X}",
        "the maker of the {k} {X}",
    ),
    "company": (
        "the company that released the {k} {X}",
        "the publisher of the {k} {X}",
        "the company that published the {k} {X}",
        "the company behind the {k} {X}",
        "the company which brought out the {k} {X}",
        "the publisher that released the {k} {X}",
    ),
    "founder": (
        "the founder of {X}",
        "the person who founded {X}",
        "the founder of the {t} {X}",
        "the person who started {X}",
        "the person behind {X}",
        "the person who set up {X}",
    ),
    "birthplace": (
        "the city where {X} was born",
        "the birthplace of {X}",
        "the city in which {X} was born",
        "the place where {X} was born",
        "the home town of {X}",
        "the city that {X} came from",
    ),
}

# Comparisons: relation -> (lead, True if the smaller value wins)
LEADS: dict[str, tuple[tuple[str, bool], ...]] = {
    "birth_year": (
        ("who was born earlier", True),
        ("who was born first", True),
        ("who is older", True),
        ("who was born later", False),
        ("who was born last", False),
        ("who is younger", False),
    ),
    "year": (
        ("which came out earlier", True),
        ("which came out first", True),
        ("which is older", True),
        ("which came out later", False),
        ("which came out last", False),
        ("which is newer", False),
    ),
}
LEAD_FORMS = (
    "{L}, {A} or {B}?",
    "Of {A} and {B}, {l}?",
    "Between {A} and {B}, {l}?",
    "Looking at {A} and {B}, {l}?",
)

# Yes/no questions: relation -> predicates, in openings
PREDICATES: dict[str, tuple[str, ...]] = {
    "occupation": (
        "have the same occupation",
        "share an occupation",
        "share a profession",
        "have the same profession",
        "work in the same trade",
    ),
    "country": (
        "lie in the same country",
        "belong to the same country",
        "share a country",
        "stand in the same country",
        "have the same country",
    ),
}
OPENINGS = (
    "Do {A} and {B} {p}?",
    "Did {A} and {B} {p}?",
    "Is it true that {A} and {B} {p}?",
    "Would you say that {A} and {B} {p}?",
)


# Description of an entity through another: relation -> phrases; {D} describes the other, {a} and {v} as in FRAMES
PHRASES: dict[str, tuple[str, ...]] = {
    "creator": (
        "the {a} of {D}",
        "the person who {v} {D}",
        "the {a} who {v} {D}",
        "the {a} behind {D}",
        "the person behind {D}",
        "the maker of {D}",
    ),
    "company": (
        "the company that released {D}",
        "the publisher of {D}",
        "the company that published {D}",
        "the company behind {D}",
        "the company which brought out {D}",
        "the publisher that released {D}",
    ),
    "based_on": (
        "the work that {D} is based on",
        "the work behind {D}",
        "the source of {D}",
        "the work from which {D} was adapted",
        "the model for {D}",
    ),
    "award": (
        "the award that {D} received",
        "the award given to {D}",
        "the award won by {D}",
        "the award that was given to {D}",
        "the award that {D} won",
    ),
    "founder": (
        "the founder of {D}",
        "the person who founded {D}",
        "the person who started {D}",
        "the person who set up {D}",
        "the person behind {D}",
    ),
    "city": (
        "the city where {D} is based",
        "the home city of {D}",
        "the city that is home to {D}",
        "the city in which {D} is located",
        "the seat of {D}",
    ),
    "birthplace": (
        "the city where {D} was born",
        "the birthplace of {D}",
        "the city in which {D} was born",
        "the place where {D} was born",
        "the home town of {D}",
        "the city that {D} came from",
    ),
    "school": (
        "the school of {D}",
        "the school that {D} attended",
        "the school where {D} studied",
        "the school at which {D} studied",
        "the place where {D} studied",
    ),
    "employer": (
        "the employer of {D}",
        "the place that employed {D}",
        "the place where {D} worked",
        "the place where {D} was employed",
        "the one for whom {D} worked",
    ),
    "father": (
        "the father of {D}",
        "the father who raised {D}",
        "the person who was the father of {D}",
        "the male parent of {D}",
    ),
    "mother": (
        "the mother of {D}",
        "the mother who raised {D}",
        "the person who was the mother of {D}",
        "the female parent of {D}",
    ),
    "spouse": (
        "the spouse of {D}",
        "the person who married {D}",
        "the person married to {D}",
        "the person whom {D} married",
    ),
    "country": (
        "the country of {D}",
        "the country that is home to {D}",
        "the country in which {D} lies",
        "the country where {D} is",
        "the country to which {D} belongs",
    ),
}

# Name of the first entity of a question.
SUBJECTS: dict[str, str] = {"work": "the {k} {X}", "award": "the {X}"}


def subject(type_: str, kind: str, name: str) -> str:
    """Name an entity in a question; works include their kind, because of namesakes."""
    return SUBJECTS.get(type_, "{X}").format(k=kind, X=name)


# Final question: relation -> frames; {D} describes the entity.
RICH_FRAMES: dict[str, tuple[str, ...]] = {
    **FRAMES,
    "father": (
        "Who is the father of {D}?",
        "Who was the father of {D}?",
        "What is the name of the father of {D}?",
        "Which person was the father of {D}?",
        "What was the name of the father of {D}?",
    ),
    "mother": (
        "Who is the mother of {D}?",
        "Who was the mother of {D}?",
        "What is the name of the mother of {D}?",
        "Which person was the mother of {D}?",
        "What was the name of the mother of {D}?",
    ),
    "death_year": (
        "In which year did {D} die?",
        "When did {D} die?",
        "What is the year of death of {D}?",
        "In what year did {D} pass away?",
        "What is the year when {D} died?",
        "In which year was the death of {D}?",
    ),
    "occupation": (
        "What is the occupation of {D}?",
        "What was the occupation of {D}?",
        "What was the profession of {D}?",
        "What kind of work did {D} do?",
        "What did {D} do for a living?",
    ),
    "employer": (
        "Who employed {D}?",
        "For whom did {D} work?",
        "What was the employer of {D}?",
        "Where was {D} employed?",
        "What is the name of the employer of {D}?",
        "Which employer did {D} work for?",
    ),
    "award": (
        "Which award did {D} receive?",
        "What award did {D} win?",
        "What is the name of the award that {D} received?",
        "Which award was given to {D}?",
        "With which award was {D} honoured?",
    ),
    "creator": (
        "Who {v} {D}?",
        "Who is the {a} of {D}?",
        "By whom was {D} made?",
        "Who is the {a} behind {D}?",
        "What is the name of the {a} of {D}?",
        "Which person made {D}?",
    ),
    "company": (
        "Which company released {D}?",
        "Who published {D}?",
        "Who is the publisher of {D}?",
        "By which company was {D} released?",
        "What is the name of the company that released {D}?",
        "What company published {D}?",
    ),
    "year": (
        "In which year was {D} released?",
        "When did {D} come out?",
        "What year did {D} come out?",
        "When was {D} released?",
        "What is the year of release of {D}?",
        "In what year did {D} appear?",
    ),
    "genre": (
        "What is the genre of {D}?",
        "To which genre does {D} belong?",
        "Which genre does {D} belong to?",
        "What genre is {D}?",
        "What is the name of the genre of {D}?",
    ),
    "mayor": (
        "Who was the mayor of {D}?",
        "Who is the mayor of {D}?",
        "What is the name of the mayor of {D}?",
        "Which person was mayor of {D}?",
        "Who held the office of mayor in {D}?",
    ),
    "capital": (
        "What is the capital of {D}?",
        "Which city is the capital of {D}?",
        "What is the name of the capital of {D}?",
        "Which city governs {D} as its capital?",
        "What is the capital city of {D}?",
    ),
    "president": (
        "Who was the president of {D}?",
        "Who is the president of {D}?",
        "What is the name of the president of {D}?",
        "Which person was president of {D}?",
        "Who led {D} as president?",
    ),
    "independence_year": (
        "When did {D} become independent?",
        "In which year did {D} win independence?",
        "Since when has {D} been independent?",
        "What is the year of the independence of {D}?",
        "In what year did {D} declare independence?",
    ),
    "presenter": (
        "Who gives {D}?",
        "Who presents {D}?",
        "By whom is {D} given?",
        "Who awards {D}?",
        "What is the name of the giver of {D}?",
    ),
    "first_year": (
        "When was {D} first given?",
        "In which year was {D} given for the first time?",
        "Since when has {D} been given?",
        "What is the first year of {D}?",
        "In what year did the first winner receive {D}?",
    ),
}


def split_templates(seed: str, first: int, second: int) -> dict[str, list[tuple[int, int]]]:
    """Deal the pairs (index of first part, index of second part) to train, valid and test.

    Args:
        seed: family of templates; each family is dealt independently.
        first: number of first parts (frames, leads, predicates).
        second: number of second parts (descriptions, forms, openings).

    Returns:
        Split -> pairs. About 1/8 go to valid and 1/4 to test. Every part occurs in a training pair.
    """
    rng = StableRandom(f"templates/{seed}")
    pairs = [(a, b) for a in range(first) for b in range(second)]
    valid, test = max(1, len(pairs) // 8), max(1, len(pairs) // 4)
    for _ in range(1000):
        mixed = rng.shuffled(pairs)
        parts = {"valid": mixed[:valid], "test": mixed[valid : valid + test], "train": mixed[valid + test :]}
        if len({a for a, _ in parts["train"]}) == first and len({b for _, b in parts["train"]}) == second:
            return {split: sorted(chosen) for split, chosen in parts.items()}
    raise ValueError(
        f"no deal of {first} x {second} templates keeps every part in training: add wordings to {seed!r}"
    )


def deal(
    family: str, split: str, first: Sequence[object], second: Sequence[object], rng: StableRandom
) -> tuple[int, int]:
    """Draw a pair of indexes that belongs to a split."""
    return rng.choice(split_templates(family, len(first), len(second))[split])
