"""Shops: a catalogue with its tasks, noun taggers, and build plans."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from tstar_envs.data import locate
from tstar_envs.data.faults import NOTHING_LEFT_OUT, Faults, LeftOut
from tstar_envs.data.tasks import LoadedTasks, ids_by_split
from tstar_envs.envs.webshop.catalogue import Catalogue, Product


@dataclass(frozen=True, slots=True)
class Task:
    """One shopping goal.

    Attributes:
        id: unique in its shop.
        split: train, valid or test.
        goal: goal with the original's fields.
        nouns: nouns of the target's title.
        query: obvious search query for the target.
    """

    id: str
    split: str
    goal: Mapping[str, Any]
    nouns: tuple[str, ...]
    query: str
    instruction: str = field(default="")


def task_to_record(task: Task) -> dict[str, Any]:
    """Convert a task to a JSON record."""
    return {
        "id": task.id,
        "split": task.split,
        "query": task.query,
        "nouns": list(task.nouns),
        "goal": dict(task.goal),
    }


def task_from_record(record: dict[str, Any]) -> Task:
    """Convert a JSON record to a task."""
    goal = record["goal"]
    return Task(
        record["id"], record["split"], goal, tuple(record["nouns"]), record["query"], goal["instruction_text"]
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Shop(LoadedTasks[Task]):
    """Tasks of a shop, with their catalogue.

    A pickled shop is reopened in the other process.

    Attributes:
        catalogue: the products and their index.
        opener: function and arguments that reopen this shop.
    """

    catalogue: Catalogue
    opener: tuple[Callable[..., Shop], tuple[Any, ...]]

    def __reduce__(self) -> tuple[Callable[..., Shop], tuple[Any, ...]]:
        return self.opener


def make_shop(
    tier: str,
    catalogue: Catalogue,
    tasks: list[Task],
    opener: Callable[..., Shop],
    *arguments: Any,
    left_out: LeftOut = NOTHING_LEFT_OUT,
) -> Shop:
    """Create a shop that ``opener(*arguments)`` reopens."""
    return Shop(
        "WebShop",
        tier,
        {task.id: task for task in tasks},
        ids_by_split((task.id, task.split) for task in tasks),
        left_out=left_out,
        catalogue=catalogue,
        opener=(opener, arguments),
    )


_WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?")


# Words of product titles that are not nouns: closed classes, frequent adjectives, verbs and adverbs.
_NOT_NOUNS = frozenset(
    "a about above after all also an and any are as at be been before below between both but by can could do does down each either "
    "enough every few for from had has have how if in inside into is it its itself less like many may more most much must near neither "
    "no nor not of off on once one only onto or other our out outside over own per same several should since so some such than that the "
    "their them then there these they this those through to too under until up upon us use very via was we were what when where which "
    "while who will with within without would you your two three four five six seven eight nine ten "
    "adjustable anti antique automatic basic best better big black blue breathable bright brown casual cheap classic clean clear cold "
    "comfortable compact complete cool cordless cute dark decorative deep delicious digital double dry dual durable easy elastic electric "
    "electronic elegant essential extra fast fine fit flat flexible foldable free fresh full fun good gray great green grey happy hard "
    "healthy heavy high hot ideal indoor large last lasting late left light little long loose low lightweight main medium mini modern "
    "multi natural neutral new nice non old organic outdoor perfect personal plain plus portable powerful premium pretty pure quick quiet "
    "rechargeable red removable reusable rich right rigid round rustic safe sexy sheer short silent simple single slim small smart smooth "
    "soft solid special stackable stainless standard steady strong stylish super sweet tall thick thin tight tiny top traditional true "
    "ultra unique universal upright vintage warm washable waterproof wet white wide wild wireless yellow young "
    "folded padded quilted ribbed tufted weighted "
    "assembled blend bring carry clip fold give hang hold keep made make mount pop pull push put set slip stack "
    "stand stay take wash wear".split()
)


_ADJECTIVE_ENDINGS = ("able", "ible", "ful", "less", "ous", "ive", "ly")


class Tagger(NamedTuple):
    """Noun tagger; gives the nouns of a title, lower-cased, in order, with duplicates."""

    name: str
    nouns: Callable[[str], list[str]]


def lexicon_nouns(title: str) -> list[str]:
    """Find nouns by exclusion: drop numbers, listed words, and words with adjective or adverb endings."""
    words = _WORD.findall(title.lower())
    return [
        w
        for w in words
        if len(w) > 1 and w not in _NOT_NOUNS and not (len(w) > 5 and w.endswith(_ADJECTIVE_ENDINGS))
    ]


LEXICON = Tagger("lexicon-1", lexicon_nouns)


MODELS = ("en_core_web_lg", "en_core_web_md", "en_core_web_sm")


def best_tagger() -> Tagger:
    """Choose spaCy's largest installed English model, else the bundled lexicon.

    The model is loaded with the first title; a built store only needs the tagger's name.
    """
    if not find_spec("spacy"):
        return LEXICON
    from importlib.metadata import PackageNotFoundError, version  # slow to import

    for model in MODELS:
        try:
            return Tagger(f"spacy-{model}-{version(model)}", partial(_spacy_nouns, model))
        except PackageNotFoundError:
            continue
    return LEXICON


@lru_cache(maxsize=1)
def spacy_pipeline(model: str) -> Callable[[str], Any]:
    """Load a spaCy model with only the components that tagging needs."""
    import spacy

    pipeline: Callable[[str], Any] = spacy.load(model, disable=["parser", "ner", "lemmatizer"])
    return pipeline


def _spacy_nouns(model: str, title: str) -> list[str]:
    return [token.text.lower() for token in spacy_pipeline(model)(title) if token.pos_ in ("NOUN", "PROPN")]


FORMAT = 3  # raise with every change of the files or their contents, including text analysis


def webshop_home() -> Path:
    """Find the folder ``$TSTAR_DATA/webshop``."""
    return locate.data_home() / "webshop"


class Plan(NamedTuple):
    """Build plan of a store.

    Attributes:
        store: folder of the store.
        products: reads the products; the same on every call.
        price: draws the price of a product.
        tagger: tags titles of products without nouns.
        tasks: creates the tasks from the catalogue.
        large: True if the build takes minutes and must not be done in memory.
        by_asin: see ``Catalogue``.
        faults: collect unusable products and goals of external files.
    """

    store: Path
    products: Callable[[], Iterable[Product]]
    price: Callable[[Product], float]
    tagger: Tagger
    tasks: Callable[[Catalogue], list[Task]]
    large: bool = False
    by_asin: bool = False
    faults: tuple[Faults, Faults] = (Faults(), Faults())


def store_folder(origin: str, sources: Sequence[Path], *variant: Any) -> Path:
    """Compute the folder of the store of some source files.

    Args:
        origin: name of the set, independent of its contents.
        sources: source files; a changed size or modification time gives another store.
        variant: further settings that the store depends on.
    """
    now = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    return webshop_home() / "stores" / "-".join(map(_digest, ((FORMAT, origin), now, variant)))


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
