"""What requests cost, by a table of prices that the user may replace."""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from tstar_envs.bench.usage import tokens_of
from tstar_envs.data.files import PRICES_BYTES, read_text
from tstar_envs.errors import BadData

MILLION = 1_000_000
_LONGEST_LINE = 2_000  # characters
MOST = 10**9  # a price above it is a slip, and sums of such would not be numbers
_DATED = re.compile(r"[-@:]\d{4}(?:-?\d\d){0,2}$")


@dataclass(frozen=True)
class Price:
    """The prices of a model per million tokens.

    Attributes:
        input: of the request.
        cached_input: of what of the request the endpoint had computed before.
        output: of the answer.
    """

    input: float
    cached_input: float
    output: float

    def of(self, calls: Iterable[Mapping[str, Any]]) -> float | None:
        """What requests (an episode's ``calls``) cost; None where the endpoint did not report the tokens of one."""
        known = []
        for call in calls:
            tokens = tokens_of(call)
            if tokens is None:
                return None
            known.append(tokens)
        return sum(self.amount(*tokens) for tokens in known)

    def amount(self, given: float, answered: float, cached: float = 0) -> float:
        """The price of tokens of requests, of answers, and of those cached among the first."""
        return ((given - cached) * self.input + cached * self.cached_input + answered * self.output) / MILLION


@dataclass(frozen=True)
class PriceTable:
    """Prices by model.

    Attributes:
        currency: of all of them.
        as_of: the day they were looked up.
        models: by name; a dated version (``NAME-2025-04-14``) has the price of the plain name.
    """

    currency: str
    as_of: str
    models: Mapping[str, Price]

    def of_model(self, model: str) -> Price | None:
        """The price of a model, None if the table has none for it."""
        return self.models.get(model) or self.models.get(_DATED.sub("", model))


def read_prices(path: Path | None = None) -> PriceTable:
    """Read a table: ``currency``, ``as_of``, and for each model ``[models."NAME"]`` with ``input``, ``output`` and, if it differs from
    ``input``, ``cached_input``, each for a million tokens.

    Args:
        path: a TOML file; None reads the one that is shipped.

    Raises:
        BadData: it is no such table; what is wrong is named.
    """
    shown = str(path) if path is not None else "the shipped table of prices"
    try:
        if path is None:
            text = resources.files("tstar_envs.bench").joinpath("prices.toml").read_text(encoding="utf-8")
        else:
            text = read_text(path, PRICES_BYTES)
        longest = max(map(len, text.splitlines()), default=0)
        if longest > _LONGEST_LINE:  # reading a name takes time with the square of its parts
            raise BadData(
                f"{shown}: a line of {longest:,} characters; no table of prices has one above {_LONGEST_LINE:,}"
            )
        table = tomllib.loads(text)
    # Numbers with thousands of digits, and brackets too deep to be read, are no fault that it names.
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        if isinstance(error, BadData):
            raise
        raise BadData(f"{shown} is no TOML: {str(error) or type(error).__name__}") from None
    models = table.get("models", {})
    if unknown := table.keys() - {"currency", "as_of", "models"}:
        raise BadData(f"{shown}: unknown entry {sorted(unknown)[0]!r}; valid: currency, as_of, models")
    if not isinstance(models, dict):
        raise BadData(f'{shown}: models must be tables [models."NAME"]')
    for name, kinds in (("currency", str), ("as_of", str | datetime.date)):
        if not isinstance(table.get(name, ""), kinds):
            raise BadData(f"{shown}: {name} must be a text, found {_quoted(table[name])}")
    prices = {name: _price(f"{shown}, model {name!r}", entry) for name, entry in models.items()}
    return PriceTable(str(table.get("currency", "USD")), str(table.get("as_of", "")), prices)


def money(amount: float, currency: str) -> str:
    """An amount, with as many digits as it takes to see it."""
    return f"{amount:.2f} {currency}" if amount >= 1 or not amount else f"{amount:.2g} {currency}"


def _price(where: str, entry: Any) -> Price:
    if not isinstance(entry, dict) or not {"input", "output"} <= entry.keys() <= {
        "input",
        "output",
        "cached_input",
    }:
        raise BadData(f"{where}: needs input and output, and may have cached_input; found {_quoted(entry)}")
    given: dict[str, Any] = entry
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST:
            raise BadData(
                f"{where}: {name} must be a number of 0 or more, found {_quoted(value)}; at most {MOST:,}"
            )
    return Price(
        float(given["input"]), float(given.get("cached_input", given["input"])), float(given["output"])
    )


def _quoted(value: Any) -> str:
    """A value for a message; whole numbers may have more digits than Python writes."""
    try:
        return repr(value)[:100]
    except ValueError:
        return f"a {type(value).__name__} with a number of thousands of digits"
