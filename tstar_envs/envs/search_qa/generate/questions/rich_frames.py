"""How questions over the rich world are worded: frames around descriptions (``rich_phrases``), which may nest.

Templates are dealt to the splits by ``template_splits.deal``: a pair of a frame and the outermost description.
"""

from __future__ import annotations

from tstar_envs.envs.search_qa.generate.questions import templates

# What is asked in the end: relation -> frames; {D} describes the entity.
FRAMES: dict[str, tuple[str, ...]] = {
    **templates.FRAMES,
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
