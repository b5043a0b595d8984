"""Word lists of the mini tier: attributes, option values and filler. Generic words; brands are invented."""

from __future__ import annotations

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "beauty": (
        "cruelty free",
        "dermatologist tested",
        "long lasting",
        "vitamin enriched",
        "sulfate less",
        "hypoallergenic formula",
        "travel sized",
        "plant derived",
        "quick absorbing",
        "mineral rich",
        "sensitive scalp",
        "daily moisture",
    ),
    "electronics": (
        "fast charging",
        "non slip",
        "water resistant",
        "aluminum alloy",
        "easy carry",
        "shock proof",
        "noise damping",
        "tool less assembly",
        "heavy duty",
        "ultra hd",
        "wireless ready",
        "scratch protection",
    ),
    "garden": (
        "machine washable",
        "solid wood",
        "stain repellent",
        "space saving",
        "memory foam",
        "assembly required",
        "eco friendly",
        "handwoven jute",
        "living room",
        "wall mounted",
        "king proportions",
        "fade defying",
    ),
    "fashion": (
        "hand wash",
        "rubber sole",
        "arch support",
        "relaxed fit",
        "elastic waistband",
        "quality polyester",
        "day comfort",
        "button closure",
        "moisture wicking",
        "faux fur",
        "hidden pocket",
        "wrinkle care",
    ),
    "grocery": (
        "gluten free",
        "low sodium",
        "keto diet",
        "certified organic",
        "artificial colours excluded",
        "high protein",
        "soy avoided",
        "resealable pouch",
        "small batch",
        "kosher approved",
        "nut safe",
        "dairy alternative",
    ),
}
OPTION_VALUES: dict[str, tuple[str, ...]] = {
    "color": (
        "black",
        "white",
        "blue",
        "green",
        "red",
        "purple",
        "orange",
        "brown",
        "pink",
        "yellow",
        "teal",
        "khaki",
    ),
    "size": ("small", "medium", "large", "compact", "jumbo", "regular", "petite"),
    "scent": ("vanilla", "cedar", "citrus", "jasmine", "eucalyptus", "honey", "rosemary"),
    "fit type": ("junior", "adult", "toddler", "senior", "unisex"),
    "flavor name": ("ginger", "mango", "cherry", "hazelnut", "cinnamon", "papaya", "maple"),
}
SYLLABLES = (
    "bel bri cal dor fen gar hal jor kel lum mar nev ol per quin ral sol tav ul ven wes yor zan".split()
)
ENDINGS = "ado by don ega field iva lo more nna ora ra ston ta va well".split()
# Further words of a title; none holds an attribute or an option value.
TITLE_FILLER = (
    "for Home and Office",
    "Gift for Friends and Family",
    "Latest Edition",
    "Everyday Use",
    "with Storage Box",
    "Starter Pick",
    "for Guests and Weekends",
    "Studio Series",
    "with Care Guide",
    "for Beginners and Experts",
    "Made to Share",
    "Autumn Collection",
    "with Replacement Parts",
    "from the Workshop",
    "Set of Two",
    "Value Bundle",
    "for Every Season",
    "Weekend Edition",
)
DESCRIPTION_FILLER = (
    "The {noun} by {brand} was drawn up together with the people who use one every week.",
    "Each piece is looked over twice before it leaves the workshop, and the box holds a printed guide.",
    "It goes well with the other things of the {brand} range, which is extended every spring.",
    "We answer questions about your {noun} within two working days and replace what arrives damaged.",
    "Colours on a screen can differ a little from what you hold in your hands.",
    "Many buyers order a second one as a present, so the parcel shows no price.",
    "Please read the guide before first use and keep it for later.",
)
BULLET_FILLER = (
    "THOUGHT OUT TO THE END: the {noun} from {brand} leaves out what you do not need and gets the rest right, so that you reach for it again "
    "and again.",
    "WHAT YOU GET: one {noun}, a short guide and the address of our service desk, packed in a box of recycled card without needless plastic.",
    "A GOOD PRESENT: for a birthday, a housewarming or a thank you, the {noun} comes in a box that needs no further wrapping and shows no price.",
    "SERVICE: should anything be wrong with your {noun}, write to {brand} and we send another one or return what you paid, without long forms.",
    "TRIED AND TESTED: before this {noun} went on sale it was used for three months by forty households who told us what to change.",
)
ATTRIBUTE_SENTENCES = (
    "Good to know: {attribute}.",
    "What sets it apart: {attribute}.",
    "Checked in our workshop: {attribute}.",
    "You asked for it: {attribute}.",
)
INSTRUCTIONS = (
    "i am looking for a {noun} that is {first} and {second}{options}",
    "i need a {first} {noun} with {second}{options}",
    "find me a {noun}, {second}, {first}{options}",
    "i want to buy a {second} {noun} and it should be {first}{options}",
    "looking for {first} {noun}, also {second}{options}",
    "please get me a {noun} which offers {first} and {second}{options}",
)
