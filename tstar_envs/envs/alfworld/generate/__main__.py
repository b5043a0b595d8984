"""Makes the shipped files.

``python -m tstar_envs.envs.alfworld.generate --out FOLDER`` writes ``houses.txt.gz``, one ``<split>.txt.gz`` per split and
``MANIFEST.json`` beside the ``distribution.json`` that is there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tstar_envs.envs.alfworld.generate.files import build, write
from tstar_envs.envs.alfworld.generate.scenes import SEED


def main() -> None:
    """Command line of the generator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    files = build(arguments.seed)
    write(arguments.out, files, arguments.seed)
    print(
        ", ".join(f"{len(data.splitlines())} lines in {name}" for name, data in files.items())
        + f" in {arguments.out}"
    )


if __name__ == "__main__":
    main()
