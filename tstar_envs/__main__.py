"""``python -m tstar_envs list | play | eval | compare | replay | doctor | report | serve | validate``."""

from tstar_envs.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
