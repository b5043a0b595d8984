"""The corpus of the second mini world, which five question sets share.

``python -m tstar_envs.envs.search_qa.second_corpus --out FOLDER`` writes ``corpus.jsonl.gz`` and ``MANIFEST.json``. The
question sets lie in folders of their own beside it, each made by its own command from the same world.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from pathlib import Path

from tstar_envs.envs.search_qa import generate
from tstar_envs.envs.search_qa.metrics import normalize_answer
from tstar_envs.envs.search_qa.proofs import MiniWorld, ProofFailed
from tstar_envs.envs.search_qa.second_world import build_second_world
from tstar_envs.envs.search_qa.world import RegionSize, World

SEED = 20260202
REGIONS = {
    "train": RegionSize(people=720, works=440, companies=80, schools=60, cities=150, countries=36, awards=36),
    "valid": RegionSize(people=240, works=140, companies=28, schools=22, cities=50, countries=14, awards=14),
    "test": RegionSize(people=440, works=280, companies=50, schools=40, cities=90, countries=24, awards=24),
    # Never asked about: namesakes and like-named people and towns that a sloppy query finds instead.
    "distractors": RegionSize(
        people=280, works=120, companies=28, schools=22, cities=50, countries=10, awards=12
    ),
}


def make_second_world(
    seed: int | str = SEED, regions: Mapping[str, RegionSize] = REGIONS, taken: Collection[str] = ()
) -> MiniWorld:
    """The world and its passages; ``taken`` names are avoided."""
    return generate.with_passages(build_second_world(seed, regions, taken), seed)


def check_aliases(world: World) -> None:
    """No form of a name, as answers are compared, means two things, and none repeats another form of the same thing.

    Works share their bare names with namesakes; questions that such a name answers are kept out one by one.

    Raises:
        ProofFailed: naming the form.
    """
    owner: dict[str, str] = {}
    for entity in world.entities.values():
        forms = [normalize_answer(form) for form in (entity.name, *entity.aliases)]
        if len(set(forms)) < len(forms) or "" in forms:
            raise ProofFailed(
                f"two forms of {entity.title!r} are equal or empty as answers are compared: {forms}"
            )
        for form in forms:
            other = owner.setdefault(form, entity.name)
            if other != entity.name:
                raise ProofFailed(f"{form!r} means {other!r} and {entity.name!r}")


def build(seed: int = SEED) -> MiniWorld:
    """World and corpus, proved.

    Raises:
        ProofFailed: what was made is not what is promised.
    """
    mini = make_second_world(seed)
    generate.check_names(mini.world)
    generate.check_lengths(mini)
    check_aliases(mini.world)
    return mini


def main() -> None:
    """Command line of the generator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    mini = build(arguments.seed)
    generate.write(
        arguments.out, {"corpus.jsonl": generate.corpus_bytes(mini)}, arguments.seed, module="second_corpus"
    )
    print(f"{len(mini.corpus)} passages in {arguments.out}")


if __name__ == "__main__":
    main()
