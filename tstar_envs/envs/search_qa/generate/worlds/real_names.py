"""Real names that no word of the mini world may equal: a pretrained model must not be able to know an answer."""

from __future__ import annotations

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
