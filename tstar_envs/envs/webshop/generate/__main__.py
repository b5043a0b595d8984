"""Makes the mini tier's catalogue and goals, and proves what is promised of them.

``python -m tstar_envs.envs.webshop.generate --out FOLDER`` writes ``products.jsonl.gz``, ``goals.jsonl.gz`` and
``MANIFEST.json``. What is proved of each goal: ``proof.prove``.
"""

from __future__ import annotations

from tstar_envs.data.generator_command import generator_command
from tstar_envs.envs.webshop.generate.files import SEED, build, file_contents, write


def main() -> None:
    """Command line of the generator."""
    out, seed = generator_command(__doc__, SEED)
    products, tasks = build(seed)
    write(out, file_contents(products, tasks), seed)
    print(f"{len(products)} products, {len(tasks)} goals in {out}")


if __name__ == "__main__":
    main()
