"""Passages: an entity's facts in prose, in varying wordings and orders."""

from __future__ import annotations

from tstar_envs.envs.search_qa.expert import with_article
from tstar_envs.envs.search_qa.generate.graph import PARTICIPLES, WORK_KINDS, Entity, World
from tstar_envs.utils import StableRandom

# relation -> wordings; {s} subject, {o} object, {d} object with its article, {a} maker, {v} past tense, {p} participle
WORDINGS_OF_PEOPLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("person", "birthplace"): (
        "{s} was born in {o}.",
        "{s} came from {o}.",
        "{s} was a native of {o}.",
        "{s} grew up in {o}, the place of birth.",
        "{s} first saw the light of day in {o}.",
        "The birthplace of {s} was {o}.",
    ),
    ("person", "birth_year"): (
        "{s} was born in {o}.",
        "The birth of {s} took place in {o}.",
        "{s} came into the world in {o}.",
        "The year of birth was {o}.",
        "{s} was a child of the year {o}.",
        "Records give {o} as the year of birth.",
    ),
    ("person", "occupation"): (
        "{s} worked as {d}.",
        "{s} was {d} by trade.",
        "{s} earned a living as {d}.",
        "The occupation of {s} was {o}.",
        "{s} made a name as {d}.",
        "By profession {s} was {d}.",
    ),
    ("person", "school"): (
        "{s} studied at {o}.",
        "{s} attended {o}.",
        "{s} was a student of {o}.",
        "{s} was educated at {o}.",
        "{s} graduated from {o}.",
        "The school of {s} was {o}.",
    ),
    ("person", "spouse"): (
        "{s} married {o}.",
        "{s} was the spouse of {o}.",
        "{s} was married to {o}.",
        "{s} and {o} were a couple.",
        "The marriage with {o} lasted a lifetime.",
        "{s} shared a home with the spouse {o}.",
    ),
    ("person", "father"): (
        "{s} was a child of the father {o}.",
        "The father of {s} was {o}.",
        "{o} was the father of {s}.",
        "{s} had {o} as father.",
        "{s} learned much from the father, {o}.",
        "The name of the father was {o}.",
    ),
    ("person", "mother"): (
        "{s} was a child of the mother {o}.",
        "The mother of {s} was {o}.",
        "{o} was the mother of {s}.",
        "{s} had {o} as mother.",
        "{s} was brought up by the mother, {o}.",
        "The name of the mother was {o}.",
    ),
    ("person", "death_year"): (
        "{s} died in {o}.",
        "The death of {s} came in {o}.",
        "{s} lived until {o}.",
        "The year of death was {o}.",
        "{s} passed away in {o}.",
        "Records give {o} as the year of death.",
    ),
    ("person", "employer"): (
        "{s} was employed by {o}.",
        "{s} worked for {o}.",
        "{s} spent a career at {o}.",
        "The employer of {s} was {o}.",
        "{s} was on the staff of {o}.",
        "{o} employed {s}.",
    ),
    ("person", "award"): (
        "{s} received the {o}.",
        "{s} won the {o}.",
        "{s} was honoured with the {o}.",
        "The {o} went to {s}.",
        "{s} was given the {o}.",
        "{s} was a winner of the {o}.",
    ),
    ("person", "nickname"): (
        "{s} was also known as {o}.",
        "Many people called {s} by the name {o}.",
        "{s} was often called {o}.",
        "The nickname of {s} was {o}.",
        "To friends {s} was simply {o}.",
        "{s} went by the name {o}.",
    ),
}


# relation -> wordings; {s} subject, {o} object, {d} object with its article, {a} maker, {v} past tense, {p} participle
WORDINGS_OF_THINGS: dict[tuple[str, str], tuple[str, ...]] = {
    ("work", "creator"): (
        "{s} was {p} by {o}.",
        "The {a} of {s} is {o}.",
        "It was {o} who {v} {s}.",
        "{o} {v} {s}.",
        "{s} is the work of the {a} {o}.",
        "{s} was {p} by the {a} {o}.",
    ),
    ("work", "year"): (
        "It appeared in {o}.",
        "It came out in {o}.",
        "It was released in {o}.",
        "The year of release was {o}.",
        "The public first met it in {o}.",
        "It was first shown in {o}.",
    ),
    ("work", "company"): (
        "{o} released it.",
        "It was published by {o}.",
        "The publisher was {o}.",
        "{o} brought it to the public.",
        "It was issued by {o}.",
        "The company behind the release was {o}.",
    ),
    ("organisation", "founder"): (
        "{s} was founded by {o}.",
        "The founder of {s} was {o}.",
        "{o} founded {s}.",
        "{s} was started by {o}.",
        "{s} was the idea of {o}, its founder.",
        "It was {o} who set up {s}.",
    ),
    ("organisation", "founding_year"): (
        "It was founded in {o}.",
        "It opened in {o}.",
        "The year of its founding was {o}.",
        "It began its work in {o}.",
        "It has existed since {o}.",
        "Its story began in {o}.",
    ),
    ("organisation", "city"): (
        "Its seat is in {o}.",
        "It is based in {o}.",
        "The head office is in {o}.",
        "It has its home in {o}.",
        "Its main building stands in {o}.",
        "It is located in {o}.",
    ),
    ("city", "country"): (
        "{s} is found in {o}.",
        "{s} lies in {o}.",
        "{s} is located in {o}.",
        "{s} belongs to {o}.",
        "{s} is one of the towns of {o}.",
        "{s} is part of {o}.",
    ),
    ("city", "river"): (
        "The river {o} flows through it.",
        "It stands on the river {o}.",
        "It was built on the banks of the {o} river.",
        "The river {o} divides the town.",
        "Its mills used the water of the river {o}.",
        "Boats reach it by the river {o}.",
    ),
    ("work", "genre"): (
        "Its genre is {o}.",
        "It belongs to the genre of {o}.",
        "It is a work of {o}.",
        "It is counted as {o}.",
        "The genre is {o}.",
        "Libraries list it under {o}.",
    ),
    ("work", "based_on"): (
        "It is based on {o}.",
        "It was adapted from {o}.",
        "It takes its story from {o}.",
        "The model for it was {o}.",
        "It goes back to {o}.",
        "Its source is {o}.",
    ),
    ("work", "award"): (
        "It won the {o}.",
        "It received the {o}.",
        "It was honoured with the {o}.",
        "It was given the {o}.",
        "The {o} went to it.",
        "It is a winner of the {o}.",
    ),
    ("city", "mayor"): (
        "Its mayor was {o}.",
        "The mayor was {o}.",
        "{o} was its mayor.",
        "The town elected {o} as mayor.",
        "It was led by the mayor {o}.",
        "The office of mayor was held by {o}.",
    ),
    ("country", "capital"): (
        "Its capital is {o}.",
        "The capital is {o}.",
        "The capital city is {o}.",
        "{o} is its capital.",
        "It is governed from its capital {o}.",
        "Its government sits in the capital, {o}.",
    ),
    ("country", "president"): (
        "Its president was {o}.",
        "The president was {o}.",
        "{o} was its president.",
        "It was led by the president {o}.",
        "The office of president was held by {o}.",
        "Its people elected {o} as president.",
    ),
    ("country", "independence_year"): (
        "It has been independent since {o}.",
        "It became independent in {o}.",
        "The year of its independence was {o}.",
        "It won independence in {o}.",
        "Its independence came in {o}.",
        "It declared independence in {o}.",
    ),
    ("award", "presenter"): (
        "It is given by {o}.",
        "It is awarded by {o}.",
        "{o} gives it.",
        "{o} presents it.",
        "It is presented by {o}.",
        "The giver is {o}.",
    ),
    ("award", "first_year"): (
        "It was first given in {o}.",
        "It has been given since {o}.",
        "The first winner was named in {o}.",
        "Its first year was {o}.",
        "It was presented for the first time in {o}.",
        "Its history began in {o}.",
    ),
    ("award", "city"): (
        "The ceremony is held in {o}.",
        "Winners receive it in {o}.",
        "It is handed over in {o}.",
        "Every year the winners travel to {o}.",
        "The festive evening takes place in {o}.",
        "Its ceremony takes place in {o}.",
    ),
}


WORDINGS = {**WORDINGS_OF_PEOPLE, **WORDINGS_OF_THINGS}

FILLERS: dict[str, tuple[str, ...]] = {
    "person": (
        "Little else is known about the early years.",
        "A small street is named in their honour.",
        "Friends described a patient and quiet character.",
        "Several letters are kept in a public archive.",
        "Later life was spent far from the public eye.",
        "A short portrait appeared in a magazine.",
        "Colleagues praised the careful work.",
        "The family kept a large collection of old books.",
        "A modest pension paid for the last journeys.",
        "Old age brought a love of gardens.",
    ),
    "work": (
        "Critics gave it mixed reviews at first.",
        "A restored version is kept in an archive.",
        "It has been translated into several languages.",
        "It is often taught to young students.",
        "Its success came slowly but lasted for decades.",
        "The first version was thought to be lost.",
        "It won no award in its own time.",
        "A short extract is printed in many collections.",
        "Many later artists named it as a model.",
        "The title caused a small public debate.",
    ),
    "organisation": (
        "It employs a small but loyal staff.",
        "Its archive is open to visitors.",
        "A fire destroyed part of its records.",
        "It is known for high standards.",
        "Its sign shows a bird above an open book.",
        "It survived two hard decades.",
        "Its public lectures draw large crowds.",
        "Visitors praise the old main hall.",
        "A yearly prize bears its name.",
        "Its accounts were never made public.",
    ),
    "city": (
        "A weekly market is held on the old square.",
        "Its stone bridge is a popular sight.",
        "The local museum shows tools and maps.",
        "Winters there are long and mild.",
        "Most visitors arrive in late summer.",
        "Its old walls were taken down long ago.",
        "A small theatre opens every spring.",
        "The town hall has a famous clock.",
        "Its bakers are known for dark bread.",
        "Trade made the town quite rich.",
    ),
    "country": (
        "Its coast is known for strong winds.",
        "Most of the land is used for farming.",
        "It has many lakes and low hills.",
        "Its people speak two languages.",
        "Its flag shows three white stars.",
        "The mountains in the north are rarely visited.",
        "Wool and timber are its main goods.",
        "Its railways are old but reliable.",
    ),
    "award": (
        "A small bronze bird comes with it.",
        "The jury meets behind closed doors.",
        "It carries a modest sum of money.",
        "Winners give a short speech.",
        "It has been refused twice.",
        "The rules have changed several times.",
        "Its medal is made of silver.",
        "The list of winners is kept in an archive.",
    ),
}


SHORTEST, LONGEST = 25, 60


def family(entity: Entity) -> str:
    """Map an entity to its family of wordings; companies and schools share one."""
    return "organisation" if entity.type in ("company", "school") else entity.type


def render(world: World, entity: Entity, rng: StableRandom) -> str:
    """Write the body of an entity's passage.

    Args:
        world: source of the facts.
        entity: subject of the passage.
        rng: random source of wordings, order and fillers.

    Returns:
        One paragraph of 25 to 60 words.
    """
    group = family(entity)
    relations = [r for (g, r) in WORDINGS if g == group and (entity.id, r) in world.facts]
    sentences: list[str] = []
    lead = _lead(entity)
    for relation in rng.shuffled(relations):
        first = not sentences and not lead
        # The first sentence must name the entity; some wordings omit the subject.
        wording = rng.choice([w for w in WORDINGS[group, relation] if not first or "{s}" in w])
        sentences.append(_fill(wording, world, entity, relation, first))
    if lead:
        sentences.insert(0, lead)
    for filler in rng.shuffled(FILLERS[group]):
        words = sum(len(s.split()) for s in sentences)
        if words >= SHORTEST and len(sentences) > len(relations) + bool(lead):
            break
        sentences.insert(1 + rng.below(len(sentences)), filler)
    return " ".join(sentences)


def _lead(entity: Entity) -> str:
    return "" if entity.type == "person" else f"{entity.name} is {with_article(entity.kind)}."


def _fill(wording: str, world: World, entity: Entity, relation: str, first: bool) -> str:
    maker, verb = WORK_KINDS.get(entity.kind, ("", ""))
    # Surname only for people: shorter, and the reader must link it to the title.
    later = entity.name.split()[-1] if entity.type == "person" else "it"
    subject = entity.name if first or (entity.type != "person" and not wording.startswith("{s}")) else later
    value = world.object_name(entity.id, relation)
    text = wording.format(
        s=subject, o=value, d=with_article(value), a=maker, v=verb, p=PARTICIPLES.get(verb, "")
    )
    return text[0].upper() + text[1:]
