"""HotpotQA-style questions over the plain world, with the chain of look-ups that answers each.

Two types, as in HotpotQA: *bridge* (the first passage names the entity whose passage holds the answer) and
*comparison* (two passages, one value from each).
"""

from __future__ import annotations

from collections.abc import Iterator

from tstar_envs.envs.search_qa.generate.questions import templates
from tstar_envs.envs.search_qa.generate.questions.question import SMALLEST_MARGIN, Question, hop
from tstar_envs.envs.search_qa.generate.questions.template_splits import split_templates
from tstar_envs.envs.search_qa.generate.worlds.graph import WORK_KINDS, Entity, World
from tstar_envs.stable_random import StableRandom

# kind -> (type of the first entity, its relation, what may be asked of the second entity)
BRIDGES: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "work-creator": (("work",), "creator", ("birthplace", "birth_year", "spouse", "school")),
    "work-company": (("work",), "company", ("founder", "founding_year", "city")),
    "org-founder": (("company", "school"), "founder", ("birthplace", "birth_year", "spouse", "school")),
    "person-city": (("person",), "birthplace", ("country", "river")),
}
COMPARISONS = {"compare-people": ("person", "birth_year"), "compare-works": ("work", "year")}
YES_NO = {"same-occupation": ("person", "occupation"), "same-country": ("city", "country")}
KINDS = (*BRIDGES, *COMPARISONS, *YES_NO)


class QuestionMaker:
    """Draws questions about one region of a world in the wordings of one split.

    Args:
        world: the facts.
        region: whose entities are asked about.
        split: whose templates are used (``train``, ``valid`` or ``test``).
        rng: the source of chance.
    """

    def __init__(self, world: World, region: str, split: str, rng: StableRandom) -> None:
        self._world = world
        self._region = region
        self._split = split
        self._rng = rng
        self._names: dict[str, list[Entity]] = {}

    def _entities(self, *types: str) -> list[Entity]:
        key = "+".join(types)
        if key not in self._names:
            self._names[key] = [e for t in types for e in self._world.of_type(t, self._region)]
        return self._names[key]

    def candidates(self, kind: str) -> Iterator[Question]:
        """Questions of one kind without end, repetitions possible; yes/no answers and compared sides alternate."""
        turn = 0
        while True:
            question = self._draw_one(kind, turn)
            if question is not None:
                turn += 1
                yield question

    def _draw_one(self, kind: str, turn: int) -> Question | None:
        if kind in BRIDGES:
            return self._bridge(kind)
        if kind in COMPARISONS:
            return self._comparison(kind, answer_first=turn % 2 == 0)
        return self._yes_no(kind, same=turn % 2 == 0)

    def _template(self, family: str, first: int, second: int) -> tuple[int, int]:
        return self._rng.choice(split_templates(family, first, second)[self._split])

    def _bridge(self, kind: str) -> Question | None:
        types, relation, asked = BRIDGES[kind]
        entity = self._rng.choice(self._entities(*types))
        final = self._rng.choice(asked)
        bridge = self._world.entities[self._world.facts[entity.id, relation]]
        if (bridge.id, final) not in self._world.facts:  # half of the people have a spouse named elsewhere
            return None
        frames, descriptions = templates.FRAMES[final], templates.DESCRIPTIONS[relation]
        frame, description = self._template(f"{relation}-{final}", len(frames), len(descriptions))
        maker, verb = WORK_KINDS.get(entity.kind, ("", ""))
        described = descriptions[description].format(
            X=entity.name, k=entity.kind, a=maker, v=verb, t=entity.type
        )
        hops = (hop(self._world, entity, relation), hop(self._world, bridge, final))
        return Question(
            frames[frame].format(D=described),
            hops[1].value,
            kind,
            f"{relation}-{final}/{frame}/{description}",
            hops,
        )

    def _comparison(self, kind: str, answer_first: bool) -> Question | None:
        type_, relation = COMPARISONS[kind]
        one, two = self._rng.choice(self._entities(type_)), self._rng.choice(self._entities(type_))
        hops = hop(self._world, one, relation), hop(self._world, two, relation)
        first, second = int(hops[0].value), int(hops[1].value)
        if one.name == two.name or abs(first - second) < SMALLEST_MARGIN:
            return None
        leads, forms = templates.LEADS[relation], templates.LEAD_FORMS
        lead, form = self._template(f"compare-{relation}", len(leads), len(forms))
        words, smaller_wins = leads[lead]
        if ((first < second) == smaller_wins) != answer_first:
            return None
        names = [f"the {e.kind} {e.name}" if type_ == "work" else e.name for e in (one, two)]
        text = forms[form].format(L=words[0].upper() + words[1:], l=words, A=names[0], B=names[1])
        return Question(
            text, (one if answer_first else two).name, kind, f"compare-{relation}/{lead}/{form}", hops
        )

    def _yes_no(self, kind: str, same: bool) -> Question | None:
        type_, relation = YES_NO[kind]
        one, two = self._rng.choice(self._entities(type_)), self._rng.choice(self._entities(type_))
        hops = hop(self._world, one, relation), hop(self._world, two, relation)
        if one.id == two.id or (hops[0].value == hops[1].value) != same:
            return None
        predicates, openings = templates.PREDICATES[relation], templates.OPENINGS
        predicate, opening = self._template(f"same-{relation}", len(predicates), len(openings))
        text = openings[opening].format(A=one.name, B=two.name, p=predicates[predicate])
        return Question(text, "yes" if same else "no", kind, f"same-{relation}/{predicate}/{opening}", hops)
