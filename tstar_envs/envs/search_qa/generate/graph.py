"""Knowledge graph of invented people, works, organisations, cities and countries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tstar_envs.utils import StableRandom

FIRST_WORDS: tuple[str, ...] = tuple(  # given names
    """
    Alvik Belbar Belbor Brehal Brezan Caskor Castol Corwen Dalzan Drumond Drunath Drurik Druwen Druzan
    Falros Fenur Gartash Grisin Hesnis Holbor Holfin Holsel Iswen Jorgan Jorlum Jormar Jorven Jorwen
    Kasnath Kelmond Kelwen Lorgan Lortash Margan Maryth Meldra Nerros Norlin Norsel Pelven Pramar Prapar
    Quilkor Rilbar Rilkor Roslum Selkor Seltash Tamsel Tordor Torwick Ulbor Uldel Ulven Velmond Velzan
    Vesdel Vesnis Wynfin Wynyth Yormar Zanros Zansin Zanvan
    """.split()
)
LAST_WORDS: tuple[str, ...] = tuple(  # surnames
    """
    Allum Belsel Belyth Brerik Bretash Casfin Casrin Caswick Corbor Corhal Corwick Dalrik Drudor Druyth
    Ebdor Ebgan Falfin Faljun Falrik Falwen Fenjun Garfin Garquin Garvan Hesmar Hesros Hesbel Holtash
    Ispar Isquin Jorquin Jorsel Kasgan Keldra Kelfin Kelvan Marpar Marsin Melfin Melkith Nerfex Nerkor
    Nervik Oryth Pelsel Peltol Prabar Pragan Pranis Praros Pratol Praur Quilfex Quilros Quilwen Rildel
    Rilfex Rillin Rilur Rosgan Selbar Sellin Selpar Selvan Sornath Soryth Tamfex Tamfin Tammar Torros
    Torvan Torwen Ulbar Uldor Uldra Ullin Ultash Velbor Vellum Velmar Velnis Velvik Vesdor Vespar Vesvan
    Wyndel Wynlin Wynsin Zanbar Zandor Zanfex Zelbor Zelrik Zelros Zelwen Zelzan
    """.split()
)
PLACE_WORDS: tuple[str, ...] = tuple(  # first words of city names
    """
    Aldor Alquin Belnath Corbar Cormar Corquin Dalkor Dalsin Druros Drusin Ebhal Fenfin Garkor Garnath
    Gripar Grizan Holvan Holyth Isbor Isvan Jorkor Kasjun Keldel Kelhal Kelnath Lorlum Marvan Melbar
    Melnis Norfex Normar Nornis Norzan Orven Pelnath Pelrik Pradra Prajun Pralum Pravan Prayth Rilhal
    Rosbar Rosrik Rosyth Seljun Selzan Sorur Sorvan Tambar Torfin Torur Torven Ulfin Ulhal Ulnath Velros
    Vesdra Veskor Wynbar Yordra Yornath Yorzan Zelquin
    """.split()
)
TITLE_WORDS: tuple[str, ...] = tuple(  # last words of titles
    """
    Altol Beldel Belkor Bresel Breur Cashal Caslum Cortol Daljun Dalnath Drupar Druvik Faltol Fensin
    Garbor Garfex Hespar Hesrik Hesur Holdor Holjun Holtol Isrik Jorbor Joryth Kasmar Kasquin Kelfex
    Meljun Melven Melyth Nermar Nernis Norbor Norhal Orhal Orzan Pelbor Pralin Quillin Rilsin Seldra
    Selgan Selhal Selmond Tamrik Tordel Torgan Torsel Ulpar Vesmond Veszan Wynven Yornis Yorrik Zandel
    Zangan Zanvik Zanzan Zelgan Zellum Zelnis Zelsel Zeltol
    """.split()
)
ORG_WORDS: tuple[str, ...] = tuple(  # first words of organisation names
    """
    Alfin Beldra Belnis Belsin Belur Casnel Corjun Ebbor Ebtash Fallum Garvik Garwick Grigan Hestol
    Heswen Holbin Islin Issin Jorsin Kelbar Kelyth Lorfex Lorsin Lorzan Marbar Marnath Marur Mellin
    Melwick Norlum Orgath Orjun Orwen Pelvik Pelwen Prawick Quilbor Quildel Quilfin Quilgan Rilbor Rilnis
    Rosmar Roszan Selnath Selsin Sorjun Sorpar Sorsel Tamhal Torbor Torkor Ulfex Ulros Ulyth Velbar
    Veltash Vestol Vesven Yormond Yorsel Zanmar Zanrik Zelbar
    """.split()
)
COUNTRY_WORDS: tuple[str, ...] = tuple(  # countries
    """
    Belpar Bredra Brekor Brenis Brevan Cordra Corkor Coryth Dalgan Dalhal Dalwen Drufex Drufin Drukor
    Druwick Ebsel Falhal Fenbar Fendor Fenkor Fenven Fenvik Fenwen Garzan Gridra Grihal Griquin Griros
    Griwen Hesfex Heszan Holkor Holros Iskor Istash Jorfex Jortol Kasfin Kasmond Kelrik Keltol Lorbor
    Lordel Loryth Marfin Melgan Mellum Meltash Nerbar Nerdel Nerdor Nersel Nerzan Norwist Orsel Pelgan
    Pellin Peltash Prabor Pranath Quilrik Rilfin Rilyth Rilzan Rosnis Rosvan Rosvik Roswen Seldel Sorvik
    Tamdel Uljun Ulmond Ulsin Ulvik Veljun Velkor Vesfin Vesjun Vesvik Wyndor Wynfex Wynkor Wynsel
    Wyntash Wynvik Wynwen Yorquin Yorros Zelpar
    """.split()
)
RIVER_WORDS: tuple[str, ...] = tuple(  # rivers
    """
    Alpar Belfin Belwen Brepar Casgan Caswen Caszan Dallum Dalquin Dalyth Drujun Drutash Ebrik Ebvik
    Ebwen Falquin Garnis Grinis Gririk Hesfin Holgan Holvik Jorjun Jornath Jornis Jortash Kasdra Kaspar
    Lordor Lortol Lorvan Marbor Melzan Nerlum Nortash Orrik Prafin Quilven Rossin Sordor Sornis Ulnis
    Veldra Vellin Yorven Zandra Zanpar Zantash
    """.split()
)
CITY_WORDS: tuple[str, ...] = tuple(  # second words of city names
    "Falls Bay Harbor Bridge Ridge Hollow Crossing Mills Point Heath Ford Haven Springs Grove Landing Gate".split()
)
TITLE_NOUNS: tuple[str, ...] = tuple(  # first words of titles, always followed by "of"
    """
    Lantern Mirror Garden Winter Shadow Letters Island Orchard Tower Silence Map Crown Feather Anchor Compass
    Candle Throne Mask River Bell Wolves Daughters Sailors Echo Chronicle Harvest Tides Ashes Clockmaker
    Cathedral Falcon Keeper Fountain Labyrinth Portrait Legend Storm Voyage Gates Stones
    """.split()
)
COMPANY_WORDS: tuple[str, ...] = tuple("Press House Studios Media Works Group Books Records".split())
SCHOOL_WORDS: tuple[str, ...] = tuple("College Academy Institute Conservatory School Seminary".split())
OCCUPATIONS: tuple[str, ...] = tuple(
    """
    teacher lawyer doctor painter sculptor botanist chemist engineer journalist architect translator sailor
    farmer librarian soldier actor printer historian astronomer banker merchant photographer
    """.split()
)
# Only in the rich world.
MORE_OCCUPATIONS: tuple[str, ...] = tuple(
    """
    judge surgeon weaver potter jeweller gardener baker carpenter diplomat geologist physicist explorer publisher editor
    poet dancer violinist organist watchmaker shipbuilder surveyor pharmacist
    """.split()
)
GENRES: tuple[str, ...] = tuple(
    """
    mystery romance comedy tragedy adventure satire fantasy horror drama fable epic parody thriller western allegory
    melodrama folklore pastoral war crime travel history realism nature myth ballad
    """.split()
)
AWARD_NOUNS: tuple[str, ...] = tuple("Prize Medal Award Order Trophy".split())  # second words of award names
# Titles before a given name.
NICKNAMES: tuple[str, ...] = tuple(
    "Old Young Tall Quiet Red Grey Bold Little Lucky Wise Silent Merry".split()
)


REAL_NAMES: frozenset[str] = frozenset(
    """
    afghanistan albania algeria andorra angola argentina armenia australia austria azerbaijan bahamas bahrain bangladesh
    belarus belgium belize benin bhutan bolivia botswana brazil brunei bulgaria burundi cambodia cameroon canada chad chile
    china colombia comoros congo croatia cuba cyprus denmark djibouti dominica ecuador egypt eritrea estonia eswatini
    ethiopia fiji finland france gabon gambia georgia germany ghana greece grenada guatemala guinea guyana haiti honduras
    hungary iceland india indonesia iran iraq ireland israel italy jamaica japan jordan kazakhstan kenya kiribati korea
    kosovo kuwait laos latvia lebanon lesotho liberia libya lithuania luxembourg madagascar malawi malaysia maldives mali
    malta mauritania mauritius mexico moldova monaco mongolia montenegro morocco mozambique myanmar namibia nauru nepal
    netherlands nicaragua niger nigeria norway oman pakistan palau panama paraguay peru philippines poland portugal qatar
    romania russia rwanda samoa senegal serbia seychelles singapore slovakia slovenia somalia spain sudan suriname sweden
    switzerland syria taiwan tajikistan tanzania thailand togo tonga tunisia turkey turkmenistan tuvalu uganda ukraine
    uruguay uzbekistan vanuatu vatican venezuela vietnam yemen zambia zimbabwe england scotland wales bohemia prussia saxony
    london paris berlin madrid rome vienna athens moscow dublin lisbon oslo helsinki warsaw prague budapest milan munich
    hamburg boston chicago denver dallas houston seattle toronto montreal sydney melbourne delhi mumbai tokyo kyoto osaka
    beijing shanghai cairo lagos nairobi lima bogota santiago kassel bremen brest calais dover oxford cambridge bristol
    thames seine rhine danube volga nile amazon ganges mekong tiber rhone elbe oder severn tyne mersey
    james john robert michael william david richard joseph thomas charles christopher daniel matthew anthony mark donald
    steven paul andrew joshua kenneth kevin brian george edward ronald timothy jason jeffrey ryan jacob gary nicholas eric
    jonathan stephen larry justin scott brandon benjamin samuel gregory frank alexander raymond patrick jack dennis jerry
    tyler aaron jose adam nathan henry douglas zachary peter kyle walter ethan jeremy harold keith christian roger noah
    gerald carl terry sean austin arthur lawrence jesse dylan bryan joe jordan billy bruce albert willie gabriel logan alan
    juan wayne roy ralph randy eugene vincent russell elijah louis bobby philip johnny norman melvin calvin marvin alvin
    kelvin corwin darwin alton milton mary patricia jennifer linda elizabeth barbara susan jessica sarah karen lisa nancy
    betty margaret sandra ashley kimberly emily donna michelle carol amanda dorothy melissa deborah stephanie rebecca
    sharon laura cynthia kathleen amy angela shirley anna brenda pamela emma nicole helen samantha katherine christine
    debra rachel carolyn janet maria heather diane ruth julie olivia joyce virginia selma velma thelma
    smith johnson williams brown jones garcia miller davis rodriguez martinez hernandez lopez gonzalez wilson anderson
    taylor moore jackson martin lee perez thompson white harris sanchez clark ramirez lewis robinson walker young allen
    king wright torres nguyen hill flores green adams nelson baker hall rivera campbell mitchell carter roberts gomez
    phillips evans turner diaz parker cruz edwards collins reyes stewart morris morales murphy cook rogers gutierrez ortiz
    morgan cooper peterson bailey reed kelly howard ramos kim cox ward richardson watson brooks chavez wood bennett gray
    mendoza ruiz hughes price alvarez castillo sanders patel myers long ross foster jimenez powell jenkins perry russell
    sullivan bell coleman butler henderson barnes gonzales fisher vasquez simmons graham melville tolkien melkor fenwick
    galvin garvin norwich yorick caspar casper lorne orwell corbin dalton walton nordic zanzibar
    """.split()
)


WORK_KINDS: dict[str, tuple[str, str]] = {  # kind -> (maker noun, verb in the past tense)
    "novel": ("author", "wrote"),
    "film": ("director", "directed"),
    "opera": ("composer", "composed"),
    "album": ("singer", "recorded"),
    "fresco": ("painter", "painted"),
}
PARTICIPLES = {
    "wrote": "written",
    "directed": "directed",
    "composed": "composed",
    "recorded": "recorded",
    "painted": "painted",
}


@dataclass(frozen=True, slots=True)
class Entity:
    """Entity with its own passage.

    Attributes:
        id: unique key, ``<type><number>``.
        type: ``person``, ``work``, ``company``, ``school``, ``city``, ``country`` or ``award``.
        name: name in passages and questions; unique, except that a work may have a namesake of another kind.
        kind: for works, a key of ``WORK_KINDS``; else equal to ``type``.
        region: part of the world.
        popularity: popularity (Zipf's law over the world); 0 if the world has none.
        aliases: other accepted answers; no alias fits two entities of a world.
    """

    id: str
    type: str
    name: str
    kind: str
    region: str
    popularity: int = 0
    aliases: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """Title of its passage; works include their kind, because of namesakes."""
        return f"{self.name} ({self.kind})" if self.type == "work" else self.name


@dataclass
class World:
    """World: entities by id, facts by (subject id, relation).

    An object is an entity id or a literal (year, occupation).
    """

    entities: dict[str, Entity] = field(default_factory=dict)
    facts: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, type_: str, name: str, region: str, kind: str | None = None) -> str:
        """Add an entity and return its id."""
        entity = Entity(f"{type_}{len(self.entities):05d}", type_, name, kind or type_, region)
        self.entities[entity.id] = entity
        return entity.id

    @cached_property
    def by_subject(self) -> dict[str, list[tuple[str, str]]]:
        """Subject -> (relation, object) of its facts; cached, for complete worlds."""
        found: dict[str, list[tuple[str, str]]] = {}
        for (subject, relation), value in self.facts.items():
            found.setdefault(subject, []).append((relation, value))
        return found

    @cached_property
    def by_object(self) -> dict[str, list[tuple[str, str]]]:
        """Object -> (subject, relation) of its facts; cached, for complete worlds."""
        found: dict[str, list[tuple[str, str]]] = {}
        for (subject, relation), value in self.facts.items():
            found.setdefault(value, []).append((subject, relation))
        return found

    def object_name(self, subject: str, relation: str) -> str:
        """Get the object of a fact as text.

        Raises:
            KeyError: the world has no such fact.
        """
        value = self.facts[(subject, relation)]
        return self.entities[value].name if value in self.entities else value

    def of_type(self, kind: str, region: str) -> list[Entity]:
        """List the entities of a type in a region, in order of creation.

        For complete worlds.
        """
        return self._by_type.get((kind, region), [])

    @cached_property
    def _by_type(self) -> dict[tuple[str, str], list[Entity]]:
        found: dict[tuple[str, str], list[Entity]] = {}
        for entity in self.entities.values():
            found.setdefault((entity.type, entity.region), []).append(entity)
        return found


@dataclass(frozen=True, slots=True)
class RegionSize:
    """Number of entities of each type in a region."""

    people: int
    works: int
    companies: int
    schools: int
    cities: int
    countries: int
    awards: int = 0


class Names:
    """Generator of unique two-word names, excluding ``taken`` ones."""

    def __init__(self, rng: StableRandom, taken: Collection[str]) -> None:
        self._rng = rng
        self._taken = set(taken)

    def new(self, pattern: str, *words: tuple[str, ...]) -> str:
        """Draw an unused name: the pattern filled with one word of each list.

        Raises:
            ValueError: no unused name was found.
        """
        for _ in range(10_000):
            name = pattern.format(*(self._rng.choice(list_) for list_ in words))
            if name not in self._taken:
                self._taken.add(name)
                return name
        raise ValueError(f"no free name left for pattern {pattern!r}: ask for fewer entities")


def dealt(rng: StableRandom, items: Sequence[str], count: int) -> list[str]:
    """Draw ``count`` items in random order, each about equally often.

    So no object is a good blind guess.
    """
    return rng.shuffled([items[i % len(items)] for i in range(count)])


def add_entities(
    world: World,
    region: str,
    size: RegionSize,
    rng: StableRandom,
    names: Names,
    countries: list[str],
    namesakes: float,
) -> dict[str, list[str]]:
    """Add the entities of a region, without facts.

    Args:
        world: modified in place.
        region: name of the region.
        size: number of entities of each type.
        rng: random source.
        names: generator of names.
        countries: words for countries; used words are removed from the end.
        namesakes: share of works that get a namesake of another kind.

    Returns:
        Type -> ids in order of creation.

    Raises:
        ValueError: too few names or country words.
    """
    if len(countries) < size.countries:
        raise ValueError(
            f"{size.countries} countries needed for region {region!r}, {len(countries)} country words left"
        )

    def many(type_: str, count: int, *words: tuple[str, ...]) -> list[str]:
        return [world.add(type_, names.new("{} {}", *words), region) for _ in range(count)]

    ids = {
        "country": [world.add("country", countries.pop(), region) for _ in range(size.countries)],
        "city": many("city", size.cities, PLACE_WORDS, CITY_WORDS),
        "person": many("person", size.people, FIRST_WORDS, LAST_WORDS),
        "company": many("company", size.companies, ORG_WORDS, COMPANY_WORDS),
        "school": many("school", size.schools, ORG_WORDS, SCHOOL_WORDS),
        "work": [],
    }
    kinds = list(WORK_KINDS)
    for _ in range(size.works):
        name, kind = names.new("{} of {}", TITLE_NOUNS, TITLE_WORDS), rng.choice(kinds)
        ids["work"].append(world.add("work", name, region, kind))
        if rng.chance(namesakes):
            ids["work"].append(world.add("work", name, region, rng.choice([k for k in kinds if k != kind])))
    ids["award"] = many("award", size.awards, ORG_WORDS, AWARD_NOUNS)
    return ids
