"""How passages state facts, and the sentences that fill them up.

A passage draws from the relations that its entity has, in the order of this table: new relations go to the end of their
group, and no wording of a relation that a shipped corpus states may change.
"""

from __future__ import annotations

from tstar_envs.envs.search_qa.generate.worlds import wordings_of_people, wordings_of_things

WORDINGS = {**wordings_of_people.WORDINGS, **wordings_of_things.WORDINGS}

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
