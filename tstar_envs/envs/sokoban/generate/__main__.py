"""Makes the shipped levels: ``python -m tstar_envs.envs.sokoban.generate --out FOLDER`` writes the same bytes everywhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from tstar_envs.envs.sokoban.generate.files import SEED, build_all, write


def main() -> None:
    """Command line of the generator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    contents = build_all(arguments.seed)
    write(arguments.out, contents, arguments.seed)
    print(f"{sum(data.count(10) for data in contents.values())} levels in {arguments.out}")


if __name__ == "__main__":
    main()
