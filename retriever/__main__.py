"""``python -m retriever build | serve``."""

from retriever.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
