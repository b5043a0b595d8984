"""The symbols of XSB text."""

from __future__ import annotations

# XSB symbol -> (box, target, player); "-" and "_" are other ways to write floor, and some programs write letters for signs.
CONTENTS = {
    " ": (0, 0, 0),
    "-": (0, 0, 0),
    "_": (0, 0, 0),
    "$": (1, 0, 0),
    ".": (0, 1, 0),
    "*": (1, 1, 0),
    "@": (0, 0, 1),
    "+": (0, 1, 1),
    "b": (1, 0, 0),
    "o": (0, 1, 0),
    "O": (0, 1, 0),
    "B": (1, 1, 0),
    "p": (0, 0, 1),
    "P": (0, 1, 1),
}
XSB_LETTERS = "bBoOpP"
XSB_SYMBOLS = frozenset(CONTENTS) - set(XSB_LETTERS) | {"#"}
FLOOR_SYMBOLS = frozenset(" -_")
VALID_SYMBOLS = "valid symbols: # $ . * @ + and space, - or _ (or b o B p P for $ . * @ +)"
