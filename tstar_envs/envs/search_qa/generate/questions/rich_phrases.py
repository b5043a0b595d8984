"""How questions over the rich world describe an entity through another one."""

from __future__ import annotations

# How an entity is described through another: relation -> phrases; {D} describes the other, {a} and {v} as in FRAMES
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

# How the entity that a question starts from is called.
SUBJECTS: dict[str, str] = {"work": "the {k} {X}", "award": "the {X}"}


def subject(type_: str, kind: str, name: str) -> str:
    """A named entity; works with their kind, since they may have namesakes of another."""
    return SUBJECTS.get(type_, "{X}").format(k=kind, X=name)
