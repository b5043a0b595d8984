"""How a question set over the second corpus is made: its recipe, built, proved and written the same way for every set."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tstar_envs.envs.search_qa import generate, second_corpus
from tstar_envs.envs.search_qa.chains import ChainProver
from tstar_envs.envs.search_qa.proofs import MiniWorld
from tstar_envs.envs.search_qa.questions import Question
from tstar_envs.envs.search_qa.tasks import QATask, task_to_line
from tstar_envs.envs.search_qa.world import World
from tstar_envs.stable_random import StableRandom

PATIENCE = 20_000  # draws in a row that give no question

# (world, region, split whose templates are used, source of chance, kind) -> one question, None if the draw gave none
Draw = Callable[[World, str, str, StableRandom, str, int], Question | None]


@dataclass(frozen=True)
class Recipe:
    """What distinguishes a question set.

    Attributes:
        name: of the set, ``musique``.
        module: the module that makes it.
        shares: kind of draw -> its share of a split.
        sizes: split -> how many questions.
        draw: draws one question.
        rejection: why a question may not ship, "" if it may.
        yes_no: the kinds of draw that ask for yes or no.
    """

    name: str
    module: str
    shares: Mapping[str, float]
    sizes: Mapping[str, int]
    draw: Draw
    rejection: Callable[[ChainProver, Question], str]
    yes_no: Collection[str] = ()

    def candidates(
        self, world: World, region: str, split: str, draw: StableRandom, kind: str
    ) -> Iterator[Question]:
        """Questions of one kind, until the world seems to hold none; sides, yes and no alternate from one to the next."""
        turn = idle = 0
        while idle < PATIENCE:
            question = self.draw(world, region, split, draw, kind, turn)
            idle = idle + 1 if question is None else 0
            if question is not None:
                turn += 1
                yield question

    def counts(self, size: int) -> dict[str, int]:
        """Kind of draw -> how many of ``size`` questions; the first kind takes what rounding leaves."""
        counts = {kind: round(share * size) for kind, share in self.shares.items()}
        first = next(iter(counts))
        counts[first] += size - sum(counts.values())
        return counts


def build(recipe: Recipe, seed: int = second_corpus.SEED) -> tuple[MiniWorld, dict[str, list[QATask]]]:
    """The second world and a set's questions, all proved.

    Raises:
        ProofFailed: what was made is not what is promised.
    """
    mini = second_corpus.make_second_world(seed)
    prover = ChainProver(mini)
    splits: dict[str, list[QATask]] = {}
    for split, size in recipe.sizes.items():
        draw = StableRandom(f"{seed}/{recipe.name}/{split}")
        chosen = generate.collect(
            recipe.counts(size),
            lambda kind, split=split, draw=draw: recipe.candidates(mini.world, split, split, draw, kind),  # type: ignore[misc]
            lambda question: recipe.rejection(prover, question),
            recipe.yes_no,
        )
        splits[split] = generate.numbered(recipe.name, split, draw.shuffled(chosen))
        generate.check_split(split, splits[split], size)
    generate.check_disjoint(splits)
    return mini, splits


def files(splits: Mapping[str, Sequence[QATask]]) -> dict[str, bytes]:
    """File name (without ``.gz``) -> bytes."""
    return {
        f"{split}.jsonl": "".join(task_to_line(t) + "\n" for t in tasks).encode()
        for split, tasks in splits.items()
    }


def run(recipe: Recipe) -> None:
    """The command line of a set's module.

    Raises:
        ProofFailed: what was made is not what is promised.
    """
    run_command(recipe.name, recipe.module, lambda seed: build(recipe, seed)[1])


def run_command(name: str, module: str, make: Callable[[int], Mapping[str, Sequence[QATask]]]) -> None:
    """The same for a set that is made in a way of its own: ``make`` gives its splits for a seed."""
    parser = argparse.ArgumentParser(description=f"writes the {name} set of the mini tier")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=second_corpus.SEED)
    arguments = parser.parse_args()
    splits = make(arguments.seed)
    generate.write(arguments.out, files(splits), arguments.seed, module=module)
    print(", ".join(f"{len(t)} {s}" for s, t in splits.items()) + f" questions in {arguments.out}")
