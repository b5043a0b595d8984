"""What the expert of Sokoban thinks before a move, in four wordings, and what may be thought before a wrong one."""

from __future__ import annotations

NOTHING_LEFT = "Every box is on a target already, so any move ends the game."
# {box}, {stand}, {player} and {target} are cells, {way} is the push and {step} the move now.
_WALK = (
    "The box at {box} belongs on {target}. It has to go {way}, so I need to stand at {stand}. From {player} I go {step}.",
    "To get the box at {box} onto {target} I push it {way} next. For that I must be at {stand}; from {player} I step {step}.",
    "Next I push the box at {box} {way}, on its way to {target}. I have to get from {player} to {stand}, so I go {step}.",
    "The box at {box} goes to {target}, first {way}. I must stand at {stand} and am at {player}, so I go {step} next.",
)
_PUSH = (
    "The box at {box} belongs on {target}. It has to go {way}, and I stand at {stand}, so I push {way}.",
    "To get the box at {box} onto {target} I push it {way} next. I am at {stand}, right behind it.",
    "Next I push the box at {box} {way}, on its way to {target}. I am at {stand}, so I can push now.",
    "The box at {box} goes to {target}, first {way}. I stand at {stand}, so {way} comes next.",
)
# A box that is pushed off a target on which it ends again.
_WALK_OFF = (
    "The box at {box} has to leave its target for now. It has to go {way}, so I need to stand at {stand}. From {player} I go {step}.",
    "To make way I push the box at {box} {way} next, off its target. For that I must be at {stand}; from {player} I step {step}.",
    "Next I push the box at {box} {way}, and back onto its target later. I have to get from {player} to {stand}, so I go {step}.",
    "The box at {box} comes back to its target later, but first {way}. I must stand at {stand} and am at {player}, so I go {step} next.",
)
_PUSH_OFF = (
    "The box at {box} has to leave its target for now. It has to go {way}, and I stand at {stand}, so I push {way}.",
    "To make way I push the box at {box} {way} next, off its target. I am at {stand}, right behind it.",
    "Next I push the box at {box} {way}, and back onto its target later. I am at {stand}, so I can push now.",
    "The box at {box} comes back to its target later, but first {way}. I stand at {stand}, so {way} comes next.",
)
# A push after which the box alone would need more pushes to its target than before.
_WALK_ROUND = (
    "The box at {box} belongs on {target}, but goes round: it has to go {way}, so I need to stand at {stand}. From {player} I go {step}.",
    "To get the box at {box} onto {target} later I push it {way} first. For that I must be at {stand}; from {player} I step {step}.",
    "Next I push the box at {box} {way}, though that is away from {target}. I have to get from {player} to {stand}, so I go {step}.",
    "The box at {box} goes to {target} in the end, but now {way}. I must stand at {stand} and am at {player}, so I go {step} next.",
)
_PUSH_ROUND = (
    "The box at {box} belongs on {target}, but goes round: it has to go {way}, and I stand at {stand}, so I push {way}.",
    "To get the box at {box} onto {target} later I push it {way} first. I am at {stand}, right behind it.",
    "Next I push the box at {box} {way}, though that is away from {target}. I am at {stand}, so I can push now.",
    "The box at {box} goes to {target} in the end, but now {way}. I stand at {stand}, so {way} comes next.",
)
_WRONG_PUSH = (
    "The box at {box} belongs on {target}, so I push it {way}.",
    "I push the box at {box} {way}, on its way to {target}.",
)
_WRONG_WALK = (
    "I go {way} to get behind the box at {box}.",
    "The box at {box} belongs on {target}, so from {player} I go {way}.",
)


def expert_thought(
    *,
    box: str,
    way: str,
    stand: str,
    player: str,
    target: str,
    step: str,
    pushes: bool,
    away: bool,
    wording: int,
) -> str:
    """What the expert thinks before a move; see the templates. A target that is the box's own cell: it leaves and comes back."""
    if target == box:
        templates = _PUSH_OFF if pushes else _WALK_OFF
    elif away:
        templates = _PUSH_ROUND if pushes else _WALK_ROUND
    else:
        templates = _PUSH if pushes else _WALK
    return templates[wording % len(templates)].format(
        box=box, way=way, stand=stand, player=player, target=target, step=step
    )


def wrong_thought(*, box: str, way: str, player: str, target: str, pushes: bool, wording: int) -> str:
    """What somebody may think before a wrong move."""
    templates = _WRONG_PUSH if pushes else _WRONG_WALK
    return templates[wording % len(templates)].format(box=box, way=way, player=player, target=target)
