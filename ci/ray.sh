#!/usr/bin/env bash
# Runs engines in actors of a real Ray, on this machine: the tests that the suite leaves out because the library is large.
#
# Usage: ci/ray.sh
#   PYTHON=python3.12   the interpreter
set -euo pipefail
cd "$(dirname "$0")/.."
venv=build/ray
[[ -x $venv/bin/python ]] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check -c constraints/cpu.txt -e '.[dev,ray]'
"$venv/bin/pip" check
exec "$venv/bin/python" -m pytest --timeout=600 tests/engine/test_scale_on_{ray,nodes}.py tests/unit/scale "$@"
