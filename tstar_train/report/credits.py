"""What each way to credit a group's steps gives, as the page shows it side by side."""

from __future__ import annotations

from tstar_train.report.read import Record, number

CREDITS = ("grpo", "depth_value", "depth_transition", "state_value", "state_transition")


def trained(config: Record) -> str | None:
    """Which of the credits the run's options choose, or None where they do not say.

    Runs from before there was a choice learn from the paper's.
    """
    options = config.get("tree")
    if not isinstance(options, dict) or config.get("tstar") is False:
        return None
    name = (
        f"{options.get('nodes', 'depth')}_{options.get('credit', 'value')}"
        if options.get("enabled") is not False
        else "grpo"
    )
    return name if name in CREDITS else None


def credits_of(tree: Record) -> dict[str, list[list[float | None]]]:
    """The known ones of a written tree's credits, [per step] per trajectory, to 4 digits; none in trees from before they were written.

    Raises:
        KeyError: a field is missing.
        ValueError: they are not of the tree's steps.
    """
    lengths = [0] * len(tree["rewards"])
    for i, t in [member for node in tree["nodes"] for member in node["members"]]:
        lengths[i] = max(lengths[i], t + 1)
    found: dict[str, list[list[float | None]]] = {}
    for name in CREDITS:
        rows = tree.get("credits", {}).get(name)
        if rows is None:
            continue
        if [len(row) for row in rows] != lengths:
            raise ValueError(f"credits {name} are not those of trajectories with {lengths} steps")
        found[name] = [
            [None if (credit := number(value)) is None else round(credit, 4) for value in row] for row in rows
        ]
    return found
