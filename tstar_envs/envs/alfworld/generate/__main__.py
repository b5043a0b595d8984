"""Makes the shipped files.

``python -m tstar_envs.envs.alfworld.generate --out FOLDER`` writes ``houses.txt.gz``, one ``<split>.txt.gz`` per split and
``MANIFEST.json`` beside the ``distribution.json`` that is there.
"""

from __future__ import annotations

from tstar_envs.data.generator_command import generator_command
from tstar_envs.envs.alfworld.generate.scenes import SEED, build, write


def main() -> None:
    """Command line of the generator."""
    out, seed = generator_command(__doc__, SEED)
    files = build(seed)
    write(out, files, seed)
    print(
        ", ".join(f"{len(data.splitlines())} lines in {name}" for name, data in files.items()) + f" in {out}"
    )


if __name__ == "__main__":
    main()
