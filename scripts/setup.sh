#!/usr/bin/env bash
# Makes .venv (Python 3.11 or newer) and installs the package with the named extras. Usage: scripts/setup.sh EXTRA[,EXTRA]
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1:-all}
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "tstar needs Python 3.11 or newer, found $("$python" --version 2>&1). Name another one: PYTHON=python3.12 $0" >&2
  exit 2
}
[ -x .venv/bin/python ] || "$python" -m venv .venv
# The mark says what was installed from which files, so that a second run starts at once.
mark=.venv/.installed-$extras
sum=$(cat pyproject.toml constraints.txt | sha256sum)
if [ "$(cat "$mark" 2>/dev/null)" != "$sum" ]; then
  echo "installing tstar[$extras] into .venv (the first time takes some minutes) ..." >&2
  # Compiling every module of every package took longer than half of the installation; Python compiles what is imported.
  .venv/bin/python -m pip install --no-compile --quiet --disable-pip-version-check -c constraints.txt -e ".[$extras]"
  # Where Python may write no bytecode, as in many containers, each start would compile torch anew and take twice as long.
  if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
    env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -c 'from contextlib import suppress
from importlib import import_module
for module in "tstar_envs.cli", "tstar_train.run", "retriever.app":
    with suppress(ImportError):  # of another extra
        import_module(module)'
  fi
  printf '%s\n' "$sum" >"$mark"
fi
