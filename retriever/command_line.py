"""What all commands share: ranges of options, and what is printed."""

from rich.console import Console

from retriever.errors import BadSetting


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a value of an option that is out of its range.

    Raises:
        BadSetting: it is.
    """
    if not low <= value <= high:
        raise BadSetting(f"--{name} {value} is out of range; choose from {low} to {high}.")


def say(console: Console, message: str) -> None:
    """Print a line: paths and messages as they are."""
    # Paths and messages as they are: no markup, no colours, no line breaks at the terminal's width.
    console.print(message, markup=False, highlight=False, soft_wrap=True)
