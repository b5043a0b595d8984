"""Parsing of an agent's text into a command: exact texts, and old forms of them."""

from __future__ import annotations

import re
from typing import NamedTuple

from tstar_envs.envs.alfworld.game.commands import CHANGING, Command, situation
from tstar_envs.envs.alfworld.game.game import Game
from tstar_envs.envs.alfworld.game.refusals import refusal
from tstar_envs.envs.alfworld.state import Household

USAGE = (
    "go to R, open R, close R, take O from R, {move}, examine X, use O, clean O with R, heat O with R, cool O with R, slice O with O, "
    "look, inventory, help"
)
_FORMS = (
    ("go", re.compile(r"go to (.+)")),
    ("open", re.compile(r"open (.+)")),
    ("close", re.compile(r"close (.+)")),
    ("take", re.compile(r"take (.+?) from (.+)")),
    ("move", re.compile(r"(?:put|move) (.+?) (?:in/on|into|onto|in|on|to) (.+)")),
    ("examine", re.compile(r"examine (.+)")),
    ("use", re.compile(r"use (.+)")),
    ("clean", re.compile(r"clean (.+?) with (.+)")),
    ("heat", re.compile(r"heat (.+?) with (.+)")),
    ("cool", re.compile(r"cool (.+?) with (.+)")),
    ("slice", re.compile(r"slice (.+?) with (.+)")),
    ("look", re.compile(r"look()")),
    ("inventory", re.compile(r"inventory()")),
    ("help", re.compile(r"help()")),
)
_LONGEST = 200  # characters; the longest command has some 50


class ParsedCommand(NamedTuple):
    """What was typed, understood: the command, None if it cannot be done; its canonical text, "" if there is none; and why not."""

    command: Command | None
    text: str
    refusal: str


def parse_command(game: Game, household: Household, typed: str, strict: bool = False) -> ParsedCommand:
    """Understand a command.

    Args:
        game: in which game.
        household: where the agent stands.
        typed: any string.
        strict: only exact commands count, as in the original; otherwise case and white space do not matter, and ``put O in/on R`` is
            the same as ``move O to R``, whichever the game says.
    """
    commands = situation(game, household).commands
    exact = typed.strip()
    if exact in commands:
        return ParsedCommand(commands[exact], exact, "")
    plain = " ".join(exact.lower().split()) if len(exact) <= _LONGEST else ""
    form = _form(plain)
    if form is None:
        usage = USAGE.format(move=game.wording.move.fill({"o": "O", "r": "R"}))
        return ParsedCommand(None, "", f"{exact!a:.80} is no command; there are: {usage}")
    verb, *arguments = form
    canonical = game.wording.move.fill({"o": arguments[0], "r": arguments[1]}) if verb == "move" else plain
    if canonical in commands:
        if not strict:
            return ParsedCommand(commands[canonical], canonical, "")
        return ParsedCommand(
            None, "", f"{exact!a:.80} is not written exactly as the game wants it: {canonical}"
        )
    return ParsedCommand(None, canonical, refusal(game, household, verb, *arguments))


def _form(plain: str) -> tuple[str, ...] | None:
    for verb, pattern in _FORMS:
        match = pattern.fullmatch(plain)
        if match is not None:
            return verb, *(argument for argument in match.groups() if argument)
    return None


def can_change(action: str) -> bool:
    """Whether a command of this form can change anything."""
    form = _form(" ".join(action.lower().split()) if len(action) <= _LONGEST else "")
    return form is not None and form[0] in CHANGING
