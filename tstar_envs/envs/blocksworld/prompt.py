"""The prompt of Blocksworld: the rules and the grammar of actions as an agent reads them."""

from __future__ import annotations

from tstar_envs.envs.blocksworld.vocabularies import PLAIN
from tstar_envs.envs.blocksworld.vocabulary import Vocabulary

_TASK = {
    "plain": "You move blocks with one hand, which holds one block at a time, until every fact of the goal holds.",
    "mystery": "You change facts about objects by four actions until every fact of the goal holds.",
}
_ACTIONS = {
    "plain": (
        "pick-up X: take block X from the table; X must be clear (nothing on it) and the hand empty",
        "put-down X: put block X, which you hold, on the table",
        "stack X Y: put block X, which you hold, on block Y; Y must be clear",
        "unstack X Y: take block X off block Y; X must be on Y and clear, and the hand empty",
    ),
    "mystery": (
        "attack X: needs province X, planet X and harmony; then pain X holds, and these three no longer hold",
        "succumb X: needs pain X; then province X, planet X and harmony hold, and pain X no longer holds",
        "overcome X Y: needs pain X and province Y; then harmony, province X and X craves Y hold, and these two no longer hold",
        "feast X Y: needs X craves Y, province X and harmony; then pain X and province Y hold, and these three no longer hold",
    ),
}
_COMPACT = (
    "States and goals are written tower by tower, each from bottom to top: `red blue / green` means that blue is on red. A goal says "
    "only what must be on what; the word table in front of a tower demands that its lowest block is on the table."
)
_CONSIDER = {
    "plain": "what is in the way and what you do next",
    "mystery": "what must still hold and what you do next",
}
_FORMS = {
    "react": "In each turn write one thought and one action:\nThought: {consider}\nAction: one of\n{actions}",
    "tags": "In each turn reason inside <think> and </think>, then write one action inside <action> and </action>:\n{actions}",
}


def prompt(vocabulary: Vocabulary, observation: str, style: str, horizon: int | None) -> str:
    """The rules and the grammar of actions as an agent reads them; ``horizon`` is None where it differs from task to task."""
    actions = "\n".join(f"  {line}" for line in _ACTIONS[vocabulary.name])
    parts = [
        _TASK[vocabulary.name],
        _FORMS[style].format(actions=actions, consider=_CONSIDER[vocabulary.name]),
    ]
    if observation == "compact" and vocabulary is PLAIN:
        parts.append(_COMPACT)
    turns = "The number of turns is limited." if horizon is None else f"You have {horizon} turns."
    parts.append(f"X and Y are names. An impossible action changes nothing and costs a turn. {turns}")
    return "\n".join(parts)
