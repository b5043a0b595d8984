"""Prompts: the rules and the grammar of commands."""

from __future__ import annotations

from functools import lru_cache

_TASK = (
    "You are in a room of a house and carry out a household task by commands. Receptacles (cabinets, tables, a fridge, ...) hold objects; "
    "you hold at most one object. What is in a closed receptacle shows only after you open it."
)
_COMMANDS = (
    "go to R: walk to receptacle R; you see what is in or on it",
    "open R, close R: a receptacle at hand",
    "take O from R: object O, from an open receptacle at hand, with an empty hand",
    "move O to R: put the object that you hold in or on R (the same as: put O in/on R)",
    "clean O with sinkbasin N, heat O with microwave N, cool O with fridge N: an object that you hold, at that receptacle",
    "slice O with K: an object at hand with a knife K that you hold",
    "use O: turn on a lamp at hand",
    "examine X, look, inventory: look at things again; they change nothing",
)
_MOVE, _PUT = _COMMANDS[3], "put O in/on R: the object that you hold"
_FORMS = {
    "react": "In each turn write one thought and one action:\nThought: what you know and what you do next\nAction: one of\n{commands}",
    "tags": "In each turn reason inside <think> and </think>, then write one action inside <action> and </action>:\n{commands}",
}


@lru_cache(maxsize=16)
def prompt(style: str, horizon: int, put: bool = False) -> str:
    """The rules and the grammar of actions as an agent reads them; ``put``: things are put down in the words of old games."""
    commands = "\n".join(f"  {_PUT if put and line is _MOVE else line}" for line in _COMMANDS)
    end = (
        'Things are called by kind and number: mug 2, cabinet 1. A command that is not possible is answered by "Nothing happens." and '
        f"costs a turn. You have {horizon} turns."
    )
    return f"{_TASK}\n{_FORMS[style].format(commands=commands)}\n{end}"
