#!/usr/bin/env bash
# Installs what the tests need and runs them all: style, types, import contracts, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
# Where Python may write no bytecode, as in many containers, each process compiles torch anew: the suite took half as long again.
unset PYTHONDONTWRITEBYTECODE
scripts/setup.sh all,dev
# The report is tested in a real browser. Where Debian's is missing and cannot be installed, those tests are skipped by name.
if ! command -v chromium >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 ||
    echo "chromium could not be installed; browser tests will be skipped" >&2
fi
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
.venv/bin/ruff check .
.venv/bin/ruff format --check --quiet . || { echo "not formatted: run ruff format" >&2; exit 1; }
# Beside the tests, so that no core is idle; what these say comes after the tests' dots. A shell's background jobs do not hear Ctrl-C.
said=$(mktemp -d)
.venv/bin/mypy >"$said/mypy" 2>&1 & mypy=$!
.venv/bin/lint-imports --no-cache >"$said/imports" 2>&1 & imports=$!
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$said"' EXIT
trap 'exit 130' INT
failed=0
.venv/bin/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder "$@" || failed=$?
for check in mypy imports; do
  wait "${!check}" || failed=1
  cat "$said/$check"
done
exit "$failed"
