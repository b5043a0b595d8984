"""Foreign text made fit for a page, and figures as the page writes them."""

from __future__ import annotations

from tstar_envs.redaction import printable, redacted

MOST_TEXT = 4_000
NONE = "\N{EN DASH}"


def clean(text: str, most: int = MOST_TEXT) -> str:
    """Text as a page may show it (``printable``), at most ``most`` characters of it; a cut says how many more."""
    text = redacted(text)  # before a cut could leave the beginning of a secret
    if len(text) <= most:
        return printable(text)
    return f"{printable(text[:most])}… ({len(text) - most:,} more characters)"


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
