"""``python -m retriever build | serve | bench``."""

from retriever.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
