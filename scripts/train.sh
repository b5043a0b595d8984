#!/usr/bin/env bash
# From a fresh clone to a trained agent: makes .venv, installs, trains. Usage: scripts/train.sh --env hotpotqa [options]
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh train
exec .venv/bin/python -m tstar_train "$@"
