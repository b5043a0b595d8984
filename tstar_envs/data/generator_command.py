"""Command line shared by the generators of shipped files: ``--out FOLDER`` and ``--seed``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import NamedTuple


class GeneratorCommand(NamedTuple):
    """Arguments of a generator: output folder and seed."""

    out: Path
    seed: int


def generator_command(description: str | None, seed: int) -> GeneratorCommand:
    """Read ``sys.argv``.

    Args:
        description: a docstring; its first line is the help text.
        seed: default, the seed of the shipped files.
    """
    spec = sys.modules["__main__"].__spec__  # of the generator's package, run with -m
    parser = argparse.ArgumentParser(
        prog=None if spec is None else f"python -m {spec.parent}",
        description=description.splitlines()[0] if description else None,
    )
    parser.add_argument("--out", type=Path, required=True, help="Folder that the files are written to.")
    parser.add_argument(
        "--seed",
        type=int,
        default=seed,
        help="Seed that the files are made from; default: that of the shipped files.",
    )
    arguments = parser.parse_args()
    return GeneratorCommand(arguments.out, arguments.seed)
