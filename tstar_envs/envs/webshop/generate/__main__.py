"""Makes the mini tier's catalogue and goals, and proves what is promised of them.

``python -m tstar_envs.envs.webshop.generate --out FOLDER`` writes ``products.jsonl.gz``, ``goals.jsonl.gz`` and
``MANIFEST.json``. What is proved of each goal: ``proof.prove``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tstar_envs.envs.webshop.generate.files import SEED, build, file_contents, write


def main() -> None:
    """Command line of the generator."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    products, tasks = build(arguments.seed)
    write(arguments.out, file_contents(products, tasks), arguments.seed)
    print(f"{len(products)} products, {len(tasks)} goals in {arguments.out}")


if __name__ == "__main__":
    main()
