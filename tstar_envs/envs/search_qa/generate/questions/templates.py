"""How HotpotQA-style questions are worded over the plain world.

A bridge question is a *frame* around a *description*: "In which city was {the person who wrote the novel X} born?".
A comparison is a *lead* in a *form*: "Of A and B, {who was born earlier}?". A template is a pair of the two, and
whole templates are held out for valid and test while every frame, description, lead and form occurs in training:
random combinations are held out, never a structural rule, which a small policy would learn as a prior.
"""

from __future__ import annotations

# What is asked of the second entity: relation -> frames; {D} is the description of that entity.
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

# How the second entity is described through the first: relation -> descriptions.
# {X} name of the first entity, {k} its kind, {a} maker noun, {v} what the maker did, {t} company or school
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

# Comparisons: relation -> (lead, whether the smaller value wins)
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
