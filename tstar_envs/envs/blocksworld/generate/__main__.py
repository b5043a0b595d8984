"""Makes the shipped problems: ``python -m tstar_envs.envs.blocksworld.generate --out FOLDER`` writes the same bytes everywhere."""

from __future__ import annotations

from tstar_envs.data.generator_command import generator_command
from tstar_envs.envs.blocksworld.generate.files import SEED, build_all, write


def main() -> None:
    """Command line of the generator."""
    out, seed = generator_command(__doc__, SEED)
    files = build_all(seed)
    write(out, files, seed)
    counts = ", ".join(f"{len(data.splitlines())} problems in {name}" for name, data in files.items())
    print(f"{counts} in {out}")


if __name__ == "__main__":
    main()
