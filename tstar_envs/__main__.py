"""``python -m tstar_envs list | play | eval | compare | replay | doctor``."""

from tstar_envs.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
