#!/usr/bin/env bash
# Tests each adapter against the real package of its harness. Usage: scripts/test_adapters.sh [NAME ...] [-- OPTIONS OF PYTEST]
# Every adapter has an environment of its own, .venv-adapters/NAME, made on the first call: their packages do not go together.
# A package that cannot be installed here is skipped by name; the exit status says whether a test failed.
set -euo pipefail
cd "$(dirname "$0")/.."
unset PYTHONDONTWRITEBYTECODE  # see test.sh
# NAME: packages, in the versions that the adapter was tested with; constraints.txt says the rest, but for what is named here.
table='
openenv: openenv==0.10.0
trl: trl==1.16.0 torch==2.13.0 transformers datasets accelerate jinja2
verl_agent:
verifiers: verifiers==0.4.0 uv
inspect_ai: inspect_ai==0.3.285
'
# What the environments of all families and the tests need.
needs=(gymnasium numpy rich tyro faiss-cpu bm25s requests urllib3 rapidfuzz pytest)

# Makes .venv-adapters/NAME unless it is there, made by the same recipe.
environment() {
  local name=$1 venv=.venv-adapters/$1 own mark package
  read -ra own < <(sed -n "s/^$name://p" <<<"$table")
  mark="${own[*]} ${needs[*]} $(sha256sum <constraints.txt)"
  [ "$(cat "$venv/recipe" 2>/dev/null)" = "$mark" ] && return
  echo "making $venv ..." >&2
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv" || return
  cp constraints.txt "$venv/constraints.txt"
  for package in "${own[@]}"; do sed -i "/^${package%%==*}==/d" "$venv/constraints.txt"; done
  "$venv/bin/python" -m pip install --quiet --no-compile --disable-pip-version-check \
    -c "$venv/constraints.txt" "${own[@]}" "${needs[@]}" || return
  printf '%s\n' "$mark" >"$venv/recipe"
}

names=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  names+=("$1")
  shift
done
[ $# -eq 0 ] || shift
known=$(sed -n 's/^\([a-z_]*\):.*/\1/p' <<<"$table")
if [ ${#names[@]} -eq 0 ]; then
  # An adapter that this commit does not have has no tests.
  for name in $known; do [ ! -d "tests/adapters/$name" ] || names+=("$name"); done
fi
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
failed=() skipped=()
for name in "${names[@]}"; do
  grep -qx -- "$name" <<<"$known" || { echo "there is no adapter $name; valid:" $known >&2; exit 2; }
  if ! environment "$name"; then
    echo "!!!! the adapter $name was NOT TESTED: its packages could not be installed (see above) !!!!" >&2
    skipped+=("$name")
    continue
  fi
  echo "adapter $name"
  # The packages, and what they import, warn of deprecated names, which are none of ours.
  ".venv-adapters/$name/bin/python" -m pytest -W default -p no:cacheprovider "tests/adapters/$name" "$@" || failed+=("$name")
done
[ ${#skipped[@]} -eq 0 ] || echo "!!!! adapters NOT TESTED: ${skipped[*]} !!!!" >&2
if [ ${#failed[@]} -gt 0 ]; then
  echo "adapters whose tests failed: ${failed[*]}" >&2
  exit 1
fi
