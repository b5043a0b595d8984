"""Foreign text made fit for a page, and figures as the page writes them."""

from __future__ import annotations

MOST_TEXT = 4_000
REPLACED = "\N{REPLACEMENT CHARACTER}"
NONE = "\N{EN DASH}"
# Control characters, and those that turn the direction of what follows, the page's own words included.
_CONTROLS = (*range(32), 127, *range(128, 160), *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_INERT = {code: REPLACED for code in _CONTROLS if chr(code) not in "\n\t"}


def clean(text: str, most: int = MOST_TEXT) -> str:
    """Text as a page may show it: no control characters, no half surrogate pairs, at most ``most`` characters; a cut says how many more."""
    cut = text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"
    return "".join(REPLACED if "\ud800" <= sign <= "\udfff" else sign for sign in cut.translate(_INERT))


def percent(value: float | None) -> str:
    """A share of 1 in percent, without the sign."""
    return NONE if value is None else f"{100 * value:.1f}"


def spread(bounds: tuple[float, float] | None) -> str:
    """An interval of a share, in percent."""
    return "" if bounds is None else f"{100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}"


def number(value: float | None, digits: int = 2) -> str:
    """A number with thousands apart."""
    return NONE if value is None else f"{value:,.{digits}f}"


def seconds(value: float | None) -> str:
    """A duration: 12.3 s, 45 ms, or less than a millisecond."""
    if value is None:
        return NONE
    if value >= 1:
        return f"{value:,.1f} s"
    return f"{1000 * value:.0f} ms" if value >= 0.001 else "< 1 ms"


def points(value: float, digits: int = 1) -> str:
    """A difference of shares in percentage points, with its sign."""
    shown = f"{100 * value:+.{digits}f}"
    return shown.replace("-", "\N{MINUS SIGN}")


def short_id(env: str) -> str:
    """``Sokoban-easy`` for ``tstar/Sokoban-easy``."""
    return env.removeprefix("tstar/")
