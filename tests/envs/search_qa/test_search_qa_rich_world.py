"""The rich world: rebuilt byte for byte, its facts agree with one another, and a passage of its own states each."""

import dataclasses
import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from tstar_envs.envs.search_qa.generate import files
from tstar_envs.envs.search_qa.generate.graph import Names, World
from tstar_envs.envs.search_qa.generate.questions import ProofFailed, check_aliases, check_world
from tstar_envs.envs.search_qa.generate.worlds import MAKER_AGES, MOST_POPULAR, PARENT_AGES, RICH, MiniWorld
from tstar_envs.envs.search_qa.tasks import RICH_FOLDER
from tstar_envs.utils import StableRandom


@pytest.fixture(scope="module")
def mini() -> MiniWorld:
    mini = RICH.make()
    check_world(mini)
    return mini


def test_rebuilding_gives_the_shipped_bytes(mini: MiniWorld, tmp_path: Path) -> None:
    rebuilt = files.corpus_bytes(mini)
    assert gzip.decompress((RICH_FOLDER / "corpus.jsonl.gz").read_bytes()) == rebuilt
    files.write(tmp_path, {"corpus.jsonl": rebuilt}, "rich", RICH.seed)
    assert (tmp_path / "MANIFEST.json").read_bytes() == (RICH_FOLDER / "MANIFEST.json").read_bytes()
    assert hashlib.sha256(rebuilt).hexdigest() in (tmp_path / "MANIFEST.json").read_text()


def test_every_fact_is_written_in_the_passage_of_its_subject_and_nearly_never_elsewhere(
    mini: MiniWorld,
) -> None:
    texts = dict(mini.corpus)
    mentions: dict[str, set[str]] = {}
    names = {e.name for e in mini.world.entities.values()}
    for id_, contents in texts.items():
        words = contents.replace('"', " ").replace("(", " ").replace(".", " ").replace(",", " ").split()
        for length in (1, 2, 3):
            for start in range(len(words) - length + 1):
                phrase = " ".join(words[start : start + length])
                mentions.setdefault(phrase, set()).add(id_)
    assert names <= set(mentions)
    twice = 0
    for (subject, relation), _ in mini.world.facts.items():
        value = mini.world.object_name(subject, relation)
        assert value in texts[subject], (subject, relation)
        twice += len(mentions[mini.world.entities[subject].name] & mentions.get(value, set())) > 1
    assert twice < 0.05 * len(mini.world.facts), (
        "mostly couples, whose children name both; such questions are rejected one by one"
    )


def test_regions_share_no_fact(mini: MiniWorld) -> None:
    entities = mini.world.entities
    for (subject, _), value in mini.world.facts.items():
        assert value not in entities or entities[value].region == entities[subject].region


def test_facts_agree(mini: MiniWorld) -> None:
    facts = mini.world.facts
    births = {s: int(v) for (s, r), v in facts.items() if r == "birth_year"}
    for (subject, relation), value in facts.items():
        if relation in ("father", "mother") and subject in births and value in births:
            assert births[subject] - births[value] >= min(PARENT_AGES)
        if relation == "father" and (subject, "mother") in facts:
            mother = facts[subject, "mother"]
            assert (
                facts.get((value, "spouse"), mother) == mother
                and facts.get((mother, "spouse"), value) == value
            )
        if relation in ("founder", "creator") and value in births:
            year = facts.get((subject, "founding_year" if relation == "founder" else "year"))
            assert year is None or int(year) - births[value] in MAKER_AGES
        if relation == "death_year" and subject in births:
            assert int(value) - births[subject] >= max(MAKER_AGES)
        if relation == "capital":
            assert (value, "country") not in facts, "the two passages would state it twice"
        if relation == "based_on" and (subject, "year") in facts and (value, "year") in facts:
            assert int(facts[value, "year"]) < int(facts[subject, "year"])
    spouses = [(s, v) for (s, r), v in facts.items() if r == "spouse"]
    people = Counter(p for couple in spouses for p in couple)
    assert spouses and max(people.values()) == 1, "a marriage is stated once"
    parents = [{facts.get((p, r)) for r in ("father", "mother")} - {None} for p in (s for s, _ in spouses)]
    others = [{facts.get((p, r)) for r in ("father", "mother")} - {None} for p in (v for _, v in spouses)]
    assert not any(one & two for one, two in zip(parents, others, strict=True)), "siblings do not marry"


def test_popularity_follows_zipf_and_the_well_known_have_more_facts(mini: MiniWorld) -> None:
    ranked = sorted(mini.world.entities.values(), key=lambda e: -e.popularity)
    assert [e.popularity for e in ranked] == [MOST_POPULAR // rank for rank in range(1, len(ranked) + 1)]
    stated = Counter(subject for subject, _ in mini.world.facts)
    people = [e.id for e in ranked if e.type == "person"]
    head, tail = people[: len(people) // 5], people[-len(people) // 5 :]
    assert sum(stated[p] for p in head) > 1.4 * sum(stated[p] for p in tail)


def test_aliases(mini: MiniWorld) -> None:
    assert all(e.aliases for e in mini.world.entities.values())
    assert any(len(e.aliases) > 1 for e in mini.world.entities.values() if e.type == "person"), "nicknames"
    first, second, *_ = mini.world.of_type("person", "train")
    for aliases, message in (((second.name,), "means"), ((first.name.upper(),), "two forms")):
        spoilt = World(
            {**mini.world.entities, first.id: dataclasses.replace(first, aliases=aliases)}, mini.world.facts
        )
        with pytest.raises(ProofFailed, match=message):
            check_aliases(spoilt)


def test_taken_names_and_seeds() -> None:
    regions = {"train": RICH.regions["valid"]}
    first, second = (RICH.make(seed, regions) for seed in (1, 2))
    assert first.corpus != second.corpus and first.corpus == RICH.make(1, regions).corpus
    taken = sorted(e.name for e in first.world.entities.values() if " " in e.name)
    other = RICH.make(1, regions, taken)
    assert not {e.name for e in other.world.entities.values()} & set(taken)
    with pytest.raises(ValueError, match="no free name"):
        Names(StableRandom(0), ["one"]).new("{}", ("one",))
    with pytest.raises(ValueError, match="country words left"):
        RICH.make(1, {"train": dataclasses.replace(regions["train"], countries=500)})


def test_manifest_names_its_command() -> None:
    manifest = json.loads((RICH_FOLDER / "MANIFEST.json").read_text(encoding="utf-8"))
    assert "generate rich --seed" in manifest["made_by"]
