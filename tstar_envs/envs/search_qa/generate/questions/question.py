"""A question as it is made, with the look-ups that answer it, so that the oracle, the proofs and the tests need not parse its text."""

from __future__ import annotations

from dataclasses import dataclass

from tstar_envs.envs.search_qa.generate.worlds.graph import Entity, World
from tstar_envs.envs.search_qa.task import Hop, Task

SMALLEST_MARGIN = 2  # years between compared values: a difference of one may be a matter of the calendar


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its golden answer and the hops that lead there.

    Attributes:
        text: as asked.
        answer: the golden answer.
        kind: what kind of question; HotpotQA's are ``KINDS``.
        template: id of its wording.
        hops: the look-ups, in order.
        aliases: other golden answers.
        popularity: how well known the entity is that is asked about, 0 where the set does not go by it.
    """

    text: str
    answer: str
    kind: str
    template: str
    hops: tuple[Hop, ...]
    aliases: tuple[str, ...] = ()
    popularity: int = 0

    def task(self, id_: str, split: str) -> Task:
        """The question as a task."""
        golden = (self.text, (self.answer, *self.aliases))
        return Task(id_, split, *golden, self.kind, self.template, self.hops, self.popularity)


def hop(world: World, entity: Entity, relation: str) -> Hop:
    """The look-up of one fact; the second query adds the kind, which distinguishes namesakes."""
    queries = (
        entity.name,
        f"{entity.name} {entity.kind if entity.type == 'work' else relation.replace('_', ' ')}",
    )
    return Hop(entity.name, relation, world.object_name(entity.id, relation), entity.id, queries)
