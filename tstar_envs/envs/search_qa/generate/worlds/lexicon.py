"""The closed lexicon of the mini world: every name is a combination of these words.

The name words are invented (a syllable from each of two short lists), so no pretrained model can know a fact about
them, and few enough that each is one token of the tiny policy's tokenizer. They are literal, not drawn at import,
because the shipped questions are frozen.
"""

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
# Of the rich world alone.
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
# Said before a given name.
NICKNAMES: tuple[str, ...] = tuple(
    "Old Young Tall Quiet Red Grey Bold Little Lucky Wise Silent Merry".split()
)
