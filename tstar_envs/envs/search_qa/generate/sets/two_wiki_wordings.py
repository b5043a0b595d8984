"""What 2WikiMultihopQA's questions ask for, and how they are worded."""

from __future__ import annotations

from tstar_envs.envs.search_qa.generate.questions import templates

_LIFE = ("birthplace", "birth_year", "death_year", "school", "employer", "award")
# type of the first entity -> its relation -> what is asked of its object
COMPOSITIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "work": {
        "creator": (*_LIFE, "spouse", "father", "mother"),
        "company": ("founder", "city", "founding_year"),
    },
    "person": {"father": _LIFE, "mother": _LIFE, "spouse": _LIFE},
    "company": {"founder": (*_LIFE, "spouse", "father", "mother")},
    "school": {"founder": (*_LIFE, "spouse", "father", "mother")},
}
INFERENCES = {
    ("father", "father"): ("paternal grandfather", "grandfather on the father's side"),
    ("father", "mother"): ("paternal grandmother", "grandmother on the father's side"),
    ("mother", "father"): ("maternal grandfather", "grandfather on the mother's side"),
    ("mother", "mother"): ("maternal grandmother", "grandmother on the mother's side"),
    ("spouse", "father"): ("father-in-law", "father by marriage"),
    ("spouse", "mother"): ("mother-in-law", "mother by marriage"),
}
INFERENCE_FRAMES = (
    "Who is the {n} of {X}?",
    "Who is {X}'s {n}?",
    "Who was the {n} of {X}?",
    "Who was {X}'s {n}?",
    "What is the name of the {n} of {X}?",
    "What is the name of {X}'s {n}?",
)
NOUNS = {
    "creator": "{a}",
    "company": "publisher",
    "father": "father",
    "mother": "mother",
    "spouse": "spouse",
    "founder": "founder",
}
DESCRIPTIONS = (
    "the {n} of {D}",
    "{D}'s {n}",
    "the person who was the {n} of {D}",
    "the one who was {D}'s {n}",
)
COMPANY_DESCRIPTIONS = (
    "the {n} of {D}",
    "{D}'s {n}",
    "the company that was the {n} of {D}",
    "the company behind {D}",
)

# (type, relations) -> leads and whether the smaller value wins; {n} what the compared are, {a} maker noun
LEADS: dict[tuple[str, tuple[str, ...]], tuple[tuple[str, bool], ...]] = {
    ("person", ("birth_year",)): templates.LEADS["birth_year"],
    ("person", ("death_year",)): (
        ("who died first", True),
        ("who died earlier", True),
        ("who passed away first", True),
        ("who died later", False),
        ("who died last", False),
        ("who passed away later", False),
    ),
    ("work", ("year",)): (
        ("which {n} came out first", True),
        ("which {n} was released earlier", True),
        ("which {n} is older", True),
        ("which {n} came out later", False),
        ("which {n} was released last", False),
        ("which {n} is newer", False),
    ),
    ("company", ("founding_year",)): (
        ("which {n} was founded first", True),
        ("which {n} opened earlier", True),
        ("which {n} is older", True),
        ("which {n} was founded later", False),
        ("which {n} opened last", False),
        ("which {n} is younger", False),
    ),
    ("work", ("creator", "birth_year")): (
        ("which {n} has the {a} who was born earlier", True),
        ("which {n} has the {a} who was born first", True),
        ("which {n} has the older {a}", True),
        ("which {n} has the {a} who was born later", False),
        ("which {n} has the {a} who was born last", False),
        ("which {n} has the younger {a}", False),
    ),
    ("work", ("creator", "death_year")): (
        ("which {n} has the {a} who died earlier", True),
        ("which {n} has the {a} who died first", True),
        ("which {n} has the {a} who passed away first", True),
        ("which {n} has the {a} who died later", False),
        ("which {n} has the {a} who died last", False),
        ("which {n} has the {a} who passed away later", False),
    ),
    ("company", ("founder", "birth_year")): (
        ("which {n} has the founder who was born earlier", True),
        ("which {n} has the founder who was born first", True),
        ("which {n} has the older founder", True),
        ("which {n} has the founder who was born later", False),
        ("which {n} has the founder who was born last", False),
        ("which {n} has the younger founder", False),
    ),
}
# (type, relations) -> predicates
PREDICATES: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {
    ("person", ("occupation",)): templates.PREDICATES["occupation"],
    ("work", ("genre",)): (
        "belong to the same genre",
        "have the same genre",
        "share a genre",
        "share the same genre",
        "fall into the same genre",
    ),
    ("work", ("creator", "occupation")): templates.PREDICATES["occupation"],
    ("work", ("creator", "birthplace")): (
        "come from the same city",
        "have the same place of birth",
        "share a birthplace",
        "have the same home town",
        "share a home town",
    ),
}
