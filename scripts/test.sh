#!/usr/bin/env bash
# Installs what the tests need and runs them all: style, types, import contracts, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh all,dev
# The report is tested in a real browser. Where Debian's is missing and cannot be installed, those tests are skipped by name.
if ! command -v chromium >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 ||
    echo "chromium could not be installed; browser tests will be skipped" >&2
fi
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
.venv/bin/ruff check .
.venv/bin/mypy
.venv/bin/lint-imports --no-cache
exec .venv/bin/python -m pytest -n 2 --dist loadfile "$@"
