"""Command line: build, prove and write a part of the mini tier.

Run ``python -m tstar_envs.envs.search_qa.generate NAME --out FOLDER``. NAME is a question set (``hotpotqa`` includes the corpus of
the plain world), or ``rich`` for the corpus of the rich world. The build fails if a proof fails.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tstar_envs.envs.search_qa.generate.files import NAMES, build, own_seed, write


def main() -> None:
    """Run the command line.

    Raises:
        ProofFailed: the result violates a guarantee.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tstar_envs.envs.search_qa.generate",
        description="Builds a part of the mini tier, proves it, and writes it.",
    )
    parser.add_argument(
        "name", choices=NAMES, help="Question set to build; rich: the corpus of the rich world."
    )
    parser.add_argument("--out", type=Path, required=True, help="Folder that the files are written to.")
    parser.add_argument("--seed", type=int, help="Seed of the world; default: that of the shipped one.")
    arguments = parser.parse_args()
    seed = own_seed(arguments.name) if arguments.seed is None else arguments.seed
    contents = build(arguments.name, seed)
    write(arguments.out, contents, arguments.name, seed)
    lines = {file: len(data.splitlines()) for file, data in contents.items()}
    print(f"{', '.join(f'{file}.gz ({count} lines)' for file, count in lines.items())} in {arguments.out}")


if __name__ == "__main__":
    main()
