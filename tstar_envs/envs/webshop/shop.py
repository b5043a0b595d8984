"""Shops: a catalogue with its tasks."""

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
    """One goal.

    Attributes:
        id: unique in its shop.
        split: train, valid or test.
        goal: the original's goal fields.
        nouns: of the target's title.
        query: the obvious query for it.
    """

    id: str
    split: str
    goal: Mapping[str, Any]
    nouns: tuple[str, ...]
    query: str
    instruction: str = field(default="")


def task_to_record(task: Task) -> dict[str, Any]:
    """A task as a line of a file."""
    return {
        "id": task.id,
        "split": task.split,
        "query": task.query,
        "nouns": list(task.nouns),
        "goal": dict(task.goal),
    }


def task_from_record(record: dict[str, Any]) -> Task:
    """The task of such a line."""
    goal = record["goal"]
    return Task(
        record["id"], record["split"], goal, tuple(record["nouns"]), record["query"], goal["instruction_text"]
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Shop(LoadedTasks[Task]):
    """The tasks of a shop and its catalogue; they travel between processes by how the shop is opened.

    Attributes:
        catalogue: the products and their index.
        opener: a function and its arguments, which give this shop again.
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
    """A shop of these tasks, which ``opener(*arguments)`` gives again."""
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


# Words of product titles that are no nouns: closed classes, frequent adjectives, verbs and adverbs.
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
    """Finds the nouns of a title, lower-cased, in order, with duplicates."""

    name: str
    nouns: Callable[[str], list[str]]


def lexicon_nouns(title: str) -> list[str]:
    """Nouns by exclusion: what is no number, no listed word and has no ending of adjectives or adverbs."""
    words = _WORD.findall(title.lower())
    return [
        w
        for w in words
        if len(w) > 1 and w not in _NOT_NOUNS and not (len(w) > 5 and w.endswith(_ADJECTIVE_ENDINGS))
    ]


LEXICON = Tagger("lexicon-1", lexicon_nouns)


MODELS = ("en_core_web_lg", "en_core_web_md", "en_core_web_sm")


def best_tagger() -> Tagger:
    """SpaCy's largest installed English model, else the bundled lexicon.

    The model is loaded when the first title is read: a store whose nouns were found before needs its name only.
    """
    if not find_spec("spacy"):
        return LEXICON
    from importlib.metadata import PackageNotFoundError, version  # a third of what making a shop loads

    for model in MODELS:
        try:
            return Tagger(f"spacy-{model}-{version(model)}", partial(_spacy_nouns, model))
        except PackageNotFoundError:
            continue
    return LEXICON


@lru_cache(maxsize=1)
def spacy_pipeline(model: str) -> Callable[[str], Any]:
    """An installed model of spaCy, with no more than its tagger needs."""
    import spacy

    pipeline: Callable[[str], Any] = spacy.load(model, disable=["parser", "ner", "lemmatizer"])
    return pipeline


def _spacy_nouns(model: str, title: str) -> list[str]:
    return [token.text.lower() for token in spacy_pipeline(model)(title) if token.pos_ in ("NOUN", "PROPN")]


FORMAT = 3  # to be raised with every change of the files or of what they hold, the analysis of texts included


def webshop_home() -> Path:
    """``$TSTAR_DATA/webshop``."""
    return locate.data_home() / "webshop"


class Plan(NamedTuple):
    """What a store is made from.

    Attributes:
        store: its folder.
        products: reads the products, the same on every call.
        price: draws the price of one.
        tagger: finds the nouns of those that come without.
        tasks: makes the tasks, when the catalogue is there.
        large: whether building takes minutes and must not be done in memory.
        by_asin: see ``Catalogue``.
        faults: collect what of products and goals cannot be used, where they come from outside.
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
    """Where the store of some source files lies.

    Args:
        origin: what names the set, whatever is in it at the moment.
        sources: its files; another size or time of change means another store.
        variant: what else the store depends on.
    """
    now = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sources]
    return webshop_home() / "stores" / "-".join(map(_digest, ((FORMAT, origin), now, variant)))


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
