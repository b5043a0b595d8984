"""Makes the shipped levels: ``python -m tstar_envs.envs.sokoban.generate --out FOLDER`` writes the same bytes everywhere."""

from __future__ import annotations

from tstar_envs.data.generator_command import generator_command
from tstar_envs.envs.sokoban.generate.files import SEED, build_all, write


def main() -> None:
    """Command line of the generator."""
    out, seed = generator_command(__doc__, SEED)
    contents = build_all(seed)
    write(out, contents, seed)
    print(f"{sum(data.count(10) for data in contents.values())} levels in {out}")


if __name__ == "__main__":
    main()
